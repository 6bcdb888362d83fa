//! Lists the machine's providers, for people and for programs.

use std::fmt::Write;

use anyhow::Result;
use fabcache_fabric::{ORDER, Provider, ProviderRequirements, Survey};
use serde::Serialize;

use super::trial::{Opened, Trial};

/// The survey of this machine's providers.
#[derive(Debug, Serialize)]
pub struct Listing {
    libfabric: String,
    #[serde(rename = "wish")]
    requirements: String,
    /// The providers that a server picks.
    picked: PickedProviders,
    order: Vec<&'static str>,
    usable: Vec<Usable>,
    unusable: Vec<Unusable>,
}

#[derive(Debug, Serialize)]
struct PickedProviders {
    this_host: Option<String>,
    networks: Option<String>,
}

#[derive(Debug, Serialize)]
struct Usable {
    provider: String,
    interface: String,
    network: String,
    address: Option<String>,
    one_sided: bool,
    reads_in_order: bool,
    inject_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    opened: Option<Opened>,
    /// Why opening it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    fails: Option<String>,
    /// Why a server for clients of this host picks another.
    why_not_this_host: Option<String>,
    /// Why a server for other hosts picks another.
    why_not_networks: Option<String>,
}

#[derive(Debug, Serialize)]
struct Unusable {
    provider: String,
    interface: String,
    why: &'static str,
}

/// Returns a provider's name for `--fabric`.
fn named(provider: &Provider) -> String {
    // The address distinguishes several addresses of an interface.
    let at = provider.address.filter(|at| at.is_ipv6()).map(|at| at.to_string());
    format!("{},{}", provider.name, at.unwrap_or_else(|| provider.interface.clone()))
}

impl Listing {
    /// Returns the listing of a survey and of the trial of each provider.
    pub fn new(
        libfabric: String,
        survey: &Survey,
        requirements: &ProviderRequirements,
        trials: &[Trial],
    ) -> Listing {
        let here = ProviderRequirements { only_this_host: true, ..requirements.clone() };
        let usable = survey.providers.iter().zip(trials).map(|(provider, trial)| Usable {
            provider: provider.name.clone(),
            interface: provider.interface.clone(),
            network: provider.fabric.clone(),
            address: provider.address.map(|at| at.to_string()),
            one_sided: trial.as_ref().map_or(provider.is_one_sided, |opened| opened.one_sided),
            reads_in_order: provider.reads_in_order,
            inject_bytes: provider.inject_bytes,
            opened: trial.as_ref().ok().cloned(),
            fails: trial.as_ref().err().cloned(),
            why_not_this_host: survey.why_not(provider, &here),
            why_not_networks: survey.why_not(provider, requirements),
        });
        let unusable = survey.rejected.iter().map(|rejected| Unusable {
            provider: rejected.name.clone(),
            interface: rejected.interface.clone(),
            why: rejected.why,
        });
        let wished =
            [&requirements.provider, &requirements.interface].map(|part| part.as_deref().unwrap_or("auto"));
        Listing {
            libfabric,
            requirements: if requirements.interface.is_some() { wished.join(",") } else { wished[0].into() },
            picked: PickedProviders {
                this_host: survey.pick(&here).map(named),
                networks: survey.pick(requirements).map(named),
            },
            order: ORDER.to_vec(),
            usable: usable.collect(),
            unusable: unusable.collect(),
        }
    }

    /// Returns the listing as JSON.
    ///
    /// # Errors
    /// It cannot be serialized.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Returns the listing as text.
    pub fn text(&self) -> String {
        let mut text = format!("libfabric {}\n", self.libfabric);
        let PickedProviders { this_host, networks } = &self.picked;
        let requirements =
            if self.requirements == "auto" { String::new() } else { format!(" '{}'", self.requirements) };
        let name_or_none = |picked: &Option<String>| picked.clone().unwrap_or_else(|| "nothing".into());
        let _ = writeln!(
            text,
            "fabcached --fabric{requirements} uses {} for clients of this host",
            name_or_none(this_host)
        );
        let _ = writeln!(text, "and {} with peer networks (--fabric-peers)", name_or_none(networks));
        let _ = writeln!(text, "Order of preference: {}", self.order.join(" "));
        if !self.usable.is_empty() {
            let _ = writeln!(text, "\n{}", self.table());
            text.push_str(
                "one-sided: reads need no CPU of the server; in order: reads are carried out one after the other\n\
                 waits: a thread can sleep until a completion; inject: messages up to this size need no buffer\n",
            );
            self.reasons(&mut text);
        }
        if !self.unusable.is_empty() {
            text.push_str("\nUnusable:\n");
            let rows = self.unusable.iter().map(|other| [&*other.provider, &*other.interface, other.why]);
            text.push_str(&aligned(&rows.map(|row| row.map(str::to_owned)).collect::<Vec<_>>()));
        }
        text
    }

    fn table(&self) -> String {
        let titles =
            ["provider", "interface", "network", "address", "one-sided", "in order", "waits", "inject"];
        let mut rows =
            vec![[&titles[..], &["endpoint", "memory"]].concat().iter().map(|&s| s.to_owned()).collect()];
        let yes = |is: bool| (if is { "yes" } else { "no" }).to_owned();
        for usable in &self.usable {
            let (waits, endpoint, memory) = match &usable.opened {
                Some(opened) => {
                    let memory = format!("{:.1} MiB", opened.memory_kib as f64 / 1024.0);
                    (yes(opened.waits), opened.name.clone(), memory)
                }
                None => ("-".into(), "cannot be opened".into(), "-".into()),
            };
            let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
            rows.push(vec![
                usable.provider.clone(),
                dash(&usable.interface),
                dash(&usable.network),
                usable.address.clone().unwrap_or("-".into()),
                yes(usable.one_sided),
                yes(usable.reads_in_order),
                waits,
                format!("{} B", usable.inject_bytes),
                endpoint,
                memory,
            ]);
        }
        aligned(&rows)
    }

    /// Appends why each provider is not used, for clients of this host and for peer networks.
    fn reasons(&self, text: &mut String) {
        text.push_str("\nUse:\n");
        let mut rows = Vec::new();
        for usable in &self.usable {
            let name =
                format!("{},{}", usable.provider, usable.address.as_ref().unwrap_or(&usable.interface));
            let (here, networks) = (&usable.why_not_this_host, &usable.why_not_networks);
            let why = match (here, networks) {
                (None, None) => "used".into(),
                (Some(here), Some(networks)) if here == networks => here.clone(),
                (None, Some(networks)) => {
                    format!("used for this host's clients; with peer networks: {networks}")
                }
                (Some(here), None) => format!("used with peer networks; for this host's clients: {here}"),
                (Some(here), Some(networks)) => format!("{here}; with peer networks: {networks}"),
            };
            let fails = usable.fails.as_ref().map_or(String::new(), |fails| format!("; {fails}"));
            rows.push([name, why + &fails]);
        }
        text.push_str(&aligned(&rows));
    }
}

/// Aligns the columns of a table.
fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.as_ref().get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.as_ref().iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "bcd"], ["efg", "h"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "a    bcd\nefg  h\n");
        assert_eq!(aligned::<Vec<String>>(&[]), "");
    }

    #[test]
    fn a_machine_without_providers_is_listed() {
        let listing = Listing::new("1.17".into(), &Survey::default(), &ProviderRequirements::default(), &[]);
        assert!(listing.text().contains("uses nothing"), "{}", listing.text());
        assert!(listing.json().expect("JSON").contains("\"libfabric\": \"1.17\""));
    }
}
