//! Sets the environment variables that libfabric reads when it is opened.

use fabcache_fabric::REGISTRATION_CACHE;

/// Variables that a server requires, and why.
const NEEDED: [(&str, &str, &str); 5] = [
    (REGISTRATION_CACHE, "0", "clients could write the memory that they may read"),
    // One queue for the messages of all peers.
    ("FI_OFI_RXM_USE_SRX", "1", "a client that sends too much could crash the server"),
    ("FI_AV_REMOVE_CLEANUP", "1", "operations with stalled clients do not end when these are cut off"),
    ("FI_OFI_RXM_USE_RNDV_WRITE", "0", "clients could write the buffers of messages"),
    ("FI_TCP_ZEROCOPY_SIZE", "-1", "the kernel could send from buffers of a connection that has ended"),
];

/// Settings suitable for a server, unless the user has set them. Queues toward peers hold the operations between two
/// polls; with libfabric's defaults an endpoint takes tens of megabytes. The size of messages
/// (FI_OFI_RXM_BUFFER_SIZE) is not included: peers with different sizes cannot connect.
const USUAL: [(&str, &str); 2] = [("FI_OFI_RXM_MSG_TX_SIZE", "64"), ("FI_OFI_RXM_MSG_RX_SIZE", "64")];

/// Sets the variables. Returns those that the user has set to other values.
///
/// # Safety
/// No other thread exists.
pub unsafe fn prepare_for_fabric() -> Vec<String> {
    let mut reported = Vec::new();
    for (name, value, why) in NEEDED {
        if let Some(given) = std::env::var_os(name).filter(|given| given != value) {
            let given = given.display();
            reported.push(format!("{name} is {value} for the fabric, not {given}: else {why}"));
        }
        // SAFETY: `set_var` requires that no other thread reads or writes the environment; no other thread exists
        // yet.
        unsafe { std::env::set_var(name, value) };
    }
    for (name, value) in USUAL {
        if std::env::var_os(name).is_none() {
            // SAFETY: as above.
            unsafe { std::env::set_var(name, value) };
        }
    }
    reported
}
