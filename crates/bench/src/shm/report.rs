//! Figures of shared memory as tables and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::gets::Gets;
use super::idle::Idle;
use super::sets::{Requests, SetFloor};
use crate::report::ServersHeader;

/// Published figures of other systems, for comparison.
const PUBLISHED: &str = "as published, for context, of other machines: SHMemCache (OpenSHMEM 2016), one client, one server: GET 5 us, \
     SET 6 us; 900,000 GETs and 650,000 SETs a second\n";

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Reads that bypass the server.
    pub gets: Vec<Gets>,
    /// The floor of a SET.
    pub set_floor: SetFloor,
    /// Requests, by transport.
    pub sets: Vec<Requests>,
    /// An idle server.
    pub idle: Idle,
}

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When, where, what and how it was measured.
    #[serde(flatten)]
    pub header: ServersHeader,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Results {
    /// Returns all figures as tables.
    pub fn table(&self) -> String {
        let mut text = self.header.text();
        self.reads(&mut text);
        self.rates(&mut text);
        self.requests(&mut text);
        text.push_str(PUBLISHED);
        let Idle { clients, cpu_ms_per_s, alone_cpu_ms_per_s } = self.figures.idle;
        let _ = writeln!(
            text,
            "\nidle: {cpu_ms_per_s:.2} ms of CPU time a second with {clients} clients, {alone_cpu_ms_per_s:.2} with none"
        );
        text
    }

    fn reads(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "GET, ns; x: times two dependent loads (cold) or a copy of the value; server: its CPU ns for a read\n\
             {:>9}{:>8} {:>23}{:>6}{:>6} {:>23}{:>6} {:>7}{:>7}{:>9}{:>9} {:>24}{:>7}",
            "items",
            "value",
            "cold p50/p99/p99.9",
            "x2ld",
            "xcopy",
            "hot p50/p99/p99.9",
            "xcopy",
            "server",
            "load",
            "copy",
            "hot copy",
            "other's p50/p99/p99.9",
            "x"
        );
        for gets in &self.figures.gets {
            let three =
                |p: &super::timing::Percentiles| format!("{:.0}/{:.0}/{:.0}", p.p50_ns, p.p99_ns, p.p999_ns);
            let floors = &gets.floors;
            let _ = writeln!(
                text,
                "{:>9}{:>8} {:>23}{:>6.2}{:>6.2} {:>23}{:>6.2} {:>7.2}{:>7.0}{:>9.0}{:>9.0} {:>24}{:>7.0}",
                gets.items,
                gets.value_bytes,
                three(&gets.cold),
                gets.cold_to_loads(),
                gets.cold.p50_ns / floors.copy_cold_ns,
                three(&gets.hot),
                gets.hot.p50_ns / floors.copy_hot_ns,
                gets.server_cpu_ns,
                floors.dependent_load_ns,
                floors.copy_cold_ns,
                floors.copy_hot_ns,
                gets.against.as_ref().map_or("-".into(), three),
                gets.against_to_hot(),
            );
        }
    }

    fn rates(&self, text: &mut String) {
        for gets in &self.figures.gets {
            let Some(rates) = gets.rates else { continue };
            let _ = writeln!(
                text,
                "\nmillion reads a second from one core, {} items of {} bytes: {:.2} one after the other, {:.2} many at \
                 once, {:.2} if only looked at, {:.2} in a window; {} many at once over the other's socket; floor: {:.1} independent loads; the server's CPU for \
                 a read is {:.1} ns at first, {} once each item was read some times",
                gets.items,
                gets.value_bytes,
                rates.single_per_s / 1e6,
                rates.many_per_s / 1e6,
                rates.each_per_s / 1e6,
                rates.window_per_s / 1e6,
                rates.against_many_per_s.map_or("-".into(), |per_s| format!("{:.2}", per_s / 1e6)),
                1e3 / gets.floors.independent_load_ns,
                gets.server_cpu_ns,
                gets.server_cpu_later_ns.map_or("-".into(), |ns| format!("{ns:.2}")),
            );
        }
    }

    fn requests(&self, text: &mut String) {
        let floor = self.figures.set_floor;
        let _ = writeln!(
            text,
            "\nrequests; a cache line's way there and back takes {:.0} ns, a SET of the store itself {:.0}: three such ways \
             and the store {:.0}, of which a SET through shared memory takes {:.2} times as long\n\
             {:<16}{:>11}{:>9}{:>9} {:>26} {:>26} {:>15}{:>15}",
            floor.round_trip_ns,
            floor.store_ns,
            floor.floor_ns(),
            floor.set_to_floor,
            "",
            "SET p50 us",
            "p99",
            "p99.9",
            "iset k/s: 1, 8, 32",
            "bset k/s: 1, 8, 32",
            "one CPU: SET us",
            "GET+touch us"
        );
        for requests in &self.figures.sets {
            let each = |per_s: fn(&super::sets::Window) -> f64| {
                let all: Vec<String> =
                    requests.windows.iter().map(|window| format!("{:.0}", per_s(window) / 1e3)).collect();
                all.join(", ")
            };
            let _ = writeln!(
                text,
                "{:<16}{:>11.2}{:>9.2}{:>9.1} {:>26} {:>26} {:>15.1}{:>15.1}",
                requests.way,
                requests.set.p50_ns / 1e3,
                requests.set.p99_ns / 1e3,
                requests.set.p999_ns / 1e3,
                each(|window| window.iset_per_s),
                each(|window| window.bset_per_s),
                requests.one_cpu_set.p50_ns / 1e3,
                requests.one_cpu_get.p50_ns / 1e3,
            );
        }
    }
}

impl Gets {
    /// Returns the median cold read, relative to two dependent loads.
    pub fn cold_to_loads(&self) -> f64 {
        self.cold.p50_ns / (2.0 * self.floors.dependent_load_ns)
    }

    /// Returns the other server's median read, relative to the median hot read.
    pub fn against_to_hot(&self) -> f64 {
        self.against.map_or(f64::NAN, |against| against.p50_ns / self.hot.p50_ns)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::floors::Floors;
    use super::super::gets::Rates;
    use super::super::sets::{WINDOWS, Window};
    use super::super::timing::Percentiles;
    use super::*;
    use crate::report::Header;

    pub(crate) fn results() -> Results {
        let of = |p50_ns| Percentiles { p50_ns, p99_ns: 2.0 * p50_ns, p999_ns: 5.0 * p50_ns };
        let gets = |items, value_bytes| Gets {
            wanted_items: items,
            items,
            value_bytes,
            floors: Floors {
                bytes: 1 << 20,
                dependent_load_ns: 125.0,
                independent_load_ns: 20.0,
                copy_cold_ns: 100.0,
                copy_hot_ns: 50.0,
            },
            cold: of(500.0),
            hot: of(110.0),
            server_cpu_ns: 1.5,
            server_cpu_later_ns: (value_bytes == 64).then_some(0.25),
            against: Some(of(55_000.0)),
            rates: (value_bytes == 64).then_some(Rates {
                single_per_s: 2e6,
                many_per_s: 10e6,
                each_per_s: 12e6,
                window_per_s: 3e6,
                against_many_per_s: None,
            }),
        };
        let window = |requests| Window { requests, iset_per_s: 1e6, bset_per_s: 5e5 };
        let requests = |way: &str| Requests {
            way: way.into(),
            set: of(900.0),
            windows: WINDOWS.map(window).into(),
            one_cpu_set: of(5_000.0),
            one_cpu_get: of(6_000.0),
        };
        Results {
            header: ServersHeader {
                run: Header { machine: "a machine".into(), ..Header::default() },
                servers: vec![("ours".into(), "1".into()), ("theirs".into(), "2".into())],
                method: "somehow".into(),
            },
            figures: Figures {
                gets: vec![gets(1_000, 64), gets(1_000, 65_536), gets(100_000, 64)],
                set_floor: SetFloor { round_trip_ns: 200.0, store_ns: 300.0, set_to_floor: 1.25 },
                sets: vec![requests("shared memory"), requests("theirs")],
                idle: Idle { clients: 100, cpu_ms_per_s: 0.7, alone_cpu_ms_per_s: 0.5 },
            },
        }
    }

    #[test]
    fn figures_and_ratios_are_in_the_tables() {
        let table = results().table();
        let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [
            "500/1000/2500 2.00 5.00",
            "110/220/550 2.20",
            "55000/110000/275000 500",
            "100000 items of 64 bytes: 2.00 one after the other, 10.00 many at once, 12.00 if only looked at, 3.00 in a window; - many",
            "1.5 ns at first, 0.25 once",
            "takes 200 ns, a SET of the store itself 300: three such ways and the store 900, of which a SET through \
             shared memory takes 1.25 times",
            "shared memory 0.90 1.80 4.5 1000, 1000, 1000 500, 500, 500 5.0 6.0",
            "0.70 ms of CPU time a second with 100 clients, 0.50 with none",
        ] {
            assert!(table.contains(text), "{text:?} in\n{table}");
        }
    }
}
