//! The fabric: libfabric itself, the client library over it and over TCP, and another server over TCP.
//!
//! - `peer.rs`: the remote end of plain libfabric, in a separate process; `raw.rs`: the local end.
//! - `servers.rs`: the servers and what is stored there; `connect.rs`: connections to them; `paths.rs`: the measured
//!   calls.
//! - `timing.rs`: percentiles of single calls, and calls per second.
//! - `report.rs`: the results.

pub mod connect;
pub mod names;
pub mod paths;
pub mod peer;
pub mod raw;
pub mod report;
pub mod servers;
pub mod timing;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fabcache_fabric::{Library, Provider, ProviderRequirements};

use crate::process::pin;
use crate::server::MeasuredProgram;
use raw::Raw;
use report::{Figure, Reads, What};
use servers::Servers;

/// CPU of the servers.
pub const SERVER_CPU: usize = 0;
/// CPU of the client.
pub const CLIENT_CPU: usize = 1;
/// Keys that are read repeatedly.
pub const HOT_KEYS: u64 = 64;
/// Bytes of a request or completion message: about as many as a request for a key has.
pub const SHORT_BYTES: usize = 32;
/// The name of plain libfabric.
pub const RAW: &str = "raw";

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The provider, and its interface.
    pub requirements: ProviderRequirements,
    /// The client's interface, if it differs.
    pub client_interface: Option<String>,
    /// Also measure clients that choose between reads and requests, and multigets.
    pub chooses: bool,
    /// Bytes of a value.
    pub value_bytes: Vec<usize>,
    /// The value sizes that are also measured with windows.
    pub window_value_bytes: Vec<usize>,
    /// Numbers of operations in flight.
    pub windows: Vec<usize>,
    /// Interleaved rounds of everything.
    pub rounds: u32,
    /// Duration of a round.
    pub round: Duration,
    /// The command-line tool, which runs the remote end of plain libfabric.
    pub program: PathBuf,
}

/// Parses `PROVIDER[,INTERFACE]`.
///
/// # Errors
/// A part is empty.
pub fn requirements(text: &str) -> Result<ProviderRequirements> {
    let (provider, interface) = text.split_once(',').map_or((text, None), |(name, at)| (name, Some(at)));
    if provider.is_empty() || interface.is_some_and(str::is_empty) {
        bail!("{text:?} is not PROVIDER or PROVIDER,INTERFACE, such as verbs or 'tcp;ofi_rxm,lo'");
    }
    let interface = interface.map(str::to_owned);
    Ok(ProviderRequirements { provider: Some(provider.to_owned()), interface, only_this_host: false })
}

/// Returns the provider to measure: on a loopback interface, unless one is named or none exists.
///
/// # Errors
/// libfabric is not installed, or no provider meets the requirements.
pub fn provider(requirements: &ProviderRequirements) -> Result<Provider> {
    let library = Library::open()?;
    let here = library.pick(&ProviderRequirements { only_this_host: true, ..requirements.clone() });
    Ok(here.or_else(|_| library.pick(requirements))?)
}

/// Returns the client's end of a provider: the same, unless the client has its own interface.
///
/// # Errors
/// The provider is not available at that interface.
pub fn client_end(provider: &Provider, interface: Option<&str>) -> Result<Provider> {
    let Some(interface) = interface else { return Ok(provider.clone()) };
    let (name, interface) = (Some(provider.name.clone()), Some(interface.to_owned()));
    Ok(Library::open()?.pick(&ProviderRequirements { provider: name, interface, only_this_host: false })?)
}

/// Measures everything. Without a server it measures only plain libfabric.
///
/// # Errors
/// The provider does not exist; a server does not start, has no fabric, or answers wrongly.
pub fn measure(
    ours: Option<&MeasuredProgram>,
    against: Option<&MeasuredProgram>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<(Reads, Vec<Figure>)> {
    let provider = provider(&plan.requirements)?;
    let own = client_end(&provider, plan.client_interface.as_deref())?;
    pin(None, &CLIENT_CPU.into())?;
    progress("the store's own part");
    let mut figures = Vec::new();
    if ours.is_some() {
        for &bytes in &plan.value_bytes {
            figures.extend(paths::store(bytes, plan)?);
        }
    }
    let largest = plan.value_bytes.iter().chain(&plan.window_value_bytes).max();
    let most = plan.windows.iter().max().copied().unwrap_or(1);
    let mut raw = Raw::start(&plan.program, &provider, &own, *largest.context("no size is given")?, most)?;
    let servers = ours.map(|ours| Servers::start(ours, against, &provider, &own, plan)).transpose()?;
    let mut clients =
        servers.as_ref().map(|servers| servers.ways(plan.chooses)).transpose()?.unwrap_or_default();
    for round in 0..plan.rounds {
        for &bytes in &plan.value_bytes {
            progress(&format!("round {} of {}, {bytes} bytes", round + 1, plan.rounds));
            let before = figures.len();
            figures.extend(raw.latencies(bytes, plan)?);
            for way in turns(&mut clients, round) {
                figures.extend(way.latencies(bytes, plan)?);
            }
            figures[before..].iter_mut().for_each(|figure| figure.round = round);
        }
        for &bytes in &plan.window_value_bytes {
            progress(&format!("round {} of {}, windows of {bytes} bytes", round + 1, plan.rounds));
            let before = figures.len();
            for &window in &plan.windows {
                figures.extend(raw.rates(bytes, window, plan)?);
                for way in turns(&mut clients, round) {
                    figures.extend(way.rates(bytes, window, plan)?);
                }
            }
            figures[before..].iter_mut().for_each(|figure| figure.round = round);
        }
    }
    Ok((raw.reads(), figures))
}

/// Iterates in alternating direction, so that no entry always comes first.
fn turns<T>(all: &mut [T], round: u32) -> impl Iterator<Item = &mut T> {
    let (mut forth, mut back) = (None, None);
    if round.is_multiple_of(2) {
        forth = Some(all.iter_mut());
    } else {
        back = Some(all.iter_mut().rev());
    }
    forth.into_iter().flatten().chain(back.into_iter().flatten())
}

/// Returns a figure of plain libfabric.
fn of_raw(what: What, bytes: usize) -> Figure {
    Figure { way: RAW.into(), what, bytes, ..Figure::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_named_with_their_interface_or_without() {
        let both = requirements("tcp;ofi_rxm,lo").expect("it is one");
        assert_eq!((both.provider.as_deref(), both.interface.as_deref()), (Some("tcp;ofi_rxm"), Some("lo")));
        assert_eq!(requirements("verbs").expect("it is one").interface, None);
        for text in ["", ",lo", "verbs,"] {
            assert!(requirements(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_other_round_is_reversed() {
        let mut all = [1, 2, 3];
        assert_eq!(turns(&mut all, 0).map(|one| *one).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(turns(&mut all, 1).map(|one| *one).collect::<Vec<_>>(), [3, 2, 1]);
    }
}
