//! The fabric's options: provider, peers and buffers. `opened.rs` opens it.

mod opened;

use std::net::{IpAddr, SocketAddr};
use std::sync::Once;

use anyhow::{Result, bail};

use crate::networks::{self, Network};
use crate::openshmem;
use crate::options::Options;

pub use opened::{Fabric, OpenFabric};

/// The word for this host among networks.
const THIS_HOST: &str = "local";
/// The word for the best provider.
const BEST: &str = "auto";
/// The word for no provider, for instance to override the configuration file.
const NONE: &str = "off";
/// Receive buffers of a worker: of a client that waits for each answer one or two are in use.
const DEFAULT_RECEIVES: u32 = 1024;
const RECEIVES_MIN: u32 = 16;
const RECEIVES_MAX: u32 = 1 << 16;

/// What `--fabric` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricSettings {
    /// The provider, as libfabric calls it; the best if none.
    pub provider: Option<String>,
    /// Its interface; the best if none.
    pub interface: Option<String>,
    /// The clients that may use it.
    pub peers: Peers,
    /// Messages that each worker can receive.
    pub receives: u32,
}

/// Permitted clients, by the source address of their TCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Clients on this host.
    pub own: bool,
    /// Clients in these networks.
    pub networks: Vec<Network>,
}

impl FabricSettings {
    /// Checks the options; none without `--fabric`.
    ///
    /// # Errors
    /// Something given does not make sense; the error names it and says what would.
    pub fn new(options: &Options) -> Result<Option<FabricSettings>> {
        if options.fabric.as_deref() == Some(openshmem::PROVIDER) {
            return Ok(None);
        }
        let Some(requirements) = options.fabric.as_deref().filter(|requirements| *requirements != NONE)
        else {
            let lone = [
                ("--fabric-peers", !options.fabric_peers.is_empty()),
                ("--fabric-receives", options.fabric_receives.is_some()),
            ];
            // If it is turned off, the other options may still be in a file.
            if let (Some((option, _)), None) = (lone.iter().find(|(_, given)| *given), &options.fabric) {
                bail!("{option} needs --fabric: give it too, or leave {option} out");
            }
            return Ok(None);
        };
        let (provider, interface) = requirements
            .split_once(',')
            .map_or((requirements, None), |(provider, interface)| (provider, Some(interface)));
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        if !is_name(provider) || !interface.is_none_or(|name| is_name(name) && !name.is_empty()) {
            bail!(
                "--fabric takes PROVIDER or PROVIDER,INTERFACE, such as verbs or tcp,eth0; not {requirements:?}. `fabcache \
                 fabric` lists what there is"
            );
        }
        let receives = options.fabric_receives.unwrap_or(DEFAULT_RECEIVES);
        if !(RECEIVES_MIN..=RECEIVES_MAX).contains(&receives) {
            bail!("--fabric-receives takes a number from {RECEIVES_MIN} to {RECEIVES_MAX}, not {receives}");
        }
        Ok(Some(FabricSettings {
            provider: Some(provider).filter(|name| !name.is_empty() && *name != BEST).map(str::to_owned),
            interface: interface.map(str::to_owned),
            peers: Peers::new(&options.fabric_peers)?,
            receives,
        }))
    }
}

impl FabricSettings {
    /// Returns whether a provider or an interface was named, so that no other will do.
    pub fn is_named(&self) -> bool {
        self.provider.is_some() || self.interface.is_some()
    }

    /// Returns the requirements in the option's syntax.
    pub fn requirements(&self) -> String {
        let provider = self.provider.as_deref().unwrap_or(BEST);
        self.interface.as_ref().map_or(provider.to_owned(), |interface| format!("{provider},{interface}"))
    }
}

impl Peers {
    fn new(texts: &[String]) -> Result<Peers> {
        let mut peers = Peers { own: texts.is_empty(), networks: Vec::new() };
        for text in texts {
            match text.as_str() {
                THIS_HOST => peers.own = true,
                text => match text.parse() {
                    Ok(network) => peers.networks.push(network),
                    Err(error) => bail!("--fabric-peers: {error:#}; {THIS_HOST} means this host"),
                },
            }
        }
        Ok(peers)
    }

    /// Returns whether only clients of this host may use it.
    pub fn are_local(&self) -> bool {
        self.networks.iter().all(Network::is_loopback)
    }

    /// Returns the networks whose clients may use the fabric but cannot reach any of these TCP addresses.
    pub fn unheard<'a>(&'a self, listening: &'a [SocketAddr]) -> impl Iterator<Item = &'a Network> {
        let is_heard = |network: &&Network| listening.iter().any(|address| network.reaches(address.ip()));
        self.networks.iter().filter(move |network| !is_heard(network))
    }

    /// Returns whether a client that connects from there is permitted.
    pub fn admit(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address)) || self.own && is_own(address)
    }
}

impl std::fmt::Display for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = self.own.then(|| THIS_HOST.to_owned());
        let all: Vec<String> = own.into_iter().chain(self.networks.iter().map(Network::to_string)).collect();
        f.write_str(&all.join(","))
    }
}

/// Returns whether an address is this host's; only loopback if the system does not report them.
fn is_own(address: IpAddr) -> bool {
    static TOLD: Once = Once::new();
    networks::is_own(address).unwrap_or_else(|error| {
        TOLD.call_once(|| tracing::warn!("cannot list this host's addresses other than loopback: {error}"));
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(fabric: &str, more: Options) -> Result<FabricSettings> {
        let options = Options { fabric: Some(fabric.to_owned()), ..more };
        Ok(FabricSettings::new(&options)?.expect("it is on"))
    }

    #[test]
    fn provider_and_interface_can_be_selected() {
        let of = |text| {
            let settings = settings(text, Options::default()).expect(text);
            (settings.provider, settings.interface)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("auto"), (None, None));
        assert_eq!(of(""), (None, None));
        assert_eq!(of(",eth0"), (None, some("eth0")));
        assert_eq!(of("auto,eth0"), (None, some("eth0")));
        assert_eq!(of("tcp;ofi_rxm"), (some("tcp;ofi_rxm"), None));
        assert_eq!(of("verbs,mlx5_0"), (some("verbs"), some("mlx5_0")));
        assert_eq!(FabricSettings::new(&Options::default()).expect("nothing is wrong"), None);
        let off = Options { fabric: Some("off".into()), fabric_receives: Some(64), ..Options::default() };
        assert_eq!(FabricSettings::new(&off).expect("it is off"), None);
    }

    #[test]
    fn only_this_host_is_allowed_by_default() {
        let at = |text: &str| text.parse::<IpAddr>().expect("an address");
        let usual = settings("auto", Options::default()).expect("defaults").peers;
        assert!(usual.admit(at("127.0.0.1")) && usual.admit(at("::1")) && usual.are_local());
        assert!(!usual.admit(at("192.0.2.1")));
        assert_eq!(usual.to_string(), "local");
        let peers = |named: &[&str]| {
            let fabric_peers = named.iter().map(|name| (*name).to_owned()).collect();
            settings("auto", Options { fabric_peers, ..Options::default() }).map(|settings| settings.peers)
        };
        let named = peers(&["192.0.2.0/24", "2001:db8::7"]).expect("networks");
        assert!(named.admit(at("192.0.2.1")) && named.admit(at("2001:db8::7")));
        assert!(!named.admit(at("192.0.3.1")) && !named.admit(at("127.0.0.1")) && !named.are_local());
        for (loopback, local) in
            [("127.0.0.0/8", true), ("::1", true), ("127.0.0.1", true), ("126.0.0.0/7", false)]
        {
            assert_eq!(peers(&[loopback]).expect("a network").are_local(), local, "{loopback}");
        }
        let both = peers(&["192.0.2.0/24", "local"]).expect("networks");
        assert!(both.admit(at("192.0.2.1")) && both.admit(at("127.0.0.1")));
        assert_eq!(both.to_string(), "local,192.0.2.0/24");
        let error = format!("{:#}", peers(&["192.0.2.1/24"]).expect_err("bits behind"));
        assert!(error.contains("--fabric-peers") && error.contains("192.0.2.0/24"), "{error}");
    }

    #[test]
    fn contradictory_options_are_rejected() {
        for wrong in ["verbs,", "tcp,eth0,eth1", "tcp eth0", "a\nb"] {
            let error = format!("{:#}", settings(wrong, Options::default()).expect_err(wrong));
            assert!(error.contains("PROVIDER,INTERFACE"), "{error}");
        }
        for receives in [0, 15, 65537] {
            let more = Options { fabric_receives: Some(receives), ..Options::default() };
            let error = format!("{:#}", settings("auto", more).expect_err("out of range"));
            assert!(error.contains("--fabric-receives"), "{error}");
        }
        for lone in [
            Options { fabric_peers: vec!["local".into()], ..Options::default() },
            Options { fabric_receives: Some(64), ..Options::default() },
        ] {
            let error = format!("{:#}", FabricSettings::new(&lone).expect_err("without --fabric"));
            assert!(error.contains("needs --fabric: give it too"), "{error}");
        }
    }
}
