//! The start of every call: clears former errors, and checks arguments.

use super::constants::*;
use super::handle::State;
use super::report::ErrorContext;
use super::types::{handle_state, memcached_st};

/// What servers say to a key that ends a word or a line.
const BAD_LINE: &str = "bad command line format";

/// libmemcached's message for a key that is too long, or empty.
const TOO_LONG: &str = "Key provided was too long.";

impl memcached_st {
    /// Begins a query.
    ///
    /// # Errors
    /// There is no server.
    #[inline]
    pub(crate) fn begin(&self) -> Result<&State, memcached_return_t> {
        let inner = self.inner().ok_or(MEMCACHED_INVALID_ARGUMENTS)?;
        self.query_id.set(self.query_id.get().wrapping_add(1));
        if self.state.get() & handle_state::IS_TIME_FOR_REBUILD != 0 {
            self.reset();
        }
        if inner.instances.borrow().is_empty() {
            return Err(self.fail(MEMCACHED_NO_SERVERS));
        }
        inner.errors.borrow_mut().clear();
        Ok(inner)
    }

    /// Begins a query that waits for values, which datagrams do not bring.
    ///
    /// # Errors
    /// As for [`memcached_st::begin`], or the handle uses UDP.
    #[inline]
    pub(crate) fn begin_read(&self) -> Result<&State, memcached_return_t> {
        let inner = self.begin()?;
        if self.has(super::types::flags::USE_UDP) {
            return Err(self.fail(MEMCACHED_NOT_SUPPORTED));
        }
        Ok(inner)
    }

    /// Checks a key for a request.
    ///
    /// # Errors
    /// It is empty, too long or, where keys are verified, has characters that servers do not take.
    #[inline]
    pub(crate) fn check_key(&self, inner: &State, key: &[u8]) -> Result<(), memcached_return_t> {
        if key.is_empty() || key.len() >= MEMCACHED_MAX_KEY {
            return Err(self.fail_with(MEMCACHED_BAD_KEY_PROVIDED, TOO_LONG));
        }
        if inner.namespace.borrow().as_bytes().len() + key.len() >= MEMCACHED_MAX_KEY {
            // libmemcached leaves that to the server.
            return Err(self.bad_line(inner, key));
        }
        if self.has(super::types::flags::VERIFY_KEY) && !key.iter().all(u8::is_ascii_graphic) {
            return Err(self.fail_with(MEMCACHED_BAD_KEY_PROVIDED, "Key provided had invalid character."));
        }
        Ok(())
    }

    /// As above, for a key that is changed: over text, one that would end a word is refused.
    ///
    /// # Errors
    /// As for [`memcached_st::check_key`].
    pub(crate) fn check_changed(&self, inner: &State, key: &[u8]) -> Result<(), memcached_return_t> {
        self.check_key(inner, key)?;
        self.check_line(inner, key)
    }

    /// Checks a key on a line of the text protocol.
    ///
    /// # Errors
    /// It would end there.
    pub(crate) fn check_line(&self, inner: &State, key: &[u8]) -> Result<(), memcached_return_t> {
        if self.ends_a_word(key) { Err(self.bad_line(inner, key)) } else { Ok(()) }
    }

    /// By text a key ends where a word does.
    pub(crate) fn ends_a_word(&self, key: &[u8]) -> bool {
        !self.is_binary() && key.iter().any(|byte| matches!(byte, 0 | b' ' | b'\n' | b'\r'))
    }

    /// Reports the servers' answers to an unknown command.
    #[cold]
    pub(crate) fn bad_line(&self, inner: &State, key: &[u8]) -> memcached_return_t {
        self.bad_line_with(inner, key, BAD_LINE)
    }

    /// As above, with another text.
    pub(crate) fn bad_line_with(&self, inner: &State, key: &[u8], message: &str) -> memcached_return_t {
        let reported = ErrorContext { message, is_verbatim: true, ..ErrorContext::default() };
        match self.server_of(inner, None, key) {
            Ok(server) => self.fail_of(&server, MEMCACHED_CLIENT_ERROR, reported),
            Err(code) => code,
        }
    }
}

/// Notes that an argument of a request is too long for memory, with the code that the argument has for it.
#[cold]
pub(crate) fn refused(ptr: Option<&memcached_st>, code: memcached_return_t) -> memcached_return_t {
    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
    match memc.begin() {
        Err(code) => code,
        Ok(_) if code == MEMCACHED_BAD_KEY_PROVIDED => memc.fail_with(code, TOO_LONG),
        Ok(_) => memc.fail(code),
    }
}

impl State {
    /// Calls a function with the prefixed key.
    #[inline]
    pub(crate) fn with_key<R>(&self, key: &[u8], then: impl FnOnce(&[u8]) -> R) -> R {
        let namespace = self.namespace.borrow();
        let namespace = namespace.as_bytes();
        if namespace.is_empty() {
            return then(key);
        }
        let mut full = [0; MEMCACHED_MAX_KEY];
        let len = namespace.len() + key.len();
        match full.get_mut(..len) {
            Some(full) => {
                full[..namespace.len()].copy_from_slice(namespace);
                full[namespace.len()..].copy_from_slice(key);
                then(full)
            }
            None => then(&[namespace, key].concat()),
        }
    }
}
