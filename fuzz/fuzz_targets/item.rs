//! Item headers from a region with arbitrary contents: each is read within bounds, and reads the same
//! after it is written again.
#![no_main]

use fabcache_layout::item::{HEADER_BYTES_MAX, Item, KEY_BYTES_MAX, NewItem};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut head = [0; HEADER_BYTES_MAX];
    let len = data.len().min(HEADER_BYTES_MAX);
    head[..len].copy_from_slice(&data[..len]);
    let item = Item::parse(&head);
    assert!(item.key_at() <= HEADER_BYTES_MAX as u64);
    assert!(item.payload_at() == item.key_at() + u64::from(item.key_len));
    assert!(item.bytes() >= item.payload_at() + item.payload_len());
    let key = [b'k'; KEY_BYTES_MAX];
    if item.key_len == 0 || usize::from(item.key_len) > KEY_BYTES_MAX || item.is_chunk() {
        return;
    }
    let new = NewItem {
        state: item.state,
        key: &key[..usize::from(item.key_len)],
        binary_key: item.has_binary_key(),
        cas: item.cas,
        flags: item.flags,
        expiry: item.expiry,
        chunks: item.chunks,
        value_len: item.value_len,
    };
    let encoded = new.encode();
    head = [0; HEADER_BYTES_MAX];
    head[..encoded.as_bytes().len()].copy_from_slice(encoded.as_bytes());
    let again = Item::parse(&head);
    assert_eq!((again.state, again.cas, again.flags, again.expiry), (item.state, item.cas, item.flags, item.expiry));
    assert_eq!((again.key_len, again.value_len, again.chunks), (item.key_len, item.value_len, item.chunks));
    assert_eq!(again.has_binary_key(), item.has_binary_key());
});
