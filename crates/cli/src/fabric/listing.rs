//! Lists the machine's providers, for people and for programs.

use std::fmt::Write;

use anyhow::Result;
use fabcache_fabric::{ORDER, Provider, ProviderRequirements, Survey};
use serde::Serialize;

use super::trial::{Opened, Trial};

/// All of it.
#[derive(Debug, Serialize)]
pub struct Listing {
    libfabric: String,
    #[serde(rename = "wish")]
    requirements: String,
    /// The providers that a server picks for clients of this host only, and for others.
    picked: Picked,
    order: Vec<&'static str>,
    usable: Vec<Usable>,
    unusable: Vec<Unusable>,
}

#[derive(Debug, Serialize)]
struct Picked {
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
    /// Why it cannot be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    fails: Option<String>,
    /// Why another is picked, by a server whose clients are all of this host.
    why_not_this_host: Option<String>,
    /// The same where others may come.
    why_not_networks: Option<String>,
}

#[derive(Debug, Serialize)]
struct Unusable {
    provider: String,
    interface: String,
    why: &'static str,
}

/// As `--fabric` names it.
fn named(provider: &Provider) -> String {
    // Of an interface with several addresses one is named by its address.
    let at = provider.address.filter(|at| at.is_ipv6()).map(|at| at.to_string());
    format!("{},{}", provider.name, at.unwrap_or_else(|| provider.interface.clone()))
}

impl Listing {
    /// Of a survey, and what came of opening each.
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
            picked: Picked {
                this_host: survey.pick(&here).map(named),
                networks: survey.pick(requirements).map(named),
            },
            order: ORDER.to_vec(),
            usable: usable.collect(),
            unusable: unusable.collect(),
        }
    }

    /// For programs.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("libfabric {}\n", self.libfabric);
        let Picked { this_host, networks } = &self.picked;
        let requirements =
            if self.requirements == "auto" { String::new() } else { format!(" '{}'", self.requirements) };
        let told = |picked: &Option<String>| picked.clone().unwrap_or_else(|| "nothing".into());
        let _ = writeln!(
            text,
            "fabcached --fabric{requirements} uses {} for clients of this host",
            told(this_host)
        );
        let _ = writeln!(text, "and with networks that may come (--fabric-peers) {}", told(networks));
        let _ = writeln!(text, "Best first: {}", self.order.join(" "));
        if !self.usable.is_empty() {
            let _ = writeln!(text, "\n{}", self.table());
            text.push_str(
                "one-sided: reads are served without the server's help; in order: reads are carried out one after the \
                 other\nwaits: nobody need poll while nothing comes; inject: messages of so many bytes need no buffer\n",
            );
            self.reasons(&mut text);
        }
        if !self.unusable.is_empty() {
            text.push_str("\nCannot be used:\n");
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

    /// Why not: for a server of this host's clients, and for others where that is another reason.
    fn reasons(&self, text: &mut String) {
        text.push_str("\nWhy not:\n");
        let mut rows = Vec::new();
        for usable in &self.usable {
            let name =
                format!("{},{}", usable.provider, usable.address.as_ref().unwrap_or(&usable.interface));
            let (here, networks) = (&usable.why_not_this_host, &usable.why_not_networks);
            let why = match (here, networks) {
                (None, None) => "is taken".into(),
                (Some(here), Some(networks)) if here == networks => here.clone(),
                (None, Some(networks)) => {
                    format!("is taken for this host's clients; with networks: {networks}")
                }
                (Some(here), None) => format!("is taken with networks; for this host's clients: {here}"),
                (Some(here), Some(networks)) => format!("{here}; with networks: {networks}"),
            };
            let fails = usable.fails.as_ref().map_or(String::new(), |fails| format!("; {fails}"));
            rows.push([name, why + &fails]);
        }
        text.push_str(&aligned(&rows));
    }
}

/// Columns as wide as what is in them.
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
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["a", "bcd"], ["efg", "h"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "a    bcd\nefg  h\n");
        assert_eq!(aligned::<Vec<String>>(&[]), "");
    }

    #[test]
    fn a_machine_with_nothing_is_listed() {
        let listing = Listing::new("1.17".into(), &Survey::default(), &ProviderRequirements::default(), &[]);
        assert!(listing.text().contains("uses nothing"), "{}", listing.text());
        assert!(listing.json().expect("JSON").contains("\"libfabric\": \"1.17\""));
    }
}
