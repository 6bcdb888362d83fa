//! `fabcache fabric`: lists the machine's fabric providers, which one a server would use, and why not the others.
//!
//! - `trial.rs`: opens each in a child process, which may fail or hang without harm.
//! - `listing.rs`: the result as tables and as JSON.

mod listing;
mod trial;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fabcache_fabric::{Library, ProviderRequirements};
use listing::Listing;

use crate::bench::output;

/// Arguments of `fabcache fabric`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Show what a server with `--fabric PROVIDER,INTERFACE` would use; default `auto`: the best
    #[arg(value_name = "PROVIDER[,INTERFACE]")]
    requirements: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Time limit for opening a provider, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
    /// Open this provider and print the result; the program starts itself with this option for each provider
    #[arg(long, hide = true, conflicts_with_all = ["requirements", "json"])]
    open: Option<String>,
}

/// Parses the text of `--fabric`.
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

/// Lists the providers.
///
/// # Errors
/// There is no libfabric, no provider meets the requirements, or the picked one cannot be opened.
pub fn run(arguments: &Arguments) -> Result<()> {
    let library = Library::open()?;
    if let Some(identity) = &arguments.open {
        return output::print(&trial::open(library, identity)?);
    }
    let survey = library.survey()?;
    let wanted = requirements(arguments.requirements.as_deref().unwrap_or_default());
    let program = std::env::current_exe().context("cannot find this program's own path")?;
    let time_limit = Duration::from_secs(arguments.patience);
    let trials = trial::all(&program, &survey.providers, time_limit);
    let listing = Listing::new(library.version(), &survey, &wanted, &trials);
    output::print(&if arguments.json { listing.json()? } else { listing.text() })?;
    let picked = survey.choose(&wanted)?;
    // A server would pick it nevertheless, and fail.
    let trial =
        survey.providers.iter().zip(trials).find(|(provider, _)| provider.identity() == picked.identity());
    match trial {
        Some((provider, Err(why))) => bail!("a server would use {provider}, which cannot be opened: {why}"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_parsed_as_by_the_server() {
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
