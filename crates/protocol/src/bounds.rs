//! Every bound of the protocols, with its reason.

/// Longest key, in bytes. memcached's limit, which clients check before they send. A meta key in base64 counts with
/// its encoded length.
pub const KEY_MAX: usize = 250;

/// Longest command line without its newline, in bytes, multigets apart. memcached drops a connection that sent more
/// than this without a newline; no valid command comes near it. Longer lines are refused even when their newline
/// is already there, so that the outcome does not depend on how the network cut the stream.
pub const LINE_MAX: usize = 2048;

/// Longest multiget line, in bytes. memcached has no limit here and grows the buffer until it runs out of memory; 8
/// MiB holds over 30 000 keys of the greatest length and bounds what one connection can pin.
pub const MULTIGET_LINE_MAX: usize = 8 << 20;

/// Spaces that may precede the command of a multiget longer than [`LINE_MAX`], as in memcached.
pub const MULTIGET_INDENT_MAX: usize = 100;

/// Most requests of a plain run: more overlap no more of their memory accesses, and push each other out of the cache.
pub const RUN_MAX: usize = 32;

/// Words of a line that are parsed, including the command; the rest is ignored, as in memcached. The limit does not
/// apply to the keys of a multiget.
pub const WORDS_MAX: usize = 23;

/// Words of a meta command, the command and the key included, as in memcached.
pub const META_WORDS_MAX: usize = 20;

/// Longest opaque of a meta command, in bytes, the `O` included, as in memcached.
pub const OPAQUE_MAX: usize = 32;

/// Largest length on a text storage line: what, with its line end, still fits memcached's signed 32 bits.
pub const VALUE_MAX: u64 = i32::MAX as u64 - 2;

/// Largest `user password` block of text authentication, in bytes, as in memcached: an unauthenticated client must
/// not make the server hold more.
pub const AUTH_TOKEN_MAX: u64 = 16384;

/// Longest name of a SASL mechanism, in bytes, as in memcached.
pub const SASL_MECHANISM_MAX: usize = 32;

/// Largest SASL payload, in bytes: like [`AUTH_TOKEN_MAX`], for the same reason. PLAIN needs a few hundred.
pub const SASL_PAYLOAD_MAX: u64 = AUTH_TOKEN_MAX;

/// Longest name of an endpoint on the fabric, in bytes: those of libfabric's providers are addresses of sockets, or a path.
pub const FABRIC_NAME_MAX: usize = 256;

/// Longest words after `fabric hello` and `fabric attach` in a packet, in bytes: as on a line.
pub const FABRIC_WORDS_MAX: u64 = LINE_MAX as u64;

/// Largest reply datagram, in bytes, its header included: below any usual MTU, as in memcached.
pub const DATAGRAM_MAX: usize = 1400;
