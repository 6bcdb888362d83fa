//! Slots: eight bytes of the index that point to one item, published by one aligned store.
//!
//! ```text
//!  bits    0..12  tag         hash bits that neither partition nor position use up
//!         12..52  location    offset of the item from the start of the region, in units of 4 bytes
//!         52..58  size class  bytes to fetch for the whole item at most (size_class.rs)
//!         58..61  frequency   reads since it was stored or last passed over by eviction, saturating
//!            61   on flash    the item is on the flash tier: bits 0..58 are another form (flash_slot.rs)
//!            62   special     not an item: MOVED (location 0), or a LINK to a chain bucket (location of it)
//!            63   overflowed  in slot 0 of a home bucket only: keys of this home live in the overflow area too
//! ```
//! All zero but for bit 63 is an empty slot. Who writes: the server, holding the group's lock, except that any
//! reading thread of the server may raise the frequency by one compare-exchange that it does not retry. Who reads:
//! anyone, with acquire loads that pair with the release stores of publication.

/// Bits of the tag.
pub const TAG_BITS: u32 = 12;
/// Bits of the location.
pub const LOCATION_BITS: u32 = 40;
/// Bits of the size class.
pub const CLASS_BITS: u32 = 6;
/// Bits of the frequency.
pub const FREQUENCY_BITS: u32 = 3;
/// The bit of items on flash.
pub const FLASH_BITS: u32 = 1;
/// The bit of slots that are not an item.
pub const SPECIAL_BITS: u32 = 1;
/// The bit that says that keys of this home overflowed.
pub const OVERFLOWED_BITS: u32 = 1;

const _: () = assert!(
    TAG_BITS + LOCATION_BITS + CLASS_BITS + FREQUENCY_BITS + FLASH_BITS + SPECIAL_BITS + OVERFLOWED_BITS
        == u64::BITS
);

/// The lowest bit of the frequency; it and the bits above are the same for items in memory and on flash.
pub(crate) const FORM_BITS: u32 = TAG_BITS + LOCATION_BITS + CLASS_BITS;

const LOCATION_SHIFT: u32 = TAG_BITS;
const CLASS_SHIFT: u32 = LOCATION_SHIFT + LOCATION_BITS;
pub(crate) const FREQUENCY_SHIFT: u32 = FORM_BITS;
const FLASH_SHIFT: u32 = FREQUENCY_SHIFT + FREQUENCY_BITS;
const SPECIAL_SHIFT: u32 = FLASH_SHIFT + FLASH_BITS;
const OVERFLOWED_SHIFT: u32 = SPECIAL_SHIFT + SPECIAL_BITS;

/// Bytes in a unit of a location.
pub const LOCATION_UNIT_BYTES: u64 = 4;
/// The largest region that locations reach.
pub const REGION_BYTES_MAX: u64 = LOCATION_UNIT_BYTES << LOCATION_BITS;
/// The maximum frequency.
pub const FREQUENCY_MAX: u8 = (1 << FREQUENCY_BITS) - 1;

/// One word of the index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// An empty slot.
    pub const EMPTY: Slot = Slot(0);
    /// The bits that tell an item in memory with some tag from other slots.
    pub(crate) const TAG_AND_KIND: u64 = ((1 << TAG_BITS) - 1) | Slot::FLASH.0 | Slot::MOVED.0;
    /// The mark of an item on the flash tier.
    pub(crate) const FLASH: Slot = Slot(1 << FLASH_SHIFT);
    /// The mark of a slot whose contents are now in the partition's other table.
    pub const MOVED: Slot = Slot(1 << SPECIAL_SHIFT);

    /// Returns a slot for the item at `offset`.
    #[inline]
    pub fn item(tag: u16, offset: u64, class: u8, frequency: u8) -> Slot {
        debug_assert!(offset.is_multiple_of(LOCATION_UNIT_BYTES) && offset < REGION_BYTES_MAX && offset > 0);
        debug_assert!(u32::from(class) < 1 << CLASS_BITS && frequency <= FREQUENCY_MAX);
        Slot(
            u64::from(tag)
                | (offset / LOCATION_UNIT_BYTES) << LOCATION_SHIFT
                | u64::from(class) << CLASS_SHIFT
                | u64::from(frequency) << FREQUENCY_SHIFT,
        )
    }

    /// Returns a link to the chain bucket at `offset`.
    #[inline]
    pub fn link(offset: u64) -> Slot {
        Slot(Slot::MOVED.0 | (offset / LOCATION_UNIT_BYTES) << LOCATION_SHIFT)
    }

    /// Returns whether it has neither an item nor a mark.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.without_overflowed().0 == 0
    }

    /// Returns whether it points to an item in memory.
    #[inline]
    pub fn is_item_in_memory(self) -> bool {
        self.is_item() && !self.is_on_flash()
    }

    /// Returns whether it points to an item, in memory or on flash.
    #[inline]
    pub fn is_item(self) -> bool {
        !self.is_special() && !self.is_empty()
    }

    /// Returns whether it is the mark of a moved group, or a link.
    #[inline]
    pub fn is_special(self) -> bool {
        self.0 >> SPECIAL_SHIFT & 1 == 1
    }

    /// Returns whether its item is on the flash tier.
    #[inline]
    pub fn is_on_flash(self) -> bool {
        self.0 >> FLASH_SHIFT & 1 == 1
    }

    /// Returns whether it is the mark of a moved group.
    #[inline]
    pub fn is_moved(self) -> bool {
        self.is_special() && self.offset() == 0
    }

    /// Returns whether it is a link and nothing else, as half a link and half an item would be.
    #[inline]
    pub fn is_link(self) -> bool {
        self.link_offset().is_some_and(|offset| self == Slot::link(offset))
    }

    /// Returns where the chain continues, if this is a link.
    #[inline]
    pub fn link_offset(self) -> Option<u64> {
        (self.is_special() && self.offset() != 0).then(|| self.offset())
    }

    /// Returns the tag.
    #[inline]
    pub fn tag(self) -> u16 {
        (self.0 & ((1 << TAG_BITS) - 1)) as u16
    }

    /// Returns whether it is an item in memory with this tag.
    #[inline]
    pub fn matches(self, tag: u16) -> bool {
        self.may_match(tag) && !self.is_empty()
    }

    /// Returns whether the slot is an item in memory with this tag or empty: a first test of many slots.
    #[inline]
    pub fn may_match(self, tag: u16) -> bool {
        self.0 & Slot::TAG_AND_KIND == u64::from(tag)
    }

    /// Returns the item's offset in the region, in bytes.
    #[inline]
    pub fn offset(self) -> u64 {
        (self.0 >> LOCATION_SHIFT & ((1 << LOCATION_BITS) - 1)) * LOCATION_UNIT_BYTES
    }

    /// Returns the item's size class.
    #[inline]
    pub fn class(self) -> u8 {
        (self.0 >> CLASS_SHIFT & ((1 << CLASS_BITS) - 1)) as u8
    }

    /// Returns the reads counted so far.
    #[inline]
    pub fn frequency(self) -> u8 {
        (self.0 >> FREQUENCY_SHIFT) as u8 & FREQUENCY_MAX
    }

    /// Returns the slot with another frequency.
    #[inline]
    pub fn with_frequency(self, frequency: u8) -> Slot {
        debug_assert!(frequency <= FREQUENCY_MAX);
        Slot(
            self.0 & !(u64::from(FREQUENCY_MAX) << FREQUENCY_SHIFT) | u64::from(frequency) << FREQUENCY_SHIFT,
        )
    }

    /// Returns whether keys of this home bucket are also in the overflow area.
    #[inline]
    pub fn is_overflowed(self) -> bool {
        self.0 >> OVERFLOWED_SHIFT == 1
    }

    /// Returns the slot with the overflow mark of `other`.
    #[inline]
    pub fn with_overflowed_of(self, other: Slot) -> Slot {
        Slot(self.without_overflowed().0 | other.0 & 1 << OVERFLOWED_SHIFT)
    }

    /// Returns the slot with the overflow mark.
    #[inline]
    pub fn with_overflowed(self) -> Slot {
        Slot(self.0 | 1 << OVERFLOWED_SHIFT)
    }

    #[inline]
    fn without_overflowed(self) -> Slot {
        Slot(self.0 & !(1 << OVERFLOWED_SHIFT))
    }

    /// Returns whether both point to the same item, whatever their frequencies and overflow marks.
    #[inline]
    pub fn same_item(self, other: Slot) -> bool {
        let ignored = u64::from(FREQUENCY_MAX) << FREQUENCY_SHIFT | 1 << OVERFLOWED_SHIFT;
        (self.0 ^ other.0) & !ignored == 0
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_empty() {
            write!(f, "Empty")?;
        } else if self.is_moved() {
            write!(f, "Moved")?;
        } else if let Some(offset) = self.link_offset() {
            write!(f, "Link({offset:#x})")?;
        } else {
            write!(f, "Item(tag {:#x}, {:#x}, x{})", self.tag(), self.offset(), self.frequency())?;
        }
        if self.is_overflowed() { write!(f, "+overflowed") } else { Ok(()) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_round_trip(tag in 0u16..4096, unit in 1u64..1 << 40, class in 0u8..64, frequency in 0u8..8) {
            let slot = Slot::item(tag, unit * 4, class, frequency);
            prop_assert!(slot.is_item() && !slot.is_moved() && slot.link_offset().is_none());
            prop_assert_eq!((slot.tag(), slot.offset(), slot.class(), slot.frequency()), (tag, unit * 4, class, frequency));
            let marked = slot.with_overflowed().with_frequency(7);
            prop_assert!(marked.same_item(slot) && marked.is_overflowed() && marked.frequency() == 7);
            prop_assert!(Slot::link(unit * 4).link_offset() == Some(unit * 4));
        }
    }

    #[test]
    fn empty_slots_may_carry_the_overflow_mark() {
        assert!(Slot::EMPTY.with_overflowed().is_empty());
        assert!(!Slot::EMPTY.with_overflowed().matches(0));
        assert!(!Slot::MOVED.matches(0));
    }
}
