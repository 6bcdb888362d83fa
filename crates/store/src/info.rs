//! An item's metadata.

pub use fabcache_layout::reader::Miss;

/// When an item expires, on the region's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Expiry(u32);

/// The longest relative expiry time; above, clients mean Unix time (protocol.txt).
pub const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;

impl Expiry {
    /// Never.
    pub const NEVER: Expiry = Expiry(0);
    /// It has expired.
    pub const AT_ONCE: Expiry = Expiry(1);

    /// Converts a client's seconds: 0 never, negative at once, up to 30 days from now, above Unix time.
    pub fn from_client(seconds: i64, now: u32, clock_origin: u64) -> Expiry {
        let second = match seconds {
            0 => return Expiry::NEVER,
            i64::MIN..=-1 => return Expiry::AT_ONCE,
            1..=RELATIVE_SECONDS_MAX => i64::from(now) + seconds,
            _ => seconds - clock_origin as i64,
        };
        Expiry(second.clamp(1, i64::from(u32::MAX)) as u32)
    }

    /// The second from which the item is expired; 0 for never.
    pub fn second(self) -> u32 {
        self.0
    }

    /// Seconds from `now` until then; none for never.
    pub fn ttl(self, now: u32) -> Option<u32> {
        (self.0 != 0).then(|| self.0.saturating_sub(now))
    }

    /// The expiry with this second.
    pub(crate) fn at(second: u32) -> Expiry {
        Expiry(second)
    }
}

/// How much of an item's metadata is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The fields that every answer needs.
    Basic,
    /// The last access too, which takes a lock to find out.
    Full,
}

/// An item's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemInfo {
    /// Client flags.
    pub flags: u32,
    /// CAS value.
    pub cas: u64,
    /// Bytes of the value.
    pub len: u64,
    /// When it expires.
    pub expiry: Expiry,
    /// Seconds until then; none for never.
    pub ttl: Option<u32>,
    /// The last second, on the region's clock, at which it was stored, touched or read, as far as known: reads are
    /// recorded to within half the age of the item's segment. 0 unless [`Detail::Full`] was requested.
    pub accessed: u32,
    /// Seconds since then; 0 unless requested.
    pub idle: u32,
    /// Read since it was stored.
    pub fetched: bool,
    /// Its key was given in base64.
    pub binary_key: bool,
    /// Marked stale.
    pub stale: bool,
    /// A client has won the right to recache it.
    pub token_sent: bool,
    /// Its bytes in the region, including the chunks of its value.
    pub bytes: u64,
}

impl ItemInfo {
    /// An item of no bytes, no flags and no expiry.
    pub const EMPTY: ItemInfo = ItemInfo {
        flags: 0,
        cas: 0,
        len: 0,
        expiry: Expiry::NEVER,
        ttl: None,
        accessed: 0,
        idle: 0,
        fetched: false,
        binary_key: false,
        stale: false,
        token_sent: false,
        bytes: 0,
    };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn expiry_follows_protocol_txt() {
        let of = |seconds| Expiry::from_client(seconds, 100, 1_000_000_000).second();
        assert_eq!(of(0), 0);
        assert_eq!(of(-1), 1);
        assert_eq!(of(i64::MIN), 1);
        assert_eq!(of(5), 105);
        assert_eq!(of(RELATIVE_SECONDS_MAX), 100 + 2_592_000);
        assert_eq!(of(RELATIVE_SECONDS_MAX + 1), 1, "Unix time long past");
        assert_eq!(of(1_000_000_200), 200);
        assert_eq!(of(i64::MAX), u32::MAX);
    }
}
