//! Every bound of the client, with its reason.

use std::time::Duration;

/// Bytes of a key: memcached's limit.
pub const KEY_BYTES_MAX: usize = 250;
/// Bytes of a value: memcached allows no larger ones with any `-I`.
pub const VALUE_BYTES_MAX: usize = 1 << 30;
/// Bytes of an answer line: far more than any has; bounds an endless one.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes received at once.
pub const RECEIVE_BYTES: usize = 64 << 10;
/// Keys requested before their answers are read. This many error answers fit any socket's buffers, so neither side
/// blocks on the other.
pub const KEYS_IN_FLIGHT_MAX: usize = 64;
/// Attempts to read a number and to add it if it is absent. An attempt fails only because another client was faster.
pub const COUNTER_TRIES_MAX: u32 = 16;
/// Connections that a server may close on a meta question before the client assumes that it does not know the meta
/// protocol. A server that is shutting down closes one.
pub const HANG_UPS_MAX: u32 = 2;
/// A connection on which a call began less than this ago is not checked before the next call. This saves a system
/// call; a server does not restart that quickly.
pub const TRUSTED_IDLE: Duration = Duration::from_millis(1);
/// Requests in flight on one connection before a non-blocking call waits: enough to keep any server busy, and a bound
/// on what a broken connection fails.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 1024;
/// Of these, the number passed to the system in one call: 48 parts of at most 1024.
pub const OPERATIONS_SENT_AT_ONCE: usize = 16;
/// Requests gathered while an answer is outstanding, on streams that gather: a message of eight costs an eighth of
/// eight messages …
pub const OPERATIONS_GATHERED_MAX: usize = 8;
/// … and fits half a message of the fabric.
pub const BYTES_GATHERED_MAX: usize = 4 << 10;
/// Calls to send, and to receive, that one test makes: then it returns, though a fast server would keep it busy.
pub const TURNS_AT_ONCE: usize = 16;
/// How long a connection's driver thread stays after the last future completed: starting one takes longer than an
/// answer.
pub const DRIVER_LINGER: Duration = Duration::from_millis(50);
/// The longest [`crate::Options::timeout`] that clocks can add: sixty years.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(60 * 365 * 24 * 3600);
/// Polls for an answer in shared memory before the clock is read: about as long as a fast answer takes …
pub const LOOKS_BEFORE_CLOCK: u32 = 64;
/// … and between readings of it.
pub const POLLS_PER_CLOCK_READ: u32 = 16;
/// Reads reported to the server on one line: 12 characters each, on a line of at most 2048.
pub const ACCESSES_ON_A_LINE: usize = 128;
/// Reads collected before they are reported to the server. Waking a sleeping server takes as long as a hundred reads.
pub const ACCESSES_PER_REPORT: usize = 512;
/// Keys that a reader remembers as prefetched: a window of most programs.
pub const KEYS_FORESEEN_MAX: usize = 256;
/// Keys read from memory in a row before anything else is checked.
pub const KEYS_READ_AT_ONCE: usize = 128;
/// Idle readers of one server's memory that are kept.
pub const IDLE_READERS_MAX: usize = 64;
/// Idle connections to a server that are kept without a time limit …
pub const IDLE_CONNECTIONS_KEPT: usize = 16;
/// … and of more, as many threads may call concurrently, those on which a call began less than this ago.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
/// Default of [`crate::Options::connect_timeout`]: a server in the same data centre answers within milliseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Default of [`crate::Options::timeout`].
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Default of [`crate::Options::retry_after`].
pub const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Messages that a client accepts, of 8 KiB each: a window of short answers.
pub const LINK_CREDITS: u16 = 32;
/// Messages in flight from a client whose provider does not inject them: more would only wait for the server.
pub const LINK_SENDS: usize = 16;
/// Memory of a connection that the server reads long requests from …
pub const STAGING_BYTES: usize = 1 << 20;
/// … and writes long answers to, in chunks of a quarter of it, two of which are in flight.
pub const LANDING_BYTES: usize = 1 << 20;
/// How long to wait before retrying a provider that accepts nothing, at first: as long as connecting two hosts takes …
pub const REFUSED_RETRY_MIN: Duration = Duration::from_micros(50);
/// … and at most, where the server does not answer.
pub const REFUSED_RETRY_MAX: Duration = Duration::from_millis(10);
/// How long to sleep where the provider cannot wake a thread, at first …
pub const NAP_MIN: Duration = Duration::from_micros(50);
/// … and at most: about a thousandth of a CPU.
pub const NAP_MAX: Duration = Duration::from_millis(2);
/// The longest sleep on a descriptor: a notification that the descriptor misses costs at most this.
pub const SLEEP_ON_DESCRIPTOR_MAX: Duration = Duration::from_millis(100);
/// How long a closing connection waits for the server to accept what was sent and not answered.
pub const LEAVE_MAX: Duration = Duration::from_millis(100);
/// How long closing a link waits for a server that may still write to it, before the link is kept …
pub const KEPT_WAIT: Duration = Duration::from_millis(2);
/// … and how many are kept: links whose server is stalled.
pub const KEPT_LINKS_MAX: usize = 64;
/// The most endpoints for reads that their servers may not know yet and that must not be closed before: those being
/// opened and those given up. With this many, further clients use requests.
pub const UNCONFIRMED_ENDPOINTS_MAX: usize = 8;
/// GETs in flight to one server's memory, and reads for them: a window of most programs, as [`KEYS_READ_AT_ONCE`].
pub const READS_AT_ONCE: usize = 64;
/// Buffers for the most frequent reads: buckets, short items and the status line, for each read and the status lines.
pub const SHORT_READ_BUFFERS: usize = READS_AT_ONCE + 16;
/// Their size: a value of 4096 bytes with the rest of its item, or the status line.
pub const SHORT_READ_BYTES: usize = 6 << 10;
/// Buffers for longer items …
pub const LONG_READ_BUFFERS: usize = 16;
/// … and their bytes: a value of 64 KiB, the rest of its item, and the status line. Longer items are read into memory
/// that is registered for them.
pub const LONG_READ_BYTES: usize = 68 << 10;
/// The number of longer buffers kept: chunks of a value that are in flight together.
pub const READ_BUFFERS_KEPT: usize = 8;
/// Reads after which the server is notified if each occupies an entry of its queue: shm's queue has 1024 entries for
/// all clients.
pub const READS_PER_NOTIFY: u32 = 128;
/// The number of callers' buffers that a client keeps registered …
pub const REGISTERED_BUFFERS_MAX: usize = 1024;
/// … and their bytes together: a few of the longest values, or the windows of many threads.
pub const REGISTERED_BYTES_MAX: usize = 1 << 30;
/// Items up to this many bytes are read into buffers and copied, because lending memory takes as long.
pub const COPIED_BYTES_MAX: usize = 1 << 10;
/// How long reads may take before the server is asked instead: far longer than any successful read.
pub const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an awaited GET is polled by its task before a thread sleeps for it: a few times a successful GET.
pub const AWAITED_SPIN: Duration = Duration::from_micros(100);
/// How long after failed reads they are retried.
pub const READS_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Naps between two doorbells to the server: some milliseconds.
pub const NAPS_A_BELL: u32 = 8;
