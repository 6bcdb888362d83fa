//! memcached's extended options (`-o`).
//!
//! Those that tune mechanisms that are not here (slabs, LRU segments, the crawler's pace) are accepted, shown in
//! `stats settings` as they were given, and said to have no effect. Those whose silence would mislead (a flash tier,
//! a proxy, ciphers) are refused.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};

/// What an extended option does here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// What memcached does with it.
    Works,
    /// Nothing; the text says why.
    Nothing(&'static str),
    /// It is refused; the text says why.
    Refused(&'static str),
}

const SLABS: Effect = Effect::Nothing("memory is not divided into slabs");
const LRU: Effect = Effect::Nothing("eviction works on segments, not on LRU lists");
const CRAWLER: Effect = Effect::Nothing("expired memory comes back without a crawler");
const INDEX: Effect = Effect::Nothing("the index grows by itself and always hashes with xxh3");
const FLASH: Effect = Effect::Refused("there is no flash tier");
const PROXY: Effect = Effect::Refused("there is no proxy");
const BUFFERS: Effect = Effect::Nothing("buffers are bounded for each connection");

/// Every suboption, and what it does here.
const KNOWN: &[(&str, Effect)] = &[
    ("maxconns_fast", Effect::Works),
    ("no_maxconns_fast", Effect::Works),
    ("idle_timeout", Effect::Works),
    ("track_sizes", Effect::Works),
    ("lru_crawler", Effect::Works),
    ("no_lru_crawler", Effect::Works),
    ("ssl_chain_cert", Effect::Works),
    ("ssl_key", Effect::Works),
    ("ssl_ca_cert", Effect::Works),
    ("ssl_verify_mode", Effect::Works),
    ("ssl_min_version", Effect::Works),
    ("ssl_keyformat", Effect::Works),
    ("ssl_ciphers", Effect::Refused("rustls offers only sound ciphers, and none can be chosen")),
    ("ssl_wbuf_size", BUFFERS),
    ("ssl_session_cache", Effect::Nothing("sessions are always resumable")),
    ("ssl_kernel_tls", Effect::Nothing("TLS runs in this process")),
    ("hashpower", INDEX),
    ("no_hashexpand", INDEX),
    ("hash_algorithm", INDEX),
    ("slab_reassign", SLABS),
    ("no_slab_reassign", Effect::Works),
    ("slab_automove", SLABS),
    ("no_slab_automove", SLABS),
    ("slab_automove_ratio", SLABS),
    ("slab_automove_window", SLABS),
    ("slab_automove_freeratio", SLABS),
    ("slab_sizes", SLABS),
    ("slab_chunk_max", SLABS),
    ("no_chunked_items", SLABS),
    ("tail_repair_time", SLABS),
    ("lru_crawler_sleep", CRAWLER),
    ("lru_crawler_tocrawl", CRAWLER),
    ("lru_maintainer", LRU),
    ("no_lru_maintainer", LRU),
    ("hot_lru_pct", LRU),
    ("warm_lru_pct", LRU),
    ("hot_max_factor", LRU),
    ("warm_max_factor", LRU),
    ("temporary_ttl", LRU),
    ("watcher_logbuf_size", BUFFERS),
    ("worker_logbuf_size", BUFFERS),
    ("resp_obj_mem_limit", BUFFERS),
    ("read_buf_mem_limit", BUFFERS),
    ("inline_ascii_resp", Effect::Nothing("it has none in memcached either")),
    ("no_inline_ascii_resp", Effect::Nothing("it has none in memcached either")),
    ("modern", Effect::Nothing("it has none in memcached either")),
    ("no_modern", LRU),
    ("drop_privileges", Effect::Refused("system calls are not filtered; use the service manager's filter")),
    ("no_drop_privileges", Effect::Works),
    ("ext_path", FLASH),
    ("ext_page_size", FLASH),
    ("ext_wbuf_size", FLASH),
    ("ext_threads", FLASH),
    ("ext_io_depth", FLASH),
    ("ext_item_size", FLASH),
    ("ext_item_age", FLASH),
    ("ext_low_ttl", FLASH),
    ("ext_drop_unread", FLASH),
    ("ext_recache_rate", FLASH),
    ("ext_compact_under", FLASH),
    ("ext_drop_under", FLASH),
    ("ext_max_frag", FLASH),
    ("ext_max_sleep", FLASH),
    ("proxy_config", PROXY),
    ("proxy_arg", PROXY),
    ("proxy_uring", PROXY),
    ("proxy_memprofile", PROXY),
];

/// What the extended options came to.
#[derive(Clone, Debug, Default)]
pub struct Extended {
    /// Refuse connections beyond the limit at once, instead of letting them wait.
    pub maxconns_fast: Option<bool>,
    /// Seconds after which an idle connection is dropped.
    pub idle_timeout: Option<u32>,
    /// Keep the histogram of `stats sizes`.
    pub track_sizes: bool,
    /// `lru_crawler` commands work.
    pub lru_crawler: Option<bool>,
    /// `slabs reassign` says that it is off.
    pub no_slab_reassign: bool,
    /// Certificate chain, PEM.
    pub ssl_chain_cert: Option<PathBuf>,
    /// Private key, PEM.
    pub ssl_key: Option<PathBuf>,
    /// Authorities for client certificates, PEM.
    pub ssl_ca_cert: Option<PathBuf>,
    /// 0 none, 1 asked for, 2 and 3 required.
    pub ssl_verify_mode: u8,
    /// 0 to 3 for TLS 1.0 to 1.3.
    pub ssl_min_version: Option<u8>,
    /// Options without effect, and why.
    pub without_effect: Vec<(String, &'static str)>,
    /// All that was given, for `stats settings`.
    pub given: BTreeMap<String, String>,
}

impl Extended {
    /// Reads the words of `-o`.
    ///
    /// # Errors
    /// An unknown or refused option, or a value that is none.
    pub fn parse(words: &[String]) -> Result<Extended> {
        let mut extended = Extended::default();
        for word in words {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            match KNOWN.iter().find(|(known, _)| *known == name) {
                Some((_, Effect::Refused(why))) => bail!("-o {name} cannot be had: {why}"),
                Some((_, Effect::Nothing(why))) => extended.without_effect.push((name.to_owned(), *why)),
                Some((_, Effect::Works)) => extended.set(name, value)?,
                None => bail!(unknown(name)),
            }
            extended.given.insert(name.to_owned(), value.unwrap_or("yes").to_owned());
        }
        Ok(extended)
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let needed = || value.ok_or_else(|| anyhow!("-o {name} needs a value, as {name}=VALUE"));
        let path = || needed().map(|value| Some(PathBuf::from(value)));
        match name {
            "maxconns_fast" => self.maxconns_fast = Some(true),
            "no_maxconns_fast" => self.maxconns_fast = Some(false),
            "idle_timeout" => self.idle_timeout = Some(number(name, needed()?, 0, u32::MAX)?),
            "track_sizes" => self.track_sizes = true,
            "lru_crawler" => self.lru_crawler = Some(true),
            "no_lru_crawler" => self.lru_crawler = Some(false),
            "no_slab_reassign" => self.no_slab_reassign = true,
            "ssl_chain_cert" => self.ssl_chain_cert = path()?,
            "ssl_key" => self.ssl_key = path()?,
            "ssl_ca_cert" => self.ssl_ca_cert = path()?,
            "ssl_verify_mode" => self.ssl_verify_mode = number(name, needed()?, 0, 3)? as u8,
            "ssl_min_version" => self.ssl_min_version = Some(number(name, needed()?, 0, 3)? as u8),
            "ssl_keyformat" if needed()? != "1" => bail!("-o ssl_keyformat: keys are read as PEM (1) only"),
            _ => {}
        }
        Ok(())
    }
}

fn number(name: &str, value: &str, min: u32, max: u32) -> Result<u32> {
    let parsed = value.parse().ok().filter(|n| (min..=max).contains(n));
    parsed.ok_or_else(|| anyhow!("-o {name} takes a number from {min} to {max}, not {value:?}"))
}

fn unknown(name: &str) -> String {
    let nearest = KNOWN.iter().map(|(known, _)| (strsim::damerau_levenshtein(name, known), *known)).min();
    match nearest {
        Some((distance, known)) if distance <= 3 => {
            format!("Illegal suboption \"{name}\"; is {known} meant?")
        }
        _ => format!("Illegal suboption \"{name}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Extended> {
        Extended::parse(&words.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_work_or_say_that_they_do_not() {
        let extended =
            parse("no_maxconns_fast,idle_timeout=30,slab_automove=2,modern,track_sizes").expect("known");
        assert_eq!((extended.maxconns_fast, extended.idle_timeout), (Some(false), Some(30)));
        assert_eq!(extended.without_effect.len(), 2);
        assert_eq!(extended.given["slab_automove"], "2");
        assert!(extended.track_sizes);
    }

    #[test]
    fn mistakes_are_named() {
        for (words, needle) in [
            ("idle_timeot=3", "is idle_timeout meant?"),
            ("nonsense", "Illegal suboption \"nonsense\""),
            ("idle_timeout", "needs a value"),
            ("idle_timeout=x", "not \"x\""),
            ("ext_path=/x:1g", "no flash tier"),
            ("ssl_verify_mode=9", "0 to 3"),
        ] {
            let error = parse(words).expect_err(words).to_string();
            assert!(error.contains(needle), "{words}: {error}");
        }
    }
}
