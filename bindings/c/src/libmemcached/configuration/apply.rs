//! Handles set to what configuration strings ask for.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;

use super::parser::{Setting, Settings};
use super::token::Token;
use crate::guarded;
use crate::libmemcached::behavior::{
    memcached_behavior_set, memcached_behavior_set_distribution_hash, memcached_behavior_set_key_hash,
};
use crate::libmemcached::callback::memcached_callback_set;
use crate::libmemcached::constants::*;
use crate::libmemcached::create::{memcached_create, memcached_free};
use crate::libmemcached::error::memcached_last_error_message;
use crate::libmemcached::ffi::arguments;
use crate::libmemcached::report::ErrorContext;
use crate::libmemcached::types::{flags, memcached_st};

/// The environment variable with the configuration string if a program passes none.
const VARIABLE: &str = "LIBMEMCACHED";

/// Bytes of a configuration file, at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum depth of files that include one another.
const INCLUDED_MAX: u32 = 16;

/// Sets handles to what strings ask for.
struct Setter<'a> {
    memc: &'a memcached_st,
    /// The file to be read behind the string.
    file: Option<Vec<u8>>,
    /// Files that are being read.
    included: u32,
}

impl<'a> Setter<'a> {
    fn new(memc: &'a memcached_st) -> Self {
        Self { memc, file: None, included: 0 }
    }

    /// All that a string asks for.
    fn read(&mut self, string: &[u8]) -> Result<(), memcached_return_t> {
        let mut hash = None;
        for setting in Settings::new(string) {
            let setting = setting.map_err(|error| self.error(&error.to_string()))?;
            if let Setting::Hash(token) = setting
                && hash.replace(token).is_some()
            {
                return Err(self.error("--HASH can only be set once"));
            }
            if setting == Setting::Reset {
                hash = None;
            }
            self.set(setting)?;
        }
        Ok(())
    }

    /// Applies a file's lines, each a configuration string of its own.
    ///
    /// # Errors
    /// A line is invalid, or the file is empty.
    fn read_lines(&mut self, text: &[u8]) -> Result<(), memcached_return_t> {
        let mut result = Err(MEMCACHED_INVALID_ARGUMENTS);
        for line in text.split_inclusive(|&byte| byte == b'\n').filter(|line| *line != b"\n") {
            self.read(line)?;
            result = Ok(());
        }
        result
    }

    /// Records the error of a string, with its full text.
    fn error(&self, words: &str) -> memcached_return_t {
        self.memc.fail_told(
            MEMCACHED_PARSE_ERROR,
            ErrorContext { message: words, is_verbatim: true, ..ErrorContext::default() },
        )
    }

    /// Records the error of a setting: the one that the underlying call recorded.
    fn refused(&self) -> memcached_return_t {
        let words = memcached_last_error_message(Some(self.memc));
        // SAFETY: a constant, or a text in the handle's errors; it is copied before another error is added.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned();
        self.error(&words)
    }

    fn set(&mut self, setting: Setting<'_>) -> Result<(), memcached_return_t> {
        match setting {
            Setting::Server { host, port, weight } => self.server(host, port, weight),
            Setting::Socket { path, weight } => self.socket(path, weight),
            Setting::ConfigureFile(path) => {
                self.file = Some(path.to_vec());
                Ok(())
            }
            Setting::Include(path) => self.include(path),
            Setting::Namespace(name) => self.namespace(name),
            Setting::Distribution(distribution, hash) => self.distribution(distribution, hash),
            Setting::Hash(hash) => self.hash(hash),
            Setting::Number(Token::PoolMin, number) => {
                self.memc.configure.initial_pool_size.set(number as u32);
                Ok(())
            }
            Setting::Number(Token::PoolMax, number) => {
                self.memc.configure.max_pool_size.set(number as u32);
                Ok(())
            }
            Setting::Number(token, number) => self.behavior(token, number),
            // For the caller's own use.
            Setting::Switch(Token::UserData) => Ok(()),
            Setting::Switch(Token::FetchVersion) => {
                self.memc.set_flag(flags::IS_FETCHING_VERSION, true);
                Ok(())
            }
            Setting::Switch(token) => self.behavior(token, 1),
            Setting::Reset => {
                self.memc.reset();
                self.file = None;
                Ok(())
            }
        }
    }

    fn server(&self, host: &[u8], port: Option<u16>, weight: Option<u32>) -> Result<(), memcached_return_t> {
        let Ok(name) = CString::new(host) else { return Err(self.error("Failed to add server")) };
        let port = port.filter(|&port| port != 0).unwrap_or(MEMCACHED_DEFAULT_PORT);
        let rc = self.memc.add_host(Some(name.as_bytes()), port, weight.unwrap_or(1));
        let words = || match port {
            MEMCACHED_DEFAULT_PORT => format!("Failed to add server: {}", name.to_string_lossy()),
            port => format!("Failed to add server: {}:{port}", name.to_string_lossy()),
        };
        if rc == MEMCACHED_SUCCESS { Ok(()) } else { Err(self.error(&words())) }
    }

    fn socket(&self, path: &[u8], weight: Option<u32>) -> Result<(), memcached_return_t> {
        let words = || format!("Failed to add socket: {}", String::from_utf8_lossy(path));
        let Some(path) = CString::new(path).ok().filter(|path| !path.is_empty()) else {
            return Err(self.error(&words()));
        };
        let rc = self.memc.add_socket(Some(path.as_bytes()), weight.unwrap_or(1));
        if rc == MEMCACHED_SUCCESS { Ok(()) } else { Err(self.error(&words())) }
    }

    fn namespace(&self, name: &[u8]) -> Result<(), memcached_return_t> {
        let is_set = self.memc.inner().is_some_and(|inner| !inner.namespace.borrow().is_empty());
        if is_set {
            return Err(self.error("--NAMESPACE can only be called once"));
        }
        if name.is_empty() {
            return Err(self
                .error("INVALID ARGUMENTS, Invalid namespace, namespace string had value but length was 0"));
        }
        let Ok(name) = CString::new(name) else { return Err(self.error("A namespace has a zero in it")) };
        // SAFETY: for this flag the value is a string with a final NUL, which is copied.
        let rc = unsafe {
            memcached_callback_set(
                Some(self.memc),
                MEMCACHED_CALLBACK_NAMESPACE,
                name.as_ptr().cast_mut().cast(),
            )
        };
        if rc == MEMCACHED_SUCCESS { Ok(()) } else { Err(self.refused()) }
    }

    fn distribution(&self, distribution: Token, hash: Option<Token>) -> Result<(), memcached_return_t> {
        let number = match distribution {
            Token::Consistent => MEMCACHED_DISTRIBUTION_CONSISTENT,
            Token::Random => MEMCACHED_DISTRIBUTION_RANDOM,
            _ => MEMCACHED_DISTRIBUTION_MODULA,
        };
        let rc = memcached_behavior_set(Some(self.memc), MEMCACHED_BEHAVIOR_DISTRIBUTION, u64::from(number));
        if rc != MEMCACHED_SUCCESS {
            return Err(self.refused());
        }
        let Some(hash) = hash else { return Ok(()) };
        match memcached_behavior_set_distribution_hash(Some(self.memc), hash_number(hash)) {
            MEMCACHED_SUCCESS => Ok(()),
            _ => Err(self.error("Unable to set the hash for the DISTRIBUTION requested")),
        }
    }

    fn hash(&self, hash: Token) -> Result<(), memcached_return_t> {
        match memcached_behavior_set_key_hash(Some(self.memc), hash_number(hash)) {
            MEMCACHED_SUCCESS => Ok(()),
            // libmemcached's error for an unsupported hash.
            _ => Err(self.error("--HASH can only be set once")),
        }
    }

    fn behavior(&self, token: Token, value: u64) -> Result<(), memcached_return_t> {
        let Some(behavior) = behavior_of(token) else {
            return Err(self.error("an option without a behavior"));
        };
        if memcached_behavior_set(Some(self.memc), behavior, value) == MEMCACHED_SUCCESS {
            return Ok(());
        }
        let name = crate::libmemcached::names::libmemcached_string_behavior(behavior);
        // SAFETY: names are constants with a final NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        Err(self.error(&format!("Could not set: {name}")))
    }

    /// Reads a file as a part of the string.
    fn include(&mut self, path: &[u8]) -> Result<(), memcached_return_t> {
        let failed = |setter: &Self| setter.error("Failed to parse configuration file");
        if self.included >= INCLUDED_MAX {
            return Err(failed(self));
        }
        let Ok(text) = file(path) else { return Err(failed(self)) };
        self.included += 1;
        let read = self.read_lines(&text);
        self.included -= 1;
        read.map_err(|_| failed(self))
    }

    /// Reads the file that the string named, if it did.
    fn read_file(&mut self) -> Result<(), memcached_return_t> {
        let Some(path) = self.file.take() else { return Ok(()) };
        match file(&path) {
            Ok(text) => {
                if let Some(inner) = self.memc.inner() {
                    inner.file.replace(Some(path));
                }
                self.read_lines(&text)
            }
            Err(error) => {
                let message = &String::from_utf8_lossy(&path);
                let errno = error.raw_os_error().unwrap_or(0);
                Err(self
                    .memc
                    .fail_told(MEMCACHED_ERRNO, ErrorContext { errno, message, ..ErrorContext::default() }))
            }
        }
    }
}

/// Returns a file's content; nothing if it is not a regular file.
fn file(path: &[u8]) -> std::io::Result<Vec<u8>> {
    let path = Path::new(OsStr::from_bytes(path));
    let about = std::fs::metadata(path)?;
    if !about.is_file() {
        return Ok(Vec::new());
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(ErrorKind::FileTooLarge.into());
    }
    std::fs::read(path)
}

fn hash_number(hash: Token) -> memcached_hash_t {
    match hash {
        Token::Md5 => MEMCACHED_HASH_MD5,
        Token::Crc => MEMCACHED_HASH_CRC,
        Token::Fnv1_64 => MEMCACHED_HASH_FNV1_64,
        Token::Fnv1a64 => MEMCACHED_HASH_FNV1A_64,
        Token::Fnv1_32 => MEMCACHED_HASH_FNV1_32,
        Token::Fnv1a32 => MEMCACHED_HASH_FNV1A_32,
        Token::Hsieh => MEMCACHED_HASH_HSIEH,
        Token::Murmur => MEMCACHED_HASH_MURMUR,
        Token::Jenkins => MEMCACHED_HASH_JENKINS,
        _ => MEMCACHED_HASH_DEFAULT,
    }
}

fn behavior_of(option: Token) -> Option<memcached_behavior_t> {
    Some(match option {
        Token::BinaryProtocol => MEMCACHED_BEHAVIOR_BINARY_PROTOCOL,
        Token::BufferRequests => MEMCACHED_BEHAVIOR_BUFFER_REQUESTS,
        Token::ConnectTimeout => MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT,
        Token::HashWithNamespace => MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY,
        Token::IoBytesWatermark => MEMCACHED_BEHAVIOR_IO_BYTES_WATERMARK,
        Token::IoKeyPrefetch => MEMCACHED_BEHAVIOR_IO_KEY_PREFETCH,
        Token::IoMsgWatermark => MEMCACHED_BEHAVIOR_IO_MSG_WATERMARK,
        Token::Noreply => MEMCACHED_BEHAVIOR_NOREPLY,
        Token::NumberOfReplicas => MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS,
        Token::PollTimeout => MEMCACHED_BEHAVIOR_POLL_TIMEOUT,
        Token::RandomizeReplicaRead => MEMCACHED_BEHAVIOR_RANDOMIZE_REPLICA_READ,
        Token::RcvTimeout => MEMCACHED_BEHAVIOR_RCV_TIMEOUT,
        Token::RemoveFailedServers => MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS,
        Token::RetryTimeout => MEMCACHED_BEHAVIOR_RETRY_TIMEOUT,
        Token::SndTimeout => MEMCACHED_BEHAVIOR_SND_TIMEOUT,
        Token::SocketRecvSize => MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE,
        Token::SocketSendSize => MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE,
        Token::SortHosts => MEMCACHED_BEHAVIOR_SORT_HOSTS,
        Token::SupportCas => MEMCACHED_BEHAVIOR_SUPPORT_CAS,
        Token::UseUdp => MEMCACHED_BEHAVIOR_USE_UDP,
        Token::VerifyKey => MEMCACHED_BEHAVIOR_VERIFY_KEY,
        Token::TcpKeepalive => MEMCACHED_BEHAVIOR_TCP_KEEPALIVE,
        Token::TcpKeepidle => MEMCACHED_BEHAVIOR_TCP_KEEPIDLE,
        Token::TcpNodelay => MEMCACHED_BEHAVIOR_TCP_NODELAY,
        _ => return None,
    })
}

/// A handle that is freed on drop, unless it is handed over.
struct Made(*mut memcached_st);

impl Made {
    fn new() -> Made {
        // SAFETY: NULL, so the handle gets memory of its own.
        Made(unsafe { memcached_create(ptr::null_mut()) })
    }

    /// Set to what a string asks for, and the file that it names.
    fn configure(&self, string: &[u8]) -> Result<(), memcached_return_t> {
        // SAFETY: NULL, or the handle that `self` owns.
        let memc = unsafe { self.0.as_ref() }.ok_or(MEMCACHED_MEMORY_ALLOCATION_FAILURE)?;
        let mut setter = Setter::new(memc);
        setter.read(string)?;
        setter.read_file()
    }

    fn hand_over(mut self) -> *mut memcached_st {
        std::mem::replace(&mut self.0, ptr::null_mut())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: `memcached_free` takes null or a handle from `memcached_create`; this is the owner's only call, on
        // drop.
        unsafe { memcached_free(self.0) };
    }
}

/// A new handle, set to what a configuration string asks for: without one, to what the environment's `LIBMEMCACHED` says.
/// Null if the string is not understood.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached(string: *const c_char, length: usize) -> *mut memcached_st {
    guarded(ptr::null_mut(), || {
        let string = if string.is_null() {
            if length > 0 {
                return ptr::null_mut();
            }
            std::env::var_os(VARIABLE).map(OsStringExt::into_vec).unwrap_or_default()
        } else if length == 0 {
            return ptr::null_mut();
        } else {
            arguments!(|_| ptr::null_mut(); string: options(string, length));
            string.to_vec()
        };
        let made = Made::new();
        if !string.is_empty() && made.configure(&string).is_err() {
            return ptr::null_mut();
        }
        made.hand_over()
    })
}

/// Whether a configuration string is understood; if not, why, as far as there is room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_check_configuration(
    option_string: *const c_char,
    length: usize,
    error_buffer: *mut c_char,
    error_buffer_size: usize,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        if option_string.is_null() || length == 0 {
            return MEMCACHED_INVALID_ARGUMENTS;
        }
        arguments!(|code| code; string: options(option_string, length));
        let made = Made::new();
        let rc = made.configure(string).err().unwrap_or(MEMCACHED_SUCCESS);
        if error_buffer.is_null() || error_buffer_size == 0 {
            return rc;
        }
        // SAFETY: NULL, or the handle that `made` owns. The text is a constant, or lives as long as the handle. The
        // caller's buffer is not NULL and has room for `length` bytes and a NUL; the handle's memory is separate.
        unsafe {
            let words = CStr::from_ptr(memcached_last_error_message(made.0.as_ref())).to_bytes();
            let words = if rc == MEMCACHED_SUCCESS { b"" } else { words };
            let length = words.len().min(error_buffer_size - 1);
            ptr::copy_nonoverlapping(words.as_ptr().cast(), error_buffer, length);
            error_buffer.add(length).write(0);
        }
        rc
    })
}
