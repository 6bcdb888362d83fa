//! Names of what is measured, in tables and results.

/// GETs of values whose place the client knows.
pub const LOCATED: &str = "located";
/// The same into memory that is registered once, without a copy, and SETs from there.
pub const REGISTERED: &str = "registered";
/// GETs of values whose location the client does not know.
pub const BY_KEY: &str = "by key";
/// GETs, and SETs, that the server is asked for over the fabric.
pub const REQUEST: &str = "request";
/// GETs of the same keys as those of [`LOCATED`], by a client that chooses.
pub const AUTO: &str = "auto";
/// GETs of the same keys as those of [`BY_KEY`], by a client that chooses.
pub const AUTO_BY_KEY: &str = "auto by key";
/// The store, in this process.
pub const STORE: &str = "store";
