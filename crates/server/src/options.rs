//! The command line and the configuration file: one set of options. The command line wins.
// The comments on options are the text of -h, where addresses are in plain brackets.
#![allow(rustdoc::broken_intra_doc_links)]

use std::fmt::Formatter;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{ArgAction, Args, Parser};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// What `version` answers: the memcached release whose behaviour is kept.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// fabcached: a memcached-compatible cache.
#[derive(Debug, Parser)]
#[command(
    name = "fabcached",
    version,
    long_version = concat!(env!("CARGO_PKG_VERSION"), " (answers clients as memcached 1.6.45)"),
    disable_version_flag = true,
    // As in memcached the last one counts, except for options that accumulate.
    args_override_self = true,
    max_term_width = 100,
    about = "A memcached-compatible cache server on one shareable region of memory.",
    after_help = "Any memcached client works unchanged. Without options fabcached listens on port 11211 of this host \
                  only, and uses 64 MB. A configuration file holds the long names: see docs/operating.md."
)]
pub struct CommandLine {
    /// Read options from a TOML file; those on the command line win
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub config: Option<PathBuf>,

    /// Print the licence and exit
    #[arg(short = 'i', long, help_heading = "Server")]
    pub license: bool,

    /// Print the version and exit
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "Server")]
    pub version: Option<bool>,

    /// Log more; repeat for still more
    #[arg(short, long = "verbose", action = ArgAction::Count, help_heading = "Server")]
    pub verbose: u8,

    /// The options that the configuration file can hold too.
    #[command(flatten)]
    pub options: Options,
}

macro_rules! options {
    ($(
        $(#[doc = $doc:literal])*
        $(#[arg($($arg:tt)*)])*
        $(#[file($($file:tt)*)])*
        $name:ident: $kind:ty,
    )*) => {
        /// Options for the command line and the configuration file.
        #[derive(Clone, Debug, Default, Args, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct Options {
            $(
                $(#[doc = $doc])*
                $(#[arg($($arg)*)])*
                $(#[serde($($file)*)])*
                pub $name: $kind,
            )*
            /// Listeners with options of their own; in the configuration file only.
            #[arg(skip)]
            pub listener: Vec<ListenerTable>,
            /// How much is logged; `-v` on the command line.
            #[arg(skip)]
            pub verbosity: Option<u8>,
        }

        impl Options {
            /// These, and where they say nothing, those of `other`. If these name addresses, listeners of `other` do
            /// not count.
            pub fn or(self, other: Options) -> Options {
                let others = if self.name_addresses() { Vec::new() } else { other.listener };
                Options {
                    listener: self.listener.or_else_use(others),
                    $($name: self.$name.or_else_use(other.$name),)*
                    verbosity: self.verbosity.or_else_use(other.verbosity),
                }
            }
        }
    };
}

options! {
    /// TCP port; 0 disables TCP, -1 picks a free port [default: 11211]
    #[arg(short, long, value_parser = port, value_name = "PORT", allow_negative_numbers = true, help_heading = "Listening")]
    port: Option<i32>,

    /// UDP port; 0 disables UDP, -1 picks a free port [default: 0]
    #[arg(short = 'U', long, value_parser = port, value_name = "PORT", allow_negative_numbers = true, help_heading = "Listening")]
    udp_port: Option<i32>,

    /// Address to listen on, as HOST, HOST:PORT, [V6]:PORT, * for all; may be repeated or a comma list, and each may
    /// be preceded by notls:, btls:, mtls:, noauth:, proto[ascii]:, proto[binary]: or tag[NAME]: [default: this host
    /// only]
    #[arg(short, long, value_name = "ADDRESS", value_delimiter = ',', help_heading = "Listening")]
    listen: Vec<String>,

    /// Unix socket; without -p or -l it is the only way in. May be repeated
    #[arg(short = 's', long, value_name = "FILE", help_heading = "Listening")]
    unix_socket: Vec<PathBuf>,

    /// Permissions of Unix sockets, octal [default: 700]
    #[arg(short = 'a', long, allow_negative_numbers = true, value_name = "MASK", help_heading = "Listening")]
    unix_mask: Option<String>,

    /// Protocol: auto, ascii or binary [default: auto]
    #[arg(short = 'B', long, value_name = "PROTOCOL", help_heading = "Listening")]
    protocol: Option<String>,

    /// Connections at once [default: 1024]
    #[arg(short, long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "Listening")]
    conn_limit: Option<u32>,

    /// Connections that may wait to be accepted [default: 1024]
    #[arg(short = 'b', long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "Listening")]
    listen_backlog: Option<u32>,

    /// Which worker serves a new connection: balanced (the least loaded) or local (the one whose own listener
    /// accepted it, as for socket-bypass stacks) [default: balanced]
    #[arg(long, value_name = "WHICH", help_heading = "Listening")]
    accept: Option<String>,

    /// Memory in megabytes, index included; or with a suffix k, m, g, t [default: 64]
    #[arg(short, long, allow_negative_numbers = true, value_name = "MB", help_heading = "Memory")]
    #[file(deserialize_with = "size_text")]
    memory_limit: Option<String>,

    /// Memory that cache_memlimit may raise the limit to, in megabytes or with a suffix [default: that of -m]
    #[arg(long, allow_negative_numbers = true, value_name = "MB", help_heading = "Memory")]
    #[file(deserialize_with = "size_text")]
    memory_max: Option<String>,

    /// Largest item, in bytes or with a suffix k, m [default: 1m]
    #[arg(short = 'I', long, allow_negative_numbers = true, value_name = "SIZE", help_heading = "Memory")]
    #[file(deserialize_with = "size_text")]
    max_item_size: Option<String>,

    /// Answer an error when memory is full instead of evicting
    #[arg(short = 'M', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Memory")]
    disable_evictions: Option<bool>,

    /// Which items are evicted: adaptive, s3fifo (5% of memory for new items) or lru [default: adaptive]
    #[arg(long, value_name = "POLICY", help_heading = "Memory")]
    eviction: Option<String>,

    /// Lock all memory; pages are touched at start, or in the background after a takeover
    #[arg(short = 'k', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Memory")]
    lock_memory: Option<bool>,

    /// Use huge pages of 2 MB
    #[arg(short = 'L', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Memory")]
    enable_largepages: Option<bool>,

    /// Keep the items in this file (on tmpfs, hugetlbfs, DAX or a disk); the next server with it takes them over
    #[arg(short = 'e', long, value_name = "FILE", help_heading = "Memory")]
    memory_file: Option<PathBuf>,

    /// Start with an empty region in place of what the file of -e holds, also if that is not a region
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Memory")]
    discard: Option<bool>,

    /// Move evicted items to this file or block device, up to SIZE (suffix k, m, g or t); repeat it for several devices
    #[arg(long, value_name = "PATH:SIZE", help_heading = "Flash")]
    flash: Vec<String>,

    /// Bytes of a flash segment, the unit of eviction there: 16m, 32m or 64m [default: 64m from 4g of flash up, else 16m]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE", help_heading = "Flash")]
    #[file(deserialize_with = "size_text")]
    flash_segment: Option<String>,

    /// Megabytes a second that may be written to flash; beyond that, only items read before or missed lately go there
    /// [default: no limit]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "Flash")]
    flash_write_mb_s: Option<u32>,

    /// Drive writes per day: how often a day the server may write the size of all devices, such as 0.5 or 3. With
    /// --flash-write-mb-s, the smaller limit counts [default: no limit]
    #[arg(long, allow_negative_numbers = true, value_parser = factor, value_name = "N", help_heading = "Flash")]
    flash_dwpd: Option<f64>,

    /// Evict items of fewer bytes, with key and header, instead of writing them to flash [default: 0]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "BYTES", help_heading = "Flash")]
    flash_item_size: Option<u32>,

    /// Worker threads [default: 4]
    #[arg(short, long, allow_negative_numbers = true, value_parser = count::<usize>, value_name = "N", help_heading = "Workers")]
    threads: Option<usize>,

    /// How workers receive from plain TCP connections: epoll, io_uring, or auto (epoll) [default: auto]
    #[arg(long, value_name = "WHICH", help_heading = "Workers")]
    engine: Option<String>,

    /// Requests of one connection before others get their turn [default: those received at once, up to 32 KiB of answers]
    #[arg(short = 'R', long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "Workers")]
    max_reqs_per_event: Option<u32>,

    /// Pin worker i to the i-th CPU that the process may use
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Workers")]
    pin_workers: Option<bool>,

    /// Pin worker i to the i-th of these CPUs, such as 0-3,8; further workers start again from the first
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", help_heading = "Workers")]
    cpus: Option<String>,

    /// Close a connection that does not read its answers, or leaves a request unfinished, for so many seconds; 0
    /// disables this [default: 120]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "SECONDS", help_heading = "Workers")]
    stall_timeout: Option<u32>,

    /// Turn CAS off
    #[arg(short = 'C', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Commands")]
    disable_cas: Option<bool>,

    /// Refuse flush_all
    #[arg(short = 'F', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Commands")]
    disable_flush_all: Option<bool>,

    /// Refuse stats cachedump and lru_crawler metadump
    #[arg(short = 'X', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Commands")]
    disable_dumping: Option<bool>,

    /// Refuse watch
    #[arg(short = 'W', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Commands")]
    disable_watch: Option<bool>,

    /// Allow the shutdown command
    #[arg(short = 'A', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Commands")]
    enable_shutdown: Option<bool>,

    /// Character that ends the prefix of a key in stats detail, which this turns on [default: :]
    #[arg(short = 'D', long = "prefix-delimiter", value_name = "CHAR", help_heading = "Commands")]
    prefix_delimiter: Option<char>,

    /// Text clients must authenticate as a user of this file (user:password lines; read again on SIGHUP)
    #[arg(short = 'Y', long, value_name = "FILE", help_heading = "Security")]
    auth_file: Option<PathBuf>,

    /// Binary clients must authenticate by SASL PLAIN as a user of $MEMCACHED_SASL_PWDB, --sasl-pwdb or -Y
    #[arg(short = 'S', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Security")]
    enable_sasl: Option<bool>,

    /// Users for SASL (user:password lines; read again on SIGHUP)
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    sasl_pwdb: Option<PathBuf>,

    /// Let clients of this host that come by a Unix socket (-s) read the memory themselves, and send the rest through memory
    /// shared with them
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Shared memory")]
    shm: Option<bool>,

    /// Users, by name or number, that may share memory (--shm), in addition to --shm-groups. Repeat it, or use a
    /// comma list [default: the server's own user]
    #[arg(long, value_name = "USER", value_delimiter = ',', help_heading = "Shared memory")]
    shm_users: Vec<String>,

    /// Groups, by name or number, that a process which may has when it connects
    #[arg(long, value_name = "GROUP", value_delimiter = ',', help_heading = "Shared memory")]
    shm_groups: Vec<String>,

    /// With a memory file (-e), let clients of the server's own user share memory, which they can write. Without it the
    /// server refuses them, and root's
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Shared memory")]
    shm_same_user: Option<bool>,

    /// Slots for requests of one client, and for its answers: a power of two [default: 64]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "Shared memory")]
    shm_slots: Option<u32>,

    /// Bytes of a slot, optionally with a suffix k or m; longer data uses the staging area [default: 1k]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE", help_heading = "Shared memory")]
    #[file(deserialize_with = "size_text")]
    shm_slot_size: Option<String>,

    /// Bytes of one client's staging area for requests, and of that for answers [default: 1m]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE", help_heading = "Shared memory")]
    #[file(deserialize_with = "size_text")]
    shm_staging: Option<String>,

    /// Let TCP clients read the memory and send requests over a fabric such as InfiniBand or RoCE, by libfabric's
    /// PROVIDER (such as verbs, efa or tcp; auto or none selects the best) at INTERFACE. With openshmem the servers that a
    /// launcher such as oshrun has started are one cache
    #[arg(long, num_args = 0..=1, default_missing_value = "auto", value_name = "PROVIDER[,INTERFACE]", help_heading = "Fabric")]
    #[file(deserialize_with = "switch_text")]
    fabric: Option<String>,

    /// Networks, such as 10.1.0.0/16 or fd00::1, whose clients may use the fabric (--fabric); local means this host.
    /// Repeat it, or use a comma list [default: local]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', help_heading = "Fabric")]
    fabric_peers: Vec<String>,

    /// Messages of 8 KiB that a worker has room for, of all its clients together [default: 1024]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "Fabric")]
    fabric_receives: Option<u32>,

    /// The name of this PE, by which ketama maps keys to it: HOST or HOST:PORT as TCP clients call it [default: the host's name
    /// and the TCP port]
    #[arg(long, value_name = "NAME", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_name: Option<String>,

    /// Slots for messages of one other PE, in each direction: a power of two [default: 16]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_slots: Option<u32>,

    /// Bytes of a slot, optionally with a suffix k [default: 4k]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE", help_heading = "OpenSHMEM (--fabric openshmem)")]
    #[file(deserialize_with = "size_text")]
    openshmem_slot_size: Option<String>,

    /// Bytes of each buffer through which long values go to and from one other PE [default: 64k]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE", help_heading = "OpenSHMEM (--fabric openshmem)")]
    #[file(deserialize_with = "size_text")]
    openshmem_buffer: Option<String>,

    /// Guard each ring of slots with a mutex in symmetric memory, to compare with rings without one; implies --openshmem-offload
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_mutex: Option<bool>,

    /// Leave the links to PEs of this host to the threads below, also while workers are awake: for PEs with CPUs to spare
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_offload: Option<bool>,

    /// Threads that share the other PEs; two more take over from one that waits for a stopped PE [default: 1]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_threads: Option<u32>,

    /// Read items from the memory of all other PEs, or of none [default: of those on the same host: over TCP such a read waits
    /// until the other PE wakes]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_one_sided: Option<bool>,

    /// Milliseconds after which a PE without a sign of life is taken to be stopped [default: 2000]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "MS", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_timeout: Option<u32>,

    /// Milliseconds that an idle PE sleeps at most before it looks for messages from other hosts [default: 100]
    #[arg(long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "MS", help_heading = "OpenSHMEM (--fabric openshmem)")]
    openshmem_sleep: Option<u32>,

    /// TLS on all TCP listeners; needs -o ssl_chain_cert and ssl_key
    #[arg(short = 'Z', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Security")]
    enable_ssl: Option<bool>,

    /// Become this user after start
    #[arg(short, long, value_name = "USER", help_heading = "Security")]
    user: Option<String>,

    /// Run in the background
    #[arg(short, long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Server")]
    daemon: Option<bool>,

    /// Write the process id to this file; it is removed at exit
    #[arg(short = 'P', long, value_name = "FILE", help_heading = "Server")]
    pidfile: Option<PathBuf>,

    /// Allow core dumps
    #[arg(short = 'r', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL", help_heading = "Server")]
    enable_coredumps: Option<bool>,

    /// Log as text or json [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Server")]
    log_format: Option<String>,

    /// memcached's extended options, a comma list; those that tune slabs have no effect
    #[arg(short = 'o', long, value_name = "OPTION[=VALUE]", value_delimiter = ',', help_heading = "Server")]
    extended: Vec<String>,

    /// Has no effect: memory is not divided into slabs
    #[arg(short = 'f', long, allow_negative_numbers = true, value_parser = factor, value_name = "FACTOR", help_heading = "Accepted from memcached")]
    slab_growth_factor: Option<f64>,

    /// Has no effect: memory is not divided into slabs
    #[arg(short = 'n', long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "BYTES", help_heading = "Accepted from memcached")]
    slab_min_size: Option<u32>,

    /// Has no effect: workers are not chosen by NAPI id
    #[arg(short = 'N', long, allow_negative_numbers = true, value_parser = count::<u32>, value_name = "N", help_heading = "Accepted from memcached")]
    napi_ids: Option<u32>,
}

/// A `[[listener]]` of the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ListenerTable {
    /// `tcp://HOST:PORT`, `udp://HOST:PORT` or `unix:///PATH`.
    pub address: String,
    /// `auto`, `ascii` or `binary`.
    pub protocol: Option<String>,
    /// `off`, `on`, or `mutual` for client certificates.
    pub tls: Option<String>,
    /// Whether clients must authenticate, where -Y or -S ask for it.
    pub auth: Option<bool>,
    /// Permissions of a Unix socket, octal.
    pub mask: Option<String>,
    /// A name for it, 1 to 8 characters.
    pub tag: Option<String>,
}

impl Options {
    /// Returns whether they say where to listen, apart from `[[listener]]`.
    pub fn name_addresses(&self) -> bool {
        let names_port = |port: Option<i32>| port.is_some_and(|port| port != 0);
        names_port(self.port)
            || names_port(self.udp_port)
            || !self.listen.is_empty()
            || !self.unix_socket.is_empty()
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file cannot be read, or contains something that is not an option.
    pub fn from_file(path: &Path) -> anyhow::Result<Options> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            anyhow::anyhow!("cannot read the configuration file {}: {error}", path.display())
        })?;
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            let (text, message) = (error.to_string(), error.message());
            let text = text.trim_end().replace(message, &in_words(message));
            anyhow::anyhow!("in the configuration file {}: {text}", path.display())
        })
    }
}

/// Returns serde's message about a file in the words of docs/operating.md, without types of Rust.
fn in_words(message: &str) -> String {
    if let Some(words) = message.strip_prefix("unknown field ") {
        let mut names = words.split('`').skip(1).step_by(2);
        let name = names.next().unwrap_or_default();
        return match nearest(name, names) {
            Some(known) => format!("unknown key `{name}`; is `{known}` meant?"),
            None => format!("unknown key `{name}`; the keys are the long names that fabcached -h lists"),
        };
    }
    let message = message.replace("missing field", "missing key");
    let Some((found, expected)) = message.split_once(", expected ") else { return message };
    let expected = match expected {
        "usize" | "i32" => "a whole number",
        "u32" => "a whole number from 0 to 4294967295",
        "f64" => "a number such as 1.25",
        "a boolean" => "true or false",
        "a sequence" => "a list such as [\"a\", \"b\"]",
        "a string" => "text in quotes",
        "a character" => "one character in quotes",
        "struct ListenerTable" => "a table [[listener]]",
        other => other,
    };
    format!("{}, expected {expected}", found.trim_end_matches(" as i128").trim_end_matches(" as u128"))
}

/// Returns the known name that was probably meant.
pub(crate) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let (distance, known) = known.map(|known| (strsim::damerau_levenshtein(name, known), known)).min()?;
    // Half of a short name may not differ: any name would be near it.
    (distance <= 3.min(name.len() / 2)).then_some(known)
}

fn count<N: TryFrom<u32>>(text: &str) -> Result<N, String> {
    let count = text.parse().ok().and_then(|count: u32| count.try_into().ok());
    count.ok_or_else(|| format!("it takes a whole number from 0 to {}", u32::MAX))
}

fn factor(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "it takes a number such as 1.25".to_owned())
}

fn port(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| "it takes a port from 1 to 65535, 0 for none or -1 for any".to_owned())
}

/// A size in the configuration file: text as on the command line, or a number.
fn size_text<'de, D: Deserializer<'de>>(file: D) -> Result<Option<String>, D::Error> {
    struct SizeText;
    impl Visitor<'_> for SizeText {
        type Value = String;

        fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
            f.write_str("a size such as 64, \"512k\", \"2m\" or \"1g\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<String, E> {
            // Refused where the command line's fractions are, with the same advice.
            Ok(number.to_string())
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
            if number > 0 {
                Ok(number.to_string())
            } else {
                Err(E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
    }
    file.deserialize_any(SizeText).map(Some)
}

/// Text as on the command line, or true or false in the configuration file.
fn switch_text<'de, D: Deserializer<'de>>(file: D) -> Result<Option<String>, D::Error> {
    struct SwitchText;
    impl Visitor<'_> for SwitchText {
        type Value = String;

        fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
            f.write_str("true, false or a text")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_bool<E: Error>(self, is_on: bool) -> Result<String, E> {
            Ok(if is_on { "auto" } else { "off" }.to_owned())
        }
    }
    file.deserialize_any(SwitchText).map(Some)
}

/// Fills options that were not given from another source.
trait FillFrom {
    fn or_else_use(self, other: Self) -> Self;
}

impl<T> FillFrom for Option<T> {
    fn or_else_use(self, other: Self) -> Self {
        self.or(other)
    }
}

impl<T> FillFrom for Vec<T> {
    fn or_else_use(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

/// Splits PATH:SIZE at the last colon; returns the path and the size in bytes.
///
/// # Errors
/// The path or the size is missing, or the size is wrong.
pub(crate) fn path_and_size(option: &str, text: &str) -> anyhow::Result<(PathBuf, u64)> {
    let (path, bytes) = text.rsplit_once(':').unwrap_or((text, ""));
    if bytes.is_empty() {
        bail!("{option} takes PATH:SIZE, such as /var/lib/fabcached/flash:64g; {text:?} has no size");
    }
    if path.is_empty() {
        bail!("{option} takes PATH:SIZE, such as /var/lib/fabcached/flash:64g; {text:?} has no path");
    }
    let size = size(&format!("{option} {path}:"), bytes, 1)?;
    if bytes.bytes().all(|byte| byte.is_ascii_digit()) && size < 1 << 20 {
        bail!("{option} {path}: {bytes} without a suffix are bytes; write {bytes}m for megabytes");
    }
    Ok((PathBuf::from(path), size))
}

/// Reads a size in bytes with a suffix k, m, g or t; without one in `unit`s.
pub(crate) fn size(option: &str, text: &str, unit: u64) -> anyhow::Result<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = text[number.len()..].to_ascii_lowercase();
    let unit = match suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(&suffix) {
        "" if suffix.is_empty() => unit,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => 0,
    };
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((whole, part)) = number.split_once('.')
        && unit > 0
        && is_number(whole)
        && is_number(part)
    {
        bail!("{option} takes a whole number, not {text:?}{}", in_smaller_unit(number, unit));
    }
    if unit == 0 || !is_number(number) {
        bail!("{option} takes a size such as 64, 512k, 2m or 1g; not {text:?}");
    }
    if suffix.ends_with('b') {
        let letter = suffix.trim_end_matches("ib").trim_end_matches('b');
        bail!("{option} takes a suffix of one letter, k, m, g or t: write {number}{letter} for {text:?}");
    }
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match bytes {
        None => bail!("{option} {text} is more than any machine has; the most is {}g", u64::MAX >> 30),
        Some(0) => bail!("{option} takes a size greater than 0, such as 64, 512k, 2m or 1g"),
        Some(bytes) => Ok(bytes),
    }
}

/// Returns advice to write a fraction of a unit as a whole number of the next smaller one.
fn in_smaller_unit(fraction: &str, unit: u64) -> String {
    let smaller = match unit {
        0x100_0000_0000 => 'g',
        0x4000_0000 => 'm',
        0x10_0000 => 'k',
        _ => return String::new(),
    };
    let whole = fraction.parse::<f64>().map_or(0.0, |number| (number * 1024.0).floor());
    if (1.0..1e9).contains(&whole) { format!("; write {whole}{smaller} for it") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_valid() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn usual_memcached_command_lines_parse() {
        let line = "fabcached -d -m 1024 -p 11311 -U 0 -l 127.0.0.1,::1 -l 10.0.0.1:11212 -c 4096 -t 8 -I 2m -vv -MCF \
                    -o maxconns_fast,idle_timeout=60 -a 0750 -P /run/x.pid -u nobody -R 5 -b 64 -B auto -D : -f 1.5 -n 64";
        let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("it is valid");
        let options = parsed.options;
        assert_eq!(options.memory_limit.as_deref(), Some("1024"));
        assert_eq!(options.listen, ["127.0.0.1", "::1", "10.0.0.1:11212"]);
        assert_eq!(options.extended, ["maxconns_fast", "idle_timeout=60"]);
        assert_eq!(
            (options.disable_evictions, options.disable_cas, options.disable_flush_all),
            (Some(true), Some(true), Some(true))
        );
        assert_eq!((parsed.verbose, options.prefix_delimiter, options.daemon), (2, Some(':'), Some(true)));
        assert_eq!((options.port, options.enable_sasl), (Some(11311), None));
    }

    #[test]
    fn last_of_repeated_options_wins() {
        let line = "fabcached -m 64 -m 128 -C -C=false -l ::1 -l 127.0.0.1 -o modern -o track_sizes -v -v -s /a -s /b";
        let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("it is valid");
        let options = parsed.options;
        assert_eq!((options.memory_limit.as_deref(), options.disable_cas), (Some("128"), Some(false)));
        assert_eq!((options.listen.len(), options.unix_socket.len(), options.extended.len()), (2, 2, 2));
        assert_eq!(parsed.verbose, 2);
    }

    #[test]
    fn unknown_option_error_suggests_the_nearest() {
        let error = CommandLine::try_parse_from(["fabcached", "--memory-limt", "64"]).expect_err("misspelt");
        assert!(error.to_string().contains("--memory-limit"), "{error}");
    }

    #[test]
    fn command_line_overrides_the_file() {
        let file: Options = toml::from_str(
            "port = 1\nmemory-limit = \"9\"\ndisable-cas = true\nverbosity = 2\nlisten = [\"::1\"]\n\
             [[listener]]\naddress = \"unix:///x\"\nmask = \"777\"\n",
        )
        .expect("valid");
        let line = CommandLine::try_parse_from(["fabcached", "-p", "2", "-C=false"]).expect("valid");
        let both = line.options.or(file);
        assert_eq!(
            (both.port, both.memory_limit.as_deref(), both.disable_cas),
            (Some(2), Some("9"), Some(false))
        );
        assert_eq!((both.verbosity, both.listener.len(), both.listen.len()), (Some(2), 0, 1));
        let table = "[[listener]]\naddress = \"unix:///x\"\n";
        for (words, left) in [("-t 1", 1), ("-p 2", 0), ("-U 2", 0), ("-l ::1", 0), ("-s /y", 0)] {
            let words = std::iter::once("fabcached").chain(words.split(' '));
            let line = CommandLine::try_parse_from(words).expect("valid").options;
            assert_eq!(line.or(toml::from_str(table).expect("valid")).listener.len(), left);
        }
        let error = toml::from_str::<Options>("memory = 1").expect_err("no such option");
        assert!(error.to_string().contains("memory-limit"), "{error}");
    }
}
