//! Statistics of servers: as libmemcached's structure has room for, or all of them to a function.

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_ulonglong, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::rc::Rc;

use fabcache_client::{Client, Error, Failure};

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::instance::memcached_instance_st;
use super::temporary_handle::TemporaryHandle;
use super::types::{flags, memcached_st, memcached_stat_st};
use crate::guarded;
use crate::libmemcached::callback_types::memcached_stat_fn;

/// The statistics that a `memcached_stat_st` has, in the order of `memcached_stat_get_keys`.
const KEYS: [&CStr; 22] = [
    c"pid",
    c"uptime",
    c"time",
    c"version",
    c"pointer_size",
    c"rusage_user",
    c"rusage_system",
    c"curr_items",
    c"total_items",
    c"bytes",
    c"curr_connections",
    c"total_connections",
    c"connection_structures",
    c"cmd_get",
    c"cmd_set",
    c"get_hits",
    c"get_misses",
    c"evictions",
    c"bytes_read",
    c"bytes_written",
    c"limit_maxbytes",
    c"threads",
];

impl memcached_stat_st {
    /// Returns statistics without values.
    fn new(root: *const memcached_st) -> memcached_stat_st {
        memcached_stat_st {
            connection_structures: 0,
            curr_connections: 0,
            curr_items: 0,
            pid: -1,
            pointer_size: 0,
            rusage_system_microseconds: 0,
            rusage_system_seconds: 0,
            rusage_user_microseconds: 0,
            rusage_user_seconds: 0,
            threads: 0,
            time: 0,
            total_connections: 0,
            total_items: 0,
            uptime: 0,
            bytes: 0,
            bytes_read: 0,
            bytes_written: 0,
            cmd_get: 0,
            cmd_set: 0,
            evictions: 0,
            get_hits: 0,
            get_misses: 0,
            limit_maxbytes: 0,
            version: [0; MEMCACHED_VERSION_STRING_LENGTH],
            future: ptr::null_mut(),
            root: root.cast_mut(),
        }
    }

    fn long(&mut self, key: &str) -> Option<&mut c_ulong> {
        Some(match key {
            "uptime" => &mut self.uptime,
            "time" => &mut self.time,
            "pointer_size" => &mut self.pointer_size,
            "curr_items" => &mut self.curr_items,
            "total_items" => &mut self.total_items,
            "curr_connections" => &mut self.curr_connections,
            "total_connections" => &mut self.total_connections,
            "connection_structures" => &mut self.connection_structures,
            "threads" => &mut self.threads,
            _ => return None,
        })
    }

    fn long_long(&mut self, key: &str) -> Option<&mut c_ulonglong> {
        Some(match key {
            "bytes" => &mut self.bytes,
            "cmd_get" => &mut self.cmd_get,
            "cmd_set" => &mut self.cmd_set,
            "get_hits" => &mut self.get_hits,
            "get_misses" => &mut self.get_misses,
            "evictions" => &mut self.evictions,
            "bytes_read" => &mut self.bytes_read,
            "bytes_written" => &mut self.bytes_written,
            "limit_maxbytes" => &mut self.limit_maxbytes,
            _ => return None,
        })
    }

    /// Notes one statistic; those that it has no room for are left.
    fn note(&mut self, key: &str, value: &str) {
        if let Some(number) = self.long(key) {
            *number = number_at_start(value) as c_ulong;
        } else if let Some(number) = self.long_long(key) {
            *number = number_at_start(value);
        }
        let (seconds, rest) = value.split_once('.').unwrap_or((value, ""));
        let (seconds, microseconds) = (number_at_start(seconds) as c_ulong, number_at_start(rest) as c_ulong);
        match key {
            "pid" => self.pid = number_at_start(value) as c_int,
            "version" => {
                self.version = [0; MEMCACHED_VERSION_STRING_LENGTH];
                // The last byte stays 0.
                let room = &mut self.version[..MEMCACHED_VERSION_STRING_LENGTH - 1];
                room.iter_mut().zip(value.bytes()).for_each(|(to, byte)| *to = byte as c_char);
            }
            "rusage_user" => {
                (self.rusage_user_seconds, self.rusage_user_microseconds) = (seconds, microseconds)
            }
            "rusage_system" => {
                (self.rusage_system_seconds, self.rusage_system_microseconds) = (seconds, microseconds);
            }
            _ => {}
        }
    }

    /// One statistic in words, as libmemcached writes it: parts of a second without zeros in front.
    fn in_words(&mut self, key: &str) -> Option<String> {
        if let Some(number) = self.long(key) {
            return Some(number.to_string());
        }
        if let Some(number) = self.long_long(key) {
            return Some(number.to_string());
        }
        Some(match key {
            "pid" => self.pid.to_string(),
            "version" => self.version.iter().take_while(|&&c| c != 0).map(|&c| char::from(c as u8)).collect(),
            "rusage_user" => format!("{}.{}", self.rusage_user_seconds, self.rusage_user_microseconds),
            "rusage_system" => format!("{}.{}", self.rusage_system_seconds, self.rusage_system_microseconds),
            _ => return None,
        })
    }
}

/// What C's `strtoull` reads: the digits at the start.
fn number_at_start(text: &str) -> u64 {
    let digits = text.bytes().take_while(u8::is_ascii_digit);
    digits.fold(0_u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
}

impl memcached_instance_st {
    /// Returns a server's statistics on a topic, by name.
    ///
    /// # Errors
    /// The request failed, which is recorded; or the server does not support the topic, which is not.
    pub(crate) fn stats(
        &self,
        memc: &memcached_st,
        topic: &str,
    ) -> Result<Vec<(String, String)>, memcached_return_t> {
        self.request(memc, |client| client.stats(topic).pop())
    }

    /// Its keys of a size class.
    ///
    /// # Errors
    /// As for statistics.
    pub(crate) fn keys(&self, memc: &memcached_st, class: u32) -> Result<Vec<Vec<u8>>, memcached_return_t> {
        self.request(memc, |client| client.keys(class).pop())
    }

    fn request<T: Default>(
        &self,
        memc: &memcached_st,
        request: impl FnOnce(&Client) -> Option<Result<T, Error>>,
    ) -> Result<T, memcached_return_t> {
        let answered = self.call(memc, |client| match request(client) {
            Some(Err(
                error @ Error::Server { failure: Failure::Refused(_), .. } | error @ Error::Topic(_),
            )) => Ok(Err(error)),
            Some(other) => other.map(Ok),
            None => Ok(Ok(T::default())),
        })?;
        answered
            .map_err(|_| if memc.is_binary() { MEMCACHED_SOME_ERRORS } else { MEMCACHED_INVALID_ARGUMENTS })
    }
}

/// Starts a statistics query; returns the servers to ask.
fn begin(memc: &memcached_st) -> Result<Vec<Rc<memcached_instance_st>>, memcached_return_t> {
    Ok(memc.begin()?.instances.borrow().clone())
}

/// Returns the topic of a query; empty for the general statistics.
fn topic_of(args: Option<&[u8]>) -> Cow<'_, str> {
    String::from_utf8_lossy(args.unwrap_or_default())
}

/// Sees to it that all answer.
///
/// # Errors
/// The last failure; all are recorded.
pub(crate) fn connect_all(
    memc: &memcached_st,
    servers: &[Rc<memcached_instance_st>],
) -> Result<(), memcached_return_t> {
    let mut result = Ok(());
    for server in servers {
        result = server.connect(memc).and(result);
    }
    result
}

/// The statistics of all servers, in their order: memory of the handle's allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_stat(
    ptr: Option<&memcached_st>,
    args: *const c_char,
    error: Out<'_, memcached_return_t>,
) -> *mut memcached_stat_st {
    guarded(ptr::null_mut(), || {
        arguments!(args: text(args));
        let found = ptr.ok_or(MEMCACHED_INVALID_ARGUMENTS).and_then(|memc| all(memc, &topic_of(args)));
        let (stats, rc) = found.unwrap_or_else(|rc| (ptr::null_mut(), rc));
        put(error, rc);
        stats
    })
}

/// Returns the statistics of all servers, in memory of the handle's allocator, and whether all answered.
fn all(
    memc: &memcached_st,
    topic: &str,
) -> Result<(*mut memcached_stat_st, memcached_return_t), memcached_return_t> {
    let servers = begin(memc)?;
    if memc.has(flags::USE_UDP) {
        return Err(memc.fail(MEMCACHED_NOT_SUPPORTED));
    }
    if topic.len() >= MEMCACHED_MAX_KEY {
        return Err(memc.fail(MEMCACHED_BAD_KEY_PROVIDED));
    }
    let memory: *mut memcached_stat_st = memc.allocate(servers.len() * size_of::<memcached_stat_st>()).cast();
    if memory.is_null() {
        return Err(memc.fail(MEMCACHED_MEMORY_ALLOCATION_FAILURE));
    }
    let mut rc = MEMCACHED_SUCCESS;
    for (at, server) in servers.iter().enumerate() {
        let mut stat = memcached_stat_st::new(memc);
        match server.stats(memc, topic) {
            Ok(found) => found.iter().for_each(|(key, value)| stat.note(key, value)),
            Err(MEMCACHED_INVALID_ARGUMENTS) => rc = MEMCACHED_INVALID_ARGUMENTS,
            Err(_) => rc = MEMCACHED_SOME_ERRORS,
        }
        // SAFETY: the memory is not NULL, has room for an element for each server, and malloc(3)'s alignment.
        unsafe { memory.add(at).write(stat) };
    }
    Ok((memory, rc))
}

/// Gives statistics back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_stat_free(ptr: Option<&memcached_st>, stat: *mut memcached_stat_st) {
    guarded((), || {
        // SAFETY: NULL, or statistics of `memcached_stat`, whose `root` is a handle that must not be freed before them.
        let Some(root) = (unsafe { stat.as_ref().map(|first| first.root.as_ref()) }) else { return };
        match root.or(ptr) {
            Some(memc) => memc.release(stat.cast()),
            // SAFETY: statistics without a handle are in memory of malloc(3).
            None => unsafe { libc::free(stat.cast()) },
        }
    });
}

/// The names of the statistics that there is room for, and null behind them: memory of the handle's allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_stat_get_keys(
    ptr: Option<&memcached_st>,
    _stat: *mut memcached_stat_st,
    error: Out<'_, memcached_return_t>,
) -> *mut *const c_char {
    guarded(ptr::null_mut(), || {
        let Some(memc) = ptr else {
            put(error, MEMCACHED_INVALID_ARGUMENTS);
            return ptr::null_mut();
        };
        let names: Vec<*const c_char> = KEYS.iter().map(|key| key.as_ptr()).chain([ptr::null()]).collect();
        let memory: *mut *const c_char = memc.allocate(size_of_val(&names[..])).cast();
        if memory.is_null() {
            put(error, memc.fail(MEMCACHED_MEMORY_ALLOCATION_FAILURE));
            return memory;
        }
        // SAFETY: the memory is not NULL and was just allocated with this size, so it does not overlap `names`.
        unsafe { ptr::copy_nonoverlapping(names.as_ptr(), memory, names.len()) };
        put(error, MEMCACHED_SUCCESS);
        memory
    })
}

/// One of the statistics in words: memory of the handle's allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_stat_get_value(
    ptr: Option<&memcached_st>,
    stat: *mut memcached_stat_st,
    key: *const c_char,
    error: Out<'_, memcached_return_t>,
) -> *mut c_char {
    guarded(ptr::null_mut(), || {
        // SAFETY: NULL, or statistics of this library that nothing else uses until the function returns.
        let stat = unsafe { stat.as_mut() };
        arguments!(key: text(key));
        let key = key.and_then(|key| str::from_utf8(key).ok());
        let words = stat.zip(key).and_then(|(stat, key)| stat.in_words(key));
        let (value, rc) = match (ptr, words) {
            (Some(memc), Some(words)) => match memc.copy_out(words.as_bytes()) {
                none if none.is_null() => (none, memc.fail(MEMCACHED_MEMORY_ALLOCATION_FAILURE)),
                value => (value, MEMCACHED_SUCCESS),
            },
            (Some(memc), None) => {
                (ptr::null_mut(), memc.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Invalid key provided"))
            }
            (None, _) => (ptr::null_mut(), MEMCACHED_INVALID_ARGUMENTS),
        };
        put(error, rc);
        value
    })
}

/// Calls a function with each statistic of each server, and ignores its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_stat_execute(
    memc: Option<&memcached_st>,
    args: *const c_char,
    func: memcached_stat_fn,
    context: *mut c_void,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some(memc) = memc else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(args: text(args));
        let topic = topic_of(args);
        let servers = match begin(memc) {
            Ok(servers) => servers,
            Err(rc) => return rc,
        };
        // Nothing is reported before all servers answer.
        if let Err(rc) = connect_all(memc, &servers) {
            let is_lost =
                |server: &&Rc<memcached_instance_st>| server.state.get() == MEMCACHED_SERVER_STATE_IN_TIMEOUT;
            let lost = servers.iter().rev().find(is_lost);
            if let Some(lost) = lost.filter(|_| rc == MEMCACHED_CONNECTION_FAILURE) {
                lost.told_again(memc, rc);
            }
            return rc;
        }
        let mut rc = MEMCACHED_SUCCESS;
        for server in servers {
            match server.stats(memc, &topic) {
                Ok(found) => found.into_iter().for_each(|(key, value)| {
                    let (Ok(key), Ok(value)) = (CString::new(key), CString::new(value)) else { return };
                    let (key_length, value_length) = (key.as_bytes().len(), value.as_bytes().len());
                    if let Some(func) = func {
                        // SAFETY: the caller passed the function for this call, with its `context`; server and strings are
                        // valid until it returns.
                        unsafe {
                            func(&*server, key.as_ptr(), key_length, value.as_ptr(), value_length, context)
                        };
                    }
                }),
                Err(failure) => rc = failure,
            }
        }
        rc
    })
}

/// The statistics of a server that no handle has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_stat_servername(
    memc_stat: Option<&Cell<MaybeUninit<memcached_stat_st>>>,
    args: *const c_char,
    hostname: *const c_char,
    port: u16,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(args: text(args), host: text(hostname));
        if args.is_some_and(|topic| topic.is_empty() || topic.len() >= MEMCACHED_MAX_KEY) {
            return MEMCACHED_BAD_KEY_PROVIDED;
        }
        if memc_stat.is_none() {
            return MEMCACHED_INVALID_ARGUMENTS;
        }
        let request = || {
            let asker = TemporaryHandle::new(host, port, None)?;
            let memc = asker.handle().ok_or(MEMCACHED_MEMORY_ALLOCATION_FAILURE)?;
            let found = begin(memc)?[0].stats(memc, &topic_of(args))?;
            // The handle is freed before the caller reads the result.
            let mut stat = memcached_stat_st::new(ptr::null());
            found.iter().for_each(|(key, value)| stat.note(key, value));
            Ok(stat)
        };
        match request() {
            Ok(stat) => {
                put(memc_stat, stat);
                MEMCACHED_SUCCESS
            }
            Err(rc) => rc,
        }
    })
}
