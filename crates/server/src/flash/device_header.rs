//! The header of a flash device, its first page.
//!
//! Numbers are little endian:
//!
//! | at | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | "fabflash" |
//! | 8 | 4 | version: 1 |
//! | 12 | 4 | number of the device in the set, from 0 |
//! | 16 | 4 | devices of the set |
//! | 20 | 4 | 0 |
//! | 24 | 16 | id of the device: random, for as long as it has a header |
//! | 40 | 16 | id of the set: random, new with each opening |
//! | 56 | 8 | bytes of the device that the server uses |
//! | 64 | 8 | bytes of a flash segment |
//! | 72 | 4020 | zeros |
//! | 4092 | 4 | crc32c of the 4092 bytes before |

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"fabflash";
const VERSION: u32 = 1;
const END: usize = 72;
const CHECKSUM_AT: usize = HEADER_BYTES - 4;

/// The contents of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHeader {
    /// Number of the device in the set.
    pub number: u32,
    /// Devices of the set.
    pub count: u32,
    /// Id of the device.
    pub device_id: u128,
    /// Id of the set.
    pub set_id: u128,
    /// Bytes of the device that the server uses.
    pub bytes: u64,
    /// Bytes of a flash segment.
    pub segment_bytes: u64,
}

/// The reason why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Something else begins the same page.
    #[error("it does not begin with the header of a flash device")]
    Foreign,
    /// Another release wrote it.
    #[error("its header has version {0} instead of {VERSION}")]
    Version(u32),
    /// The checksum or a reserved byte is wrong.
    #[error("its header is damaged")]
    Damaged,
}

impl DeviceHeader {
    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &self.number.to_le_bytes());
        put(16, &self.count.to_le_bytes());
        put(24, &self.device_id.to_le_bytes());
        put(40, &self.set_id.to_le_bytes());
        put(56, &self.bytes.to_le_bytes());
        put(64, &self.segment_bytes.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// The bytes are not a header of this version.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<DeviceHeader, HeaderError> {
        if &field::<8>(bytes, 0) != MAGIC {
            return Err(HeaderError::Foreign);
        }
        let word = |at| u32::from_le_bytes(field(bytes, at));
        // Another version may have its checksum elsewhere.
        if word(8) != VERSION {
            return Err(HeaderError::Version(word(8)));
        }
        let is_reserved_zero = word(20) == 0 && bytes[END..CHECKSUM_AT].iter().all(|byte| *byte == 0);
        if word(CHECKSUM_AT) != crc32c::crc32c(&bytes[..CHECKSUM_AT]) || !is_reserved_zero {
            return Err(HeaderError::Damaged);
        }
        Ok(DeviceHeader {
            number: word(12),
            count: word(16),
            device_id: u128::from_le_bytes(field(bytes, 24)),
            set_id: u128::from_le_bytes(field(bytes, 40)),
            bytes: u64::from_le_bytes(field(bytes, 56)),
            segment_bytes: u64::from_le_bytes(field(bytes, 64)),
        })
    }
}

/// Returns the bytes of one field.
fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let (field, _) = bytes[at..].split_first_chunk().expect("all fields lie in the header");
    *field
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = DeviceHeader> {
        any::<((u32, u32), (u128, u128), (u64, u64))>().prop_map(
            |((number, count), ids, (bytes, segment_bytes))| DeviceHeader {
                number,
                count,
                device_id: ids.0,
                set_id: ids.1,
                bytes,
                segment_bytes,
            },
        )
    }

    proptest! {
        #[test]
        fn headers_are_decoded_as_they_were_encoded(header in header()) {
            prop_assert_eq!(DeviceHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn changed_headers_are_refused(header in header(), at in 0..HEADER_BYTES, change in 1..=u8::MAX) {
            let mut bytes = header.encode();
            bytes[at] ^= change;
            let refused = DeviceHeader::decode(&bytes);
            let expected = match at {
                0..8 => Err(HeaderError::Foreign),
                8..12 => Err(HeaderError::Version(u32::from_le_bytes(field(&bytes, 8)))),
                _ => Err(HeaderError::Damaged),
            };
            prop_assert_eq!(refused, expected);
        }
    }

    #[test]
    fn reserved_bytes_with_a_right_checksum_are_refused() {
        let header =
            DeviceHeader { number: 0, count: 1, device_id: 2, set_id: 3, bytes: 4, segment_bytes: 5 };
        for at in [20, END, CHECKSUM_AT - 1] {
            let mut bytes = header.encode();
            bytes[at] = 1;
            let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(DeviceHeader::decode(&bytes), Err(HeaderError::Damaged));
        }
    }

    /// Devices outlive a release: their first page must not change.
    #[test]
    fn layout_is_that_of_version_1() {
        let header = DeviceHeader {
            number: 1,
            count: 2,
            device_id: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
            set_id: 3,
            bytes: 1 << 30,
            segment_bytes: 16 << 20,
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..20], b"fabflash\x01\0\0\0\x01\0\0\0\x02\0\0\0");
        assert_eq!(&bytes[24..40], &std::array::from_fn::<u8, 16, _>(|at| at as u8));
        assert_eq!((bytes[40], bytes[59], bytes[67]), (3, 0x40, 0x01));
        // The check value of crc32c (RFC 3720, B.4).
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
