//! The measured servers, and the paths to them.

use std::net::SocketAddr;

use anyhow::Result;
use fabcache_client::{Client, FabricMode, Request, Ttl};
use fabcache_fabric::Provider;

use super::connect::{Connect, keys_of, sized_key, tcp};
use super::names::{AUTO, AUTO_BY_KEY, BY_KEY, LOCATED, REGISTERED, REQUEST};
use super::paths::PathClient;
use super::{Plan, SERVER_CPU};
use crate::process::Process;
use crate::server::{MeasuredProgram, Server};
use crate::shm::servers::value;
use crate::store::keys::KEY_BYTES;

/// Upper bound of an item's overhead, beside key and value.
const OVERHEAD_BYTES: u64 = 100;
/// Minimum memory of a server. In smaller ones, values of 64 KiB span several chunks, which needs
/// another read. In larger ones, a client without cached locations reads more of the index than a round
/// is long.
const SERVER_MEGABYTES_MIN: u64 = 600;
/// Requests in flight while servers are filled.
const FILL_WINDOW: usize = 32;

/// The fabcached with a fabric, and the server it is compared with.
#[derive(Debug)]
pub struct Servers {
    ours: (Server, SocketAddr),
    against: Option<(String, Server, SocketAddr)>,
    /// The clients' end of the provider.
    own: Provider,
}

impl Servers {
    /// Starts the servers, and stores the items to read.
    ///
    /// # Errors
    /// A server does not start, or does not store.
    pub fn start(
        ours: &MeasuredProgram,
        against: Option<&MeasuredProgram>,
        provider: &Provider,
        own: &Provider,
        plan: &Plan,
    ) -> Result<Servers> {
        let mut sizes: Vec<usize> =
            plan.value_bytes.iter().chain(&plan.window_value_bytes).copied().collect();
        sizes.sort_unstable();
        sizes.dedup();
        let of = |bytes: usize| keys_of(bytes) * (bytes as u64 + KEY_BYTES as u64 + OVERHEAD_BYTES);
        let megabytes = ((sizes.iter().copied().map(of).sum::<u64>() * 3 / 2) >> 20) + 128;
        // A provider that pins memory touches all of it; the machine may have no more.
        let megabytes = if provider.pins_memory { megabytes } else { megabytes.max(SERVER_MEGABYTES_MIN) };
        let megabytes = megabytes.to_string();
        let flags = ["-t", "1", "-m", &megabytes, "-I", "2m"];
        let fabric = provider.identity();
        let at = provider.address.map_or(provider.interface.clone(), |at| at.to_string());
        let fabric = fabric.split(',').next().map_or(String::new(), |name| format!("{name},{at}"));
        let flags_of_ours = [&flags[..], &["--fabric", &fabric]].concat();
        let ours = Server::start(ours, &flags_of_ours)?;
        let start = |against: &MeasuredProgram| -> Result<_> {
            let (server, address) = Server::start(against, &flags)?;
            Ok((against.name.clone(), server, address))
        };
        let servers = Servers { ours, against: against.map(start).transpose()?, own: own.clone() };
        let cpu = SERVER_CPU.into();
        fill(&tcp(servers.ours.1)?, &sizes)?;
        // Pinned only once it answers: libfabric's providers change the CPU affinity while they are opened,
        // and restore the former one.
        servers.ours.0.pin(&cpu)?;
        if let Some((_, server, address)) = &servers.against {
            server.pin(&cpu)?;
            fill(&tcp(*address)?, &sizes)?;
        }
        Ok(servers)
    }

    /// Connects over all paths: first the fabric, then TCP. `chooses` adds clients that choose the path.
    ///
    /// # Errors
    /// A server cannot be reached, or not over this path.
    pub fn ways(&self, chooses: bool) -> Result<Vec<PathClient>> {
        let (server, address) = &self.ours;
        let process = server.process();
        let fabric = |name: &str, mode| -> Result<PathClient> {
            let connect = Connect { address: *address, mode: Some(mode), provider: Some(self.own.clone()) };
            PathClient::new(name, connect, process)
        };
        let mut ways = vec![
            fabric(LOCATED, FabricMode::OneSided)?,
            fabric(REGISTERED, FabricMode::OneSided)?,
            fabric(BY_KEY, FabricMode::OneSided)?,
            fabric(REQUEST, FabricMode::Request)?,
        ];
        if chooses {
            ways.extend([fabric(AUTO, FabricMode::Auto)?, fabric(AUTO_BY_KEY, FabricMode::Auto)?]);
        }
        let over_tcp = |name: &str, address: SocketAddr, process: Process| {
            PathClient::new(name, Connect { address, mode: None, provider: None }, process)
        };
        ways.push(over_tcp("TCP", *address, process)?);
        if let Some((name, server, address)) = &self.against {
            ways.push(over_tcp(name, *address, server.process())?);
        }
        Ok(ways)
    }
}

/// Stores the values of every size.
fn fill(client: &Client, sizes: &[usize]) -> Result<()> {
    for &bytes in sizes {
        let items = keys_of(bytes);
        let window = FILL_WINDOW.min(items as usize);
        let mut requests: Vec<Request> = (0..window).map(|_| client.request()).collect();
        for number in 0..items {
            let request = &mut requests[number as usize % window];
            if number >= window as u64 {
                request.wait().result?;
            }
            request.iset(sized_key(number, bytes), value(number, bytes), Ttl::NEVER);
        }
        for request in &mut requests {
            request.wait().result?;
        }
    }
    Ok(())
}
