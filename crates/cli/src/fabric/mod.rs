//! `fabcache fabric`: what of fabrics this machine has, what a server would take, and why not the rest.
//!
//! - `trial.rs`: each is opened in a process of its own, which may fail or hang without harm.
//! - `listing.rs`: what comes of it, as tables and as JSON.

mod listing;
mod trial;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fabcache_fabric::{Library, ProviderRequirements};
use listing::Listing;

use crate::bench::output;

/// What is looked for.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Tell what a server with `--fabric PROVIDER,INTERFACE` would take; the best if it is left out, or `auto`
    #[arg(value_name = "PROVIDER[,INTERFACE]")]
    requirements: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Seconds that opening one may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
    /// Open this one and say how it went: what this program starts for each
    #[arg(long, hide = true, conflicts_with_all = ["requirements", "json"])]
    open: Option<String>,
}

/// What is wished for by the text of `--fabric`.
pub fn requirements(text: &str) -> ProviderRequirements {
    let (provider, interface) =
        text.split_once(',').map_or((text, None), |(provider, interface)| (provider, Some(interface)));
    let provider = Some(provider).filter(|name| !name.is_empty() && *name != "auto");
    ProviderRequirements {
        provider: provider.map(str::to_owned),
        interface: interface.filter(|name| !name.is_empty()).map(str::to_owned),
        only_this_host: false,
    }
}

/// Lists them.
///
/// # Errors
/// There is no libfabric, nothing in it that is as wished for, or it cannot be opened.
pub fn run(arguments: &Arguments) -> Result<()> {
    let library = Library::open()?;
    if let Some(identity) = &arguments.open {
        return output::print(&trial::open(library, identity)?);
    }
    let survey = library.survey()?;
    let wanted = requirements(arguments.requirements.as_deref().unwrap_or_default());
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let patience = Duration::from_secs(arguments.patience);
    let trials = trial::all(&program, &survey.providers, patience);
    let listing = Listing::new(library.version(), &survey, &wanted, &trials);
    output::print(&if arguments.json { listing.json()? } else { listing.text() })?;
    let picked = survey.choose(&wanted)?;
    // A server takes it all the same, and fails.
    let trial =
        survey.providers.iter().zip(trials).find(|(provider, _)| provider.identity() == picked.identity());
    match trial {
        Some((provider, Err(why))) => bail!("{provider} is taken, and cannot be opened: {why}"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_as_the_server_reads_them() {
        for (text, provider, interface) in [
            ("", None, None),
            ("auto", None, None),
            ("verbs", Some("verbs"), None),
            ("tcp;ofi_rxm,eth0", Some("tcp;ofi_rxm"), Some("eth0")),
            (",eth0", None, Some("eth0")),
            ("auto,fd00::2", None, Some("fd00::2")),
        ] {
            let read = requirements(text);
            assert_eq!(
                (read.provider.as_deref(), read.interface.as_deref()),
                (provider, interface),
                "{text}"
            );
        }
    }
}
