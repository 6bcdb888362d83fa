//! libfabric, opened at run time, behind safe types.
//!
//! ```text
//!   Library ── survey, pick ──> Provider ── open ──> Domain ──┬─ Pool: Buffers   SharedArea   ExposedMemory
//!                                                             └─ Endpoint, its completion queue and address vector
//! ```
//! - `library.rs`: `libfabric.so.1` and its few functions; everything else is called through tables in its objects.
//! - `provider.rs`: what the machine has; `survey.rs`: what of it is picked, and why not the rest.
//! - `domain.rs`, `memory.rs`: registered memory and who owns it; `peer_memory.rs`: memory that peers access;
//!   `split_buffer.rs`: a buffer for several operations.
//! - `registration_cache/`: callers' memory, registered for longer than an operation; `cache_registry.rs`: the caches that
//!   give way when a domain runs out of memory.
//! - `endpoint.rs`: operations; a buffer in flight belongs to its operation. `endpoint_setup.rs`: opens the parts of an
//!   endpoint.
//! - `sys.rs`, `object.rs`: the binary interface; `signals.rs`, `stale.rs`: what providers do to the process beside it, and
//!   what they leave behind.
//! - `channel/`: the messages of a link, without any of this.
//!
//! The calls are those of [fi_endpoint(3), fi_msg(3), fi_rma(3), fi_cq(3), fi_av(3),
//! fi_mr(3)](https://ofiwg.github.io/libfabric/v1.17.0/man/).

mod cache_registry;
pub mod channel;
mod domain;
mod endpoint;
mod endpoint_setup;
mod error;
#[cfg(test)]
mod fake;
mod library;
mod memory;
mod object;
mod peer_memory;
mod provider;
mod registration_cache;
mod signals;
mod split_buffer;
mod stale;
mod survey;
mod sys;

pub use domain::{Domain, LocalUse, REGISTRATION_CACHE};
pub use endpoint::{Completion, Endpoint, Kind, Peer, RejectedOperation, RemoteAddress};
pub use endpoint_setup::{EndpointOptions, NAME_BYTES_MAX};
pub use error::Error;
pub use library::{FILE_VARIABLE, Library};
pub use memory::{Buffer, Pool, RemoteMemory};
pub use peer_memory::{ExposedMemory, PeerAccess, SharedArea};
pub use provider::{ORDER, Provider, ip_of, name_text};
pub use registration_cache::{ReadableMemory, RegisteredMemory, RegistrationCache};
pub use split_buffer::SplitBuffer;
pub use survey::{ProviderRequirements, RejectedProvider, Survey};
