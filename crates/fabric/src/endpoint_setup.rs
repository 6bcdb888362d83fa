//! Opens the parts of an endpoint: address vector, completion queue, name.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::domain::Domain;
use crate::error::Error;
use crate::object::{Object, operation};
use crate::provider::ip_of;
use crate::sys;

/// Maximum length of an endpoint's name: the formats known have 16 to 64 bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// Options of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointOptions {
    /// Maximum number of operations in flight, receives included.
    pub operations: usize,
    /// Expected number of peers; more are possible.
    pub peers: usize,
    /// Request a file descriptor that signals completions, if the provider has a usable one.
    pub waits: bool,
}

pub(crate) fn open_addresses(domain: &Arc<Domain>, peers: usize) -> Result<Object<sys::FidAv>, Error> {
    let what = "open an address vector";
    let missing = || domain.failure(what, -sys::FI_ENOSYS as isize);
    let open = operation!(domain.table(), FiOpsDomain::av_open).ok_or_else(missing)?;
    let mut attributes = sys::FiAvAttr {
        kind: 0,
        rx_ctx_bits: 0,
        count: peers,
        ep_per_node: 0,
        name: std::ptr::null(),
        map_addr: std::ptr::null_mut(),
        flags: 0,
    };
    let mut made = std::ptr::null_mut();
    // SAFETY: `domain` is open. `attributes` is a whole fi_av_attr without a name; it and `made`, where the object is
    // stored, outlive the call.
    let result = unsafe { open(domain.as_ptr(), &raw mut attributes, &raw mut made, std::ptr::null_mut()) };
    if result != 0 {
        return Err(domain.failure(what, result as isize));
    }
    // SAFETY: libfabric has just opened it, so nothing else closes it.
    unsafe { Object::new(made) }.ok_or_else(missing)
}

/// Opens a completion queue, with a descriptor if one is requested and the provider has one.
pub(crate) fn open_queue(
    domain: &Arc<Domain>,
    options: EndpointOptions,
) -> Result<(Object<sys::FidCq>, Option<RawFd>), Error> {
    let what = "open a completion queue";
    let missing = || domain.failure(what, -sys::FI_ENOSYS as isize);
    let open = operation!(domain.table(), FiOpsDomain::cq_open).ok_or_else(missing)?;
    let try_open = |wait_obj| {
        let mut attributes = sys::FiCqAttr {
            size: options.operations,
            flags: 0,
            format: sys::FI_CQ_FORMAT_MSG,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: std::ptr::null_mut(),
        };
        let (mut made, null) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `domain` is open. `attributes` is a whole fi_cq_attr without a wait set; it and `made`, where the object
        // is stored, outlive the call.
        let result = unsafe { open(domain.as_ptr(), &raw mut attributes, &raw mut made, null) };
        if result != 0 {
            return Err(domain.failure(what, result as isize));
        }
        // SAFETY: libfabric has just opened it, so nothing else closes it.
        unsafe { Object::<sys::FidCq>::new(made) }.ok_or_else(missing)
    };
    if options.waits
        && domain.provider().may_rest()
        && let Ok(queue) = try_open(sys::FI_WAIT_FD)
    {
        let mut fd: RawFd = -1;
        // SAFETY: FI_GETWAIT takes the address of an `int` for the descriptor of a queue with FI_WAIT_FD, and `fd` is one.
        let result = unsafe { queue.control(sys::FI_GETWAIT, (&raw mut fd).cast()) };
        if result == 0 && fd >= 0 {
            return Ok((queue, Some(fd)));
        }
    }
    Ok((try_open(sys::FI_WAIT_NONE)?, None))
}

/// Returns whether the device alone serves the endpoint's reads. With efa this depends on the device and on
/// libfabric's configuration; if libfabric does not say, the peer's process is assumed to serve them.
pub(crate) fn reads_alone(domain: &Domain, endpoint: &Object<sys::FidEp>) -> bool {
    if domain.provider().name != "efa" {
        return true;
    }
    // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
    let table = unsafe { (*endpoint.as_ptr()).ops };
    let Some(get) = operation!(table, FiOpsEp::getopt) else { return false };
    let mut is_emulated = 1u8;
    let mut len = size_of_val(&is_emulated);
    let (into, option) = ((&raw mut is_emulated).cast(), sys::FI_OPT_EFA_EMULATED_READ);
    // SAFETY: the endpoint is open; there is room for the option, which is a C `bool`.
    let result = unsafe { get(endpoint.fid(), sys::FI_OPT_ENDPOINT, option, into, &raw mut len) };
    result == 0 && is_emulated == 0
}

/// Returns whether `other` can be the address of an endpoint reachable from one with address `own`, as far as known.
pub(crate) fn is_of_kind(own: &[u8], other: &[u8]) -> bool {
    match (ip_of(own), ip_of(other)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(own), Some(other_ip)) => {
            own.is_ipv4() == other_ip.is_ipv4()
                && !other_ip.is_unspecified()
                && !other_ip.is_multicast()
                && other.get(2..4) != Some(&[0; 2])
        }
    }
}

pub(crate) fn name_of(domain: &Arc<Domain>, endpoint: &Object<sys::FidEp>) -> Result<Vec<u8>, Error> {
    let what = "read an endpoint's name";
    // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
    let table = unsafe { (*endpoint.as_ptr()).cm };
    let missing = || domain.failure(what, -sys::FI_ENOSYS as isize);
    let get_name = operation!(table, FiOpsCm::getname).ok_or_else(missing)?;
    let mut name = vec![0; NAME_BYTES_MAX];
    let mut len = name.len();
    // SAFETY: the endpoint is enabled, and `name` has room for `len` bytes.
    let result = unsafe { get_name(endpoint.fid(), name.as_mut_ptr().cast(), &raw mut len) };
    if result != 0 {
        return Err(domain.failure(what, result as isize));
    }
    if len > name.len() {
        return Err(Error::Size("an endpoint's name is longer than any known"));
    }
    name.truncate(len);
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_names_share_one_address_format() {
        let name = |family: u16, port: u16, at: [u8; 4]| -> Vec<u8> {
            [&family.to_ne_bytes()[..], &port.to_be_bytes(), &at, &[0; 8]].concat()
        };
        let own = name(2, 7, [192, 0, 2, 1]);
        assert!(is_of_kind(&own, &name(2, 8, [127, 0, 0, 1])));
        for other in [
            name(0, 8, [127, 0, 0, 1]),
            name(10, 8, [127, 0, 0, 1]),
            name(2, 0, [127, 0, 0, 1]),
            name(2, 8, [0; 4]),
            name(2, 8, [224, 0, 0, 1]),
            vec![0xff; 16],
        ] {
            assert!(!is_of_kind(&own, &other), "{other:?}");
        }
        assert!(is_of_kind(b"fi_shm://1:0\0", b"fi_shm://2:0\0"), "other formats are not checked");
    }
}
