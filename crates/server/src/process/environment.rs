//! What libfabric takes from the environment when it is opened.

use fabcache_fabric::REGISTRATION_CACHE;
use fabcache_fabric::channel::MESSAGE_BYTES;

/// Queues of an endpoint toward one peer: they hold what is under way between two looks at them, and a worker has one
/// endpoint for all its clients. With libfabric's own sizes an endpoint takes tens of megabytes.
const QUEUE: usize = 64;

/// Sets what a server needs, and what becomes one where the user has set nothing. A word on what was set otherwise.
///
/// # Safety
/// No other thread is there.
pub unsafe fn prepare_for_fabric() -> Option<String> {
    let usual = [
        // One queue for the messages of all peers …
        ("FI_OFI_RXM_USE_SRX", "1".to_owned()),
        ("FI_OFI_RXM_MSG_TX_SIZE", QUEUE.to_string()),
        ("FI_OFI_RXM_MSG_RX_SIZE", QUEUE.to_string()),
        // … none of which is longer.
        ("FI_OFI_RXM_BUFFER_SIZE", MESSAGE_BYTES.to_string()),
    ];
    for (name, value) in usual {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread reads the environment, as there is none.
            unsafe { std::env::set_var(name, value) };
        }
    }
    let given = std::env::var_os(REGISTRATION_CACHE).filter(|given| given != "0");
    // SAFETY: as above.
    unsafe { std::env::set_var(REGISTRATION_CACHE, "0") };
    let given = given?;
    Some(format!(
        "{REGISTRATION_CACHE} is 0, not {}: else clients could write the memory that they may read (--fabric)",
        given.display()
    ))
}
