//! Tokens of connections in epoll and of pending answers, and the readiness that connections wait for.

/// The name of a connection within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ConnectionToken {
    /// Its index in the worker's table.
    pub index: usize,
    /// Distinguishes connections that had the same index.
    pub generation: u32,
}

impl ConnectionToken {
    /// Packs the token into one number below 2^63.
    pub fn token(self) -> u64 {
        self.index as u64 | u64::from(self.generation) << 31
    }

    /// Unpacks a token.
    pub fn of(token: u64) -> ConnectionToken {
        ConnectionToken { index: (token & 0x7fff_ffff) as usize, generation: (token >> 31) as u32 }
    }
}

/// The name of a pending answer within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketId {
    /// Its index in the worker's table.
    pub index: usize,
    /// Distinguishes tickets that had the same index.
    pub generation: u32,
}

/// The readiness that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    /// Readable.
    pub receive: bool,
    /// Writable.
    pub send: bool,
}
