//! Every bound of the server, with its reason.

use std::time::Duration;

/// Bytes that a worker receives at once, shared by its connections. Larger reads save system calls under pipelines;
/// twice this is no longer measurably better.
pub const RECEIVE_BYTES: usize = 64 << 10;

/// An incomplete request up to this size is continued in the worker's buffer, so that the rest of the buffer is worth
/// a system call.
pub const JOINED_BYTES_MAX: usize = RECEIVE_BYTES / 2;

/// Complete input of a connection that waits, beyond which its ring stops receiving. As much as the ring's buffers hold
/// may come on top.
pub const RING_INPUT_BYTES_MAX: usize = RECEIVE_BYTES;

/// Values up to this many bytes are stored from the receive buffer; longer ones are received piece by piece.
pub const INLINE_VALUE_BYTES_MAX: usize = 16 << 10;

/// Answers gathered before they are sent and others get their turn, though more requests are waiting: bounds what a
/// worker holds.
pub const GATHERED_BYTES_MAX: usize = 32 << 10;

/// As above, where sending needs no system call: a few short answers, so that the client has the first while the
/// others are computed.
pub const GATHERED_IN_MEMORY_BYTES_MAX: usize = 48;

/// Parts of long values, or buffers that complete no request, of one connection before others get their turn, unless
/// `-R` says otherwise.
pub const STEPS_PER_TURN_MAX: u32 = 20;

/// Index groups that a list of keys scans before other connections get their turn, even if they hold few keys.
pub const DUMPED_GROUPS_MAX: u32 = 16;

/// Visits of an index group by a list of keys. It visits a group again if items left flash before they were read: bounds the list's
/// work while clients read the same items over and over.
pub const GROUP_VISITS_MAX: u32 = 8;

/// Connections that `stats conns` lists before others get their turn: some tens of kilobytes.
pub const LISTED_CONNECTIONS_MAX: usize = 64;

/// Flash segments that `stats extstore` lists before others get their turn: some tens of kilobytes.
pub const LISTED_FLASH_SEGMENTS_MAX: usize = 256;

/// Sizes that `stats sizes` keeps while it scans all items; the longer ones take another scan.
pub const SIZES_MAX: usize = 1024;

/// Unsent answers of one connection beyond which its requests wait. One answer, or a part of a long one, may come on
/// top, or the short ones of a run of writes.
pub const QUEUED_BYTES_MAX: u64 = 256 << 10;

/// Unsent answers of all connections, long values apart, beyond which each waits until all of its own are sent.
pub const UNSENT_BYTES_MAX: u64 = 64 << 20;

/// Longer answers to one datagram are dropped: no client reassembles that many datagrams, and the sender may be
/// forged.
pub const DATAGRAM_ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Datagrams of one worker whose answers are pending; a further one gets no answer, as the sender may be forged.
pub const PENDING_DATAGRAMS_MAX: usize = 64;

/// Capacity of a connection's own buffers that is kept while it is idle.
pub const IDLE_BUFFER_BYTES_MAX: usize = 4 << 10;

/// Pending answers of one worker; further requests that need one wait. Bounds the completions that other threads queue.
pub const TICKETS_MAX: usize = 1024;

/// How often a worker looks for free memory while connections wait for it. It is also woken when a write to flash has freed some.
pub const MEMORY_WAIT_POLL: Duration = Duration::from_millis(5);

/// How often a request fails for want of memory that writes to flash are about to free, before it evicts.
pub const MEMORY_WAITS_MAX: u32 = 32;

/// Pending answers of one connection beyond which its requests wait.
pub const CONNECTION_TICKETS_MAX: usize = 64;

/// A pending answer is a failure after this long: most clients have given up by then.
pub const TICKET_TIME_MAX: Duration = Duration::from_secs(5);

/// As above, for commands that may evict all memory: an operator waits for them.
pub const LONG_TASK_TIME_MAX: Duration = Duration::from_secs(600);

/// Reads of flash that a worker finishes in a turn: connections that read memory wait for no more than these.
pub const FLASH_READS_PER_TURN: usize = 8;

/// A value from flash is sent from the pages that were read, which it keeps until it was sent, unless these have more than so
/// many times its bytes: then it is copied.
pub const FLASH_BUFFER_EXCESS_MAX: usize = 4;

/// Parts passed to one send call; the system accepts 1024, but gathering more than this is not worthwhile.
pub const SEND_PARTS_MAX: usize = 64;

/// Links taken from one listener before connections get their turn.
pub const ACCEPTS_PER_TURN_MAX: usize = 64;

/// Datagrams answered from one socket before connections get their turn.
pub const DATAGRAMS_PER_TURN_MAX: usize = 64;

/// Events taken from the system at once.
pub const EVENTS_PER_TURN_MAX: usize = 256;

/// Polls of its polled channels before a worker asks the system for other events: a microsecond or two.
pub const POLLS_PER_TURN: u32 = 64;

/// As a time, for when links of a source are among them: the fabric's progress takes microseconds.
pub const POLLING_TIME_MAX: Duration = Duration::from_micros(30);

/// Polls of a source for events; of the fabric's descriptor, at half a microsecond each.
pub const SOURCE_POLLS_PER_TURN: u32 = 8;

/// How long accepting pauses when the system has no descriptor left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The minimum interval between log messages about that, for each worker.
pub const ACCEPT_SAID_AGAIN: Duration = Duration::from_secs(60);

/// How long a stop waits for answers in flight.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// A worker's source that has failed is opened again this long after it was opened, or at once if that is longer ago;
/// after each failure that comes sooner than [`SOURCE_STEADY`] it is twice as long …
pub const SOURCE_REOPEN_PAUSE_MIN: Duration = Duration::from_secs(1);

/// … up to this.
pub const SOURCE_REOPEN_PAUSE_MAX: Duration = Duration::from_secs(60);

/// After this long without a failure the next pause is the shortest again.
pub const SOURCE_STEADY: Duration = Duration::from_secs(60);

/// How long a stop waits for the last bytes of sources' links; clients of the fabric then close their sockets …
pub const SOURCE_DRAIN_TIME_MAX: Duration = Duration::from_millis(500);

/// … and the interval of its checks.
pub const SOURCE_DRAIN_PAUSE: Duration = Duration::from_micros(200);

/// How long a graceful stop (SIGUSR1, `shutdown graceful`) waits for clients to disconnect, before it closes idle
/// connections and completes requests in progress. Pools keep connections for hours, so a longer wait is only a longer
/// stop; memcached takes 0.4 s.
pub const GRACEFUL_TIME_MAX: Duration = Duration::from_secs(1);

/// A connection that pins memory without progress for this long may be closed when others need to pin.
pub const PINNING_STILL_MAX: Duration = Duration::from_millis(200);

/// Time between two requests to all workers to close one such connection each: each scans its connections.
pub const PINS_WANTED_EVERY: Duration = Duration::from_millis(20);

/// Watchers at once (memcached's limit).
pub const WATCHERS_MAX: usize = 20;

/// Lines that wait for one watcher; beyond, they are skipped and counted (memcached's limit).
pub const WATCHER_BYTES_MAX: usize = 256 << 10;

/// Prefixes that `stats detail` counts (memcached's limit).
pub const PREFIXES_MAX: usize = 1 << 16;

/// Bytes of a `stats cachedump` (memcached's limit).
pub const CACHEDUMP_BYTES_MAX: usize = 2 << 20;

/// How long the answer to a wrong password waits, and the connection's further requests with it. With `-c` this bounds
/// the guesses a second, also of clients that close their connection and open another: the old one counts meanwhile.
pub const AUTH_FAILURE_PAUSE: Duration = Duration::from_millis(200);

/// Wrong passwords of one connection after which it is closed.
pub const AUTH_FAILURES_MAX: u32 = 10;

/// Longest line of the authentication file (memcached's limit).
pub const CREDENTIAL_BYTES_MAX: usize = 256;

/// Users in the authentication file: the whole of it is compared on every attempt.
pub const CREDENTIALS_MAX: usize = 1024;

/// Worker threads.
pub const THREADS_MAX: usize = 1024;

/// Largest value size that can be configured (memcached's limit).
pub const ITEM_BYTES_MAX_MAX: u64 = 1 << 30;
/// Smallest value size that can be configured (memcached's limit).
pub const ITEM_BYTES_MAX_MIN: u64 = 1 << 10;

/// With the fabric, freed memory is not overwritten for this long: several times the duration of a read on a busy
/// network, and little memory at any write rate.
pub const FABRIC_GRACE: Duration = Duration::from_millis(2);

/// How long readers over the fabric may rely on a fetched status line, that is, on the server's being alive and on
/// nothing being flushed: many times the duration of a read, so that few reads fetch the line, and a short wait for
/// flushes and starts.
pub const FABRIC_LEASE: Duration = Duration::from_millis(1);

/// Bytes of long values of one worker on their way to other PEs of an OpenSHMEM job, beyond which no further one is begun.
pub const FORWARDED_BYTES_MAX: u64 = 8 << 20;

/// Requests of one worker to one other PE that are not answered: a quarter of its tickets, so that a PE that does not respond
/// leaves enough for others.
pub const FORWARDED_TO_PE_MAX: u64 = TICKETS_MAX as u64 / 4;

/// Reads of flash devices that one worker has under way; further ones wait in its queue. Fast devices reach their rate with
/// fewer, and a ring of so many takes 24 KiB.
pub const FLASH_READS_MAX: u32 = 256;

/// Bytes of one read of a flash device; longer values take several. The kernel prepares the whole of a read at once, which takes
/// a worker 50 ms for 1 GiB, and a device serves others between two reads.
pub const FLASH_READ_BYTES_MAX: usize = 1 << 20;

/// Writes to flash devices under way. They are long, so a few keep a device busy.
pub const FLASH_WRITES_MAX: usize = 8;
