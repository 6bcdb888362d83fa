//! liboshmem, opened on first use.

use std::ffi::{OsString, c_int, c_long, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};

use crate::error::Error;

/// The name of Open MPI's library, for as long as its binary interface is compatible.
const FILE: &str = "liboshmem.so.40";
/// Open MPI's progress engine, which [`Library::progress`] drives.
const PROGRESS_FILE: &str = "libopen-pal.so.40";
/// Ends what OpenSHMEM is built on.
const MPI_FILE: &str = "libmpi.so.40";

/// The environment variable that names another file, such as a site's own Open MPI.
pub const FILE_VARIABLE: &str = "FABCACHE_LIBOSHMEM";

/// `SHMEM_THREAD_MULTIPLE`
pub const THREAD_MULTIPLE: c_int = 3;
/// `SHMEM_CTX_PRIVATE`
pub const CONTEXT_PRIVATE: c_long = 1;

/// `shmem_ctx_t`
pub type ContextHandle = *mut c_void;

/// The functions in use, with the types of Open MPI's shmem.h.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub init_thread: unsafe extern "C" fn(c_int, *mut c_int) -> c_int,
    pub my_pe: unsafe extern "C" fn() -> c_int,
    pub n_pes: unsafe extern "C" fn() -> c_int,
    pub align: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub barrier_all: unsafe extern "C" fn(),
    pub pointer: unsafe extern "C" fn(*const c_void, c_int) -> *mut c_void,
    pub context_create: unsafe extern "C" fn(c_long, *mut ContextHandle) -> c_int,
    pub get: unsafe extern "C" fn(ContextHandle, *mut c_void, *const c_void, usize, c_int),
    pub put: unsafe extern "C" fn(ContextHandle, *mut c_void, *const c_void, usize, c_int),
    pub put_word: unsafe extern "C" fn(ContextHandle, *mut u64, u64, c_int),
    pub compare_swap: unsafe extern "C" fn(ContextHandle, *mut u64, u64, u64, c_int) -> u64,
    pub atomic_set: unsafe extern "C" fn(ContextHandle, *mut u64, u64, c_int),
    pub fence: unsafe extern "C" fn(ContextHandle),
    /// `opal_progress`: OpenSHMEM has no call that only progresses, and a PE serves others' reads only while it does.
    pub progress: unsafe extern "C" fn(),
    /// `MPI_Finalize`: after `shmem_finalize` Open MPI 4.1 crashes or hangs if there were contexts.
    pub finalize: unsafe extern "C" fn() -> c_int,
}

impl Library {
    /// Opens the library, or returns the one that is open.
    ///
    /// # Errors
    /// It is not installed, or lacks a function.
    pub fn open() -> Result<&'static Library, Error> {
        static OPENED: OnceLock<Result<Library, Error>> = OnceLock::new();
        OPENED.get_or_init(Library::load).as_ref().map_err(Error::clone)
    }

    fn load() -> Result<Library, Error> {
        let file = std::env::var_os(FILE_VARIABLE).filter(|file| !file.is_empty());
        let shmem = object(file.unwrap_or_else(|| FILE.into()))?;
        // Loaded by liboshmem already.
        let (engine, mpi) = (object(PROGRESS_FILE.into())?, object(MPI_FILE.into())?);
        let library = Library {
            init_thread: function!(shmem, "shmem_init_thread"),
            my_pe: function!(shmem, "shmem_my_pe"),
            n_pes: function!(shmem, "shmem_n_pes"),
            align: function!(shmem, "shmem_align"),
            barrier_all: function!(shmem, "shmem_barrier_all"),
            pointer: function!(shmem, "shmem_ptr"),
            context_create: function!(shmem, "shmem_ctx_create"),
            get: function!(shmem, "shmem_ctx_getmem"),
            put: function!(shmem, "shmem_ctx_putmem"),
            put_word: function!(shmem, "shmem_ctx_ulong_p"),
            compare_swap: function!(shmem, "shmem_ctx_ulong_atomic_compare_swap"),
            atomic_set: function!(shmem, "shmem_ctx_ulong_atomic_set"),
            fence: function!(shmem, "shmem_ctx_fence"),
            progress: function!(engine, "opal_progress"),
            finalize: function!(mpi, "MPI_Finalize"),
        };
        // They have threads and handlers of their own: they stay open, and the functions valid.
        for object in [shmem, engine, mpi] {
            std::mem::forget(object);
        }
        Ok(library)
    }
}

/// Returns a function of a library.
macro_rules! function {
    ($object:expr, $name:literal) => {{
        // SAFETY: the field that this fills has the type of the function of this name in Open MPI's headers.
        let symbol = unsafe { $object.get($name.as_bytes()) };
        *symbol.map_err(reported)?
    }};
}
use function;

fn object(file: OsString) -> Result<Object, Error> {
    // SAFETY: the initialization of these libraries has no preconditions; the user is responsible for a file of his own.
    unsafe { Object::open(Some(&file), RTLD_NOW | RTLD_LOCAL) }.map_err(reported)
}

fn reported(error: libloading::Error) -> Error {
    // The system's error text follows the crate's.
    Error::Library(std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string))
}
