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
/// Attempts at reading a number and adding it where it is missing. An attempt fails only because another client was
/// faster.
pub const COUNTER_TRIES_MAX: u32 = 16;
/// Connections on which a server may hang up on a question of the meta protocol, before it is taken for one that does
/// not know that: one that ends just then hangs up once.
pub const HANG_UPS_MAX: u32 = 2;
/// A connection on which a call began less than this ago is not looked at before the next: a system call less, and a
/// server is not started again so soon.
pub const TRUSTED_IDLE: Duration = Duration::from_millis(1);
/// Requests in flight on one connection, before a call that does not wait does: enough to keep any server busy, and a
/// bound of what a broken connection ends.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 1024;
/// Of these so many are given to the system in one call: 48 parts, of 1024 that it takes.
pub const OPERATIONS_SENT_AT_ONCE: usize = 16;
/// Requests that are gathered while an answer is awaited, where a stream gathers: a message of eight costs an eighth of
/// eight messages, and what is not sent before somebody waits is little …
pub const OPERATIONS_GATHERED_MAX: usize = 8;
/// … and fits half a message of the fabric.
pub const BYTES_GATHERED_MAX: usize = 4 << 10;
/// Calls to send, and to receive, that one test makes: then it returns, though a fast server would keep it busy.
pub const TURNS_AT_ONCE: usize = 16;
/// How long a connection's thread stays when nothing is awaited any more: to start one takes longer than an answer.
pub const DRIVER_LINGER: Duration = Duration::from_millis(50);
/// The longest [`crate::Options::timeout`] that clocks can add: sixty years.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(60 * 365 * 24 * 3600);
/// Looks for an answer in shared memory before the clock is read: about as long as a fast answer takes …
pub const LOOKS_BEFORE_CLOCK: u32 = 64;
/// … and between readings of it.
pub const LOOKS_BETWEEN_CLOCKS: u32 = 16;
/// Reads of which the server is told on one line: 12 characters each, on a line of at most 2048.
pub const ACCESSES_ON_A_LINE: usize = 128;
/// Reads of which the server is told once there are so many. To wake a server that sleeps takes as long as a hundred
/// reads.
pub const ACCESSES_TOLD_AT_ONCE: usize = 512;
/// Keys that are asked for and not read yet, of which a reader keeps in mind that they will be: a window of most programs.
pub const KEYS_FORESEEN_MAX: usize = 256;
/// Keys read from memory one behind the other before anything else is looked at.
pub const KEYS_READ_AT_ONCE: usize = 128;
/// Idle readers of one server's memory that are kept.
pub const IDLE_READERS_MAX: usize = 64;
/// Idle connections to a server that are kept without a time limit …
pub const IDLE_CONNECTIONS_KEPT: usize = 16;
/// … and of more, as many threads may call at once, those on which a call began less than this ago.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
/// Default of [`crate::Options::connect_timeout`]: a server in the same room answers within milliseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Default of [`crate::Options::timeout`].
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Default of [`crate::Options::retry_after`].
pub const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Messages of the fabric that a client has room for, of 8 KiB each: a window of short answers.
pub const LINK_CREDITS: u16 = 32;
/// Messages that are on their way from it, where the provider does not take them at once: some more would only wait for
/// the server.
pub const LINK_SENDS: usize = 16;
/// Memory of a connection that the server reads long requests from …
pub const STAGING_BYTES: usize = 1 << 20;
/// … and writes long answers to: pieces of a quarter of it, two of which are on their way at once.
pub const LANDING_BYTES: usize = 1 << 20;
/// How long to leave a provider alone that takes nothing, at first: as long as a connection takes between two hosts …
pub const REFUSED_RETRY_MIN: Duration = Duration::from_micros(50);
/// … and at most, where the server does not answer.
pub const REFUSED_RETRY_MAX: Duration = Duration::from_millis(10);
/// How long to sleep where the provider cannot wake anybody, at first …
pub const NAP_MIN: Duration = Duration::from_micros(50);
/// … and at most: some thousandth of a processor.
pub const NAP_MAX: Duration = Duration::from_millis(2);
/// The longest sleep on a descriptor: a notification that the descriptor misses costs at most this.
pub const SLEEP_ON_DESCRIPTOR_MAX: Duration = Duration::from_millis(100);
/// How long a connection that is closed waits for the server to take what was sent and not answered.
pub const LEAVE_MAX: Duration = Duration::from_millis(100);
/// How long a link whose server may still write to it is waited for when it is closed, before it is kept …
pub const KEPT_WAIT: Duration = Duration::from_millis(2);
/// … and how many are kept: links whose server is stalled.
pub const KEPT_LINKS_MAX: usize = 64;
/// How many ports for reads there are that their servers may not know yet and that must not be closed before: those that are
/// being opened and those that were given up. While there are so many, others ask by requests.
pub const UNKNOWN_PORTS_MAX: usize = 8;
/// GETs under way to one server's memory, and reads of it: a window of most programs, as [`KEYS_READ_AT_ONCE`].
pub const READS_AT_ONCE: usize = 64;
/// Buffers for what is mostly read: buckets, short items and the published line, for each read and the lines beside.
pub const SHORT_READ_BUFFERS: usize = READS_AT_ONCE + 16;
/// Their bytes: a value of 4096, with what else is in its item, and the published line.
pub const SHORT_READ_BYTES: usize = 6 << 10;
/// Buffers for longer items …
pub const LONG_READ_BUFFERS: usize = 16;
/// … and their bytes: a value of 64 KiB, the rest of its item, and the status line. Longer items are read into memory
/// that is registered for them.
pub const LONG_READ_BYTES: usize = 68 << 10;
/// Of which so much is kept: pieces of a value on their way at once.
pub const READ_BUFFERS_KEPT: usize = 8;
/// Reads after which the server is rung for where each takes a place of its queue: shm's has 1024, for all that clients send.
pub const READS_A_BELL: u32 = 128;
/// Buffers of callers' that a client keeps registered …
pub const REGISTERED_BUFFERS_MAX: usize = 1024;
/// … and their bytes together: a few of the longest values, or the windows of many threads.
pub const REGISTERED_BYTES_MAX: usize = 1 << 30;
/// Items up to so many bytes are read into buffers and copied: where memory is lent takes as long to find out.
pub const COPIED_BYTES_MAX: usize = 1 << 10;
/// How long reads may take before the server is asked instead: far longer than any that succeeds.
pub const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a GET that is awaited is looked at whenever somebody asks, before a thread sleeps for it: a few of those that
/// succeed.
pub const AWAITED_LOOK: Duration = Duration::from_micros(100);
/// How long after reads have failed they are tried again.
pub const READS_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Naps between two doorbells to the server: some milliseconds.
pub const NAPS_A_BELL: u32 = 8;
