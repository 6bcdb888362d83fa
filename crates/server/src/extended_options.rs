//! memcached's extended options (`-o`).
//!
//! Those that tune mechanisms that are not here (slabs, LRU segments, the crawler's pace, buckets on flash) are
//! accepted and said to have no effect; `stats settings` has those that memcached shows, as they were given. Those
//! whose silence would mislead (a proxy, ciphers) are refused.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::options::{nearest, path_and_size};

/// The effect of a `-o` option here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionEffect {
    /// It works as in memcached.
    Works,
    /// Nothing; the text says why.
    Nothing(&'static str),
    /// It is rejected; the text says why.
    Refused(&'static str),
}

/// The argument of a `-o` option, with memcached's checks or sensible ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentKind {
    /// No value; an affirmative one is accepted too.
    Nothing,
    /// A number from the first to the second.
    Number(u32, u32),
    /// A number in this range, or no value.
    NumberOrNothing(u32, u32),
    /// A number from 0 up, with a point or without.
    Fraction,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Numbers with a dash between them.
    Sizes,
    /// The name of a file.
    File,
    /// FILE:SIZE or FILE:SIZE:BUCKET, for the flash tier.
    Device,
    /// It is rejected with any value.
    Anything,
}

/// Any number.
const NUMBER: ArgumentKind = ArgumentKind::Number(0, u32::MAX);

const SLABS: OptionEffect = OptionEffect::Nothing("memory is not divided into slabs");
const LRU: OptionEffect = OptionEffect::Nothing("eviction works on segments, not on LRU lists");
const CRAWLER: OptionEffect = OptionEffect::Nothing("expired memory is reclaimed without a crawler");
const INDEX: OptionEffect = OptionEffect::Nothing("the index grows by itself and always hashes with xxh3");
const FLASH_BUFFERS: OptionEffect = OptionEffect::Nothing("the flash tier sizes its write buffers itself");
const FLASH_THREADS: OptionEffect =
    OptionEffect::Nothing("one thread writes to flash, and each worker reads through its own io_uring");
const FLASH_AGE: OptionEffect =
    OptionEffect::Nothing("items move to flash when memory evicts them, whatever their age");
const FLASH_BUCKETS: OptionEffect = OptionEffect::Nothing("flash has no buckets");
const FLASH_RECACHE: OptionEffect =
    OptionEffect::Nothing("items return from flash to memory by how soon they are read again");
const FLASH_ORDER: OptionEffect = OptionEffect::Nothing(
    "flash evicts whole segments in the order they were written, and with -M compacts them when it is full",
);
const FLASH_SLEEP: OptionEffect =
    OptionEffect::Nothing("the thread that writes to flash is woken when there is something to write");
const PROXY: OptionEffect = OptionEffect::Refused("there is no proxy");
const BUFFERS: OptionEffect = OptionEffect::Nothing("buffers are bounded for each connection");

/// The buckets of memcached's extstore.
const BUCKETS: &[&str] = &["default", "compact", "lowttl", "chunked", "coldcompact", "old"];

/// Every suboption, its argument, and its effect here.
const KNOWN: &[(&str, ArgumentKind, OptionEffect)] = &[
    ("maxconns_fast", ArgumentKind::Nothing, OptionEffect::Works),
    ("no_maxconns_fast", ArgumentKind::Nothing, OptionEffect::Works),
    ("idle_timeout", NUMBER, OptionEffect::Works),
    ("track_sizes", ArgumentKind::Nothing, OptionEffect::Works),
    ("lru_crawler", ArgumentKind::Nothing, OptionEffect::Works),
    ("no_lru_crawler", ArgumentKind::Nothing, OptionEffect::Works),
    ("ssl_chain_cert", ArgumentKind::File, OptionEffect::Works),
    ("ssl_key", ArgumentKind::File, OptionEffect::Works),
    ("ssl_ca_cert", ArgumentKind::File, OptionEffect::Works),
    ("ssl_verify_mode", ArgumentKind::Number(0, 3), OptionEffect::Works),
    ("ssl_min_version", ArgumentKind::Number(0, 3), OptionEffect::Works),
    ("ssl_keyformat", ArgumentKind::OneOf(&["1"]), OptionEffect::Works),
    (
        "ssl_ciphers",
        ArgumentKind::Anything,
        OptionEffect::Refused("rustls offers only sound ciphers, and none can be chosen"),
    ),
    ("ssl_wbuf_size", NUMBER, BUFFERS),
    ("ssl_session_cache", ArgumentKind::Nothing, OptionEffect::Nothing("sessions are always resumable")),
    ("ssl_kernel_tls", ArgumentKind::Nothing, OptionEffect::Nothing("TLS runs in this process")),
    ("hashpower", ArgumentKind::Number(12, 32), INDEX),
    ("no_hashexpand", ArgumentKind::Nothing, INDEX),
    ("hash_algorithm", ArgumentKind::OneOf(&["jenkins", "murmur3", "xxh3"]), INDEX),
    ("slab_reassign", ArgumentKind::Nothing, SLABS),
    ("no_slab_reassign", ArgumentKind::Nothing, OptionEffect::Works),
    ("slab_automove", ArgumentKind::NumberOrNothing(0, 2), SLABS),
    ("no_slab_automove", ArgumentKind::Nothing, SLABS),
    ("slab_automove_ratio", ArgumentKind::Fraction, SLABS),
    ("slab_automove_window", ArgumentKind::Number(3, u32::MAX), SLABS),
    ("slab_automove_freeratio", ArgumentKind::Fraction, SLABS),
    ("slab_sizes", ArgumentKind::Sizes, SLABS),
    ("slab_chunk_max", NUMBER, SLABS),
    ("no_chunked_items", ArgumentKind::Nothing, SLABS),
    ("tail_repair_time", ArgumentKind::Number(10, u32::MAX), SLABS),
    ("lru_crawler_sleep", ArgumentKind::Number(0, 1_000_000), CRAWLER),
    ("lru_crawler_tocrawl", NUMBER, CRAWLER),
    ("lru_maintainer", ArgumentKind::Nothing, LRU),
    ("no_lru_maintainer", ArgumentKind::Nothing, LRU),
    ("hot_lru_pct", ArgumentKind::Number(1, 79), LRU),
    ("warm_lru_pct", ArgumentKind::Number(1, 79), LRU),
    ("hot_max_factor", ArgumentKind::Fraction, LRU),
    ("warm_max_factor", ArgumentKind::Fraction, LRU),
    ("temporary_ttl", NUMBER, LRU),
    ("watcher_logbuf_size", NUMBER, BUFFERS),
    ("worker_logbuf_size", NUMBER, BUFFERS),
    ("resp_obj_mem_limit", NUMBER, BUFFERS),
    ("read_buf_mem_limit", NUMBER, BUFFERS),
    ("inline_ascii_resp", ArgumentKind::Nothing, OptionEffect::Nothing("it has none in memcached either")),
    ("no_inline_ascii_resp", ArgumentKind::Nothing, OptionEffect::Nothing("it has none in memcached either")),
    ("modern", ArgumentKind::Nothing, OptionEffect::Nothing("it has none in memcached either")),
    ("no_modern", ArgumentKind::Nothing, OptionEffect::Works),
    (
        "drop_privileges",
        ArgumentKind::Anything,
        OptionEffect::Refused("system calls are not filtered; use the service manager's filter"),
    ),
    ("no_drop_privileges", ArgumentKind::Nothing, OptionEffect::Works),
    ("relaxed_privileges", ArgumentKind::Nothing, OptionEffect::Nothing("system calls are not filtered")),
    ("ext_path", ArgumentKind::Device, OptionEffect::Works),
    ("ext_page_size", ArgumentKind::Number(1, u32::MAX), OptionEffect::Works),
    ("ext_wbuf_size", NUMBER, FLASH_BUFFERS),
    ("ext_threads", NUMBER, FLASH_THREADS),
    ("ext_io_depth", NUMBER, FLASH_THREADS),
    ("ext_item_size", NUMBER, OptionEffect::Works),
    ("ext_item_age", NUMBER, FLASH_AGE),
    ("ext_low_ttl", NUMBER, FLASH_BUCKETS),
    ("ext_drop_unread", ArgumentKind::Nothing, FLASH_ORDER),
    ("ext_recache_rate", NUMBER, FLASH_RECACHE),
    ("ext_compact_under", NUMBER, FLASH_ORDER),
    ("ext_drop_under", NUMBER, FLASH_ORDER),
    ("ext_max_frag", ArgumentKind::Fraction, FLASH_ORDER),
    ("ext_max_sleep", NUMBER, FLASH_SLEEP),
    ("proxy_config", ArgumentKind::Anything, PROXY),
    ("proxy_arg", ArgumentKind::Anything, PROXY),
    ("proxy_uring", ArgumentKind::Anything, PROXY),
    ("proxy_memprofile", ArgumentKind::Anything, PROXY),
];

/// The parsed extended options.
#[derive(Clone, Debug, Default)]
pub struct ExtendedOptions {
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
    /// The initial value of `slabs automove`, 0 to 2.
    pub slab_automove: Option<u32>,
    /// Certificate chain, PEM.
    pub ssl_chain_cert: Option<PathBuf>,
    /// Private key, PEM.
    pub ssl_key: Option<PathBuf>,
    /// Authorities for client certificates, PEM.
    pub ssl_ca_cert: Option<PathBuf>,
    /// 0 none, 1 requested, 2 and 3 required.
    pub ssl_verify_mode: u8,
    /// 0 to 3 for TLS 1.0 to 1.3.
    pub ssl_min_version: Option<u8>,
    /// Devices of the flash tier (`ext_path`).
    pub ext_paths: Vec<ExtPath>,
    /// Megabytes of a flash segment (`ext_page_size`).
    pub ext_page_megabytes: Option<u32>,
    /// Items of fewer bytes, with key and header, are not written to flash (`ext_item_size`).
    pub ext_item_bytes: Option<u32>,
    /// Options without effect, and why.
    pub without_effect: Vec<(String, &'static str)>,
    /// All given options, for `stats settings`.
    pub given: BTreeMap<String, String>,
}

/// The argument of `ext_path`: a device of the flash tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtPath {
    /// A file or block device.
    pub path: PathBuf,
    /// Bytes of its pages.
    pub bytes: u64,
    /// The bucket that memcached would reserve it for.
    pub bucket: Option<String>,
}

impl ExtPath {
    /// Parses FILE:SIZE or FILE:SIZE:BUCKET. A word after the last colon that begins with a letter is the bucket.
    ///
    /// # Errors
    /// The size is missing or none, or there is no such bucket.
    fn parse(text: &str) -> Result<ExtPath> {
        let last = text.rsplit_once(':');
        let (device, bucket) = match last {
            Some((device, word))
                if device.contains(':') && word.starts_with(|c: char| c.is_ascii_alphabetic()) =>
            {
                (device, Some(word))
            }
            _ => (text, None),
        };
        if let Some(word) = bucket.filter(|word| !BUCKETS.contains(word)) {
            bail!("-o ext_path={text}: {word:?} is no bucket; the buckets are {}", BUCKETS.join(", "));
        }
        let (path, bytes) = path_and_size("-o ext_path", device)?;
        Ok(ExtPath { path, bytes, bucket: bucket.map(str::to_owned) })
    }
}

impl ExtendedOptions {
    /// Parses the words of `-o`.
    ///
    /// # Errors
    /// An unknown or refused option, or an invalid value.
    pub fn parse(words: &[String]) -> Result<ExtendedOptions> {
        let mut extended = ExtendedOptions::default();
        for word in words {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            let Some((_, takes, effect)) = KNOWN.iter().find(|(known, ..)| *known == name) else {
                bail!(unknown(name));
            };
            if let OptionEffect::Refused(why) = effect {
                bail!("-o {name} is not supported: {why}");
            }
            takes.check(name, value)?;
            if let OptionEffect::Nothing(why) = effect {
                extended.without_effect.push((name.to_owned(), *why));
            }
            extended.set(name, value.unwrap_or_default());
            extended.given.insert(name.to_owned(), value.unwrap_or("yes").to_owned());
        }
        Ok(extended)
    }

    /// Takes an option whose value was checked.
    fn set(&mut self, name: &str, value: &str) {
        let path = || Some(PathBuf::from(value));
        match name {
            "maxconns_fast" => self.maxconns_fast = Some(true),
            "no_maxconns_fast" => self.maxconns_fast = Some(false),
            "idle_timeout" => self.idle_timeout = value.parse().ok(),
            "track_sizes" => self.track_sizes = true,
            "lru_crawler" => self.lru_crawler = Some(true),
            "no_lru_crawler" => self.lru_crawler = Some(false),
            "slab_reassign" => self.no_slab_reassign = false,
            "no_slab_reassign" => self.no_slab_reassign = true,
            "slab_automove" => self.slab_automove = Some(value.parse().unwrap_or(1)),
            "no_slab_automove" => self.slab_automove = Some(0),
            "no_modern" => self.set_defaults_of_1_4(),
            "ssl_chain_cert" => self.ssl_chain_cert = path(),
            "ssl_key" => self.ssl_key = path(),
            "ssl_ca_cert" => self.ssl_ca_cert = path(),
            "ssl_verify_mode" => self.ssl_verify_mode = value.parse().unwrap_or_default(),
            "ssl_min_version" => self.ssl_min_version = value.parse().ok(),
            "ext_path" => self.ext_paths.extend(ExtPath::parse(value).ok()),
            "ext_page_size" => self.ext_page_megabytes = value.parse().ok(),
            "ext_item_size" => self.ext_item_bytes = value.parse().ok(),
            _ => {}
        }
    }

    /// Takes memcached 1.4's defaults for what works here; later options may change them again.
    fn set_defaults_of_1_4(&mut self) {
        self.maxconns_fast = Some(false);
        self.lru_crawler = Some(false);
        self.no_slab_reassign = true;
        self.slab_automove = Some(0);
    }
}

impl ArgumentKind {
    /// # Errors
    /// The option does not take this value.
    fn check(self, name: &str, value: Option<&str>) -> Result<()> {
        let number = |min, max| move |text: &str| text.parse().is_ok_and(|n: u32| (min..=max).contains(&n));
        let fraction = |text: &str| text.parse().is_ok_and(|n: f64| n >= 0.0 && n.is_finite());
        let Some(value) = value else {
            return match self {
                ArgumentKind::Nothing | ArgumentKind::NumberOrNothing(..) => Ok(()),
                _ => bail!("-o {name} needs a value, as {name}=VALUE"),
            };
        };
        let (is_right, wanted) = match self {
            ArgumentKind::Anything => return Ok(()),
            ArgumentKind::Device => return ExtPath::parse(value).map(drop),
            ArgumentKind::Nothing => (["1", "yes", "true", "on"].contains(&value), "no value".to_owned()),
            ArgumentKind::Number(min, max) | ArgumentKind::NumberOrNothing(min, max) => {
                (number(min, max)(value), format!("a number from {min} to {max}"))
            }
            ArgumentKind::Fraction => (fraction(value), "a number from 0 up, as 0.5".to_owned()),
            ArgumentKind::OneOf(words) => (words.contains(&value), words.join(" or ")),
            ArgumentKind::Sizes => {
                (value.split('-').all(number(1, u32::MAX)), "sizes in bytes, as 100-200-400".to_owned())
            }
            ArgumentKind::File => (!value.is_empty(), "the name of a file".to_owned()),
        };
        if is_right { Ok(()) } else { bail!("-o {name} takes {wanted}, not {value:?}") }
    }
}

fn unknown(name: &str) -> String {
    match nearest(name, KNOWN.iter().map(|(known, ..)| *known)) {
        Some(known) => format!("Illegal suboption \"{name}\"; is {known} meant?"),
        None => format!("Illegal suboption \"{name}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(words: &str) -> Result<ExtendedOptions> {
        ExtendedOptions::parse(&words.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_work_or_warn() {
        let extended =
            parse("no_maxconns_fast,idle_timeout=30,slab_automove=2,modern,track_sizes").expect("known");
        assert_eq!((extended.maxconns_fast, extended.idle_timeout), (Some(false), Some(30)));
        assert_eq!(extended.without_effect.len(), 2);
        assert_eq!(extended.given["slab_automove"], "2");
        assert!(extended.track_sizes);
    }

    #[test]
    fn no_modern_sets_defaults_that_later_options_change() {
        let old = parse("no_modern").expect("known");
        assert!(old.without_effect.is_empty());
        assert_eq!((old.lru_crawler, old.maxconns_fast), (Some(false), Some(false)));
        assert_eq!((old.no_slab_reassign, old.slab_automove), (true, Some(0)));
        let mixed = parse("no_modern,lru_crawler,slab_reassign,slab_automove").expect("known");
        assert_eq!((mixed.lru_crawler, mixed.maxconns_fast), (Some(true), Some(false)));
        assert_eq!((mixed.no_slab_reassign, mixed.slab_automove), (false, Some(1)));
    }

    #[test]
    fn devices_have_a_path_a_size_and_a_bucket() {
        let device = |path: &str, bytes, bucket: Option<&str>| ExtPath {
            path: path.into(),
            bytes,
            bucket: bucket.map(str::to_owned),
        };
        let words = "ext_path=/a:1g,ext_path=/b:c:64M:compact,ext_path=c=d:2t:default,ext_item_size=0,ext_page_size=8";
        let extended = parse(words).expect("known");
        let expected = [
            device("/a", 1 << 30, None),
            device("/b:c", 64 << 20, Some("compact")),
            device("c=d", 2 << 40, Some("default")),
        ];
        assert_eq!(extended.ext_paths, expected);
        assert_eq!((extended.ext_item_bytes, extended.ext_page_megabytes), (Some(0), Some(8)));
        assert!(extended.without_effect.is_empty());
    }

    #[test]
    fn errors_name_the_option() {
        for (words, needle) in [
            ("idle_timeot=3", "is idle_timeout meant?"),
            ("nonsense", "Illegal suboption \"nonsense\""),
            ("idle_timeout", "needs a value"),
            ("idle_timeout=x", "idle_timeout takes a number from 0 to 4294967295, not \"x\""),
            ("idle_timeout=-1", "not \"-1\""),
            ("lru_crawler=foo", "lru_crawler takes no value"),
            ("maxconns_fast=no", "maxconns_fast takes no value"),
            ("no_modern=", "no_modern takes no value"),
            ("slab_automove=9", "0 to 2"),
            ("slab_automove_window=2", "from 3"),
            ("slab_automove_ratio=foo", "from 0 up"),
            ("warm_max_factor=nan", "from 0 up"),
            ("hash_algorithm=md5", "jenkins or murmur3 or xxh3"),
            ("slab_sizes=100-x", "100-200-400"),
            ("hashpower=foo", "12 to 32"),
            ("lru_crawler_sleep=2000000", "0 to 1000000"),
            ("ssl_keyformat=2", "takes 1, not"),
            ("ssl_key=", "name of a file"),
            ("modern,temporary_ttl", "temporary_ttl needs a value"),
            ("ext_path", "ext_path needs a value"),
            (
                "ext_path=/x",
                "-o ext_path takes PATH:SIZE, such as /var/lib/fabcached/flash:64g; \"/x\" has no size",
            ),
            ("ext_path=/x:1gb", "-o ext_path /x: takes a suffix of one letter, k, m, g or t: write 1g"),
            ("ext_path=/x:0m", "-o ext_path /x: takes a size greater than 0"),
            ("ext_path=/x:1g:cold", "\"cold\" is no bucket; the buckets are default, compact"),
            ("ext_path=/x:old", "-o ext_path /x: takes a size such as"),
            ("ext_item_size=1k", "ext_item_size takes a number from 0"),
            ("ext_page_size=-1", "ext_page_size takes a number from 1"),
            ("ext_page_size=0", "ext_page_size takes a number from 1"),
            ("ext_path=/x:64", "-o ext_path /x: 64 without a suffix are bytes; write 64m"),
            ("ext_max_frag=x", "ext_max_frag takes a number from 0 up"),
            ("ext_drop_unread=0", "ext_drop_unread takes no value"),
            ("ssl_verify_mode=9", "0 to 3"),
        ] {
            let error = parse(words).expect_err(words).to_string();
            assert!(error.contains(needle), "{words}: {error}");
        }
    }

    /// A supported option with a valid value.
    fn right() -> impl Strategy<Value = (&'static str, Option<String>)> {
        let had = KNOWN.iter().filter(|(_, _, effect)| !matches!(effect, OptionEffect::Refused(_)));
        prop::sample::select(had.collect::<Vec<_>>()).prop_flat_map(|(name, takes, _)| {
            let value = match *takes {
                ArgumentKind::Nothing | ArgumentKind::Anything => Just(None).boxed(),
                ArgumentKind::Number(min, max) | ArgumentKind::NumberOrNothing(min, max) => {
                    (min..=max).prop_map(|n| Some(n.to_string())).boxed()
                }
                ArgumentKind::Fraction => (0.0..1e9).prop_map(|n: f64| Some(n.to_string())).boxed(),
                ArgumentKind::OneOf(words) => {
                    prop::sample::select(words).prop_map(|w| Some(w.to_owned())).boxed()
                }
                ArgumentKind::Sizes => "[1-9][0-9]{0,8}(-[1-9][0-9]{0,8}){0,3}".prop_map(Some).boxed(),
                ArgumentKind::File => "[a-z/.=]{1,20}".prop_map(Some).boxed(),
                ArgumentKind::Device => "[a-z/.:=]{0,20}x:[1-9][0-9]{0,3}[mgt](:old)?".prop_map(Some).boxed(),
            };
            (Just(*name), value)
        })
    }

    /// An option with an arbitrary value.
    fn any_word() -> impl Strategy<Value = String> {
        let names = KNOWN.iter().map(|(name, ..)| *name).collect::<Vec<_>>();
        let value =
            prop_oneof![any::<String>(), any::<i64>().prop_map(|n| n.to_string()), Just("nan".to_owned())];
        let known = (prop::sample::select(names), value).prop_map(|(name, value)| format!("{name}={value}"));
        prop_oneof![known, any::<String>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_words_parse_or_are_rejected(words in prop::collection::vec(any_word(), 0..3)) {
            match ExtendedOptions::parse(&words) {
                Ok(extended) => {
                    let is_given = |word: &String| extended.given.contains_key(word.split('=').next().unwrap_or(""));
                    prop_assert!(words.iter().all(is_given));
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }

        #[test]
        fn displayed_options_parse_again(options in prop::collection::vec(right(), 0..6)) {
            let word = |(name, value): &(&str, Option<String>)| match value {
                Some(value) => format!("{name}={value}"),
                None => (*name).to_owned(),
            };
            let read = ExtendedOptions::parse(&options.iter().map(word).collect::<Vec<_>>()).expect("they are right");
            for (name, _) in &options {
                let last = options.iter().rfind(|(other, _)| other == name).and_then(|(_, value)| value.as_deref());
                prop_assert_eq!(&read.given[*name], last.unwrap_or("yes"));
            }
            // Displayed options of `stats settings` parse to the same options.
            let shown: Vec<String> = read.given.iter().map(|(name, value)| format!("{name}={value}")).collect();
            prop_assert_eq!(ExtendedOptions::parse(&shown).expect("it is right").given, read.given);
        }
    }
}
