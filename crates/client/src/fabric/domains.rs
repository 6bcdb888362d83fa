//! The process' open interfaces of libfabric's providers: what one server's connections use, another's do as well.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use fabcache_fabric::{Domain, Error, Library, ProviderRequirements};
use fabcache_layout::process::Process;

/// An interface as it was asked for.
#[derive(Debug, PartialEq, Eq)]
struct ServerFallback {
    process: Process,
    host: Option<IpAddr>,
    address_format: u32,
    requirements: ProviderRequirements,
}

/// Each as long as anybody uses it.
static OPEN: Mutex<Vec<(ServerFallback, Weak<Domain>)>> = Mutex::new(Vec::new());

/// The interface through which `host` is reached, with names of this kind.
///
/// # Errors
/// There is no libfabric, or nothing in it that is as wished for; it cannot be opened.
pub fn domain(
    host: Option<IpAddr>,
    address_format: u32,
    requirements: &ProviderRequirements,
) -> Result<Arc<Domain>, Error> {
    let library = Library::open()?;
    let asked = ServerFallback {
        process: Process::current(),
        host,
        address_format,
        requirements: requirements.clone(),
    };
    // Held while it is opened: who wants the same would only open another.
    let mut open = OPEN.lock().expect("no thread panics while it opens an interface");
    open.retain(|(other, domain)| other.process == asked.process && domain.strong_count() > 0);
    let known = open.iter().find(|(other, _)| *other == asked).and_then(|(_, domain)| domain.upgrade());
    if let Some(domain) = known {
        return Ok(domain);
    }
    let domain = Domain::open(&library.pick_toward(host, address_format, requirements)?)?;
    open.push((asked, Arc::downgrade(&domain)));
    Ok(domain)
}
