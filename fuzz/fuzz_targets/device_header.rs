//! The first page of a flash device: a header that decodes is encoded to the same bytes, and no bytes make the parser panic.
#![no_main]

use fabcache_server::flash::device_header::{DeviceHeader, HEADER_BYTES};
use libfuzzer_sys::fuzz_target;

const CHECKSUM_AT: usize = HEADER_BYTES - 4;

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let mut page = [0; HEADER_BYTES];
    let len = rest.len().min(HEADER_BYTES);
    page[..len].copy_from_slice(&rest[..len]);
    if choice & 1 == 1 {
        // So that the fields behind are looked at, too.
        page[..12].copy_from_slice(b"fabflash\x01\0\0\0");
        let checksum = crc32c::crc32c(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    }
    if let Ok(header) = DeviceHeader::decode(&page) {
        assert!(header.encode() == page);
    }
});
