//! Picks one of the machine's providers, and explains why the others were rejected.

use std::net::IpAddr;

use crate::error::Error;
use crate::library::Library;
use crate::provider::{Description, ORDER, Provider, in_order};

/// A rejected provider, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedProvider {
    /// Its libfabric name.
    pub name: String,
    /// Its interface.
    pub interface: String,
    /// The missing feature.
    pub why: &'static str,
}

/// The providers of a machine.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The usable providers, best first.
    pub providers: Vec<Provider>,
    /// The rejected providers.
    pub rejected: Vec<RejectedProvider>,
}

/// Requirements for the choice of a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderRequirements {
    /// The provider's name; the name without `;ofi_rxm` suffices (`verbs`).
    pub provider: Option<String>,
    /// The interface's name.
    pub interface: Option<String>,
    /// Requires an interface that only this host reaches, unless one is named.
    pub only_this_host: bool,
}

impl Library {
    /// Returns all providers and interfaces of this machine.
    ///
    /// # Errors
    /// libfabric cannot list them.
    pub fn survey(&'static self) -> Result<Survey, Error> {
        let providers = self.list(Some(self.hints()?), None)?;
        let providers = in_order(providers);
        let mut rejected: Vec<RejectedProvider> = Vec::new();
        for info in self.infos(None, None)? {
            let description = Description::of(&info);
            let is_used =
                |other: &Provider| other.name == description.name && other.interface == description.interface;
            let is_known = |other: &RejectedProvider| {
                other.name == description.name && other.interface == description.interface
            };
            if !providers.iter().any(is_used) && !rejected.iter().any(is_known) {
                let why = description.lacks();
                rejected.push(RejectedProvider {
                    name: description.name,
                    interface: description.interface,
                    why,
                });
            }
        }
        Ok(Survey { providers, rejected })
    }

    /// Returns the provider that a server uses.
    ///
    /// # Errors
    /// No provider meets the requirements; the error lists the available ones.
    pub fn pick(&'static self, requirements: &ProviderRequirements) -> Result<Provider, Error> {
        let survey = self.survey()?;
        survey.choose(requirements).cloned()
    }

    /// Returns the provider with this name that reaches a peer at `host` and whose addresses have this format
    /// (FI_SOCKADDR_…). The peer's endpoint may use another address than `host`.
    ///
    /// # Errors
    /// No provider meets the requirements; the error lists the available ones.
    pub fn pick_toward(
        &'static self,
        host: Option<IpAddr>,
        address_format: u32,
        requirements: &ProviderRequirements,
    ) -> Result<Provider, Error> {
        let requirements = &ProviderRequirements { only_this_host: false, ..requirements.clone() };
        let mut interface = None;
        if let (Some(host), None) = (host, &requirements.interface) {
            let found = self.list(Some(self.hints()?), Some(host)).unwrap_or_default();
            let survey = Survey { providers: found, rejected: Vec::new() };
            if let Some(provider) = survey.pick_of(address_format, requirements) {
                return Ok(provider.clone());
            }
            interface = survey.pick(requirements).map(|provider| provider.interface.clone());
        }
        let survey = self.survey()?;
        let beside = ProviderRequirements {
            interface: interface.or_else(|| requirements.interface.clone()),
            ..requirements.clone()
        };
        let picked =
            survey.pick_of(address_format, &beside).or_else(|| survey.pick_of(address_format, requirements));
        picked.map_or_else(|| survey.choose(requirements), Ok).cloned()
    }
}

impl Survey {
    /// Returns the best provider that meets the requirements.
    pub fn pick(&self, requirements: &ProviderRequirements) -> Option<&Provider> {
        self.providers.iter().find(|provider| self.excludes(provider, requirements).is_none())
    }

    /// Returns the best provider that meets the requirements and whose endpoint names have this format.
    pub(crate) fn pick_of(
        &self,
        address_format: u32,
        requirements: &ProviderRequirements,
    ) -> Option<&Provider> {
        let is_so = |provider: &&Provider| provider.address_format == address_format;
        self.providers.iter().filter(is_so).find(|provider| self.excludes(provider, requirements).is_none())
    }

    /// Like [`Survey::pick`].
    ///
    /// # Errors
    /// No provider meets the requirements; the error lists the requirements and the available providers.
    pub fn choose(&self, requirements: &ProviderRequirements) -> Result<&Provider, Error> {
        self.pick(requirements).ok_or_else(|| self.refusal(requirements))
    }

    /// Returns why another provider is picked; `None` if this one is.
    pub fn why_not(&self, provider: &Provider, requirements: &ProviderRequirements) -> Option<String> {
        if let Some(why) = self.excludes(provider, requirements) {
            return Some(why.into());
        }
        let picked = self.pick(requirements)?;
        if picked.is_same(provider) {
            return None;
        }
        Some(if provider.name != picked.name {
            let is_known = ORDER.contains(&&*provider.name);
            let which = if is_known { "" } else { "has no known rank: " };
            format!("{which}comes after {}", picked.name)
        } else if provider.is_only_this_host() && !picked.is_only_this_host() {
            "only this host reaches it".into()
        } else if provider.address.is_some_and(|at| at.is_ipv6()) {
            "IPv4 comes first".into()
        } else {
            format!("libfabric names {} first", picked.interface)
        })
    }

    fn refusal(&self, requirements: &ProviderRequirements) -> Error {
        let provider = requirements.provider.as_deref();
        let mut text = provider.map_or(String::new(), |name| format!("from provider {name:?} "));
        let elsewhere = ProviderRequirements { only_this_host: false, ..requirements.clone() };
        let is_elsewhere = requirements.stays_here() && self.pick(&elsewhere).is_some();
        match &requirements.interface {
            Some(interface) => text.push_str(&format!("at interface {interface:?} ")),
            None if is_elsewhere => text.push_str("that only this host reaches "),
            None => {}
        }
        let named = |name: &str| provider.is_none_or(|wished| is_named(name, wished));
        let at = |other: &&RejectedProvider| {
            requirements.interface.as_ref().is_none_or(|interface| *interface == other.interface)
        };
        let rejected = self.rejected.iter().filter(|other| named(&other.name)).filter(at);
        // Prefer the one that is named in full.
        let rejected = rejected.min_by_key(|other| Some(&*other.name) != provider);
        let is_there = self.providers.iter().any(|fit| provider.is_some() && named(&fit.name));
        let why = match rejected {
            _ if is_elsewhere => {
                "other hosts reach every usable interface; name its interface, or the peer networks (--fabric-peers)".into()
            }
            Some(RejectedProvider { name, interface, why }) if provider.is_some() && !is_there => {
                let at = if interface.is_empty() { "" } else { " at " };
                format!("{name}{at}{interface} {why}")
            }
            _ if self.providers.is_empty() => "libfabric has no usable provider".into(),
            _ => {
                let mut names: Vec<String> =
                    self.providers.iter().map(|fit| format!("{},{}", fit.name, fit.interface)).collect();
                names.dedup();
                format!("there are {}", names.join(" "))
            }
        };
        Error::NoProvider { requirements: text.trim_end().into(), why }
    }

    /// Returns the requirement that a provider does not meet; `None` if it meets all.
    fn excludes(&self, provider: &Provider, requirements: &ProviderRequirements) -> Option<&'static str> {
        if let Some(wished) = &requirements.provider {
            // `net` is a provider of its own, and names `net;ofi_rxm` only if that provider is absent.
            let is_whole = self.providers.iter().any(|other| other.name == *wished);
            if provider.name != *wished && (is_whole || !is_named(&provider.name, wished)) {
                return Some("another provider is named");
            }
        }
        let is_interface = |wished: &String| {
            *wished == provider.interface || provider.address.is_some_and(|at| at.to_string() == *wished)
        };
        if requirements.interface.as_ref().is_some_and(|wished| !is_interface(wished)) {
            return Some("another interface is named");
        }
        // Memory of one host is a fabric only if it is requested by name.
        if provider.name == "shm" && requirements.provider.is_none() {
            return Some("is memory of this host that any process of the user can write; used only if named");
        }
        let is_elsewhere = requirements.stays_here() && !provider.is_only_this_host();
        is_elsewhere.then_some("other hosts reach it as well")
    }
}

impl ProviderRequirements {
    fn stays_here(&self) -> bool {
        self.only_this_host && self.interface.is_none()
    }
}

/// Returns whether `wished` names this provider: `verbs` also names `verbs;ofi_rxm`.
fn is_named(name: &str, wished: &str) -> bool {
    name == wished || name.split(';').next() == Some(wished)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::in_order;
    use crate::provider::tests::provider;

    fn survey() -> Survey {
        let providers = in_order(vec![
            provider("shm", "shm", None),
            provider("net", "eth0", Some("192.0.2.2")),
            provider("tcp;ofi_rxm", "lo", Some("::1")),
            provider("tcp;ofi_rxm", "lo", Some("127.0.0.1")),
            provider("tcp;ofi_rxm", "eth0", Some("fd00::2")),
            provider("tcp;ofi_rxm", "eth0", Some("192.0.2.2")),
            provider("tcp;ofi_rxm", "eth0", Some("192.0.2.2")),
            provider("odd", "odd0", Some("192.0.2.3")),
            provider("net;ofi_rxm", "eth0", Some("192.0.2.2")),
        ]);
        let why = "has only datagrams, which may be lost";
        Survey {
            providers,
            rejected: vec![RejectedProvider { name: "udp".into(), interface: "eth0".into(), why }],
        }
    }

    fn requirements(provider: &str, interface: &str, only_this_host: bool) -> ProviderRequirements {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        ProviderRequirements { provider: given(provider), interface: given(interface), only_this_host }
    }

    fn picked(survey: &Survey, requirements: &ProviderRequirements) -> String {
        survey.pick(requirements).expect("one meets the requirements").identity()
    }

    #[test]
    fn best_provider_meeting_the_requirements_is_picked() {
        let survey = survey();
        assert_eq!(survey.providers.len(), 8, "each once");
        for (provider, interface, only_this_host, expected) in [
            ("", "", false, "tcp;ofi_rxm,eth0,,192.0.2.2"),
            ("", "", true, "tcp;ofi_rxm,lo,,127.0.0.1"),
            ("tcp", "", false, "tcp;ofi_rxm,eth0,,192.0.2.2"),
            ("tcp", "eth0", true, "tcp;ofi_rxm,eth0,,192.0.2.2"),
            ("tcp", "fd00::2", true, "tcp;ofi_rxm,eth0,,fd00::2"),
            ("net", "", false, "net,eth0,,192.0.2.2"),
            ("net;ofi_rxm", "", false, "net;ofi_rxm,eth0,,192.0.2.2"),
            ("shm", "", true, "shm,shm,,"),
            ("shm", "", false, "shm,shm,,"),
            ("odd", "", false, "odd,odd0,,192.0.2.3"),
        ] {
            let requirements = requirements(provider, interface, only_this_host);
            assert_eq!(picked(&survey, &requirements), expected, "{requirements:?}");
        }
        let hardware = in_order(vec![
            provider("tcp;ofi_rxm", "eth0", Some("192.0.2.2")),
            provider("verbs;ofi_rxm", "mlx5_0", Some("198.51.100.2")),
            provider("efa", "rdmap0", None),
        ]);
        let survey = Survey { providers: hardware, rejected: Vec::new() };
        assert_eq!(picked(&survey, &ProviderRequirements::default()), "efa,rdmap0,,");
        assert_eq!(picked(&survey, &requirements("verbs", "", false)), "verbs;ofi_rxm,mlx5_0,,198.51.100.2");
        // These do not report whom they reach; all but memory are networks.
        for (name, interface) in [("efa", "rdmap0"), ("cxi", "cxi0"), ("psm3", "mlx5_0"), ("opx", "hfi1_0")] {
            let only = |providers| Survey { providers, rejected: Vec::new() };
            let alone = only(vec![provider(name, interface, None)]);
            assert_eq!(alone.pick(&requirements("", "", true)).map(Provider::identity), None, "{name}");
            let error = alone.choose(&requirements(name, "", true)).expect_err(name).to_string();
            assert!(error.contains("the peer networks (--fabric-peers)"), "{error}");
            assert_eq!(picked(&alone, &requirements(name, interface, true)), format!("{name},{interface},,"));
            let both = [provider(name, interface, None), provider("tcp;ofi_rxm", "lo", Some("127.0.0.1"))];
            let both = only(in_order(both.into()));
            assert_eq!(picked(&both, &requirements("", "", true)), "tcp;ofi_rxm,lo,,127.0.0.1");
            assert_eq!(picked(&both, &requirements("", "", false)), format!("{name},{interface},,"));
        }
    }

    #[test]
    fn provider_with_the_requested_address_format_is_picked() {
        let of = |address_format, provider| Provider { address_format, ..provider };
        let providers = in_order(vec![
            of(2, provider("tcp;ofi_rxm", "eth0", Some("192.0.2.2"))),
            of(3, provider("tcp;ofi_rxm", "lo", Some("::1"))),
            of(2, provider("tcp;ofi_rxm", "lo", Some("127.0.0.1"))),
        ]);
        let survey = Survey { providers, rejected: Vec::new() };
        let picked = |kind, interface| {
            survey.pick_of(kind, &requirements("tcp;ofi_rxm", interface, false)).map(Provider::identity)
        };
        assert_eq!(picked(2, "").as_deref(), Some("tcp;ofi_rxm,eth0,,192.0.2.2"));
        assert_eq!(picked(2, "lo").as_deref(), Some("tcp;ofi_rxm,lo,,127.0.0.1"));
        assert_eq!(picked(3, "").as_deref(), Some("tcp;ofi_rxm,lo,,::1"));
        assert_eq!(picked(3, "eth0"), None);
    }

    #[test]
    fn every_other_provider_has_a_reason() {
        let survey = survey();
        let whys = |requirements: ProviderRequirements| -> Vec<Option<String>> {
            survey.providers.iter().map(|provider| survey.why_not(provider, &requirements)).collect()
        };
        let reported = |whys: &[Option<String>]| whys.iter().filter(|why| why.is_none()).count();
        let any = whys(ProviderRequirements::default());
        let expected = [
            "",
            "IPv4 comes first",
            "only this host reaches it",
            "only this host reaches it",
            "comes after tcp;ofi_rxm",
            "comes after tcp;ofi_rxm",
            "has no known rank: comes after tcp;ofi_rxm",
            "is memory of this host that any process of the user can write; used only if named",
        ];
        for (provider, expected) in survey.providers.iter().zip(expected) {
            let why = survey.why_not(provider, &ProviderRequirements::default()).unwrap_or_default();
            assert_eq!(why, expected, "{provider:?}");
        }
        let local = whys(requirements("", "", true));
        let named = whys(requirements("net", "", false));
        assert_eq!((reported(&any), reported(&local), reported(&named)), (1, 1, 1));
        assert_eq!(local[0].as_deref(), Some("other hosts reach it as well"));
        assert_eq!(named[0].as_deref(), Some("another provider is named"));
        assert!(whys(requirements("none", "", false)).iter().all(Option::is_some));
    }

    #[test]
    fn error_lists_the_alternatives() {
        for (requirements, culprits) in [
            (requirements("nothing", "", false), ["\"nothing\"", "there are tcp;ofi_rxm,eth0"]),
            (requirements("udp", "", false), ["\"udp\"", "only datagrams"]),
            (requirements("net", "", true), ["only this host", "name its interface"]),
            (requirements("tcp", "eth9", false), ["\"eth9\"", "tcp;ofi_rxm,lo"]),
        ] {
            let error = survey().choose(&requirements).expect_err("none is so").to_string();
            assert!(culprits.iter().all(|culprit| error.contains(culprit)), "{error}");
        }
        let error = survey().choose(&requirements("nothing", "", true)).expect_err("none is so").to_string();
        assert!(!error.contains("only this host"), "{error}");
        let error = Survey::default()
            .choose(&ProviderRequirements::default())
            .expect_err("nothing is there")
            .to_string();
        assert!(error.contains("no usable provider"), "{error}");
    }
}
