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

/// Pieces of one link that are written at once.
pub const PUTS_MAX: usize = 4;

/// Operations under way beyond those of the pools that a port opens with: for pools that grow.
pub const MORE_OPERATIONS: usize = 2048;

/// Peers that a provider is told to expect; more will do.
pub const PEERS: usize = 256;

/// Batches of completions taken before links get their turn.
pub const POLLS_PER_TURN: usize = 8;

/// A batch of so many completions is full: there may be more.
pub const FULL_BATCH: usize = 32;

/// Bounce buffers that were read and not received for so long are given to others that wait. An application receives what
/// it was told of within microseconds, unless it waits for its client.
pub const HELD_TIME_MAX: Duration = Duration::from_millis(50);

/// Operations of a link that have not come to an end for so long break it, if others wait for their buffers …
pub const STUCK_TIME_MAX: Duration = Duration::from_secs(5);

/// … or if the fabric takes no more of it for so long: its client does not even let it connect.
pub const BLOCKED_TIME_MAX: Duration = Duration::from_secs(10);

/// A link that was dropped stays so long at most for its last bytes to arrive: its client closes the socket then.
pub const LINGER_TIME_MAX: Duration = Duration::from_millis(500);

/// Links of a port: their number is in their token.
pub const LINKS_MAX: usize = 1 << 24;
