//! The process's open domains of libfabric, shared by the connections to all servers.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use fabcache_fabric::{Domain, Error, Library, ProviderRequirements};
use fabcache_layout::process::Process;

/// What identifies an open domain.
#[derive(Debug, PartialEq, Eq)]
struct DomainKey {
    process: Process,
    host: Option<IpAddr>,
    address_format: u32,
    requirements: ProviderRequirements,
}

/// The open domains; each is closed when its last user drops it.
static OPEN: Mutex<Vec<(DomainKey, Weak<Domain>)>> = Mutex::new(Vec::new());

/// Returns the domain through which `host` is reached, with addresses of this format.
///
/// # Errors
/// There is no libfabric, no provider meets the requirements, or it cannot be opened.
pub fn domain(
    host: Option<IpAddr>,
    address_format: u32,
    requirements: &ProviderRequirements,
) -> Result<Arc<Domain>, Error> {
    let library = Library::open()?;
    let key =
        DomainKey { process: Process::current(), host, address_format, requirements: requirements.clone() };
    // Held while a domain is opened, so that a second thread does not open another.
    let mut open = OPEN.lock().expect("no thread panics while it opens an interface");
    open.retain(|(other, domain)| other.process == key.process && domain.strong_count() > 0);
    let known = open.iter().find(|(other, _)| *other == key).and_then(|(_, domain)| domain.upgrade());
    if let Some(domain) = known {
        return Ok(domain);
    }
    let domain = Domain::open(&library.pick_toward(host, address_format, requirements)?)?;
    open.push((key, Arc::downgrade(&domain)));
    Ok(domain)
}
