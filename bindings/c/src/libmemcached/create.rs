//! Handles: creation, copies and deletion.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::allocators;
use super::constants::*;
use super::handle::State;
use super::types::*;
use crate::guarded;

/// Creates a handle in the caller's memory, or in allocated memory if `ptr` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_create(ptr: *mut memcached_st) -> *mut memcached_st {
    guarded(null_mut(), || {
        let is_allocated = ptr.is_null();
        let at = if is_allocated { Box::into_raw(Box::<memcached_st>::new_uninit()).cast() } else { ptr };
        let options = if is_allocated { IS_ALLOCATED } else { 0 };
        // SAFETY: `at` is the caller's memory for a handle, or was just allocated for one. It is written without reading
        // it, and initialized when the reference is made.
        let memc = unsafe {
            at.write(new_handle(options));
            &*at
        };
        memc.result.root.set(at);
        memc.result.value.root.set(at);
        at
    })
}

fn new_handle(options: u8) -> memcached_st {
    memcached_st {
        state: Cell::new(0),
        flags: Cell::new(flags::REPLY.to_le_bytes()),
        distribution: Cell::new(MEMCACHED_DISTRIBUTION_MODULA),
        hashkit: hashkit_st::new(),
        server_version: Cell::new(0),
        number_of_hosts: Cell::new(0),
        servers: Cell::new(Box::into_raw(Box::<State>::default()).cast()),
        last_disconnected_server: Cell::new(null_mut()),
        snd_timeout: Cell::new(0),
        rcv_timeout: Cell::new(0),
        server_failure_limit: Cell::new(MEMCACHED_SERVER_FAILURE_LIMIT),
        server_timeout_limit: Cell::new(0),
        io_msg_watermark: Cell::new(500),
        io_bytes_watermark: Cell::new(65 << 10),
        io_key_prefetch: Cell::new(0),
        tcp_keepidle: Cell::new(0),
        poll_timeout: Cell::new(MEMCACHED_DEFAULT_TIMEOUT),
        connect_timeout: Cell::new(MEMCACHED_DEFAULT_CONNECT_TIMEOUT),
        retry_timeout: Cell::new(MEMCACHED_SERVER_FAILURE_RETRY_TIMEOUT),
        dead_timeout: Cell::new(0),
        send_size: Cell::new(-1),
        recv_size: Cell::new(-1),
        user_data: Cell::new(null_mut()),
        query_id: Cell::new(1),
        number_of_replicas: Cell::new(0),
        result: memcached_result_st::new(null(), false),
        ketama: ketama_st {
            weighted: Cell::new(0),
            continuum_count: Cell::new(0),
            continuum_points_counter: Cell::new(0),
            next_distribution_rebuild: Cell::new(0),
            continuum: Cell::new(null_mut()),
        },
        virtual_bucket: Cell::new(null_mut()),
        allocators: allocators::defaults(),
        on_clone: Cell::new(None),
        on_cleanup: Cell::new(None),
        get_key_failure: Cell::new(None),
        delete_trigger: Cell::new(None),
        callbacks: Cell::new(null_mut()),
        sasl: memcached_sasl_st { callbacks: Cell::new(null_mut()), is_allocated: Cell::new(0) },
        error_messages: Cell::new(null_mut()),
        namespace: Cell::new(null_mut()),
        configure: configure_st {
            initial_pool_size: Cell::new(1),
            max_pool_size: Cell::new(1),
            version: Cell::new(-1),
            filename: Cell::new(null_mut()),
        },
        options: Cell::new(options),
    }
}

/// Frees a handle and closes its connections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_free(ptr: *mut memcached_st) {
    guarded((), || {
        // SAFETY: NULL, or a handle that `memcached_create` initialized.
        let Some(memc) = (unsafe { ptr.as_ref() }) else { return };
        // A callback below may free the handle a second time.
        if memc.inner().is_none_or(|inner| inner.is_going.replace(true)) {
            return;
        }
        memc.quit();
        if let Some(cleanup) = memc.on_cleanup.get() {
            // SAFETY: the caller set a function of this type with `memcached_callback_set`. The handle is valid until it
            // returns: it is taken apart only below, and `is_going` keeps the function from freeing it before.
            unsafe { cleanup(ptr) };
        }
        memc.result.clear();
        let state = memc.servers.replace(null_mut());
        let is_allocated = memc.options.get() & IS_ALLOCATED != 0;
        if !state.is_null() {
            // SAFETY: `memcached_create` took the state from a box; the handle's pointer to it was the only one.
            drop(unsafe { Box::from_raw(state.cast::<State>()) });
        }
        if is_allocated {
            // SAFETY: `memcached_create` took the handle from a box and set IS_ALLOCATED. What the handle owned is dropped
            // above, and `MaybeUninit` drops nothing more.
            drop(unsafe { Box::from_raw(ptr.cast::<MaybeUninit<memcached_st>>()) });
        }
    });
}

impl memcached_st {
    /// Closes all connections, after sending what is buffered.
    pub(crate) fn quit(&self) {
        let Some(inner) = self.inner() else { return };
        let servers = inner.instances.borrow().clone();
        servers.iter().for_each(|server| server.quit());
    }

    /// Settings changed that connections are made with.
    pub(crate) fn reconnect(&self) {
        self.quit();
    }

    /// Forgets the servers.
    pub(crate) fn reset_servers(&self) {
        let Some(inner) = self.inner() else { return };
        self.quit();
        inner.instances.borrow_mut().clear();
        *inner.last_disconnected.borrow_mut() = None;
        self.last_disconnected_server.set(null_mut());
        self.number_of_hosts.set(0);
        self.redistribute();
    }

    /// Resets the handle to its initial state.
    pub(crate) fn reset(&self) {
        self.reset_servers();
        // It gives its memory back to whose it is.
        self.result.clear();
        let new = new_settings();
        self.copy_settings(&new);
        self.copy_callers(&new);
        if let Some(inner) = self.inner() {
            inner.namespace.take();
            inner.buckets.take();
            inner.sasl.take();
            inner.file.take();
            inner.encoding_key.take();
            inner.errors.take();
        }
        self.sasl.callbacks.set(null_mut());
        self.sasl.is_allocated.set(0);
    }

    /// Copies what callers set on another handle: data, functions, allocators.
    fn copy_callers(&self, from: &memcached_st) {
        self.user_data.set(from.user_data.get());
        self.on_clone.set(from.on_clone.get());
        self.on_cleanup.set(from.on_cleanup.get());
        self.get_key_failure.set(from.get_key_failure.get());
        self.delete_trigger.set(from.delete_trigger.get());
        let to = &self.allocators;
        to.calloc.set(from.allocators.calloc.get());
        to.free.set(from.allocators.free.get());
        to.malloc.set(from.allocators.malloc.get());
        to.realloc.set(from.allocators.realloc.get());
        to.context.set(from.allocators.context.get());
    }

    /// Copies the settings of another handle.
    fn copy_settings(&self, from: &memcached_st) {
        self.state.set(0);
        self.flags.set(from.flags.get());
        self.distribution.set(from.distribution.get());
        self.hashkit.copy_from(&from.hashkit);
        self.snd_timeout.set(from.snd_timeout.get());
        self.rcv_timeout.set(from.rcv_timeout.get());
        self.server_failure_limit.set(from.server_failure_limit.get());
        self.server_timeout_limit.set(from.server_timeout_limit.get());
        self.io_msg_watermark.set(from.io_msg_watermark.get());
        self.io_bytes_watermark.set(from.io_bytes_watermark.get());
        self.io_key_prefetch.set(from.io_key_prefetch.get());
        self.tcp_keepidle.set(from.tcp_keepidle.get());
        self.poll_timeout.set(from.poll_timeout.get());
        self.connect_timeout.set(from.connect_timeout.get());
        self.retry_timeout.set(from.retry_timeout.get());
        self.dead_timeout.set(from.dead_timeout.get());
        self.send_size.set(from.send_size.get());
        self.recv_size.set(from.recv_size.get());
        self.number_of_replicas.set(from.number_of_replicas.get());
        self.ketama.weighted.set(from.ketama.weighted.get());
        self.configure.initial_pool_size.set(from.configure.initial_pool_size.get());
        self.configure.max_pool_size.set(from.configure.max_pool_size.get());
        self.configure.version.set(from.configure.version.get());
    }
}

/// Returns the fields of a new handle.
fn new_settings() -> memcached_st {
    let settings = new_handle(0);
    let state = settings.servers.replace(null_mut());
    // SAFETY: `new_handle` took the state from a box; the pointer to it is not stored anywhere else.
    drop(unsafe { Box::from_raw(state.cast::<State>()) });
    settings
}

/// A copy of a handle, with its servers and settings, but connections of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_clone(
    clone: *mut memcached_st,
    source: Option<&memcached_st>,
) -> *mut memcached_st {
    guarded(null_mut(), || {
        if source.is_some_and(|source| std::ptr::eq(source, clone)) {
            // Nothing can be copied from where the copy is made.
            return null_mut();
        }
        // SAFETY: NULL or memory for a handle, as `memcached_create` requires, which returns NULL or a new handle.
        let (at, to) = unsafe {
            let at = memcached_create(clone);
            (at, at.as_ref())
        };
        let (Some(to), Some(from)) = (to, source) else { return at };
        if to.take_over(from) != MEMCACHED_SUCCESS {
            // SAFETY: `memcached_free` takes a handle from `memcached_create`; this one was made above and not yet
            // returned.
            unsafe { memcached_free(at) };
            return null_mut();
        }
        if let Some(on_clone) = from.on_clone.get() {
            // SAFETY: the caller set the function for this; both are valid handles.
            unsafe { on_clone(at, from) };
        }
        at
    })
}

impl memcached_st {
    /// Makes this handle a copy of another.
    fn take_over(&self, from: &memcached_st) -> memcached_return_t {
        let (Some(inner), Some(others)) = (self.inner(), from.inner()) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        self.copy_settings(from);
        self.copy_callers(from);
        inner.namespace.replace(others.namespace.borrow().clone());
        inner.buckets.replace(others.buckets.borrow().clone());
        inner.file.replace(others.file.borrow().clone());
        inner.encoding_key.replace(others.encoding_key.borrow().clone());
        match self.copy_sasl(from) {
            MEMCACHED_SUCCESS => self.push_servers(from),
            rc => rc,
        }
    }
}

/// Adds the servers of one handle to another.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_push(
    destination: Option<&memcached_st>,
    source: Option<&memcached_st>,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || match (destination, source) {
        (Some(to), Some(from)) => to.push_servers(from),
        _ => MEMCACHED_INVALID_ARGUMENTS,
    })
}

/// Resets a handle to its initial state, without servers.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_reset(ptr: Option<&memcached_st>) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr.filter(|memc| memc.inner().is_some()) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        memc.reset();
        MEMCACHED_SUCCESS
    })
}

/// Forgets the servers.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_servers_reset(ptr: Option<&memcached_st>) {
    guarded((), || {
        if let Some(memc) = ptr {
            memc.reset_servers();
        }
    });
}

/// Forgets which server was lost last.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_reset_last_disconnected_server(ptr: Option<&memcached_st>) {
    guarded((), || {
        if let Some(inner) = ptr.and_then(memcached_st::inner) {
            inner.last_disconnected.take();
        }
    });
}

/// Closes all connections. The next call reconnects.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_quit(ptr: Option<&memcached_st>) {
    guarded((), || {
        // As every query, it clears former errors.
        if let Some(memc) = ptr
            && memc.begin().is_ok()
        {
            memc.quit();
        }
    });
}

/// What the caller keeps with a handle.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_get_user_data(ptr: Option<&memcached_st>) -> *mut c_void {
    ptr.map_or(null_mut(), |memc| memc.user_data.get())
}

/// Sets the caller's data of a handle; returns the previous data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_set_user_data(
    ptr: Option<&memcached_st>,
    data: *mut c_void,
) -> *mut c_void {
    ptr.map_or(null_mut(), |memc| memc.user_data.replace(data))
}

/// The number of the current query.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_query_id(ptr: Option<&memcached_st>) -> u64 {
    ptr.map_or(0, |memc| memc.query_id.get())
}
