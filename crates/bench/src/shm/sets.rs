//! Requests through the channel: single, in windows, and with one CPU for both ends.

use anyhow::Result;
use fabcache_client::{Request, Ttl};
use serde::Serialize;

use super::floors::{cache_line_round_trip_ns, store_set_ns};
use super::servers::{PathClient, Servers, check, value};
use super::timing::{Percentiles, clock_ns, percentiles, rate};
use super::{CLIENT_CPU, HOT_KEYS, Plan, SERVER_CPU};
use crate::server::MeasuredProgram;
use crate::store::keys::{BATCH, KEY_BYTES, key};
use fabcache_testbed::statistics::median;

/// Items resident.
const ITEMS: u64 = 10_000;

/// Time to measure a cache line's round trip, as a part (1/n) of a round.
const ROUND_TRIP_SHARE: u32 = 4;

/// Requests in flight.
pub const WINDOWS: [usize; 3] = [1, 8, 32];

/// Requests over one transport.
#[derive(Clone, Debug, Serialize)]
pub struct Requests {
    /// The transport.
    pub way: String,
    /// A blocking SET.
    pub set: Percentiles,
    /// SETs per second: each window with `iset`, and with `bset`.
    pub windows: Vec<Window>,
    /// A SET with one CPU for both ends.
    pub one_cpu_set: Percentiles,
    /// A GET with one CPU for both ends; it extends the item's life, and so needs the server.
    pub one_cpu_get: Percentiles,
}

/// SETs per second with so many in flight.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Window {
    /// Number of requests.
    pub requests: usize,
    /// With `iset`: key and value belong to the request until it completes.
    pub iset_per_s: f64,
    /// With `bset`: key and value may be reused at once.
    pub bset_per_s: f64,
}

/// The floor of a SET: the machine's and the store's time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SetFloor {
    /// A cache line's round trip between the client's CPU and the server's, in nanoseconds, measured in
    /// each round.
    pub round_trip_ns: f64,
    /// A SET on a store in this process.
    pub store_ns: f64,
    /// The SET of each round through shared memory, relative to three round trips plus the store's time.
    pub set_to_floor: f64,
}

/// Maximum round trips of a line for a SET: request, response, and one more.
const ROUND_TRIPS: f64 = 3.0;

impl SetFloor {
    /// Returns the floor: three round trips and the store's time.
    pub fn floor_ns(&self) -> f64 {
        ROUND_TRIPS * self.round_trip_ns + self.store_ns
    }
}

/// The results of one transport's rounds.
#[derive(Default)]
struct Rounds {
    set: Vec<Percentiles>,
    iset: [Vec<f64>; WINDOWS.len()],
    bset: [Vec<f64>; WINDOWS.len()],
    one_cpu_set: Vec<Percentiles>,
    one_cpu_get: Vec<Percentiles>,
}

/// Measures all transports: shared memory, the same server's Unix socket, the other server's.
///
/// # Errors
/// A server fails or answers wrongly.
pub fn measure(
    ours: &MeasuredProgram,
    against: Option<&MeasuredProgram>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<(SetFloor, Vec<Requests>)> {
    progress("the store's own part of a request");
    let store_ns = store_set_ns(ITEMS, plan)?;
    progress("requests");
    let servers = Servers::start(ours, against, ITEMS, plan.small_value_bytes, plan)?;
    let mut ways = vec![servers.shared()?, servers.socket()?];
    ways.extend(servers.against()?);
    let mut all: Vec<Rounds> = ways.iter().map(|_| Rounds::default()).collect();
    let clock_ns = clock_ns();
    let mut round_trips = Vec::new();
    for round in 0..plan.rounds {
        progress(&format!("requests, round {} of {}", round + 1, plan.rounds));
        // The distance of a virtual machine's CPUs changes from one moment to the next.
        round_trips.push(cache_line_round_trip_ns(plan.round / ROUND_TRIP_SHARE)?);
        for (way, rounds) in ways.iter().zip(&mut all) {
            rounds.set.push(set(way, clock_ns, plan)?);
            for (at, requests) in WINDOWS.into_iter().enumerate() {
                rounds.iset[at].push(window(way, requests, plan, iset)?);
                rounds.bset[at].push(window(way, requests, plan, bset)?);
            }
        }
        pin_servers(&servers, CLIENT_CPU)?;
        for (way, rounds) in ways.iter().zip(&mut all) {
            rounds.one_cpu_set.push(set(way, clock_ns, plan)?);
            rounds.one_cpu_get.push(get_and_touch(way, clock_ns, plan)?);
        }
        pin_servers(&servers, SERVER_CPU)?;
    }
    let floor = |round_trip_ns| SetFloor { round_trip_ns, store_ns, set_to_floor: f64::NAN };
    let ratios = all[0].set.iter().zip(&round_trips).map(|(set, trip)| set.p50_ns / floor(*trip).floor_ns());
    let set_to_floor = median(ratios.collect::<Vec<_>>());
    let set_floor = SetFloor { set_to_floor, ..floor(median(round_trips)) };
    Ok((set_floor, ways.iter().zip(all).map(|(way, rounds)| rounds.requests(&way.name)).collect()))
}

fn pin_servers(servers: &Servers, cpu: usize) -> Result<()> {
    let both = [Some(&servers.ours), servers.against.as_ref()];
    both.into_iter().flatten().try_for_each(|running| running.server.pin(&cpu.into()))
}

impl Rounds {
    fn requests(self, way: &str) -> Requests {
        let windows = WINDOWS.into_iter().zip(self.iset.into_iter().zip(self.bset));
        let window = |(requests, (iset, bset)): (usize, (Vec<f64>, Vec<f64>))| Window {
            requests,
            iset_per_s: median(iset),
            bset_per_s: median(bset),
        };
        Requests {
            way: way.into(),
            set: Percentiles::medians(&self.set),
            windows: windows.map(window).collect(),
            one_cpu_set: Percentiles::medians(&self.one_cpu_set),
            one_cpu_get: Percentiles::medians(&self.one_cpu_get),
        }
    }
}

/// Returns the hot keys in turn.
fn hot_keys() -> impl FnMut() -> (u64, [u8; KEY_BYTES]) {
    let mut number = 0;
    move || {
        number = (number + 1) % HOT_KEYS;
        (number, key(number))
    }
}

fn set(way: &PathClient, clock_ns: f64, plan: &Plan) -> Result<Percentiles> {
    let mut next = hot_keys();
    let prepare = || {
        let (number, key) = next();
        (key, value(number, plan.small_value_bytes))
    };
    percentiles(
        plan.round,
        clock_ns,
        prepare,
        |(key, value)| way.client.set(key, value, Ttl::NEVER),
        |_, done| Ok(done?),
    )
}

fn get_and_touch(way: &PathClient, clock_ns: f64, plan: &Plan) -> Result<Percentiles> {
    percentiles(
        plan.round,
        clock_ns,
        hot_keys(),
        |(_, key)| way.client.get_and_touch(key, Ttl::NEVER),
        |(number, _), item| check(item?.as_ref(), *number, plan.small_value_bytes),
    )
}

/// A SET with an idle request object.
type Store = fn(&mut Request, &[u8; KEY_BYTES], &[u8], (Vec<u8>, Vec<u8>));

fn iset(
    request: &mut Request,
    key: &[u8; KEY_BYTES],
    value: &[u8],
    (mut own_key, mut own): (Vec<u8>, Vec<u8>),
) {
    own_key.clear();
    own_key.extend_from_slice(key);
    own.clear();
    own.extend_from_slice(value);
    request.iset(own_key, own, Ttl::NEVER);
}

fn bset(request: &mut Request, key: &[u8; KEY_BYTES], value: &[u8], _: (Vec<u8>, Vec<u8>)) {
    request.bset(key, value, Ttl::NEVER);
}

/// SETs a second with `requests` in flight.
fn window(way: &PathClient, requests: usize, plan: &Plan, store: Store) -> Result<f64> {
    let mut objects: Vec<Request> = (0..requests).map(|_| way.client.request()).collect();
    let mut next = hot_keys();
    let mut batch: Vec<([u8; KEY_BYTES], Vec<u8>)> = Vec::new();
    let prepare = |batch: &mut Vec<_>| {
        batch.clear();
        batch.extend((0..BATCH).map(|_| {
            let (number, key) = next();
            (key, value(number, plan.small_value_bytes))
        }));
        BATCH as u64
    };
    rate(plan.round, &mut batch, prepare, |batch| {
        for (i, (key, value)) in batch.iter().enumerate() {
            let request = &mut objects[i % requests];
            let mut buffers = (Vec::new(), Vec::new());
            if i >= requests {
                let done = request.wait();
                done.result?;
                buffers = (done.key, done.value);
            }
            store(request, key, value, buffers);
        }
        objects.iter_mut().try_for_each(|request| Ok(request.wait().result.map(drop)?))
    })
}
