//! Kills a store at every kill point of some work, and checks what the next server makes of each.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;

use fabcache_layout::kill_points::{KillPoint, Moment, observe};
use fabcache_store::dump::{Cursor, VisitedItem};
use fabcache_store::{DiscardReason, Expiry, Handle, Opening};

use crate::common::{SetClock, delete, get, set_with};
use crate::ledger::{Contents, Found, Ledger, MayLose};
use crate::world::{Files, Setup, World, open};

/// Kill points that are all checked.
const FIRST_POINTS: usize = 200;
/// Of each place in the code so many are checked.
const POINTS_OF_CODE: usize = 5;
/// After one check in so many the store is used, stopped, filled and emptied, too: also after the first of each place.
const USED_STRIDE: usize = 8;

/// Which kill points of some work are checked, and how.
#[derive(Clone, Copy)]
pub struct Kills {
    /// After the first [`FIRST_POINTS`] and the first [`POINTS_OF_CODE`] of each place in the code, one of so many.
    pub stride: usize,
    /// Also after each store: files beside the region change in between.
    pub after: bool,
    /// The region may be new.
    pub is_creation: bool,
    /// What follows the start, with the clock.
    pub then: fn(&Handle, &SetClock, &Ledger, &Found),
}

impl Kills {
    /// At every store.
    pub const ALL: Kills = Kills { stride: 1, after: false, is_creation: false, then: |_, _, _, _| {} };

    /// At one store of `stride`, after the first ones.
    pub const fn one_of(stride: usize) -> Kills {
        Kills { stride, ..Kills::ALL }
    }

    /// Kills the world's server at the kill points of `work`, and when it has ended. Returns how many were checked.
    #[track_caller]
    pub fn during(self, world: &World, work: impl FnOnce(&World)) -> usize {
        let kills = Rc::new(RefCell::new(Progress::default()));
        let observer = {
            let (kills, ledger, seconds) =
                (Rc::clone(&kills), Rc::clone(&world.ledger), Rc::clone(&world.seconds));
            let (files, killed, setup) = (world.files.clone(), world.killed.clone(), world.setup);
            move |point: KillPoint| {
                let mut kills = kills.borrow_mut();
                if let Some(is_used) = kills.takes(&self, point) {
                    killed.copy(&files);
                    let place = format!("{:?} the store at {}", point.moment, point.code);
                    let killed = Killed { files: &killed, setup, seconds: seconds.get(), is_used };
                    kills.check(&self, &place, &killed, &ledger.borrow());
                }
            }
        };
        observe(observer, || work(world));
        world.killed.copy(&world.files);
        let killed =
            Killed { files: &world.killed, setup: world.setup, seconds: world.seconds.get(), is_used: true };
        let mut kills = kills.borrow_mut();
        kills.check(&self, "at the end", &killed, &world.ledger.borrow());
        let Progress { points, checked, failed, .. } = &*kills;
        println!("{}: {checked} of {points} kill points", Location::caller());
        let first = &failed[..failed.len().min(5)];
        assert!(failed.is_empty(), "{} of {checked} kill points failed: {first:#?}", failed.len());
        assert!(*points > 0, "nothing was stored");
        *checked
    }
}

#[derive(Default)]
struct Progress {
    points: usize,
    checked: usize,
    of_code: HashMap<(&'static Location<'static>, bool), usize>,
    failed: Vec<String>,
}

impl Progress {
    /// Returns whether a kill point is checked, and then whether the store is used.
    fn takes(&mut self, kills: &Kills, point: KillPoint) -> Option<bool> {
        if point.moment == Moment::After && !kills.after {
            return None;
        }
        let of_code = self.of_code.entry((point.code, point.moment == Moment::Halfway)).or_default();
        *of_code += 1;
        self.points += 1;
        let is_taken = self.points <= FIRST_POINTS
            || *of_code <= POINTS_OF_CODE
            || self.points.is_multiple_of(kills.stride);
        is_taken.then_some(*of_code == 1 || self.checked.is_multiple_of(USED_STRIDE))
    }

    fn check(&mut self, kills: &Kills, place: &str, killed: &Killed<'_>, ledger: &Ledger) {
        self.checked += 1;
        let check = || check(kills, killed, ledger);
        // The store that goes on must not unwind: its locks are held.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(check)) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            let number = self.points;
            self.failed.push(format!("kill point {number}, {place}: {}", text.unwrap_or_default()));
        }
    }
}

/// The store of a killed server.
struct Killed<'a> {
    files: &'a Files,
    setup: Setup,
    seconds: u64,
    /// It is also used, stopped, filled and emptied.
    is_used: bool,
}

impl Killed<'_> {
    fn start(&self) -> (Handle, SetClock, Opening) {
        open(self.files.region.clone(), self.setup, self.seconds).expect("the region can be used")
    }
}

/// Checks the store of a killed server.
fn check(kills: &Kills, killed: &Killed<'_>, ledger: &Ledger) {
    let start = || killed.start();
    let (handle, clock, opening) = start();
    match opening {
        Opening::Recovered { .. } | Opening::Kept { .. } => {}
        Opening::New | Opening::Discarded(DiscardReason::Unfinished) if kills.is_creation => {}
        _ => panic!("{opening:?}"),
    }
    let found = survey(&handle);
    ledger.admits(&found);
    drop((handle, clock));

    // Another kill, before anything else happens, changes nothing.
    let (handle, clock, opening) = start();
    assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
    let again = survey(&handle);
    if ledger.may_lose == MayLose::Nothing {
        assert!(again == found, "a second kill lost {:?}", missing(&found, &again));
    } else {
        assert!(again.iter().all(|(key, contents)| found.get(key) == Some(contents)));
    }
    (kills.then)(&handle, &clock, ledger, &again);
    drop((handle, clock));
    if !killed.is_used {
        return;
    }

    let (handle, _clock, _) = start();
    works(&handle, ledger);
    // Of full memory some were evicted, and `then` may have let time pass.
    let found = survey(&handle);
    assert!(found.iter().all(|(key, contents)| again.get(key) == Some(contents)));
    let items = handle.store().keep().expect("nothing is in use").expect("a file");
    drop((handle, _clock));

    let (handle, _clock, opening) = start();
    assert_eq!(opening, Opening::Kept { items, clock_went_back: false });
    let kept = survey(&handle);
    assert!(kept == found, "a clean stop lost {:?}", missing(&found, &kept));
    fills_up(&handle, &found);
    empties(&handle);
}

fn missing(of: &Found, from: &Found) -> Vec<String> {
    let differs = |(key, contents): &(&Vec<u8>, &Contents)| from.get(*key) != Some(contents);
    of.iter().filter(differs).map(|(key, _)| String::from_utf8_lossy(key).into()).collect()
}

/// Returns what the store holds, by a walk and by key; the accounts agree.
pub fn survey(handle: &Handle) -> Found {
    let mut keys = BTreeMap::new();
    let (mut cursor, mut gone) = (Cursor::START, 0);
    while !cursor.is_done() {
        let visit = |item: VisitedItem<'_>| {
            let before = keys.insert(item.key.to_vec(), item.info);
            assert!(before.is_none(), "a walk visits a key twice");
        };
        cursor = handle.walk(cursor, visit, |_| gone += 1);
    }
    let usage = handle.store().usage();
    assert_eq!(usage.items, keys.len() as u64 + gone, "items, by the accounts and by a walk");
    let read = |(key, walked): (Vec<u8>, _)| {
        let name = String::from_utf8_lossy(&key);
        let (info, value) = get(handle, &key).unwrap_or_else(|| panic!("{name} was visited: {walked:?}"));
        let contents = Contents { value, flags: info.flags, expiry: info.expiry.second() };
        (key, contents)
    };
    keys.into_iter().map(read).collect()
}

/// Items are set, overwritten, read and deleted.
fn works(handle: &Handle, ledger: &Ledger) {
    let key = b"works";
    let set = |value: &[u8]| set_with(handle, key, value, 3, Expiry::NEVER);
    assert!(!delete(handle, key));
    match set(b"first") {
        Ok(cas) => assert!(cas > ledger.last_cas, "CAS value {cas} after {}", ledger.last_cas),
        Err(why) => return assert!(!handle.store().evicts(), "{why}"),
    }
    assert_eq!(get(handle, key).expect("just set").1, b"first");
    let long = vec![b'x'; 20_000];
    for value in [&long[..], b"third"] {
        if set(value).is_ok() {
            assert_eq!(get(handle, key).expect("just set").1, value);
        } else {
            assert!(!handle.store().evicts());
        }
    }
    assert!(delete(handle, key));
    assert!(get(handle, key).is_none());
}

/// Memory is filled until items are evicted, or refused.
fn fills_up(handle: &Handle, found: &Found) {
    let value = [b'f'; 1_500];
    let evictions = || handle.store().sums().evictions;
    let mut filled = 0;
    while evictions() < 20 {
        let key = format!("refill-{filled}");
        filled += 1;
        assert!(filled < 2_000, "memory never fills: {:?}", handle.store().usage());
        match set_with(handle, key.as_bytes(), &value, 0, Expiry::NEVER) {
            Ok(_) => assert_eq!(get(handle, key.as_bytes()).expect("just set").1, value),
            Err(why) => {
                assert!(!handle.store().evicts(), "{why}");
                break;
            }
        }
    }
    for (key, contents) in survey(handle) {
        match found.get(&key) {
            Some(wanted) => assert!(contents == *wanted, "{} changed", String::from_utf8_lossy(&key)),
            None => assert!(key.starts_with(b"refill-") && contents.value == value),
        }
    }
}

/// Everything is deleted, and nothing is left in the accounts.
fn empties(handle: &Handle) {
    for key in survey(handle).keys() {
        assert!(delete(handle, key));
    }
    handle.crawl();
    handle.maintain();
    let usage = handle.store().usage();
    assert_eq!((usage.items, usage.item_bytes, usage.segments_pinned), (0, 0, 0), "everything is freed");
    set_with(handle, b"last", b"value", 0, Expiry::NEVER).expect("memory is free");
}
