//! libfabric.so.1, opened when it is first asked for.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};

use crate::error::Error;
use crate::sys;

/// The name of the library for as long as its binary interface is compatible.
const FILE: &str = "libfabric.so.1";

/// libfabric, which stays open to the end of the process.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub(crate) get_info: sys::FiGetInfo,
    pub(crate) free_info: sys::FiFreeInfo,
    pub(crate) dup_info: sys::FiDupInfo,
    pub(crate) open_fabric: sys::FiFabric,
    str_error: sys::FiStrError,
    version: u32,
}

impl Library {
    /// Opens it, or returns what is open already.
    ///
    /// # Errors
    /// There is none, or it is older than 1.17.
    pub fn open() -> Result<&'static Library, Error> {
        static OPENED: OnceLock<Result<Library, Error>> = OnceLock::new();
        OPENED.get_or_init(Library::load).as_ref().map_err(Error::clone)
    }

    fn load() -> Result<Library, Error> {
        let told = |error: libloading::Error| Error::Library(error.to_string());
        // SAFETY: libfabric's initialisation has no precondition of ours; it is what the name stands for on this system.
        let object = unsafe { Object::open(Some(FILE), RTLD_NOW | RTLD_LOCAL) }.map_err(told)?;
        // SAFETY: the type is that of the header.
        let version = unsafe { object.get::<sys::FiVersion>(b"fi_version\0") }.map_err(told)?;
        // SAFETY: as for all in this function.
        let get_info = unsafe { object.get::<sys::FiGetInfo>(b"fi_getinfo\0") }.map_err(told)?;
        // SAFETY: as for all in this function.
        let free_info = unsafe { object.get::<sys::FiFreeInfo>(b"fi_freeinfo\0") }.map_err(told)?;
        // SAFETY: as for all in this function.
        let dup_info = unsafe { object.get::<sys::FiDupInfo>(b"fi_dupinfo\0") }.map_err(told)?;
        // SAFETY: as for all in this function.
        let open_fabric = unsafe { object.get::<sys::FiFabric>(b"fi_fabric\0") }.map_err(told)?;
        // SAFETY: as for all in this function.
        let str_error = unsafe { object.get::<sys::FiStrError>(b"fi_strerror\0") }.map_err(told)?;
        // SAFETY: it takes nothing and cannot fail.
        let number = unsafe { version() };
        let library = Library {
            get_info: *get_info,
            free_info: *free_info,
            dup_info: *dup_info,
            open_fabric: *open_fabric,
            str_error: *str_error,
            version: number,
        };
        // It has threads and handlers of its own: it is never closed, so the functions stay.
        std::mem::forget(object);
        if number < sys::API_VERSION {
            return Err(Error::Library(format!("this one is {}", library.version())));
        }
        Ok(library)
    }

    /// Its version, as `1.17`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version >> 16, self.version & 0xffff)
    }

    /// What libfabric says of an error, by its positive number.
    pub(crate) fn text(&self, code: i32) -> String {
        // SAFETY: any number may be asked about; what it returns is text that stays, or null.
        let text = unsafe { (self.str_error)(code as c_int) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: just made by libfabric, ends with 0 and stays.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
