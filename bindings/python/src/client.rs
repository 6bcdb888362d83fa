//! The calls that Python's clients share: pymemcache's, as far as they ask for keys, and those that do not wait.
//!
//! A get through shared memory keeps Python's lock: to give it up and take it back takes 30 ns of the 170 that the get takes, but
//! up to 20 us where another thread computes, for that one has the lock meanwhile. Whatever may wait gives it up.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard};

use fabcache_client::{Client, Error, FastGet, Item, Mode, Options, Stored, Transport, Ttl};
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyMemoryView, PyString};

use crate::errors::{NO_COMMAND, client_error, forked, is_refusal, raised};
use crate::fork::{Current, ForkGuarded};
use crate::multiget::{self, Keys};
use crate::numbers::{Expire, NO_DELTA, NO_EXPTIME, cas_number, integer};
use crate::options::{FabricGiven, options};
use crate::request::{Request, Shown};
use crate::settings::{KEY_BYTES_MAX, Serde, Settings, with_cas};
use crate::value::Value;

/// Memory for values on their way, kept from call to call of a thread up to so many bytes: any value that servers take unless told
/// otherwise. To take it from the system anew costs a read of this size 1.5 ms of page faults.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What `Client` of this package does in Rust. It may be used by many threads at once.
#[pyclass(frozen, subclass, module = "fabcache._fabcache")]
pub struct BaseClient {
    /// Locked only by a thread that holds the GIL, and while no Python code runs, so never for long, and never during
    /// a fork.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    place: Option<(String, Options)>,
    settings: Option<Arc<Settings>>,
    current: Option<Arc<Current>>,
}

type Answer<'py> = PyResult<Bound<'py, PyAny>>;

#[pymethods]
impl BaseClient {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyAny>, _kwargs: Option<&Bound<'_, PyAny>>) -> BaseClient {
        BaseClient { state: Mutex::default() }
    }

    /// Where the server is, and what is done with keys and values.
    #[expect(clippy::too_many_arguments, reason = "each is an argument of pymemcache's constructor")]
    fn _configure(
        &self,
        address: String,
        serde: &Bound<'_, PyAny>,
        connect_timeout: Option<f64>,
        timeout: Option<f64>,
        ignore_exc: bool,
        key_prefix: Py<PyBytes>,
        default_noreply: bool,
        allow_unicode_keys: bool,
        encoding: Py<PyString>,
        shared_memory: Option<bool>,
        fabric: FabricGiven,
        protocol: String,
        login: Option<(String, String)>,
    ) -> PyResult<()> {
        let options = options(connect_timeout, timeout, shared_memory, fabric, &protocol, login)?;
        // An invalid address is reported now.
        made(serde.py(), &address, &options)?;
        let serde = Serde::new(serde)?;
        let settings =
            Settings { serde, key_prefix, allow_unicode_keys, default_noreply, ignore_exc, encoding };
        let before = std::mem::replace(
            &mut *self.state(),
            State { place: Some((address, options)), settings: Some(Arc::new(settings)), current: None },
        );
        drop(before);
        Ok(())
    }

    // ---- what was given to the constructor ----

    /// How values become bytes, and are made of them again.
    #[getter]
    fn serde(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.settings()?.serde.object.clone_ref(py))
    }

    #[setter]
    fn set_serde(&self, serde: &Bound<'_, PyAny>) -> PyResult<()> {
        let given = Serde::new(serde)?;
        self.change(serde.py(), |settings| settings.serde = given)
    }

    /// What stands before every key.
    #[getter]
    fn key_prefix(&self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        Ok(self.settings()?.key_prefix.clone_ref(py))
    }

    #[setter]
    fn set_key_prefix(&self, py: Python<'_>, prefix: Py<PyBytes>) -> PyResult<()> {
        self.change(py, |settings| settings.key_prefix = prefix)
    }

    /// Whether failures of reads are misses.
    #[getter]
    fn ignore_exc(&self) -> PyResult<bool> {
        Ok(self.settings()?.ignore_exc)
    }

    #[setter]
    fn set_ignore_exc(&self, py: Python<'_>, value: bool) -> PyResult<()> {
        self.change(py, |settings| settings.ignore_exc = value)
    }

    /// Whether refusals of calls that store are not told, unless the caller asks for it.
    #[getter]
    fn default_noreply(&self) -> PyResult<bool> {
        Ok(self.settings()?.default_noreply)
    }

    #[setter]
    fn set_default_noreply(&self, py: Python<'_>, value: bool) -> PyResult<()> {
        self.change(py, |settings| settings.default_noreply = value)
    }

    /// Whether keys may be any text.
    #[getter]
    fn allow_unicode_keys(&self) -> PyResult<bool> {
        Ok(self.settings()?.allow_unicode_keys)
    }

    #[setter]
    fn set_allow_unicode_keys(&self, py: Python<'_>, value: bool) -> PyResult<()> {
        self.change(py, |settings| settings.allow_unicode_keys = value)
    }

    /// How text becomes bytes where no serializer has done so.
    #[getter]
    fn encoding(&self, py: Python<'_>) -> PyResult<Py<PyString>> {
        Ok(self.settings()?.encoding.clone_ref(py))
    }

    #[setter]
    fn set_encoding(&self, py: Python<'_>, encoding: Py<PyString>) -> PyResult<()> {
        self.change(py, |settings| settings.encoding = encoding)
    }

    // ---- connections ----

    /// Close the connections to the server. The next call that needs one opens it again.
    fn close(&self, py: Python<'_>) {
        let before = self.state().current.take();
        // It may wait for a thread of the connection's own.
        py.detach(|| drop(before));
    }

    /// How the server is reached: "shared memory", "channel" (shared memory without reads of it), "unix", "fabric" or "tcp"; None before the first call.
    fn transport(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let current = self.current(py)?;
        let transports = cache(&current)?.transports();
        Ok(transports.into_iter().next().flatten().map(|transport| match transport {
            Transport::SharedMemory => "shared memory",
            Transport::Channel { .. } => "channel",
            Transport::Unix { .. } => "unix",
            Transport::Fabric { .. } => "fabric",
            _ => "tcp",
        }))
    }

    /// Why the server is not reached by shared memory or the fabric although that was asked for, or its memory is not read; None if it is,
    /// or was not asked for.
    fn transport_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let current = self.current(py)?;
        let transports = cache(&current)?.transports();
        Ok(transports.into_iter().next().flatten().and_then(|transport| match transport {
            Transport::Unix { why } => why,
            Transport::InsteadOfFabric { why } | Transport::Channel { why } => Some(why),
            _ => None,
        }))
    }

    /// The key with a prefix, as the server gets it.
    fn check_key<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        key_prefix: &Bound<'py, PyBytes>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = self.settings()?;
        Ok(PyBytes::new(key.py(), whole.prefixed_key(key, key_prefix.as_bytes(), &mut buffer)?))
    }

    // ---- reading ----

    /// The value of a key, or default if it is absent.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(&self, key: &Bound<'py, PyAny>, default: Option<Bound<'py, PyAny>>) -> Answer<'py> {
        self.read(key, None, default, |settings, value, flags, _| {
            settings.serde.deserialize(key, value, flags)
        })
    }

    /// The value of a key and its version for cas; or the defaults if it is absent.
    #[pyo3(signature = (key, default=None, cas_default=None))]
    fn gets<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
        cas_default: Option<Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        let default = (default, cas_default).into_pyobject(key.py())?.into_any();
        self.read(key, None, Some(default), |settings, value, flags, cas| {
            with_cas(settings.serde.deserialize(key, value, flags)?, cas)
        })
    }

    /// The value of a key, or default if it is absent; sets a new expiration.
    #[pyo3(signature = (key, expire=Expire::NEVER, default=None), text_signature = "($self, key, expire=0, default=None)")]
    fn gat<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        expire: Expire,
        default: Option<Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        let ttl = expire.ttl(key.py(), NO_EXPTIME)?;
        self.read(key, Some(ttl), default, |settings, value, flags, _| {
            settings.serde.deserialize(key, value, flags)
        })
    }

    /// As gat, with the version for cas.
    #[pyo3(signature = (key, expire=Expire::NEVER, default=None, cas_default=None), text_signature = "($self, key, expire=0, default=None, cas_default=None)")]
    fn gats<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        expire: Expire,
        default: Option<Bound<'py, PyAny>>,
        cas_default: Option<Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        let default = (default, cas_default).into_pyobject(key.py())?.into_any();
        let ttl = expire.ttl(key.py(), NO_EXPTIME)?;
        self.read(key, Some(ttl), Some(default), |settings, value, flags, cas| {
            with_cas(settings.serde.deserialize(key, value, flags)?, cas)
        })
    }

    /// The bytes of a value as a read-only memoryview, with one copy less; or default if the key is absent. No
    /// serializer is called.
    #[pyo3(signature = (key, default=None))]
    fn get_view<'py>(&self, key: &Bound<'py, PyAny>, default: Option<Bound<'py, PyAny>>) -> Answer<'py> {
        let py = key.py();
        let current = self.current(py)?;
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = current.settings.key(key, &mut buffer)?;
        let view = |value| Ok(PyMemoryView::from(Bound::new(py, Value::new(value))?.as_any())?.into_any());
        let found = found(py, cache(&current)?, whole, None).and_then(|item| match item {
            Some(item) => view(item.value).map(Some),
            None => Ok(None),
        });
        or_default(py, &current.settings, found, default)
    }

    /// A dict of the values of those of the keys that there are.
    fn get_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.read_many(keys, |settings, key, value, flags, _| settings.serde.deserialize(key, value, flags))
    }

    /// A dict of the values of those of the keys that there are, each with its version for cas.
    fn gets_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.read_many(keys, |settings, key, value, flags, cas| {
            with_cas(settings.serde.deserialize(key, value, flags)?, cas)
        })
    }

    // ---- storing ----

    /// Store a value. With noreply no refusal raises: False if the server, or this library, refuses.
    #[pyo3(signature = (key, value, expire=Expire::NEVER, noreply=None, flags=None), text_signature = "($self, key, value, expire=0, noreply=None, flags=None)")]
    fn set<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        self.store(key, value, Mode::Set, expire, noreply, flags)
    }

    /// Store a value if the key is absent; whether it was stored.
    #[pyo3(signature = (key, value, expire=Expire::NEVER, noreply=None, flags=None), text_signature = "($self, key, value, expire=0, noreply=None, flags=None)")]
    fn add<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        self.store(key, value, Mode::Add, expire, noreply, flags)
    }

    /// Store a value if there is one; whether that was done.
    #[pyo3(signature = (key, value, expire=Expire::NEVER, noreply=None, flags=None), text_signature = "($self, key, value, expire=0, noreply=None, flags=None)")]
    fn replace<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        self.store(key, value, Mode::Replace, expire, noreply, flags)
    }

    /// Add bytes behind a value, if there is one; whether that was done.
    #[pyo3(signature = (key, value, expire=Expire::NEVER, noreply=None, flags=None), text_signature = "($self, key, value, expire=0, noreply=None, flags=None)")]
    fn append<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        self.store(key, value, Mode::Append, expire, noreply, flags)
    }

    /// Add bytes before a value, if there is one; whether that was done.
    #[pyo3(signature = (key, value, expire=Expire::NEVER, noreply=None, flags=None), text_signature = "($self, key, value, expire=0, noreply=None, flags=None)")]
    fn prepend<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        self.store(key, value, Mode::Prepend, expire, noreply, flags)
    }

    /// Store a value if it is unchanged since gets: True, False if it has changed, None if the key is absent.
    #[pyo3(signature = (key, value, cas, expire=Expire::NEVER, noreply=None, flags=None), text_signature = "($self, key, value, cas, expire=0, noreply=False, flags=None)")]
    fn cas<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        cas: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        let cas = cas_number(cas, &*self.settings()?)?;
        let never = PyBool::new(key.py(), false).to_owned().into_any();
        self.store(key, value, Mode::Compare(cas), expire, noreply.or(Some(&never)), flags)
    }

    /// Store many values; a list of the keys that were not stored.
    #[pyo3(signature = (values, expire=Expire::NEVER, noreply=None, flags=None), text_signature = "($self, values, expire=0, noreply=None, flags=None)")]
    fn set_many<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = values.py();
        let current = self.current(py)?;
        let noreply = current.settings.noreply(noreply)?;
        let given = multiget::Values::new(&current.settings, values, flags)?;
        let Some(ttl) = expire.ttl_or(py, NO_COMMAND, noreply)? else { return Ok(PyList::empty(py)) };
        let cache = cache(&current)?;
        let refused = given.store(py, cache, ttl, noreply).map_err(|error| raised(py, &error))?;
        PyList::new(py, refused)
    }

    // ---- changing ----

    /// Remove a key; whether it was there.
    #[pyo3(signature = (key, noreply=None))]
    fn delete<'py>(&self, key: &Bound<'py, PyAny>, noreply: Option<&Bound<'py, PyAny>>) -> PyResult<bool> {
        let noreply = self.settings()?.noreply(noreply)?;
        self.change_key(key, noreply, Client::delete)
    }

    /// Remove many keys.
    #[pyo3(signature = (keys, noreply=None))]
    fn delete_many<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        noreply: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<bool> {
        let py = keys.py();
        if !keys.is_truthy()? {
            return Ok(true);
        }
        let current = self.current(py)?;
        let noreply = current.settings.noreply(noreply)?;
        let keys = Keys::new(&current.settings, keys)?;
        let cache = cache(&current)?;
        let whole = keys.whole();
        let done = py.detach(|| whole.into_iter().try_for_each(|key| cache.delete(key).map(|_| ())));
        match done {
            Err(error) if !(noreply && is_refusal(&error)) => Err(raised(py, &error)),
            _ => Ok(true),
        }
    }

    /// Add to a number; the new one, or None if the key is absent.
    #[pyo3(signature = (key, value, noreply=None), text_signature = "($self, key, value, noreply=False)")]
    fn incr<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        noreply: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<u64>> {
        self.arithmetic(key, value, noreply, Client::incr)
    }

    /// Subtract from a number, which does not go below 0; the new one, or None if the key is absent.
    #[pyo3(signature = (key, value, noreply=None), text_signature = "($self, key, value, noreply=False)")]
    fn decr<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        noreply: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<u64>> {
        self.arithmetic(key, value, noreply, Client::decr)
    }

    /// Let a key expire as told from now on; whether it is there.
    #[pyo3(signature = (key, expire=Expire::NEVER, noreply=None), text_signature = "($self, key, expire=0, noreply=None)")]
    fn touch<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<bool> {
        let noreply = self.settings()?.noreply(noreply)?;
        let Some(ttl) = expire.ttl_or(key.py(), NO_EXPTIME, noreply)? else { return Ok(true) };
        self.change_key(key, noreply, |cache, key| cache.touch(key, ttl))
    }

    // ---- calls that do not wait ----

    /// Ask for a value; returns a Request, whose wait() returns what get() would.
    #[pyo3(signature = (key, default=None))]
    fn iget<'py>(&self, key: &Bound<'py, PyAny>, default: Option<Bound<'py, PyAny>>) -> PyResult<Request> {
        self.request(key, default, Shown::Value)
    }

    /// Ask for a value; returns a Request, whose wait() returns what gets() would.
    #[pyo3(signature = (key, default=None, cas_default=None))]
    fn igets<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
        cas_default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Request> {
        let default = (default, cas_default).into_pyobject(key.py())?.into_any();
        self.request(key, Some(default), Shown::ValueAndCas)
    }

    /// As iget: what Python is given never changes, so the key may be used again at once in either.
    #[pyo3(signature = (key, default=None))]
    fn bget<'py>(&self, key: &Bound<'py, PyAny>, default: Option<Bound<'py, PyAny>>) -> PyResult<Request> {
        self.request(key, default, Shown::Value)
    }

    /// Store a value without waiting for that; returns a Request, whose wait() returns True or raises.
    #[pyo3(signature = (key, value, expire=Expire::NEVER, flags=None), text_signature = "($self, key, value, expire=0, flags=None)")]
    fn iset<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Request> {
        self.ask_to_store(key, value, expire, flags, |cache, key, value, ttl, flags| {
            cache.iset_with_flags(key, value, ttl, flags)
        })
    }

    /// As iset, but returns once the value was sent, or copied.
    #[pyo3(signature = (key, value, expire=Expire::NEVER, flags=None), text_signature = "($self, key, value, expire=0, flags=None)")]
    fn bset<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Request> {
        self.ask_to_store(key, value, expire, flags, |cache, key, value, ttl, flags| {
            cache.bset_with_flags(key, value, ttl, flags)
        })
    }

    // ---- about the server, where it is not spoken to in text ----

    /// Its version.
    fn _version<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let version = self.order(py, |cache| cache.versions().pop())?;
        Ok(PyBytes::new(py, version.unwrap_or_default().as_bytes()))
    }

    /// The server's statistics, in general or on a topic.
    fn _stats<'py>(&self, py: Python<'py>, topic: &str) -> PyResult<Bound<'py, PyDict>> {
        let reported = PyDict::new(py);
        for (name, value) in self.order(py, |cache| cache.stats(topic).pop())?.unwrap_or_default() {
            reported.set_item(PyBytes::new(py, name.as_bytes()), PyBytes::new(py, value.as_bytes()))?;
        }
        Ok(reported)
    }

    /// Forget everything, after so many seconds.
    fn _flush(&self, py: Python<'_>, delay: u32) -> PyResult<()> {
        self.order(py, |cache| Some(cache.flush(delay))).map(|_| ())
    }
}

impl BaseClient {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it takes what a call needs")
    }

    fn settings(&self) -> PyResult<Arc<Settings>> {
        self.state().settings.clone().ok_or_else(unconfigured)
    }

    /// Calls that began before keep what they had.
    fn change(&self, py: Python<'_>, change: impl FnOnce(&mut Settings)) -> PyResult<()> {
        let mut settings = self.settings()?.copy(py);
        change(&mut settings);
        let settings = Arc::new(settings);
        let mut state = self.state();
        let current = state.current.take();
        let cache = current.as_ref().and_then(|current| current.cache.get().cloned());
        state.current = cache.map(|cache| {
            Arc::new(Current { cache: ForkGuarded::new(cache), settings: Arc::clone(&settings) })
        });
        let before = state.settings.replace(settings);
        drop(state);
        drop((before, current));
        Ok(())
    }

    fn order<T: Send>(
        &self,
        py: Python<'_>,
        request: impl FnOnce(&Client) -> Option<Result<T, Error>> + Send,
    ) -> PyResult<Option<T>> {
        let current = self.current(py)?;
        let cache = cache(&current)?;
        py.detach(|| request(cache)).transpose().map_err(|error| raised(py, &error))
    }

    #[inline]
    fn current(&self, py: Python<'_>) -> PyResult<Arc<Current>> {
        let current = self.state().current.clone();
        match current {
            Some(current) if current.cache.get().is_some() => Ok(current),
            _ => self.connect(py),
        }
    }

    #[cold]
    fn connect(&self, py: Python<'_>) -> PyResult<Arc<Current>> {
        let mut state = self.state();
        let (Some((address, options)), Some(settings)) = (&state.place, &state.settings) else {
            return Err(unconfigured());
        };
        let cache = ForkGuarded::new(made(py, address, options)?);
        let current = Arc::new(Current { cache, settings: Arc::clone(settings) });
        let before = state.current.replace(Arc::clone(&current));
        drop(state);
        drop(before);
        Ok(current)
    }

    #[inline]
    fn read<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        touch: Option<Ttl>,
        default: Option<Bound<'py, PyAny>>,
        show: impl FnOnce(&Settings, &[u8], u32, u64) -> Answer<'py>,
    ) -> Answer<'py> {
        let py = key.py();
        let current = self.current(py)?;
        let settings = &*current.settings;
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = settings.key(key, &mut buffer)?;
        let cache = cache(&current)?;
        // Taken out of its place: Python code may run meanwhile, and read as well.
        let mut spare = SPARE.take();
        let try_fast = match touch {
            None => cache.try_fast(whole, &mut spare),
            Some(_) => Ok(FastGet::Unknown),
        };
        let shown = match try_fast {
            Ok(FastGet::Found { flags, cas }) => show(settings, &spare, flags, cas).map(Some),
            Ok(FastGet::NotFound) => Ok(None),
            // The call below reports an invalid key.
            Ok(FastGet::Unknown) | Err(_) => found(py, cache, whole, touch).and_then(|item| {
                item.map(|item| show(settings, &item.value, item.flags, item.cas)).transpose()
            }),
        };
        if spare.capacity() <= KEPT_BYTES_MAX {
            SPARE.set(spare);
        }
        or_default(py, settings, shown, default)
    }

    fn read_many<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        show: impl Fn(&Settings, &Bound<'py, PyAny>, &[u8], u32, u64) -> Answer<'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = keys.py();
        let found = PyDict::new(py);
        if !keys.is_truthy()? {
            return Ok(found);
        }
        let current = self.current(py)?;
        let settings = &*current.settings;
        let keys = Keys::new(settings, keys)?;
        let whole = keys.whole();
        let cache = cache(&current)?;
        let read = py.detach(|| multiget::read(cache, &whole)).map_err(|error| raised(py, &error)).and_then(
            |values| {
                for (key, value) in keys.given().zip(&values.items) {
                    if let Some((at, flags, cas)) = value {
                        found.set_item(key, show(settings, key, &values.bytes[at.clone()], *flags, *cas)?)?;
                    }
                }
                Ok(())
            },
        );
        match read {
            Err(error) if settings.ignore_exc && error.is_instance_of::<PyException>(py) => {
                Ok(PyDict::new(py))
            }
            read => read.map(|()| found),
        }
    }

    fn store<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        mode: Mode,
        expire: Expire,
        noreply: Option<&Bound<'py, PyAny>>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> Answer<'py> {
        let py = key.py();
        let current = self.current(py)?;
        let noreply = current.settings.noreply(noreply)?;
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = current.settings.key(key, &mut buffer)?;
        let (value, flags) = current.settings.value(key, value, flags)?;
        let value = value.as_bytes();
        let Some(ttl) = expire.ttl_or(py, NO_COMMAND, noreply)? else {
            return Ok(PyBool::new(py, true).to_owned().into_any());
        };
        let cache = cache(&current)?;
        let is_stored = match py.detach(|| cache.store(whole, value, mode, ttl, flags)) {
            Err(error) if !(noreply && is_refusal(&error)) => return Err(raised(py, &error)),
            Ok(Stored::NotFound) if !noreply => return Ok(py.None().into_bound(py)),
            Ok(stored) => noreply || stored == Stored::Stored,
            Err(_) => false,
        };
        Ok(PyBool::new(py, is_stored).to_owned().into_any())
    }

    fn change_key(
        &self,
        key: &Bound<'_, PyAny>,
        noreply: bool,
        change: impl FnOnce(&Client, &[u8]) -> Result<bool, Error> + Send,
    ) -> PyResult<bool> {
        let py = key.py();
        let current = self.current(py)?;
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = current.settings.key(key, &mut buffer)?;
        let cache = cache(&current)?;
        match py.detach(|| change(cache, whole)) {
            Err(error) if !(noreply && is_refusal(&error)) => Err(raised(py, &error)),
            done => Ok(noreply || done.unwrap_or(true)),
        }
    }

    fn arithmetic(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        noreply: Option<&Bound<'_, PyAny>>,
        change: impl FnOnce(&Client, &[u8], u64) -> Result<Option<u64>, Error> + Send,
    ) -> PyResult<Option<u64>> {
        let py = key.py();
        let noreply = noreply.map_or(Ok(false), PyAnyMethods::is_truthy)?;
        let current = self.current(py)?;
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = current.settings.key(key, &mut buffer)?;
        let delta = match integer(value, "value")? {
            Some(delta) => delta,
            // Nobody waits for the server's refusal.
            None if noreply => return Ok(None),
            None => return Err(client_error(py, NO_DELTA)),
        };
        let cache = cache(&current)?;
        match py.detach(|| change(cache, whole, delta)) {
            Err(error) if !(noreply && is_refusal(&error)) => Err(raised(py, &error)),
            _ if noreply => Ok(None),
            done => Ok(done.unwrap_or(None)),
        }
    }

    fn request<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
        shown: Shown,
    ) -> PyResult<Request> {
        let py = key.py();
        let current = self.current(py)?;
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = current.settings.key(key, &mut buffer)?;
        let cache = cache(&current)?;
        let request = py.detach(|| cache.iget(whole, Vec::new()));
        let default = default.map_or_else(|| py.None(), Bound::unbind);
        Ok(Request::new(request, &current.settings, key, shown, default))
    }

    fn ask_to_store<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        expire: Expire,
        flags: Option<&Bound<'py, PyAny>>,
        request: impl FnOnce(&Client, &[u8], &[u8], Ttl, u32) -> fabcache_client::Request + Send,
    ) -> PyResult<Request> {
        let py = key.py();
        let current = self.current(py)?;
        let mut buffer = [0; KEY_BYTES_MAX];
        let whole = current.settings.key(key, &mut buffer)?;
        let (value, flags) = current.settings.value(key, value, flags)?;
        let value = value.as_bytes();
        let ttl = expire.ttl(py, NO_COMMAND)?;
        let cache = cache(&current)?;
        let request = py.detach(|| request(cache, whole, value, ttl, flags));
        Ok(Request::new(request, &current.settings, key, Shown::Stored, py.None()))
    }
}

/// The cache, of this process.
#[inline]
fn cache(current: &Current) -> PyResult<&Client> {
    current.cache.get().ok_or_else(forked)
}

fn made(py: Python<'_>, address: &str, options: &Options) -> PyResult<Client> {
    Client::new([address], options.clone()).map_err(|error| raised(py, &error))
}

fn unconfigured() -> PyErr {
    PyRuntimeError::new_err("__init__ of this client was not called")
}

fn found(py: Python<'_>, cache: &Client, key: &[u8], touch: Option<Ttl>) -> PyResult<Option<Item>> {
    let read = py.detach(|| match touch {
        None => cache.get(key),
        Some(ttl) => cache.get_and_touch(key, ttl),
    });
    read.map_err(|error| raised(py, &error))
}

/// What a read returns: the default as well where it failed and failures are misses.
fn or_default<'py>(
    py: Python<'py>,
    settings: &Settings,
    shown: PyResult<Option<Bound<'py, PyAny>>>,
    default: Option<Bound<'py, PyAny>>,
) -> Answer<'py> {
    let shown = match shown {
        Err(error) if settings.ignore_exc && error.is_instance_of::<PyException>(py) => None,
        shown => shown?,
    };
    Ok(shown.or(default).unwrap_or_else(|| py.None().into_bound(py)))
}
