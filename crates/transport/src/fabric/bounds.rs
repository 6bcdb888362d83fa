//! Every bound of a worker's fabric endpoint, with its reason.

use std::time::Duration;

/// Usual credits of a client: more requests than a client has in flight in separate messages.
pub const USUAL_CREDITS: u16 = 64;

/// Credits of a client when there are many: three messages in flight, and one in reserve.
pub const LEAST_CREDITS: u16 = 4;

/// A new client is granted at most this part (1/n) of the receive buffers that are left.
pub const GRANTED_PART: usize = 8;

/// Buffers by which pools grow: half a MiB.
pub const GROWTH: usize = 64;

/// Send buffers: 2 MiB.
pub const SENDS: usize = 256;

/// Send buffers that one link may use at once while there are many; more do not make it faster.
pub const LINK_SENDS_MAX: usize = 16;

/// Bounce buffers: 4 MiB. A few links with four chunks in flight each keep any network busy.
pub const BOUNCES: usize = 16;

/// Size of the bounce buffer for a link that waited without success: it proceeds more slowly, whatever others do …
pub const OWN_BYTES: usize = 64 << 10;

/// … and the number allocated together: 1 MiB.
pub const OWN_GROWTH: usize = 16;

/// Chunks of one link written at once.
pub const PUTS_MAX: usize = 4;

/// Maximum number of clients of an endpoint; another is refused.
pub const CLIENTS_MAX: usize = 1024;

/// Operations of an endpoint for each client, beyond those of its initial pools: eight receives, two sends, and one
/// buffer of either kind that a link gets when others hold all.
pub const CLIENT_OPERATIONS: usize = 12;

/// Operations with departed clients that the provider has not ended within [`STUCK_TIME_MAX`]: with more of them the
/// endpoint is closed, which ends them all.
pub const LEFT_OVER_MAX: usize = 8;

/// Peers that a provider is told to expect; more are allowed.
pub const PEERS: usize = 256;

/// Batches of completions taken before links get their turn.
pub const POLLS_PER_TURN: usize = 8;

/// A batch of this many completions is full: there may be more.
pub const FULL_BATCH: usize = 32;

/// Time after which bounce buffers that were filled but not received are given to waiting links. An application
/// receives within microseconds, unless it waits for its client. A link that waits for longer gets a buffer of its
/// own.
pub const HELD_TIME_MAX: Duration = Duration::from_millis(50);

/// Time after which an incomplete operation breaks its link, if other links wait for its buffers, and all links of
/// its endpoint, if its link has ended …
pub const STUCK_TIME_MAX: Duration = Duration::from_secs(5);

/// … or if the fabric accepts nothing for this long: its client does not even connect.
pub const BLOCKED_TIME_MAX: Duration = Duration::from_secs(10);

/// Without an event to wait for, the next attempt follows after this part (1/n) of the time spent waiting so far …
pub const RETRY_PART: u32 = 16;

/// … but not sooner …
pub const RETRY_MIN: Duration = Duration::from_micros(50);

/// … nor later.
pub const RETRY_MAX: Duration = Duration::from_millis(10);

/// Operations of an ended link complete within this time; otherwise its endpoint gets no other link until they have.
pub const ENDING_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a client has to prove that the endpoint it named is its own. A client that has sent a request need not
/// read the answer at once.
pub const PROOF_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a dropped link stays until its last bytes arrive: its client then closes the socket.
pub const LINGER_TIME_MAX: Duration = Duration::from_millis(500);

/// Indices of links in an endpoint, far more than clients. The index is part of a link's token, whose other 48 bits
/// are random.
pub const LINKS_MAX: usize = 1 << 16;
