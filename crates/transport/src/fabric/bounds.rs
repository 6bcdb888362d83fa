//! Every bound of a worker's end of the fabric, with its reason.

use std::time::Duration;

/// Credits of a client, usually: more requests than a client has under way in messages of their own.
pub const USUAL_CREDITS: u16 = 64;

/// Credits of a client when there are many: three messages on their way, and one in reserve.
pub const LEAST_CREDITS: u16 = 4;

/// A new client is granted at most this part (1/n) of the receive buffers that are left.
pub const GRANTED_PART: usize = 8;

/// Buffers by which pools grow: half a MiB.
pub const GROWTH: usize = 64;

/// Send buffers: 2 MiB.
pub const SENDS: usize = 256;

/// Send buffers that one link may have under way, while there are many; more do not make it faster.
pub const LINK_SENDS_MAX: usize = 16;

/// Bounce buffers: 4 MiB. A few links with four pieces under way each keep any network busy.
pub const BOUNCES: usize = 16;

/// Size of the bounce buffer for a link that waited without success: it proceeds, if slower, whatever others do …
pub const OWN_BYTES: usize = 64 << 10;

/// … and so many of these are made at once: 1 MiB.
pub const OWN_GROWTH: usize = 16;

/// Pieces of one link that are written at once.
pub const PUTS_MAX: usize = 4;

/// Clients of a port at once, at most; another is refused.
pub const CLIENTS_MAX: usize = 1024;

/// Operations that a port has for each client, beyond those of the pools that it opens with: eight receives, two sends, and
/// one of either sort of buffer that a link gets when others hold all.
pub const CLIENT_OPERATIONS: usize = 12;

/// Operations with clients that are gone, and that their provider has not ended in [`STUCK_TIME_MAX`]: with more of them the
/// port is closed, which ends them all.
pub const LEFT_OVER_MAX: usize = 8;

/// Peers that a provider is told to expect; more will do.
pub const PEERS: usize = 256;

/// Batches of completions taken before links get their turn.
pub const POLLS_PER_TURN: usize = 8;

/// A batch of so many completions is full: there may be more.
pub const FULL_BATCH: usize = 32;

/// Time after which bounce buffers that were filled but not received are given to waiting links. An application
/// receives within microseconds, unless it waits for its client. A link that waits for longer gets a buffer of its
/// own.
pub const HELD_TIME_MAX: Duration = Duration::from_millis(50);

/// Time after which an incomplete operation breaks its link, if other links wait for its buffers, and all links of
/// its endpoint, if its link has ended …
pub const STUCK_TIME_MAX: Duration = Duration::from_secs(5);

/// … or if the fabric takes no more of it for so long: its client does not even let it connect.
pub const BLOCKED_TIME_MAX: Duration = Duration::from_secs(10);

/// Without an event to wait for, the next attempt follows after this part (1/n) of the time spent waiting so far …
pub const RETRY_PART: u32 = 16;

/// … but not sooner …
pub const RETRY_MIN: Duration = Duration::from_micros(50);

/// … nor later.
pub const RETRY_MAX: Duration = Duration::from_millis(10);

/// Operations of a link that has ended are over within so long, or its endpoint gets no other link until they are.
pub const ENDING_TIME_MAX: Duration = Duration::from_secs(1);

/// A client that was asked to prove that the endpoint it named is its own has so long. One that has sent a request need not
/// look for the answer at once.
pub const PROOF_TIME_MAX: Duration = Duration::from_secs(30);

/// A link that was dropped stays so long at most for its last bytes to arrive: its client closes the socket then.
pub const LINGER_TIME_MAX: Duration = Duration::from_millis(500);

/// Places of links in a port, far more than there may be clients. A link's is in its token, of which nobody guesses the other 48
/// bits.
pub const LINKS_MAX: usize = 1 << 16;
