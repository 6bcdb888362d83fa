//! The providers of this machine, as libfabric describes them.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::Error;
use crate::library::Library;
use crate::signals::SavedHandlers;
use crate::sys::{self, FiInfo};

/// Providers in order of preference: hardware first, then kernel networks. Unknown ones come last.
pub const ORDER: [&str; 12] = [
    "cxi",
    "efa",
    "psm3",
    "opx",
    "psm2",
    "gni",
    "verbs;ofi_rxm",
    "tcp;ofi_rxm",
    "tcp",
    "net;ofi_rxm",
    "net",
    "sockets",
];

/// Required capabilities of an endpoint: messages, and reading and writing a peer's memory.
const CAPABILITIES: u64 = sys::FI_MSG
    | sys::FI_RMA
    | sys::FI_SEND
    | sys::FI_RECV
    | sys::FI_READ
    | sys::FI_WRITE
    | sys::FI_REMOTE_READ
    | sys::FI_REMOTE_WRITE;

/// Maximum number of ranges of a peer's memory read at once.
pub const PLACES_MAX: usize = 4;

/// The modes that providers may require of the application.
const MODES: u64 = sys::FI_CONTEXT | sys::FI_CONTEXT2;

/// The modes that providers may require of memory registration.
const MEMORY_MODES: i32 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;

/// At most one of these may be required: buffers of pools belong to no endpoint.
const NOT_BOTH: i32 = sys::FI_MR_LOCAL | sys::FI_MR_ENDPOINT;

/// Why a provider with long keys cannot be used.
pub(crate) const LONG_KEYS: &str = "has keys of memory longer than eight bytes, which are not supported";

/// Providers whose hardware serves reads without the target's CPU. Others need the target to poll its completion
/// queue, whatever they report of progress (ofi_rxm over verbs reports MANUAL, for its messages).
const ONE_SIDED: [&str; 4] = ["verbs", "efa", "cxi", "gni"];

/// Providers whose descriptor is unusable: that of net stays readable for ever once a peer is known (libfabric 1.17).
const RESTLESS: [&str; 1] = ["net"];

/// Providers with one connection to a peer whose target's CPU sends the answers of reads in order: each read is
/// complete before the next begins. With others FI_ORDER_RAR only means that reads are sent in order; they may read
/// memory in another order, since long reads often use other means than short ones.
const READS_MEMORY_IN_ORDER: [&str; 3] = ["tcp", "net", "sockets"];

/// A provider of libfabric at one of its interfaces, with an endpoint of the kind that is needed.
#[derive(Clone)]
pub struct Provider {
    /// Its name in libfabric, such as `verbs;ofi_rxm`.
    pub name: String,
    /// Its interface, such as `mlx5_0` or `eth0`.
    pub interface: String,
    /// The network it belongs to, such as `192.0.2.0/24`.
    pub fabric: String,
    /// The address format (`FI_SOCKADDR_IN` = 2, …).
    pub address_format: u32,
    /// Its wire protocol (`FI_PROTO_…`).
    pub protocol: u32,
    /// Its own IP address, if it has one.
    pub address: Option<IpAddr>,
    /// Reads of a peer's memory need no help of the peer's process, unless the endpoint says otherwise
    /// ([`Endpoint::is_one_sided`](crate::Endpoint::is_one_sided)).
    pub is_one_sided: bool,
    /// Registered memory must stay in place, and all of it is committed (`FI_MR_ALLOCATED`).
    pub pins_memory: bool,
    /// Reads are sent in the order in which they were posted (`FI_ORDER_RAR`).
    pub reads_in_order: bool,
    /// The number of ranges of a peer's memory that one operation reads at the price of one, in the order given if
    /// [`Provider::reads_memory_in_order`].
    pub places_at_once: usize,
    /// Messages up to this many bytes are sent without keeping their buffer.
    pub inject_bytes: usize,
    /// Sends and similar operations that an endpoint can have in flight.
    pub transmits_max: usize,
    /// Receives that an endpoint can have posted.
    pub receives_max: usize,
    /// Messages reach their peer in order (`FI_ORDER_SAS`), which is required.
    pub(crate) info: Info,
}

/// One of libfabric's descriptions, shared.
#[derive(Clone)]
pub(crate) struct Info(Arc<InfoInner>);

struct InfoInner {
    info: NonNull<FiInfo>,
    library: &'static Library,
}

// SAFETY: the description lies on the C heap, which any thread may read and free, and only this value owns it. `library`
// is `&'static` and Sync.
unsafe impl Send for InfoInner {}
// SAFETY: a shared description is only read. Those who change one, or pass it to a call that may, do so to a copy that
// only they have: `hints`, `sized`, `Domain::open` and `Endpoint::open`.
unsafe impl Sync for InfoInner {}

impl Drop for InfoInner {
    fn drop(&mut self) {
        // SAFETY: it came from fi_getinfo, fi_dupinfo or fi_allocinfo, and this value owns it.
        unsafe { (self.library.free_info)(self.info.as_ptr()) }
    }
}

impl Info {
    pub fn as_ptr(&self) -> *mut FiInfo {
        self.0.info.as_ptr()
    }

    pub fn library(&self) -> &'static Library {
        self.0.library
    }

    /// Returns a copy for a call that may change it.
    pub fn duplicate(&self) -> Result<Info, Error> {
        // SAFETY: this value owns a whole description, which nothing changes while it is shared.
        unsafe { Info::copy(self.library(), self.as_ptr()) }
    }

    /// Returns a copy for an endpoint with at most so many operations in flight: a provider's default takes tens of
    /// megabytes.
    pub fn sized(&self, operations: usize) -> Result<Info, Error> {
        let copy = self.duplicate()?;
        // SAFETY: libfabric has just allocated it, and nothing else refers to it.
        let info = unsafe { &mut *copy.as_ptr() };
        // SAFETY: a description of fi_allocinfo, fi_dupinfo or fi_getinfo has all attribute structures, each allocated separately.
        let transmit = unsafe { &mut *info.tx_attr };
        transmit.size = transmit.size.min(operations);
        // SAFETY: as for `tx_attr`: a separate structure of the same description.
        let receive = unsafe { &mut *info.rx_attr };
        receive.size = receive.size.min(operations);
        Ok(copy)
    }

    /// A copy that may be changed, or an empty one of none. It has all its parts.
    ///
    /// # Safety
    /// `of` is null, or a description of this library that lives and is not changed meanwhile.
    unsafe fn copy(library: &'static Library, of: *const FiInfo) -> Result<Info, Error> {
        // SAFETY: fi_dupinfo makes an empty description of null; otherwise the caller guarantees that `of` is a description
        // of this library that lives.
        let info = unsafe { (library.dup_info)(of) };
        let info = NonNull::new(info).ok_or_else(|| Error::System("no memory for libfabric".into()))?;
        let own = InfoInner { info, library };
        // SAFETY: libfabric has just allocated it, and nothing else refers to it.
        if !has_all_parts(unsafe { own.info.as_ref() }) {
            return Err(Error::System("libfabric's description of a provider is incomplete".into()));
        }
        Ok(Info(Arc::new(own)))
    }
}

fn has_all_parts(info: &FiInfo) -> bool {
    let attributes = !(info.tx_attr.is_null() || info.rx_attr.is_null() || info.ep_attr.is_null());
    attributes && !(info.domain_attr.is_null() || info.fabric_attr.is_null())
}

impl Library {
    /// Returns the provider with this [`Provider::identity`], if it still exists.
    ///
    /// # Errors
    /// libfabric cannot list providers.
    pub fn find(&'static self, identity: &str) -> Result<Option<Provider>, Error> {
        let providers = self.list(Some(self.hints()?), None)?;
        Ok(providers.into_iter().find(|provider| provider.identity() == identity))
    }

    /// Returns the requirements for fi_getinfo.
    pub(crate) fn hints(&'static self) -> Result<Info, Error> {
        // SAFETY: null is allowed.
        let hints = unsafe { Info::copy(self, std::ptr::null()) }?;
        let info = hints.as_ptr();
        // SAFETY: libfabric has just allocated it, and nothing else refers to it.
        let info = unsafe { &mut *info };
        info.caps = CAPABILITIES;
        info.mode = MODES;
        // SAFETY: a description of fi_allocinfo, fi_dupinfo or fi_getinfo has all attribute structures, each allocated separately.
        let endpoint = unsafe { &mut *info.ep_attr };
        endpoint.kind = sys::FI_EP_RDM;
        // SAFETY: as for `ep_attr`: a separate structure of the same description.
        let domain = unsafe { &mut *info.domain_attr };
        domain.mr_mode = MEMORY_MODES;
        domain.threading = sys::FI_THREAD_SAFE;
        domain.resource_mgmt = sys::FI_RM_ENABLED;
        // SAFETY: as for `ep_attr`: a separate structure of the same description.
        let transmit = unsafe { &mut *info.tx_attr };
        transmit.msg_order = sys::FI_ORDER_SAS;
        // SAFETY: as for `ep_attr`: a separate structure of the same description.
        let receive = unsafe { &mut *info.rx_attr };
        receive.msg_order = sys::FI_ORDER_SAS;
        Ok(hints)
    }

    pub(crate) fn list(
        &'static self,
        hints: Option<Info>,
        toward: Option<IpAddr>,
    ) -> Result<Vec<Provider>, Error> {
        let infos = self.infos(hints, toward)?;
        Ok(infos.into_iter().filter_map(Provider::of).collect())
    }

    /// Returns libfabric's descriptions; all of them without hints.
    pub(crate) fn infos(
        &'static self,
        hints: Option<Info>,
        toward: Option<IpAddr>,
    ) -> Result<Vec<Info>, Error> {
        let _kept = SavedHandlers::new();
        let mut first = std::ptr::null_mut();
        let wanted = hints.as_ref().map_or(std::ptr::null(), |hints| hints.as_ptr().cast_const());
        let node = toward.map(|at| CString::new(at.to_string()).expect("an address has no 0 in it"));
        let node = node.as_ref().map_or(std::ptr::null(), |node| node.as_ptr());
        // Some providers look for a peer only if a port is named; any will do.
        let service = if node.is_null() { std::ptr::null() } else { c"11211".as_ptr() };
        // SAFETY: texts and hints live through the call, which stores the list at the given place.
        let result = unsafe { (self.get_info)(sys::API_VERSION, node, service, 0, wanted, &raw mut first) };
        match result {
            0 => {}
            result if result == -sys::FI_ENODATA => return Ok(Vec::new()),
            result => {
                return Err(Error::Call {
                    what: "list fabrics",
                    provider: "libfabric".into(),
                    code: -result,
                    text: self.text(-result),
                });
            }
        }
        let Some(list) = NonNull::new(first) else { return Ok(Vec::new()) };
        // Freed with the list.
        let list = InfoInner { info: list, library: self };
        let mut infos = Vec::new();
        let mut next = list.info.as_ptr();
        while !next.is_null() {
            // SAFETY: `next` is a part of the list, which `list` owns and nothing changes.
            let info = unsafe { &*next };
            // A description with missing parts cannot be used or shown.
            if has_all_parts(info) {
                // SAFETY: `next` is a part of the list, which `list` owns and nothing changes.
                infos.push(unsafe { Info::copy(self, next) }?);
            }
            next = info.next;
        }
        Ok(infos)
    }
}

/// Sorts providers by preference, and removes duplicates.
pub(crate) fn in_order(mut providers: Vec<Provider>) -> Vec<Provider> {
    providers.sort_by_key(Provider::place);
    let mut seen: Vec<Provider> = Vec::new();
    for provider in providers {
        if !seen.iter().any(|other| other.is_same(&provider)) {
            seen.push(provider);
        }
    }
    seen
}

impl Provider {
    pub(crate) fn of(info: Info) -> Option<Provider> {
        let description = Description::of(&info);
        // Two software layers, one of which recovers lost datagrams, are slower than a socket.
        if description.name.contains("ofi_rxd") || description.name.contains("ofi_hook") {
            return None;
        }
        // The same devices also have IP addresses, by which servers identify permitted clients.
        if description.address_format == sys::FI_SOCKADDR_IB {
            return None;
        }
        if description.memory_modes & NOT_BOTH == NOT_BOTH {
            return None;
        }
        let core = description.name.split(';').next().unwrap_or_default();
        let is_one_sided = ONE_SIDED.contains(&core);
        Some(Provider {
            is_one_sided,
            pins_memory: description.memory_modes & sys::FI_MR_ALLOCATED != 0,
            reads_in_order: description.order & (sys::FI_ORDER_RAR | sys::FI_ORDER_RMA_RAR) != 0,
            places_at_once: places_at_once(&description, is_one_sided),
            inject_bytes: injected_bytes(&description),
            transmits_max: description.transmits,
            receives_max: description.receives,
            address_format: description.address_format,
            protocol: description.protocol,
            address: description.address,
            fabric: description.fabric,
            interface: description.interface,
            name: description.name,
            info,
        })
    }

    /// Returns the sort key for picking a provider; the lowest is best.
    fn place(&self) -> (usize, bool, bool) {
        let known = ORDER.iter().position(|name| *name == self.name);
        let is_ipv6 = self.address.is_some_and(|at| at.is_ipv6());
        (known.unwrap_or(ORDER.len()), self.is_only_this_host(), is_ipv6)
    }

    /// Returns whether peers reach any of this process's memory by address, whatever they were granted, and whether or
    /// not it is still in the same use.
    pub fn trusts_peers(&self) -> bool {
        self.name == "shm"
    }

    /// Returns a word that identifies it among all providers of this host.
    pub fn identity(&self) -> String {
        let Provider { name, interface, fabric, .. } = self;
        let address = self.address.map_or(String::new(), |at| at.to_string());
        format!("{name},{interface},{fabric},{address}")
    }

    pub(crate) fn is_same(&self, other: &Provider) -> bool {
        self.identity() == other.identity()
    }

    /// Returns whether reads are executed in the order in which they were posted, each completing in the target's
    /// memory before the next begins.
    pub fn reads_memory_in_order(&self) -> bool {
        let core = self.name.split(';').next().unwrap_or_default();
        self.reads_in_order && READS_MEMORY_IN_ORDER.contains(&core)
    }

    /// Returns whether reads by it deliver words as readers need them: each aligned eight bytes whole, or the upper four
    /// not earlier than the lower four. Devices read them whole, and copies by software ascend. Of a provider that is not
    /// known here, nothing is known.
    pub fn delivers_words(&self) -> bool {
        ORDER.contains(&self.name.as_str()) || self.name == "shm"
    }

    /// Returns whether no other host reaches it. An address that is not an IP address is one of another network,
    /// except that of memory.
    pub fn is_only_this_host(&self) -> bool {
        match self.address {
            Some(address) => address.is_loopback(),
            None => self.name == "shm",
        }
    }

    /// Returns whether its descriptor, if it has one, becomes unreadable when nothing is left to signal.
    pub(crate) fn may_rest(&self) -> bool {
        !RESTLESS.contains(&&*self.name)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({},{},{})", self.name, self.interface, self.fabric)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.interface)
    }
}

/// Returns the maximum length of an injected message. 0 for ofi_rxm: when a peer dies while an injected message is in
/// flight, libfabric 1.17 looks up an operation that does not exist, and crashes.
fn injected_bytes(description: &Description) -> usize {
    if description.name.ends_with(";ofi_rxm") { 0 } else { description.inject_bytes }
}

/// Returns the number of ranges read at once. Hardware reads them one by one, and shm more than one only with the
/// peer's help.
fn places_at_once(description: &Description, is_one_sided: bool) -> usize {
    if is_one_sided || description.name == "shm" { 1 } else { description.places.clamp(1, PLACES_MAX) }
}

/// A provider's description in Rust types.
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) interface: String,
    fabric: String,
    address_format: u32,
    address: Option<IpAddr>,
    protocol: u32,
    kind: i32,
    capabilities: u64,
    modes: u64,
    memory_modes: i32,
    order: u64,
    inject_bytes: usize,
    places: usize,
    transmits: usize,
    receives: usize,
}

impl Description {
    pub(crate) fn of(info: &Info) -> Description {
        // SAFETY: `info` owns the description, which nothing changes while it is shared.
        let info = unsafe { &*info.as_ptr() };
        // SAFETY: a description of fi_allocinfo, fi_dupinfo or fi_getinfo has all attribute structures, each allocated separately.
        let endpoint = unsafe { &*info.ep_attr };
        // SAFETY: as for `ep_attr`: a separate structure of the same description.
        let domain = unsafe { &*info.domain_attr };
        // SAFETY: as for `ep_attr`: a separate structure of the same description.
        let fabric = unsafe { &*info.fabric_attr };
        // SAFETY: as for `ep_attr`: a separate structure of the same description.
        let transmit = unsafe { &*info.tx_attr };
        // SAFETY: as for `ep_attr`: a separate structure of the same description.
        let receive = unsafe { &*info.rx_attr };
        Description {
            name: text(fabric.prov_name),
            interface: text(domain.name),
            fabric: text(fabric.name),
            address_format: info.addr_format,
            address: ip_address(info),
            protocol: endpoint.protocol,
            kind: endpoint.kind,
            capabilities: info.caps,
            modes: info.mode | transmit.mode | receive.mode,
            memory_modes: domain.mr_mode,
            order: transmit.msg_order,
            inject_bytes: transmit.inject_size,
            places: transmit.rma_iov_limit,
            transmits: transmit.size,
            receives: receive.size,
        }
    }

    /// Returns the required feature that it lacks.
    pub(crate) fn lacks(&self) -> &'static str {
        if self.name.contains("ofi_rxd") {
            return "recovers lost datagrams in software, and is slower than TCP";
        }
        if self.name.contains("ofi_hook") {
            return "only monitors other providers";
        }
        match self.kind {
            sys::FI_EP_MSG => return "has only connected endpoints (ofi_rxm over it has others)",
            sys::FI_EP_DGRAM => return "has only datagrams, which may be lost",
            sys::FI_EP_RDM => {}
            _ => return "has endpoints of another kind",
        }
        if self.capabilities & CAPABILITIES != CAPABILITIES {
            return "does not read and write a peer's memory";
        }
        if self.modes & !MODES != 0 {
            return "requires a mode that is not supported";
        }
        if self.memory_modes & sys::FI_MR_RAW != 0 {
            return LONG_KEYS;
        }
        if self.memory_modes & NOT_BOTH == NOT_BOTH {
            return "registers buffers for one endpoint each";
        }
        if self.memory_modes & !MEMORY_MODES & !3 != 0 {
            return "requires an unsupported kind of memory registration";
        }
        if self.address_format == sys::FI_SOCKADDR_IB {
            return "has no IP address, by which servers identify permitted clients";
        }
        "does not keep messages in order, or lacks something else"
    }
}

fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: names in descriptions end with 0 and live as long as these.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// Returns the source address of a description, if it is an IP address.
fn ip_address(info: &FiInfo) -> Option<IpAddr> {
    let bytes: &[u8] = match NonNull::new(info.src_addr.cast::<u8>()) {
        None => return None,
        // SAFETY: libfabric states the length of the address in `src_addrlen`.
        Some(at) => unsafe { std::slice::from_raw_parts(at.as_ptr(), info.src_addrlen) },
    };
    ip_of(bytes)
}

/// Returns an endpoint's name in readable form: address and port, text, or hexadecimal digits.
pub fn name_text(name: &[u8]) -> String {
    if let Some(address) = ip_of(name) {
        let port = name.get(2..4).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
        return SocketAddr::new(address, port).to_string();
    }
    let text = name.strip_suffix(&[0]).unwrap_or(name);
    match std::str::from_utf8(text) {
        Ok(text) if !text.is_empty() && text.chars().all(|letter| letter.is_ascii_graphic()) => text.into(),
        _ => name.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Returns the IP address in a `struct sockaddr`, as endpoint names often are.
pub fn ip_of(name: &[u8]) -> Option<IpAddr> {
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    match (family, name.len()) {
        (AF_INET, 16) => {
            let at: [u8; 4] = name[4..8].try_into().ok()?;
            Some(IpAddr::V4(Ipv4Addr::from(at)))
        }
        (AF_INET6, 28) => {
            let at: [u8; 16] = name[8..24].try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(at)))
        }
        _ => None,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::library::tests::EMPTY;

    /// A nonexistent provider.
    pub fn provider(name: &str, interface: &str, address: Option<&str>) -> Provider {
        let info = Info(Arc::new(InfoInner { info: NonNull::dangling(), library: &EMPTY }));
        Provider {
            name: name.into(),
            interface: interface.into(),
            fabric: String::new(),
            address_format: 0,
            protocol: 0,
            address: address.map(|at| at.parse().expect("an address")),
            is_one_sided: false,
            pins_memory: false,
            reads_in_order: false,
            places_at_once: 1,
            inject_bytes: 0,
            transmits_max: 0,
            receives_max: 0,
            info,
        }
    }

    #[test]
    fn incompletely_described_providers_are_skipped() {
        // SAFETY: a C structure of numbers and addresses, for which zeros are valid.
        let mut info: FiInfo = unsafe { std::mem::zeroed() };
        assert!(!has_all_parts(&info));
        info.tx_attr = NonNull::dangling().as_ptr();
        info.rx_attr = NonNull::dangling().as_ptr();
        info.ep_attr = NonNull::dangling().as_ptr();
        info.domain_attr = NonNull::dangling().as_ptr();
        assert!(!has_all_parts(&info));
        info.fabric_attr = NonNull::dangling().as_ptr();
        assert!(has_all_parts(&info));
    }

    #[test]
    fn only_known_providers_read_memory_in_order() {
        for (name, expected) in
            [("tcp;ofi_rxm", true), ("net", true), ("verbs;ofi_rxm", false), ("psm3", false)]
        {
            let provider = Provider { reads_in_order: true, ..provider(name, "eth0", None) };
            assert_eq!(provider.reads_memory_in_order(), expected, "{name}");
        }
        assert!(
            !provider("tcp;ofi_rxm", "eth0", None).reads_memory_in_order(),
            "the provider does not report it"
        );
    }

    #[test]
    fn only_known_providers_deliver_words() {
        for (name, expected) in [("tcp;ofi_rxm", true), ("shm", true), ("efa", true), ("ucx", false)] {
            assert_eq!(provider(name, "eth0", None).delivers_words(), expected, "{name}");
        }
    }

    #[test]
    fn endpoint_names_parse() {
        let ipv4 = [2, 0, 0x2b, 0xcb, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        // The family is in native byte order.
        let family = 2u16.to_ne_bytes();
        let ipv4 = [&family[..], &ipv4[2..]].concat();
        assert_eq!(name_text(&ipv4), "192.0.2.7:11211");
        let mut ipv6 = vec![0; 28];
        ipv6[..2].copy_from_slice(&10u16.to_ne_bytes());
        ipv6[23] = 1;
        assert_eq!(name_text(&ipv6), "[::1]:0");
        assert_eq!(name_text(b"fi_shm://4711:0\0"), "fi_shm://4711:0");
        assert_eq!(name_text(&[1, 0xff]), "01ff");
        assert_eq!(name_text(&[]), "");
    }
}
