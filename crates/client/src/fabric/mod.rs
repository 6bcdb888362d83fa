//! Servers on the fabric: items are read from their memory by libfabric, and all else goes through messages.
//!
//! ```text
//!   attach ──> FabricStream ──> Link: port, messages          requests, as over a socket
//!         └──> Remote ──> Gets: port, reads of the region   gets, without the server
//! ```
//! The TCP connection on which that was agreed stays: it rings, and its end is the server's.

mod attach;
mod domains;
mod gets;
mod kept;
mod link;
mod loan;
mod opening;
mod own;
mod remote;
mod sockets;
mod stream;
mod target;

pub use attach::{attach, prove};
pub use loan::{Loan, Memory};
pub use remote::{Among, Asked, Begun, Ended, Remote, Timed};
pub use target::{Desk, Target};
