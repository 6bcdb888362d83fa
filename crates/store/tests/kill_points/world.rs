//! A store in a file, the operations on it, and the ledger of what it must hold.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use fabcache_store::backing::BackingOptions;
use fabcache_store::bounds::RUN_SETS_MAX;
use fabcache_store::{
    Change, CreateError, Expiry, Handle, NewValue, Opening, OutOfMemory, Probe, Put, Store, StoreOptions,
    Upload, Value, Write,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;

use crate::common::{SetClock, get, plain};
use crate::ledger::{Contents, Ledger, MayLose};

/// How stores are opened.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub memory_bytes: u64,
    pub memory_bytes_max: u64,
    pub evict: bool,
}

impl Setup {
    /// A region of a mebibyte, with segments of 8 KiB.
    pub const SMALL: Setup = Setup { memory_bytes: 1 << 20, memory_bytes_max: 1 << 20, evict: true };
    /// The same, and memory that is full refuses items.
    pub const KEEPING: Setup = Setup { evict: false, ..Setup::SMALL };
}

/// Opens the store in the file, at so many seconds of the clock.
pub fn open(file: PathBuf, setup: Setup, seconds: u64) -> Result<(Handle, SetClock, Opening), CreateError> {
    let clock = SetClock::default();
    clock.advance(seconds);
    let options = StoreOptions {
        memory_bytes: setup.memory_bytes,
        memory_bytes_max: setup.memory_bytes_max,
        backing: BackingOptions { file: Some(file), ..BackingOptions::default() },
        evict: setup.evict,
        time: Box::new(clock.clone()),
        ..StoreOptions::default()
    };
    let store = Arc::new(Store::open(options)?);
    let (opening, _) = store.opening();
    let handle = Handle::new(&store);
    // Of two starts one finishes its recovery at once; that of the other goes on with the requests.
    if OPENED.with(|opened| opened.replace(opened.get() + 1)).is_multiple_of(2) {
        assert!(handle.finish_restart(&mut || true));
    }
    Ok((handle, clock, opening))
}

thread_local! {
    /// Stores that this thread has opened.
    static OPENED: Cell<u32> = const { Cell::new(0) };
}

/// The files of a store.
#[derive(Clone, Debug)]
pub struct Files {
    pub region: PathBuf,
    pub meta: PathBuf,
}

impl Files {
    fn of(folder: &Folder, name: &str) -> Files {
        let path = |suffix: &str| folder.path().join(format!("{name}{suffix}"));
        Files { region: path(""), meta: path(".meta") }
    }

    /// Makes these files what the others are now: as their server, killed now, would leave them.
    pub fn copy(&self, other: &Files) {
        for (to, from) in [(&self.region, &other.region), (&self.meta, &other.meta)] {
            if from.exists() {
                fs::copy(from, to).expect("a file of this test");
            } else if to.exists() {
                fs::remove_file(to).expect("a file of this test");
            }
        }
    }
}

/// A store that is going to be killed.
pub struct World {
    pub setup: Setup,
    pub files: Files,
    /// Where the copy of a killed store goes.
    pub killed: Files,
    pub ledger: Rc<RefCell<Ledger>>,
    /// Seconds that the clock shows.
    pub seconds: Rc<Cell<u64>>,
    handle: RefCell<Option<(Handle, SetClock)>>,
    /// The region's second when the clock showed 0.
    first_second: u32,
    values: Cell<u64>,
    _folder: Folder,
}

impl World {
    /// A world in which nothing was created.
    pub fn void(setup: Setup) -> World {
        let folder = Folder::new("fabcache-kill-points").expect("a folder");
        World {
            setup,
            files: Files::of(&folder, "region"),
            killed: Files::of(&folder, "killed"),
            ledger: Rc::default(),
            seconds: Rc::default(),
            handle: RefCell::new(None),
            first_second: fabcache_store::clock::FIRST_SECOND,
            values: Cell::new(0),
            _folder: folder,
        }
    }

    /// A world with an empty store.
    pub fn new(setup: Setup) -> World {
        let world = World::void(setup);
        assert_eq!(world.start().expect("a new file"), Opening::New);
        world.handle(|handle| assert_eq!(handle.store().now(), world.first_second));
        world
    }

    /// A world with items in sealed segments and in open ones, after writes that left dead ones behind.
    pub fn populated(setup: Setup) -> World {
        let world = World::new(setup);
        for number in 0..40 {
            world.set(&format!("old-{number}"), 20 + 37 * number);
            world.set(&format!("gone-{number}"), 100);
        }
        world.set("old-number", 0);
        world.set_bytes("old-number", b"41".to_vec(), 0).expect("there is room");
        for (number, len) in [9_000, 17_000, 30_000].into_iter().enumerate() {
            world.set(&format!("old-long-{number}"), len);
            world.set(&format!("gone-long-{number}"), len);
        }
        for number in 0..20 {
            world.set(&format!("old-{number}"), 30 + 31 * number);
            world.delete(&format!("gone-{number}"));
        }
        world.delete("gone-long-0");
        world.restart();
        for number in 20..40 {
            world.set(&format!("old-{number}"), 40 + 29 * number);
            world.delete(&format!("gone-{number}"));
            world.set(&format!("new-{}", number - 20), 11 * number);
        }
        world.delete("gone-long-1");
        world.delete("gone-long-2");
        world.set_bytes("new-number", b"99".to_vec(), 7).expect("there is room");
        world
    }

    /// Starts a server.
    pub fn start(&self) -> Result<Opening, CreateError> {
        let (handle, clock, opening) = open(self.files.region.clone(), self.setup, self.seconds.get())?;
        *self.handle.borrow_mut() = Some((handle, clock));
        Ok(opening)
    }

    /// Stops the server without saving anything.
    pub fn kill(&self) {
        *self.handle.borrow_mut() = None;
    }

    /// Stops the server cleanly, and starts another one.
    pub fn restart(&self) {
        self.handle(|handle| handle.store().keep().expect("nothing is in use"));
        self.kill();
        let opening = self.start().expect("a region");
        assert!(matches!(opening, Opening::Kept { .. }), "{opening:?}");
    }

    pub fn handle<R>(&self, use_it: impl FnOnce(&Handle) -> R) -> R {
        let handle = self.handle.borrow();
        let (handle, _) = handle.as_ref().expect("a server runs");
        use_it(handle)
    }

    pub fn may_lose(&self, what: MayLose) {
        self.ledger.borrow_mut().may_lose = what;
    }

    fn contents(&self, key: &str) -> Contents {
        self.ledger.borrow().contents(key.as_bytes()).cloned().expect("the key is present")
    }

    pub fn value(&self, len: usize) -> Vec<u8> {
        self.values.set(self.values.get() + 1);
        pattern(self.values.get(), len)
    }

    pub fn expiry(&self, seconds: i64) -> Expiry {
        self.handle(|handle| {
            Expiry::from_client(seconds, handle.store().now(), handle.store().clock_origin())
        })
    }

    /// Does an operation that gives the key these contents, and returns its CAS value.
    fn change(
        &self,
        key: &str,
        new: Option<Contents>,
        operation: impl FnOnce(&Handle) -> Result<u64, OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let key = key.as_bytes();
        let before = self.ledger.borrow().contents(key).cloned();
        self.ledger.borrow_mut().begin(key, new.clone());
        let done = self.handle(operation);
        let mut ledger = self.ledger.borrow_mut();
        ledger.acknowledge(key, if done.is_ok() { new } else { before });
        ledger.last_cas = ledger.last_cas.max(*done.as_ref().unwrap_or(&0));
        done.map(|_| ())
    }

    fn write(&self, key: &str, new: Contents, value: NewValue<'_>) -> Result<(), OutOfMemory> {
        let same_item = !matches!(value, NewValue::Is(_));
        let expiry = self.expiry(i64::from(new.expiry) - i64::from(self.now()));
        let expiry = if new.expiry == 0 { Expiry::NEVER } else { expiry };
        let write = Write { flags: new.flags, expiry, same_item, ..plain(value) };
        self.change(key, Some(new), |handle| {
            let done = handle.mutate(key.as_bytes(), |_| (Change::Write(write), ()));
            done.map(|(_, written)| written.cas)
        })
    }

    pub fn now(&self) -> u32 {
        self.handle(|handle| handle.store().now())
    }

    pub fn set_bytes(&self, key: &str, value: Vec<u8>, expiry: u32) -> Result<(), OutOfMemory> {
        let new = Contents { value: value.clone(), flags: 5, expiry };
        self.write(key, new, NewValue::Is(Value::Bytes(&value)))
    }

    /// Sets a value of so many bytes.
    pub fn set(&self, key: &str, len: usize) {
        let done = self.set_bytes(key, self.value(len), 0);
        done.unwrap_or_else(|why| {
            self.handle(|handle| {
                panic!("{key}: {why}: {:?} {:?}", handle.store().usage(), handle.store().sums())
            })
        });
    }

    /// As [`World::set`], by the fast path.
    pub fn put(&self, key: &str, len: usize) {
        let value = self.value(len);
        let new = Contents { value: value.clone(), flags: 0, expiry: 0 };
        let put = Put { key: key.as_bytes(), value: &value, flags: 0, expiry: Expiry::NEVER };
        self.change(key, Some(new), |handle| {
            let probe = handle.probe_for_write(key.as_bytes());
            handle.put(&put, &probe).map(|stored| stored.cas)
        })
        .expect("there is room");
    }

    /// Sets values in one run. Each is acknowledged when the run says so.
    pub fn put_many(&self, sets: &[(&str, usize)]) {
        let values: Vec<_> = sets.iter().map(|(_, len)| self.value(*len)).collect();
        let with_values = || sets.iter().zip(&values).map(|((key, _), value)| (key.as_bytes(), value));
        let puts: Vec<_> =
            with_values().map(|(key, value)| Put { key, value, flags: 0, expiry: Expiry::NEVER }).collect();
        let contents = |value: &Vec<u8>| Some(Contents { value: value.clone(), flags: 0, expiry: 0 });
        // A later set of a key makes an earlier one invisible, so all are under way until the last is acknowledged.
        with_values().for_each(|(key, value)| self.ledger.borrow_mut().begin(key, contents(value)));
        let mut last_cas = 0;
        self.handle(|handle| {
            let mut probes = [Probe::NONE; RUN_SETS_MAX];
            handle.probe_many(puts.iter().map(|put| put.key), &mut probes);
            handle.put_many(&puts, &probes, |_, stored| last_cas = stored.cas).expect("there is room");
        });
        let mut ledger = self.ledger.borrow_mut();
        with_values().for_each(|(key, value)| ledger.acknowledge(key, contents(value)));
        ledger.last_cas = ledger.last_cas.max(last_cas);
    }

    /// Receives a value in chunks, the way that `receive` says, and sets it.
    pub fn upload(&self, key: &str, len: usize, receive: impl FnOnce(&mut Upload, &Handle, &[u8])) {
        let value = self.value(len);
        let uploaded = self.handle(|handle| {
            let mut upload = Upload::begin(handle.store(), key.as_bytes(), Expiry::NEVER, len as u64);
            receive(&mut upload, handle, &value);
            upload.finish(handle).expect("there is room")
        });
        let new = Contents { value: value.clone(), flags: 5, expiry: 0 };
        self.write(key, new, NewValue::Is(Value::CompletedUpload(&uploaded))).expect("there is room");
    }

    /// Appends or prepends so many bytes.
    pub fn join(&self, key: &str, len: usize, after: bool) {
        let (part, old) = (self.value(len), self.contents(key));
        let value = if after { [&old.value[..], &part].concat() } else { [&part[..], &old.value].concat() };
        let bytes = Value::Bytes(&part);
        let joined = if after { NewValue::Appended(bytes) } else { NewValue::Prepended(bytes) };
        self.write(key, Contents { value, ..old }, joined).expect("there is room");
    }

    /// Adds to a number.
    pub fn increment(&self, key: &str, by: u64) {
        let old = self.contents(key);
        let text = std::str::from_utf8(&old.value).expect("a number");
        let number = text.trim_end().parse::<u64>().expect("a number") + by;
        let width = old.value.len();
        let value = format!("{number:<width$}").into_bytes();
        let new = Contents { value, ..old };
        self.write(key, new, NewValue::Number { number, width }).expect("there is room");
    }

    /// Changes the expiry to so many seconds from now.
    pub fn touch(&self, key: &str, seconds: i64) {
        let old = self.contents(key);
        let new = Contents { expiry: self.expiry(seconds).second(), ..old };
        self.write(key, new, NewValue::Same).expect("there is room");
    }

    pub fn delete(&self, key: &str) {
        let removed = self
            .change(key, None, |handle| handle.mutate(key.as_bytes(), |_| (Change::Remove, ())).map(|_| 0));
        removed.expect("removing needs no memory");
    }

    /// Marks an item as read by a client that may recache it. The contents stay.
    pub fn mark(&self, key: &str) {
        let mark = Change::Mark { token_sent: true, fetched: true };
        self.handle(|handle| handle.mutate(key.as_bytes(), |_| (mark, ()))).expect("marks need no memory");
    }

    pub fn read(&self, key: &str) {
        self.handle(|handle| {
            assert_eq!(get(handle, key.as_bytes()).expect("present").1, self.contents(key).value)
        });
    }

    /// Flushes everything now.
    pub fn flush(&self) {
        let present = self.ledger.borrow().present();
        present.iter().for_each(|key| self.ledger.borrow_mut().begin(key, None));
        self.handle(|handle| handle.flush(Expiry::AT_ONCE));
        self.ledger.borrow_mut().flush();
    }

    /// Flushes everything in so many seconds.
    pub fn flush_in(&self, seconds: i64) {
        let expiry = self.expiry(seconds);
        self.ledger.borrow_mut().flushes.push(Some(expiry.second()));
        self.handle(|handle| handle.flush(expiry));
        self.ledger.borrow_mut().flushes = vec![Some(expiry.second())];
    }

    /// Lets seconds pass. The server does not know until it reads its clock.
    pub fn advance(&self, seconds: u64) {
        if let Some((_, clock)) = &*self.handle.borrow() {
            clock.advance(seconds);
        }
        self.seconds.set(self.seconds.get() + seconds);
        self.ledger.borrow_mut().pass_time(self.first_second + self.seconds.get() as u32);
    }

    pub fn maintain(&self) {
        self.handle(Handle::maintain);
    }

    /// Returns how much a counter rose.
    pub fn counted<R>(&self, count: impl Fn(&Handle) -> u64, work: impl FnOnce() -> R) -> u64 {
        let before = self.handle(&count);
        work();
        self.handle(&count) - before
    }
}
