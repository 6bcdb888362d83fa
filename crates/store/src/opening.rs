//! Opening a store: a new region in memory or in a file, or the region that another server left in its file
//! (`restart/takeover.rs`).
//!
//! ```text
//! PATH.lock -> checks -> PATH removed -> PATH.meta with "creating" -> PATH, magic last -> PATH.meta without "creating"
//! ```
//! Nothing is written before the checks have passed. The next server creates the region again where a killed one left no
//! PATH or "creating", and never serves half of a region.

use std::path::Path;
use std::time::Instant;

use fabcache_layout::checksum::SECRET_BYTES;
use fabcache_layout::header::Birth;
use fabcache_layout::{Geometry, Memory, Secret};

use crate::backing::{Backing, Contents, FoundFile, Memfd, Meta};
use crate::error::{CreateError, Unusable};
use crate::restart::takeover::{self, Items};
use crate::restart::{NotKept, Unclean};
use crate::store::{Store, StoreOptions};

/// The tables of a region in a file have room for so many times its bytes: a thousandth of memory for each.
const ROOM_TO_GROW: u64 = 4;

/// The start of a store's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The region is new, and its file was missing or empty.
    New,
    /// The region is new, and takes the place of what its file held.
    Discarded(DiscardReason),
    /// The region is that of a server that stopped cleanly, with all its items.
    Kept {
        /// The number of items.
        items: u64,
        /// The wall clock went back since then, on another boot of the system: the region's clock continues where it was.
        clock_went_back: bool,
    },
    /// The region is that of a server that was killed. Its items are checked while the store is used
    /// ([`Store::recovery_progress`]): an expired, flushed or half written one, and one in the middle of a change, is a
    /// miss.
    Recovered {
        /// Why no saved state was used.
        why: Unclean,
    },
}

/// Why the contents of a memory file were discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscardReason {
    /// They could not be used, and [`discard`](crate::backing::BackingOptions::discard) was given.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// They could be used, and `discard` was given.
    #[error("it holds a region, which --discard gives up")]
    Requested,
    /// The server that created the region ended before it served it.
    #[error("it holds a region whose creation was interrupted")]
    Unfinished,
    /// The items of an earlier server cannot be kept.
    #[error(transparent)]
    NotKept(#[from] NotKept),
}

impl Opening {
    /// Returns its name in statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Opening::New => "new",
            Opening::Kept { .. } => "kept",
            Opening::Recovered { .. } => "recovered",
            Opening::Discarded(_) => "discarded",
        }
    }

    /// Returns whether the region is that of an earlier server.
    pub fn is_takeover(&self) -> bool {
        matches!(self, Opening::Kept { .. } | Opening::Recovered { .. })
    }
}

/// The random numbers of a new region.
struct Identity {
    region_id: u64,
    secret: Secret,
    hash_seed: u64,
}

impl Identity {
    fn draw() -> Result<Identity, CreateError> {
        let random = |bytes: &mut [u8]| {
            getrandom::fill(bytes).map_err(|error| CreateError::System {
                what: "cannot get random bytes for the region's secret".into(),
                source: std::io::Error::other(error.to_string()),
            })
        };
        let [mut region_id, mut hash_seed] = [[0; 8]; 2];
        let mut secret = [0; SECRET_BYTES];
        random(&mut region_id)?;
        random(&mut hash_seed)?;
        random(&mut secret)?;
        Ok(Identity {
            region_id: u64::from_le_bytes(region_id),
            secret: Secret(secret),
            hash_seed: u64::from_le_bytes(hash_seed),
        })
    }
}

impl Store {
    /// Opens a store: a new one, or that of the server that used its file before ([`Store::opening`]).
    ///
    /// # Errors
    /// The options do not fit together, the system has too little memory, or the file cannot be used. In the last case
    /// neither the file nor PATH.meta was changed.
    pub fn open(options: StoreOptions) -> Result<Store, CreateError> {
        let began = Instant::now();
        let (mut store, opening) = open(options)?;
        store.opening = (opening, began.elapsed());
        Ok(store)
    }
}

fn open(mut options: StoreOptions) -> Result<(Store, Opening), CreateError> {
    let geometry = geometry_of(&options)?;
    let region_bytes = geometry.region_bytes;
    let backing: Box<dyn Backing> = match (options.given.take(), options.backing.file.take()) {
        (Some(given), _) if given.len() < region_bytes => {
            return Err(CreateError::GivenTooShort { bytes: given.len(), needed: region_bytes });
        }
        (Some(given), _) => Box::new(given),
        (None, Some(file)) => return open_file(options, geometry, &file),
        (None, None) => Box::new(Memfd::create(region_bytes, options.backing.huge_pages)?),
    };
    Ok((create(options, geometry, backing, Identity::draw()?)?, Opening::New))
}

/// Returns the geometry of a new region.
fn geometry_of(options: &StoreOptions) -> Result<Geometry, CreateError> {
    let region_bytes = options.memory_bytes_max.max(options.memory_bytes);
    let max = fabcache_layout::slot::REGION_BYTES_MAX;
    if region_bytes > max {
        return Err(CreateError::TooLarge { bytes: region_bytes, max });
    }
    let too_small = |_| CreateError::TooSmall { bytes: options.memory_bytes, region_bytes };
    // A later server with the same file may have more memory.
    let room = if options.backing.file.is_some() { ROOM_TO_GROW } else { 1 };
    let room_bytes = region_bytes.saturating_mul(room).min(max);
    Geometry::with_room(region_bytes, options.memory_bytes, room_bytes).map_err(too_small)
}

/// Opens a store in a file.
fn open_file(
    options: StoreOptions,
    geometry: Geometry,
    path: &Path,
) -> Result<(Store, Opening), CreateError> {
    let discard = options.backing.discard;
    let found = FoundFile::find(path, discard)?;
    let opening = match &found.contents {
        Contents::Nothing => Opening::New,
        Contents::Unfinished => Opening::Discarded(DiscardReason::Unfinished),
        Contents::Unusable(why) => Opening::Discarded((*why).into()),
        Contents::Region(..) if discard => Opening::Discarded(DiscardReason::Requested),
        Contents::Region(birth, meta) => {
            let (birth, meta) = (*birth, meta.clone());
            return take_over(options, geometry, found, &birth, &meta);
        }
    };
    Ok((create_in_file(options, geometry, found)?, opening))
}

/// Opens a store over the region that a file holds, or over an empty one in its place if its items cannot be kept.
fn take_over(
    mut options: StoreOptions,
    geometry: Geometry,
    found: FoundFile,
    birth: &Birth,
    meta: &Meta,
) -> Result<(Store, Opening), CreateError> {
    match takeover::prepare(&mut options, found, birth, meta)? {
        Ok(takeover) => {
            let clock_went_back = takeover.clock_went_back;
            let (store, found) = takeover.begin(&options);
            let opening = match found {
                Items::Kept => Opening::Kept { items: store.usage().items, clock_went_back },
                Items::Recovered { why } => Opening::Recovered { why },
            };
            Ok((store, opening))
        }
        Err((found, why)) => {
            let store = create_in_file(options, geometry, found)?;
            Ok((store, Opening::Discarded(why.into())))
        }
    }
}

/// Makes an empty store in a new file, in place of what the file held.
fn create_in_file(options: StoreOptions, geometry: Geometry, found: FoundFile) -> Result<Store, CreateError> {
    let identity = Identity::draw()?;
    let meta = Meta {
        region_id: identity.region_id,
        is_creating: true,
        secret: identity.secret.clone(),
        state: Vec::new(),
    };
    let file = found.create(&meta, &geometry)?;
    let store = create(options, geometry, Box::new(file), identity)?;
    // PATH.meta says that the region is whole, so its header is on the device before.
    store.backing.sync().map_err(|source| CreateError::System {
        what: "cannot write the memory file to its device".into(),
        source,
    })?;
    let sidecar = store.backing.sidecar().expect("a file has one");
    sidecar.write(&Meta { is_creating: false, ..meta })?;
    Ok(store)
}

/// Makes an empty store in zeroed memory of at least the region's bytes.
fn create(
    options: StoreOptions,
    geometry: Geometry,
    backing: Box<dyn Backing>,
    identity: Identity,
) -> Result<Store, CreateError> {
    let region_bytes = geometry.region_bytes;
    debug_assert!(backing.len() >= region_bytes);
    // SAFETY: `Backing` guarantees the alignment, and that `len` bytes stay accessible without references into them until
    // `backing` is dropped. The callers compared `region_bytes` with `len`, or asked for that many. `backing` is the
    // store's last field; whatever shares the memory holds the store by Arc.
    let memory = unsafe { Memory::new(backing.base(), region_bytes) };
    let limit = geometry.segments_within(options.memory_bytes) as u32;
    let Identity { region_id, secret, hash_seed } = identity;
    Store::assemble(options, memory, geometry, secret, (hash_seed, region_id), limit, backing)
}
