//! Figures of the fabric as tables and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::RAW;
use super::names::{AUTO, AUTO_BY_KEY, BY_KEY, LOCATED, REGISTERED, REQUEST, STORE};
use crate::report::ServersHeader;
use fabcache_testbed::statistics::median;

/// A measured operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A short message, and one of a value's size back: the least cost of a GET by request.
    RawGet,
    /// A message of a value's size, and a short one back: the least cost of a SET.
    RawSet,
    /// A read of the peer's memory.
    Read,
    /// A write to it.
    Write,
    /// A GET.
    #[default]
    Get,
    /// A GET of one of the keys of a multiget.
    #[serde(rename = "many")]
    Multiget,
    /// A SET.
    Set,
}

/// The party that serves reads of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// The device, without the peer's CPU, as the endpoint reports.
    ByDevice,
    /// The system copies (shm); the process only makes room in its queue.
    BySystem,
    /// The peer's CPU.
    ByPeer,
}

impl Reads {
    fn text(self) -> &'static str {
        match self {
            Reads::ByDevice => "served without the server's help",
            Reads::BySystem => "copied by the system, and the server only makes room for them in its queue",
            Reads::ByPeer => "served with the server's help",
        }
    }
}

/// The figures of one operation in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The path: `raw`, or the name of a client's path.
    pub way: String,
    /// The operation.
    pub what: What,
    /// Bytes of the value.
    pub bytes: usize,
    /// Operations in flight; 0 if each was awaited and timed.
    pub window: usize,
    /// Which round.
    pub round: u32,
    /// Median duration.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// Operations per second, with a window.
    pub per_s: f64,
    /// The server's CPU time per operation, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns: Option<f64>,
}

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When, where, what and how it was measured.
    #[serde(flatten)]
    pub header: ServersHeader,
    /// The provider, with its interface and network.
    pub provider: String,
    /// Whether the peer's CPU serves reads.
    pub reads: Reads,
    /// All rounds of all operations.
    pub figures: Vec<Figure>,
}

/// Goal for a request, relative to the round trip plus the store's time.
const REQUEST_GOAL: f64 = 1.3;
/// Goal for a GET with a cached location, relative to one read.
const LOCATED_GOAL: f64 = 1.2;
/// Goals for the rates of GETs with a cached location and by key, relative to the rate of reads.
const RATE_GOALS: (f64, f64) = (0.8, 0.45);

impl Results {
    /// Returns all figures as tables.
    pub fn table(&self) -> String {
        let mut text = self.header.text();
        let _ = writeln!(text, "{}: reads are {}\n", self.provider, self.reads.text());
        self.raw(&mut text);
        if self.ways().is_empty() {
            return text;
        }
        self.gets(&mut text);
        self.sets(&mut text);
        self.windows(&mut text);
        self.crossover(&mut text);
        self.cpu(&mut text);
        text
    }

    /// Returns the values of one figure by round.
    fn rounds<'r>(
        &'r self,
        way: &'r str,
        what: What,
        bytes: usize,
        window: usize,
    ) -> impl Iterator<Item = &'r Figure> {
        self.figures.iter().filter(move |figure| {
            (&*figure.way, figure.what, figure.bytes, figure.window) == (way, what, bytes, window)
        })
    }

    fn median(
        &self,
        way: &str,
        what: What,
        bytes: usize,
        window: usize,
        of: fn(&Figure) -> f64,
    ) -> Option<f64> {
        let found = median(self.rounds(way, what, bytes, window).map(of));
        (!found.is_nan()).then_some(found)
    }

    /// Returns the median duration in microseconds.
    fn us(&self, way: &str, what: What, bytes: usize) -> Option<f64> {
        self.median(way, what, bytes, 0, |figure| figure.p50_ns / 1e3)
    }

    /// Returns the ratio of two figures: the median of the ratios within rounds.
    fn ratio(
        &self,
        (way, what): (&str, What),
        bytes: usize,
        window: usize,
        of: fn(&Figure) -> f64,
        by: impl Fn(u32) -> f64,
    ) -> Option<f64> {
        let found = median(self.rounds(way, what, bytes, window).map(|figure| of(figure) / by(figure.round)));
        (!found.is_nan()).then_some(found)
    }

    /// Returns a figure of plain libfabric in one round.
    fn raw_of(&self, what: What, bytes: usize, window: usize, round: u32, of: fn(&Figure) -> f64) -> f64 {
        let mut found = self.rounds(RAW, what, bytes, window).filter(|figure| figure.round == round);
        found.next().map_or(f64::NAN, of)
    }

    fn store_ns(&self, what: What, bytes: usize) -> f64 {
        self.median(STORE, what, bytes, 0, |figure| figure.p50_ns).unwrap_or(f64::NAN)
    }

    fn sizes(&self, is_window: bool) -> Vec<usize> {
        let fit = self.figures.iter().filter(|figure| (figure.window > 0) == is_window);
        fit.map(|figure| figure.bytes).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the paths to servers, in the order of their first measurement.
    fn ways(&self) -> Vec<&str> {
        let mut ways: Vec<&str> = Vec::new();
        for figure in &self.figures {
            if ![RAW, STORE].contains(&&*figure.way) && !ways.contains(&&*figure.way) {
                ways.push(&figure.way);
            }
        }
        ways
    }

    fn raw(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "libfabric alone, through the wrapper that server and client use; p50/p99 in us\n{:>9}{:>18}{:>18}{:>18}{:>18}",
            "value", "short, value back", "value, short back", "read", "write"
        );
        for bytes in self.sizes(false) {
            let _ = write!(text, "{bytes:>9}");
            for what in [What::RawGet, What::RawSet, What::Read, What::Write] {
                let p99 = self.median(RAW, what, bytes, 0, |figure| figure.p99_ns / 1e3);
                let both = format!("{}/{}", number(self.us(RAW, what, bytes)), number(p99));
                let _ = write!(text, "{both:>18}");
            }
            text.push('\n');
        }
        if self.sizes(true).is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\nthe same a second, in thousands\n{:>9}{:>8}{:>10}{:>10}",
            "value", "window", "read", "write"
        );
        for bytes in self.sizes(true) {
            for window in self.all_windows() {
                let rate = |what| self.median(RAW, what, bytes, window, |figure| figure.per_s / 1e3);
                let (read, write) = (number(rate(What::Read)), number(rate(What::Write)));
                let _ = writeln!(text, "{bytes:>9}{window:>8}{read:>10}{write:>10}");
            }
        }
    }

    fn all_windows(&self) -> Vec<usize> {
        let windows = self.figures.iter().map(|figure| figure.window).filter(|window| *window > 0);
        windows.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Appends the median of each path, with its ratio to the goal's base.
    fn gets(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nGET, p50 in us. {LOCATED}: the place is known from an earlier GET; x: times one raw read (goal {LOCATED_GOAL}). \
             {REGISTERED}: the same\ninto registered memory. {BY_KEY}: bucket, then item; x: times one raw read. {REQUEST}: the \
             server is asked; x: times the raw\nround trip and the store's own time (goal {REQUEST_GOAL})"
        );
        self.calls(text, What::Get, |way, bytes, round| match way {
            LOCATED | REGISTERED | BY_KEY | AUTO | AUTO_BY_KEY => {
                self.raw_of(What::Read, bytes, 0, round, |figure| figure.p50_ns)
            }
            REQUEST => {
                let trip = self.raw_of(What::RawGet, bytes, 0, round, |figure| figure.p50_ns);
                trip + self.store_ns(What::Get, bytes)
            }
            _ => f64::NAN,
        });
    }

    fn sets(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nSET, p50 in us; x: times the raw round trip and the store's own time. {REGISTERED}: from registered memory"
        );
        self.calls(text, What::Set, |way, bytes, round| match way {
            REQUEST | REGISTERED => {
                let trip = self.raw_of(What::RawSet, bytes, 0, round, |figure| figure.p50_ns);
                trip + self.store_ns(What::Set, bytes)
            }
            _ => f64::NAN,
        });
    }

    fn calls(&self, text: &mut String, what: What, floor: impl Fn(&str, usize, u32) -> f64) {
        let did = |way: &&str| self.figures.iter().any(|figure| figure.way == **way && figure.what == what);
        let ways: Vec<&str> = self.ways().into_iter().filter(did).collect();
        let _ = write!(text, "{:>9}{:>9}", "value", "store");
        for way in &ways {
            let _ = write!(text, "{way:>16}");
        }
        text.push('\n');
        for bytes in self.sizes(false) {
            let store = Some(self.store_ns(what, bytes) / 1e3).filter(|us| !us.is_nan());
            let _ = write!(text, "{bytes:>9}{:>9}", number(store));
            for way in &ways {
                let ratio = self.ratio(
                    (way, what),
                    bytes,
                    0,
                    |figure| figure.p50_ns,
                    |round| floor(way, bytes, round),
                );
                let ratio = ratio.map_or(String::new(), |ratio| format!(" x{ratio:.2}"));
                let _ = write!(text, "{:>16}", number(self.us(way, what, bytes)) + &ratio);
            }
            text.push('\n');
        }
    }

    fn windows(&self, text: &mut String) {
        if self.sizes(true).is_empty() {
            return;
        }
        let (located, by_key) = (RATE_GOALS.0 * 100.0, RATE_GOALS.1 * 100.0);
        let _ = writeln!(
            text,
            "\nthousands a second with so many under way; %: of raw reads with as many under way (goals: {LOCATED} \
             {located:.0}, {BY_KEY} {by_key:.0})"
        );
        if self.figures.iter().any(|figure| figure.what == What::Multiget) {
            text.push_str("many: keys a second, so many in each call\n");
        }
        let ways = self.ways();
        let _ = write!(text, "{:>4}{:>9}{:>8}{:>10}", "", "value", "window", "raw read");
        for way in &ways {
            let _ = write!(text, "{way:>16}");
        }
        text.push('\n');
        let reads = [LOCATED, REGISTERED, BY_KEY, AUTO, AUTO_BY_KEY];
        for (what, name) in [(What::Get, "GET"), (What::Multiget, "many"), (What::Set, "SET")] {
            for bytes in self.sizes(true) {
                for window in self.all_windows() {
                    if !self.figures.iter().any(|f| (f.what, f.bytes, f.window) == (what, bytes, window)) {
                        continue;
                    }
                    let read = self.median(RAW, What::Read, bytes, window, |figure| figure.per_s / 1e3);
                    let read = if what == What::Set { String::new() } else { number(read) };
                    let _ = write!(text, "{name:>4}{bytes:>9}{window:>8}{read:>10}");
                    for way in &ways {
                        let rate = self.median(way, what, bytes, window, |figure| figure.per_s / 1e3);
                        let raw =
                            |round| self.raw_of(What::Read, bytes, window, round, |figure| figure.per_s);
                        let part = self.ratio((way, what), bytes, window, |figure| figure.per_s, raw);
                        let part = part.filter(|_| what != What::Set && reads.contains(way));
                        let part = part.map_or(String::new(), |part| format!(" {:.0}%", part * 100.0));
                        let _ = write!(text, "{:>16}", number(rate) + &part);
                    }
                    text.push('\n');
                }
            }
        }
    }

    /// Appends the value size from which on one-sided reads by key are faster than requests.
    fn crossover(&self, text: &mut String) {
        let _ = writeln!(text, "\none-sided by key against by request: the time of one by that of the other");
        let mut quicker = Vec::new();
        for bytes in self.sizes(false) {
            let of = |figure: &Figure| figure.p50_ns;
            let request = |round| {
                let mut found =
                    self.rounds(REQUEST, What::Get, bytes, 0).filter(|figure| figure.round == round);
                found.next().map_or(f64::NAN, of)
            };
            let Some(ratio) = self.ratio((BY_KEY, What::Get), bytes, 0, of, request) else { continue };
            let which = if ratio < 1.0 { "one-sided" } else { "request" };
            quicker.push((bytes, ratio < 1.0));
            let _ = writeln!(text, "{bytes:>9}{ratio:>8.2}  {which}");
        }
        // The smallest size from which on every larger one is faster, too.
        let from = quicker.iter().rev().take_while(|(_, is_one_sided)| *is_one_sided).last();
        let _ = match from {
            Some((bytes, _)) => writeln!(text, "one-sided by key is quicker from values of {bytes} bytes on"),
            None => writeln!(text, "requests are quicker, or as quick, with the largest values"),
        };
    }

    fn cpu(&self, text: &mut String) {
        let ways = self.ways();
        let _ = write!(text, "\nthe server's CPU time for a GET that is waited for, us\n{:>9}", "value");
        for way in &ways {
            let _ = write!(text, "{way:>16}");
        }
        text.push('\n');
        for bytes in self.sizes(false) {
            let _ = write!(text, "{bytes:>9}");
            for way in &ways {
                let of = |figure: &Figure| figure.server_cpu_ns.unwrap_or(f64::NAN) / 1e3;
                let _ = write!(text, "{:>16}", number(self.median(way, What::Get, bytes, 0, of)));
            }
            text.push('\n');
        }
    }
}

/// Formats a number with three significant digits.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Header;

    fn results() -> Results {
        let mut figures = Vec::new();
        let mut add = |way: &str, what, bytes, window, round, p50_ns: f64, per_s| {
            let server_cpu_ns = (way == REQUEST).then_some(1_500.0);
            let p99_ns = 2.0 * p50_ns;
            let way = way.into();
            figures.push(Figure { way, what, bytes, window, round, p50_ns, p99_ns, per_s, server_cpu_ns });
        };
        for bytes in [64, 4096] {
            add(STORE, What::Get, bytes, 0, 0, 1_000.0, 0.0);
            add(STORE, What::Set, bytes, 0, 0, 2_000.0, 0.0);
            for round in 0..3 {
                let slow = f64::from(round + 1);
                add(RAW, What::RawGet, bytes, 0, round, 19_000.0, 0.0);
                add(RAW, What::RawSet, bytes, 0, round, 28_000.0, 0.0);
                add(RAW, What::Read, bytes, 0, round, 10_000.0 * slow, 0.0);
                add(RAW, What::Write, bytes, 0, round, 11_000.0, 0.0);
                add(LOCATED, What::Get, bytes, 0, round, 11_000.0 * slow, 0.0);
                add(REGISTERED, What::Get, bytes, 0, round, 10_500.0 * slow, 0.0);
                let by_key = if bytes == 64 { 30_000.0 } else { 20_000.0 };
                add(BY_KEY, What::Get, bytes, 0, round, by_key, 0.0);
                add(REQUEST, What::Get, bytes, 0, round, 25_000.0, 0.0);
                add(REQUEST, What::Set, bytes, 0, round, 45_000.0, 0.0);
            }
        }
        for (way, what, per_s) in [
            (RAW, What::Read, 100e3),
            (RAW, What::Write, 90e3),
            (LOCATED, What::Get, 85e3),
            (REGISTERED, What::Get, 90e3),
            (BY_KEY, What::Get, 50e3),
            (REQUEST, What::Get, 70e3),
            (REQUEST, What::Set, 60e3),
            (AUTO, What::Multiget, 75e3),
        ] {
            add(way, what, 64, 8, 0, 0.0, per_s);
        }
        let header = ServersHeader {
            run: Header { machine: "a machine".into(), ..Header::default() },
            servers: vec![("ours".into(), "1".into())],
            method: "somehow".into(),
        };
        Results { header, provider: "tcp;ofi_rxm at lo".into(), reads: Reads::ByPeer, figures }
    }

    #[test]
    fn figures_and_ratios_of_the_same_rounds_are_in_the_tables() {
        let table = results().table();
        let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [
            "reads are served with the server's help",
            "64 19.0/38.0 28.0/56.0 20.0/40.0 11.0/22.0",
            "64 8 100 90.0",
            "64 1.00 22.0 x1.10 21.0 x1.05 30.0 x1.50 25.0 x1.25",
            "64 2.00 45.0 x1.50",
            "GET 64 8 100 85.0 85% 90.0 90% 50.0 50% 70.0 -",
            "many: keys a second",
            "many 64 8 100 - - - - 75.0 75%",
            "SET 64 8 - - - 60.0 -",
            "64 1.20 request 4096 0.80 one-sided one-sided by key is quicker from values of 4096 bytes on",
            "64 - - - 1.50 -",
        ] {
            assert!(table.contains(text), "{text:?} in\n{table}");
        }
    }

    #[test]
    fn without_a_server_plain_libfabric_is_measured() {
        let mut results = results();
        results.figures.retain(|figure| figure.way == RAW);
        results.reads = Reads::BySystem;
        let table = results.table();
        assert!(table.contains("reads are copied by the system"), "{table}");
        assert!(table.contains("libfabric alone") && !table.contains("GET"), "{table}");
    }
}
