//! libfabric.so.1, opened on first use.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};

use crate::domain::REGISTRATION_CACHE;
use crate::error::Error;
use crate::signals::SavedHandlers;
use crate::sys;

/// The name of the library for as long as its binary interface is compatible.
const FILE: &str = "libfabric.so.1";

/// The environment variable that names another file, such as a site's own libfabric.
pub const FILE_VARIABLE: &str = "FABCACHE_LIBFABRIC";

/// libfabric, which stays open until the process exits.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub(crate) get_info: sys::FiGetInfo,
    pub(crate) free_info: sys::FiFreeInfo,
    pub(crate) dup_info: sys::FiDupInfo,
    pub(crate) open_fabric: sys::FiFabric,
    pub(crate) str_error: sys::FiStrError,
    pub(crate) version: u32,
    /// Whether its cache of registrations was on when it was opened, which is when it reads its environment.
    pub(crate) caches_registrations: bool,
}

impl Library {
    /// Opens libfabric, or returns the library that is already open.
    ///
    /// # Errors
    /// libfabric is not installed, or older than 1.17.
    pub fn open() -> Result<&'static Library, Error> {
        static OPENED: OnceLock<Result<Library, Error>> = OnceLock::new();
        OPENED.get_or_init(Library::load).as_ref().map_err(Error::clone)
    }

    fn load() -> Result<Library, Error> {
        let file = std::env::var_os(FILE_VARIABLE).filter(|file| !file.is_empty());
        let named = file.as_ref().map_or(String::new(), |_| format!(" (as {FILE_VARIABLE} says)"));
        let file = file.unwrap_or_else(|| FILE.into());
        let caches_registrations = std::env::var(REGISTRATION_CACHE).as_deref() != Ok("0")
            // Another library of the process may have initialized it under another environment.
            || is_loaded(&file) && !was_registration_cache_off_at_start();
        let _kept = SavedHandlers::new();
        let reported = |error: libloading::Error| {
            // The system's error text follows the crate's.
            let why = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
            Error::Library(format!("{why}{named}"))
        };
        // SAFETY: the initialization of libfabric has no preconditions; the user is responsible for the file at this
        // path.
        let object = unsafe { Object::open(Some(&file), RTLD_NOW | RTLD_LOCAL) }.map_err(reported)?;
        // SAFETY: the type is that of the header.
        let version = unsafe { object.get::<sys::FiVersion>(b"fi_version\0") }.map_err(reported)?;
        // SAFETY: libfabric's headers declare the function of this name with this type.
        let get_info = unsafe { object.get::<sys::FiGetInfo>(b"fi_getinfo\0") }.map_err(reported)?;
        // SAFETY: libfabric's headers declare the function of this name with this type.
        let free_info = unsafe { object.get::<sys::FiFreeInfo>(b"fi_freeinfo\0") }.map_err(reported)?;
        // SAFETY: libfabric's headers declare the function of this name with this type.
        let dup_info = unsafe { object.get::<sys::FiDupInfo>(b"fi_dupinfo\0") }.map_err(reported)?;
        // SAFETY: libfabric's headers declare the function of this name with this type.
        let open_fabric = unsafe { object.get::<sys::FiFabric>(b"fi_fabric\0") }.map_err(reported)?;
        // SAFETY: libfabric's headers declare the function of this name with this type.
        let str_error = unsafe { object.get::<sys::FiStrError>(b"fi_strerror\0") }.map_err(reported)?;
        // SAFETY: it takes nothing and cannot fail.
        let number = unsafe { version() };
        let library = Library {
            get_info: *get_info,
            free_info: *free_info,
            dup_info: *dup_info,
            open_fabric: *open_fabric,
            str_error: *str_error,
            version: number,
            caches_registrations,
        };
        // libfabric has its own threads and handlers: it is never closed, so the functions stay valid.
        std::mem::forget(object);
        if number < sys::API_VERSION {
            return Err(Error::Library(format!("{} is version {}", file.display(), library.version())));
        }
        Ok(library)
    }

    /// Returns its version, such as `1.17`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version >> 16, self.version & 0xffff)
    }

    /// Returns libfabric's text for a positive error number.
    pub(crate) fn text(&self, code: i32) -> String {
        // SAFETY: any number is allowed; the result is a static text or null.
        let text = unsafe { (self.str_error)(code as c_int) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: libfabric's text ends with 0 and stays valid.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// Returns whether the process has this library loaded already.
fn is_loaded(file: &std::ffi::OsStr) -> bool {
    // SAFETY: nothing is loaded, so nothing is initialized.
    unsafe { Object::open(Some(file), RTLD_NOW | libc::RTLD_NOLOAD) }.is_ok()
}

/// Returns whether the process was started with libfabric's registration cache turned off.
fn was_registration_cache_off_at_start() -> bool {
    let environment = std::fs::read("/proc/self/environ").unwrap_or_default();
    let off = format!("{REGISTRATION_CACHE}=0");
    environment.split(|byte| *byte == 0).any(|variable| variable == off.as_bytes())
}

#[cfg(test)]
pub mod tests {
    #[test]
    fn only_loaded_libraries_are_found() {
        assert!(is_loaded("libc.so.6".as_ref()) && !is_loaded("libfabcache-none.so".as_ref()));
    }
    use std::ffi::c_char;

    use super::*;

    unsafe extern "C" fn get_info(
        _: u32,
        _: *const c_char,
        _: *const c_char,
        _: u64,
        _: *const sys::FiInfo,
        _: *mut *mut sys::FiInfo,
    ) -> c_int {
        -sys::FI_ENOSYS
    }

    unsafe extern "C" fn free_info(_: *mut sys::FiInfo) {}

    unsafe extern "C" fn dup_info(_: *const sys::FiInfo) -> *mut sys::FiInfo {
        std::ptr::null_mut()
    }

    unsafe extern "C" fn open_fabric(
        _: *mut sys::FiFabricAttr,
        _: *mut *mut sys::FidFabric,
        _: *mut std::ffi::c_void,
    ) -> c_int {
        -sys::FI_ENOSYS
    }

    unsafe extern "C" fn str_error(_: c_int) -> *const c_char {
        std::ptr::null()
    }

    /// A library without providers.
    pub static EMPTY: Library = Library {
        get_info,
        free_info,
        dup_info,
        open_fabric,
        str_error,
        version: 0,
        caches_registrations: false,
    };

    #[test]
    fn missing_symbols_are_errors() {
        assert_eq!(EMPTY.text(7), "error 7");
        assert_eq!(EMPTY.version(), "0.0");
        let error = EMPTY.survey().expect_err("no descriptions can be made");
        assert!(error.to_string().contains("no memory"), "{error}");
    }
}
