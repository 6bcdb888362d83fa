//! Memory of callers' that is used again and again: registered when it is first used, and kept so.
//!
//! ```text
//!   Lasting ──lend──> Buffer ──> an operation ──> Buffer ──into_lasting──> Lasting
//!      └── Registrations: which memory is registered with which domain; what was lent longest ago ends first
//! ```

mod ledger;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fabcache_layout::process::Process;

use self::ledger::{Ends, Ledger, Of};
use crate::domain::{Access, Domain};
use crate::error::Error;
use crate::memory::{Buffer, Registration};

/// What is registered of callers' memory, bounded.
#[derive(Clone)]
pub struct Registrations(Arc<Mutex<Kept>>);

struct Kept {
    ledger: Ledger<Registration>,
    /// Whose they are.
    process: Process,
}

impl Ends for Registration {
    fn end(mut self) -> bool {
        Registration::end(&mut self)
    }
}

impl Registrations {
    /// At most so many, of so many bytes together.
    pub fn new(count: usize, bytes: usize) -> Registrations {
        let ledger = Ledger::new(count, bytes);
        Registrations(Arc::new(Mutex::new(Kept { ledger, process: Process::current() })))
    }

    /// How many there are, and their bytes.
    pub fn sum(&self) -> (usize, usize) {
        self.ledger().ledger.sum()
    }

    fn ledger(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.0.lock().expect("no thread panics while it notes what is registered");
        if !kept.process.is_current() {
            // What a parent has registered is not ended by its child.
            kept.ledger.leave_all();
            kept.process = Process::current();
        }
        kept
    }

    /// Where operations find the registration of this memory: the one that there is, or a new one.
    fn lend(&self, of: Of, memory: &mut [u8], domain: &Arc<Domain>) -> Result<Descriptor, Error> {
        let bytes = memory.len();
        let mut kept = self.ledger();
        if let Some(registration) = kept.ledger.lend(of) {
            return Ok(registration.descriptor());
        }
        if bytes == 0 || !kept.ledger.reserve(bytes) {
            return Err(Error::Size("no more memory of callers' is registered"));
        }
        drop(kept);
        // Not under the lock, for to pin much memory takes long. SAFETY: its owner ends the registration before it lets go of
        // the memory, and lends it to one operation at a time.
        let register = |base| unsafe { domain.register(base, bytes, Access::Local) };
        let mut made = register(memory.as_mut_ptr());
        if made.is_err() && self.ledger().ledger.end_idle() {
            // The limit of locked memory counts all of them.
            made = register(memory.as_mut_ptr());
        }
        let mut kept = self.ledger();
        match made {
            Ok(registration) => {
                let descriptor = registration.descriptor();
                kept.ledger.put(of, bytes, registration);
                Ok(descriptor)
            }
            Err(error) => {
                kept.ledger.cancel(bytes);
                Err(error)
            }
        }
    }
}

type Descriptor = *mut std::ffi::c_void;

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, bytes) = self.sum();
        write!(f, "Registrations({count} of {bytes} bytes)")
    }
}

/// Memory that stays registered between operations.
pub struct Lasting(Box<OwnLasting>);

pub(crate) struct OwnLasting {
    number: u64,
    memory: Vec<u8>,
    registrations: Registrations,
    /// With which domain it is registered for the operation that has it.
    lent: usize,
}

impl Lasting {
    /// A caller's memory: registered when it is lent.
    pub fn new(memory: Vec<u8>, registrations: &Registrations) -> Lasting {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Lasting(Box::new(OwnLasting { number, memory, registrations: registrations.clone(), lent: 0 }))
    }

    /// For an operation, registered with this domain.
    ///
    /// # Errors
    /// It cannot be registered, or others take all the room that there is for that.
    pub fn lend(mut self, domain: &Arc<Domain>) -> Result<Buffer, (Lasting, Error)> {
        let own = &mut *self.0;
        own.lent = Arc::as_ptr(domain).addr();
        let of = own.of();
        match own.registrations.lend(of, &mut own.memory, domain) {
            Ok(descriptor) => Ok(Buffer::lasting(self.0, descriptor)),
            Err(error) => Err((self, error)),
        }
    }
}

impl OwnLasting {
    fn of(&self) -> Of {
        Of { memory: self.number, domain: self.lent }
    }

    pub(crate) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// No operation has it any more.
    pub(crate) fn into_lasting(self: Box<OwnLasting>) -> Lasting {
        self.registrations.ledger().ledger.give_back(self.of());
        Lasting(self)
    }
}

impl Drop for OwnLasting {
    fn drop(&mut self) {
        if !self.registrations.ledger().ledger.end_all_of(self.number) {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

impl Deref for Lasting {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.memory
    }
}

impl DerefMut for Lasting {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0.memory
    }
}

impl fmt::Debug for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lasting({} bytes)", self.0.memory.len())
    }
}
