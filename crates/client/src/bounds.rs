//! Every bound of the client, with its reason.

use std::time::Duration;

/// Bytes of a key: memcached's limit.
pub const KEY_BYTES_MAX: usize = 250;
/// Bytes of a value: memcached allows no larger ones with any `-I`.
pub const VALUE_BYTES_MAX: usize = 1 << 30;
/// Bytes of a line that a server may answer with: far more than any has, and the end of one that never ends.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes received at once.
pub const RECEIVE_BYTES: usize = 64 << 10;
/// Keys asked for before their answers are read: so many answers of refusal fit the buffers of any socket, so that
/// neither side waits for the other to read first.
pub const KEYS_IN_FLIGHT_MAX: usize = 64;
/// Connections kept for a server that nobody uses.
pub const IDLE_CONNECTIONS_MAX: usize = 16;
/// Default of [`crate::Options::connect_timeout`]: a server in the same room answers within milliseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Default of [`crate::Options::timeout`].
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Default of [`crate::Options::retry_after`].
pub const RETRY_AFTER: Duration = Duration::from_secs(2);
