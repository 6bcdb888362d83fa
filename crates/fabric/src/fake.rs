//! A simulated provider: it records calls, and answers as [`FakeProvider`] says.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use crate::library::Library;
use crate::provider::Provider;
use crate::sys::{self, FiInfo, FiOps, Fid, FidAv, FidCq, FidDomain, FidEp, FidFabric, FidMr};
use crate::{Domain, ProviderRequirements};

/// The provider's properties, for the current thread.
#[derive(Clone, Copy)]
pub struct FakeProvider {
    pub name: &'static str,
    pub memory_modes: c_int,
    /// The result of calls of this name.
    pub refuses: Option<(&'static str, c_int)>,
    /// The kind of objects that it does not close.
    pub refuses_to_close: Option<&'static str>,
    /// Whether its keys are longer than eight bytes.
    pub has_long_keys: bool,
    /// Whether its endpoints need the peer's CPU for reads; `None`: they do not know the option.
    pub emulates_reads: Option<bool>,
    /// The limit of registered bytes.
    pub locked_bytes_max: usize,
    /// The bytes that an endpoint registers itself.
    pub endpoint_bytes: usize,
}

impl Default for FakeProvider {
    fn default() -> FakeProvider {
        FakeProvider {
            name: "fake",
            memory_modes: sys::FI_MR_ENDPOINT,
            refuses: None,
            refuses_to_close: None,
            has_long_keys: false,
            emulates_reads: None,
            locked_bytes_max: usize::MAX,
            endpoint_bytes: 0,
        }
    }
}

thread_local! {
    static FAKE: Cell<FakeProvider> = Cell::new(FakeProvider::default());
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static OBJECTS: Cell<u64> = const { Cell::new(0) };
    /// The access that the last registration asked for.
    static ACCESS: Cell<u64> = const { Cell::new(0) };
    /// The address of the memory that the last registration named.
    static BASE: Cell<usize> = const { Cell::new(0) };
    /// The registrations of each object.
    static LOCKED: RefCell<HashMap<String, usize>> = RefCell::default();
}

/// Records a call; returns its result.
fn note(call: &'static str, of: impl ToString) -> c_int {
    CALLS.with_borrow_mut(|calls| calls.push(format!("{call} {}", of.to_string())));
    match FAKE.get().refuses {
        Some((refused, result)) if refused == call => result,
        _ => 0,
    }
}

/// Registers memory for an object, if the limit allows it; returns the call's result.
fn lock_memory(name: String, bytes: usize) -> c_int {
    LOCKED.with_borrow_mut(|locked| {
        let sum: usize = locked.values().sum();
        if FAKE.get().locked_bytes_max.saturating_sub(sum) < bytes {
            return -sys::FI_ENOMEM;
        }
        locked.insert(name, bytes);
        0
    })
}

/// Returns the access that the last registration asked for (`FI_SEND`, …).
pub fn last_access() -> u64 {
    ACCESS.get()
}

/// Returns the address of the memory that the last registration named.
pub fn last_base() -> usize {
    BASE.get()
}

/// Returns the calls since the last time.
pub fn calls() -> Vec<String> {
    CALLS.take()
}

impl FakeProvider {
    /// Sets this thread's provider.
    pub fn is_there(self) {
        FAKE.set(self);
    }

    /// Opens its domain.
    pub fn open(self) -> Arc<Domain> {
        self.open_of(&LIBRARY)
    }

    /// Opens its domain through this library.
    pub fn open_of(self, library: &'static Library) -> Arc<Domain> {
        self.is_there();
        OBJECTS.set(0);
        LOCKED.take();
        let provider: Provider = library.pick(&ProviderRequirements::default()).expect("the only provider");
        let domain = Domain::open(&provider).expect("the domain opens");
        calls();
        domain
    }
}

pub static LIBRARY: Library = Library {
    get_info,
    free_info,
    dup_info,
    open_fabric,
    str_error,
    version: sys::API_VERSION,
    caches_registrations: false,
};
/// The same, opened while its cache of registrations was on.
pub static CACHING_LIBRARY: Library = Library { caches_registrations: true, ..LIBRARY };

// ---- descriptions ----

/// Returns a description with all its parts; the caller frees it.
fn described(fake: FakeProvider) -> *mut FiInfo {
    let name = |text: &str| CString::new(text).expect("no 0 in it").into_raw();
    let fabric = sys::FiFabricAttr {
        fabric: null_mut(),
        name: name("fake"),
        prov_name: name(fake.name),
        prov_version: 0,
        api_version: sys::API_VERSION,
    };
    // SAFETY: numbers and null addresses, for which zeros are valid, as for all that follow.
    let mut info: FiInfo = unsafe { std::mem::zeroed() };
    // SAFETY: numbers and addresses, for which zeros are valid.
    let mut domain: sys::FiDomainAttr = unsafe { std::mem::zeroed() };
    // SAFETY: numbers and addresses, for which zeros are valid.
    let mut endpoint: sys::FiEpAttr = unsafe { std::mem::zeroed() };
    // SAFETY: numbers and addresses, for which zeros are valid.
    let mut transmit: sys::FiTxAttr = unsafe { std::mem::zeroed() };
    // SAFETY: numbers and addresses, for which zeros are valid.
    let receive: sys::FiRxAttr = unsafe { std::mem::zeroed() };
    domain.name = name("fake0");
    domain.mr_mode = fake.memory_modes;
    domain.mr_key_size = 8;
    endpoint.kind = sys::FI_EP_RDM;
    transmit.msg_order = sys::FI_ORDER_SAS;
    transmit.size = 64;
    info.caps = u64::MAX;
    info.domain_attr = Box::into_raw(Box::new(domain));
    info.ep_attr = Box::into_raw(Box::new(endpoint));
    info.tx_attr = Box::into_raw(Box::new(transmit));
    info.rx_attr = Box::into_raw(Box::new(receive));
    info.fabric_attr = Box::into_raw(Box::new(fabric));
    Box::into_raw(Box::new(info))
}

/// Returns the description if the hints allow it, or if there are no hints.
unsafe extern "C" fn get_info(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    hints: *const FiInfo,
    into: *mut *mut FiInfo,
) -> c_int {
    let fake = FAKE.get();
    if !hints.is_null() {
        // SAFETY: hints are descriptions with all their parts.
        let domain = unsafe { (*hints).domain_attr };
        // SAFETY: a structure of the hints, which live through the call.
        let allowed = unsafe { (*domain).mr_mode };
        if fake.memory_modes & !allowed != 0 {
            return -sys::FI_ENODATA;
        }
    }
    // SAFETY: the caller of fi_getinfo passes a place for the list.
    unsafe { *into = described(fake) };
    0
}

unsafe extern "C" fn free_info(info: *mut FiInfo) {
    // SAFETY: it came from `described`, and is freed once.
    let info = unsafe { Box::from_raw(info) };
    // SAFETY: `described` took the structure from a box, and the caller frees a description once.
    let domain = unsafe { Box::from_raw(info.domain_attr) };
    // SAFETY: as for `domain_attr`: from a box of `described`.
    let fabric = unsafe { Box::from_raw(info.fabric_attr) };
    for name in [domain.name, fabric.name, fabric.prov_name] {
        // SAFETY: `described` took the text from a CString.
        drop(unsafe { CString::from_raw(name) });
    }
    // SAFETY: as for `domain_attr`: from a box of `described`.
    drop(unsafe { Box::from_raw(info.ep_attr) });
    // SAFETY: as for `domain_attr`: from a box of `described`.
    drop(unsafe { Box::from_raw(info.tx_attr) });
    // SAFETY: as for `domain_attr`: from a box of `described`.
    drop(unsafe { Box::from_raw(info.rx_attr) });
}

unsafe extern "C" fn dup_info(_: *const FiInfo) -> *mut FiInfo {
    described(FAKE.get())
}

unsafe extern "C" fn str_error(_: c_int) -> *const c_char {
    null()
}

// ---- objects ----

/// A simulated object, which begins like libfabric's.
#[repr(C)]
struct FakeObject<T> {
    object: T,
    /// Its name in the record of calls.
    name: String,
}

/// Creates an object, named by its type and a number.
fn make<T>(kind: &str, into: *mut *mut T, object: impl FnOnce(Fid) -> T, ops: *const FiOps) -> c_int {
    let number = OBJECTS.get();
    OBJECTS.set(number + 1);
    let fid = Fid { fclass: 0, context: null_mut(), ops };
    let made = Box::new(FakeObject { object: object(fid), name: format!("{kind}{number}") });
    // SAFETY: the caller passes a valid place; the made structure begins with the object.
    unsafe { *into = Box::into_raw(made).cast() };
    0
}

/// Returns an object's type name.
///
/// # Safety
/// `fid` came from `make`, for an object of this type.
unsafe fn name_of<T>(fid: *mut Fid) -> String {
    // SAFETY: by this function's own contract; objects begin with this.
    unsafe { (*fid.cast::<FakeObject<T>>()).name.clone() }
}

unsafe extern "C" fn close<T>(fid: *mut Fid) -> c_int {
    // SAFETY: this table is only in objects of type T.
    let name = unsafe { name_of::<T>(fid) };
    let is_kept = FAKE.get().refuses_to_close.is_some_and(|kind| name.starts_with(kind));
    let noted = note("close", &name);
    let result = if is_kept { -sys::FI_EBUSY } else { noted };
    if result == 0 {
        LOCKED.with_borrow_mut(|locked| locked.remove(&name));
        // SAFETY: it came from `make`, and is closed once.
        drop(unsafe { Box::from_raw(fid.cast::<FakeObject<T>>()) });
    }
    result
}

const fn ops<T>() -> FiOps {
    FiOps { size: size_of::<FiOps>(), close: Some(close::<T>), bind: None, control: None }
}

static FABRIC: FiOps = ops::<FidFabric>();
static DOMAIN: FiOps = ops::<FidDomain>();
static VECTOR: FiOps = ops::<FidAv>();
static QUEUE: FiOps = ops::<FidCq>();
static ENDPOINT: FiOps =
    FiOps { bind: Some(bind_endpoint), control: Some(enable_endpoint), ..ops::<FidEp>() };
static MEMORY: FiOps = FiOps { bind: Some(bind_memory), control: Some(enable_memory), ..ops::<FidMr>() };

unsafe extern "C" fn open_fabric(
    _: *mut sys::FiFabricAttr,
    into: *mut *mut FidFabric,
    _: *mut c_void,
) -> c_int {
    static TABLE: sys::FiOpsFabric = sys::FiOpsFabric {
        size: size_of::<sys::FiOpsFabric>(),
        domain: Some(open_domain),
        passive_ep: None,
        eq_open: None,
        wait_open: None,
        trywait: None,
    };
    make("fabric", into, |fid| FidFabric { fid, ops: &raw const TABLE, api_version: 0 }, &raw const FABRIC)
}

unsafe extern "C" fn open_domain(
    _: *mut FidFabric,
    _: *mut FiInfo,
    into: *mut *mut FidDomain,
    _: *mut c_void,
) -> c_int {
    static TABLE: sys::FiOpsDomain = sys::FiOpsDomain {
        size: size_of::<sys::FiOpsDomain>(),
        av_open: Some(open_vector),
        cq_open: Some(open_queue),
        endpoint: Some(open_endpoint),
    };
    static MEMORIES: sys::FiOpsMr = sys::FiOpsMr { size: size_of::<sys::FiOpsMr>(), reg: Some(register) };
    let object = |fid| FidDomain { fid, ops: &raw const TABLE, mr: &raw const MEMORIES };
    make("domain", into, object, &raw const DOMAIN)
}

unsafe extern "C" fn open_vector(
    _: *mut FidDomain,
    _: *mut sys::FiAvAttr,
    into: *mut *mut FidAv,
    _: *mut c_void,
) -> c_int {
    make("vector", into, |fid| FidAv { fid, ops: null() }, &raw const VECTOR)
}

unsafe extern "C" fn open_queue(
    _: *mut FidDomain,
    _: *mut sys::FiCqAttr,
    into: *mut *mut FidCq,
    _: *mut c_void,
) -> c_int {
    static TABLE: sys::FiOpsCq = sys::FiOpsCq {
        size: size_of::<sys::FiOpsCq>(),
        read: Some(read_queue),
        readfrom: None,
        readerr: Some(read_errors),
    };
    make("queue", into, |fid| FidCq { fid, ops: &raw const TABLE }, &raw const QUEUE)
}

unsafe extern "C" fn read_queue(_: *mut FidCq, _: *mut c_void, _: usize) -> isize {
    -sys::FI_EAGAIN as isize
}

unsafe extern "C" fn read_errors(_: *mut FidCq, _: *mut sys::FiCqErrEntry, _: u64) -> isize {
    -sys::FI_EAGAIN as isize
}

// ---- memory ----

unsafe extern "C" fn register(
    _: *mut Fid,
    base: *const c_void,
    bytes: usize,
    access: u64,
    _: u64,
    _: u64,
    _: u64,
    into: *mut *mut FidMr,
    _: *mut c_void,
) -> c_int {
    ACCESS.set(access);
    BASE.set(base as usize);
    let result = match note("register", bytes) {
        0 => lock_memory(format!("memory{}", OBJECTS.get()), bytes),
        refused => refused,
    };
    if result != 0 {
        return result;
    }
    // The key of memory that must be enabled is unknown before.
    let is_enabled = FAKE.get().memory_modes & sys::FI_MR_ENDPOINT == 0 && !FAKE.get().has_long_keys;
    let key = if is_enabled { OBJECTS.get() } else { sys::FI_KEY_NOTAVAIL };
    make("memory", into, |fid| FidMr { fid, mem_desc: null_mut(), key }, &raw const MEMORY)
}

unsafe extern "C" fn bind_memory(fid: *mut Fid, to: *mut Fid, _: u64) -> c_int {
    // SAFETY: this table is only in objects of type `FidMr`.
    let name = unsafe { name_of::<FidMr>(fid) };
    // SAFETY: memory is bound to endpoints only.
    let endpoint = unsafe { name_of::<FidEp>(to) };
    note("bind", format!("{name} to {endpoint}"))
}

unsafe extern "C" fn enable_memory(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    assert_eq!(command, sys::FI_ENABLE);
    // SAFETY: this table is only in objects of type `FidMr`.
    let name = unsafe { name_of::<FidMr>(fid) };
    let number: u64 = name.trim_start_matches("memory").parse().expect("a number");
    let result = note("enable", name);
    if result == 0 {
        // SAFETY: an object of type `FidMr`; the caller does not use it concurrently.
        unsafe { (*fid.cast::<FidMr>()).key = 1000 + number };
    }
    result
}

// ---- endpoints ----

unsafe extern "C" fn open_endpoint(
    _: *mut FidDomain,
    _: *mut FiInfo,
    into: *mut *mut FidEp,
    _: *mut c_void,
) -> c_int {
    static OPTIONS: sys::FiOpsEp =
        sys::FiOpsEp { size: size_of::<sys::FiOpsEp>(), cancel: None, getopt: Some(get_option) };
    static NAMES: sys::FiOpsCm =
        sys::FiOpsCm { size: size_of::<sys::FiOpsCm>(), setname: None, getname: Some(get_name) };
    static MESSAGES: sys::FiOpsMsg = sys::FiOpsMsg {
        size: size_of::<sys::FiOpsMsg>(),
        recv: Some(receive),
        recvv: None,
        recvmsg: None,
        send: Some(send),
        sendv: None,
        sendmsg: None,
        inject: Some(inject),
    };
    static PLACES: sys::FiOpsRma = sys::FiOpsRma {
        size: size_of::<sys::FiOpsRma>(),
        read: Some(read),
        readv: None,
        readmsg: Some(message),
        write: None,
        writev: None,
        writemsg: Some(message),
    };
    let object = |fid| FidEp {
        fid,
        ops: &raw const OPTIONS,
        cm: &raw const NAMES,
        msg: &raw const MESSAGES,
        rma: &raw const PLACES,
    };
    make("endpoint", into, object, &raw const ENDPOINT)
}

unsafe extern "C" fn bind_endpoint(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn enable_endpoint(fid: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    // SAFETY: this table is only in objects of type `FidEp`.
    lock_memory(unsafe { name_of::<FidEp>(fid) }, FAKE.get().endpoint_bytes)
}

unsafe extern "C" fn get_option(
    _: *mut Fid,
    _: c_int,
    option: c_int,
    into: *mut c_void,
    len: *mut usize,
) -> c_int {
    const FI_ENOPROTOOPT: c_int = 92;
    let Some(answer) = FAKE.get().emulates_reads else { return -FI_ENOPROTOOPT };
    assert_eq!(option, sys::FI_OPT_EFA_EMULATED_READ);
    // SAFETY: the caller passes a place for the value and its length.
    unsafe { *into.cast::<bool>() = answer };
    // SAFETY: the place of the length.
    unsafe { *len = 1 };
    0
}

unsafe extern "C" fn get_name(_: *mut Fid, _: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the caller passes a place for the length.
    unsafe { *len = 4 };
    0
}

// There are no peers.

unsafe extern "C" fn receive(
    _: *mut FidEp,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: *mut c_void,
) -> isize {
    -sys::FI_EAGAIN as isize
}

unsafe extern "C" fn send(
    _: *mut FidEp,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: *mut c_void,
) -> isize {
    -sys::FI_EAGAIN as isize
}

unsafe extern "C" fn inject(_: *mut FidEp, _: *const c_void, _: usize, _: u64) -> isize {
    -sys::FI_EAGAIN as isize
}

unsafe extern "C" fn read(
    _: *mut FidEp,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -sys::FI_EAGAIN as isize
}

unsafe extern "C" fn message(_: *mut FidEp, _: *const sys::FiMsgRma, _: u64) -> isize {
    -sys::FI_EAGAIN as isize
}
