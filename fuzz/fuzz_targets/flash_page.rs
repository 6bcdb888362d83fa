//! Pages of flash: a search ends within what was read, asks for more than that or finds the key.
#![no_main]

use fabcache_store::flash::page::{Extent, PAGE_BYTES, PAYLOAD_BYTES, PageName, Pages, Progress, Search, parts_of, seal};
use libfuzzer_sys::fuzz_target;

const PAGES_MAX: usize = 4;

fuzz_target!(|data: &[u8]| {
    let Some(([choice, first_low, first_high, key_len], rest)) = data.split_first_chunk::<4>() else { return };
    let (key, rest) = rest.split_at(rest.len().min(usize::from(*key_len)));
    let name = PageName { tier: 5, number: 7, sequence: 3 };
    let extents = [Extent { first: name, pages: 2 }, Extent { first: name.plus(2), pages: 2 }];
    let mut device = vec![0; PAGES_MAX * PAGE_BYTES];
    let pages = device.chunks_mut(PAGE_BYTES).zip(rest.chunks(PAYLOAD_BYTES));
    for (page, payload) in pages {
        page[..payload.len()].copy_from_slice(payload);
    }
    if choice & 1 == 1 {
        let first = u16::from_le_bytes([*first_low, *first_high]);
        for (i, page) in device.chunks_mut(PAGE_BYTES).enumerate() {
            seal(page, name.plus(i as u32), (i == 0).then_some(first));
        }
    }
    let (mut progress, mut buffer, mut read) = (Progress::default(), Vec::new(), 1);
    while read <= PAGES_MAX {
        buffer.extend_from_slice(&device[buffer.len()..read * PAGE_BYTES]);
        match Pages::new(&buffer, &extents, &mut progress).find(|other| other == key) {
            Ok(Search::Found(record)) => {
                let found = parts_of(record.key()).flat_map(|part| &buffer[part]);
                assert!(found.eq(key) && record.value().end <= read * PAYLOAD_BYTES);
                assert!(parts_of(record.value()).all(|part| part.end <= read * PAGE_BYTES));
                return;
            }
            Ok(Search::Pages(more)) => {
                assert!(more as usize > read);
                read = more as usize;
            }
            Ok(Search::Absent) | Err(_) => return,
        }
    }
});
