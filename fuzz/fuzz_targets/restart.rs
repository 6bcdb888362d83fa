//! The parsers of a server's start: PATH.meta, the saved state in it, the header. Bytes that decode are encoded to bytes that
//! decode to the same, and no bytes make a parser panic.
#![no_main]

use fabcache_layout::format::HEADER_BYTES;
use fabcache_layout::header;
use fabcache_store::backing::Meta;
use fabcache_store::restart::saved_state::SavedState;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 3 {
        0 => {
            let Ok(meta) = Meta::decode(rest) else { return };
            let again = Meta::decode(&meta.encode()).expect("as it was encoded");
            assert_eq!(
                (again.region_id, again.is_creating, again.state),
                (meta.region_id, meta.is_creating, meta.state)
            );
            assert_eq!(again.secret.0, meta.secret.0);
        }
        1 => {
            let Ok(state) = SavedState::decode(rest) else { return };
            let bytes = state.encode();
            let again = SavedState::decode(&bytes).expect("as it was encoded");
            assert_eq!(again.encode(), bytes);
        }
        _ => {
            let mut bytes = [0; HEADER_BYTES as usize];
            let len = rest.len().min(bytes.len());
            bytes[..len].copy_from_slice(&rest[..len]);
            // The most likely first words, so that the rest is looked at.
            bytes[..8].copy_from_slice(&fabcache_layout::format::MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&fabcache_layout::format::FORMAT_VERSION.to_le_bytes());
            if let Ok(birth) = header::from_bytes(&bytes, 1 << 40) {
                let geometry = birth.geometry;
                assert!(geometry.is_sound());
                let larger = geometry.region_bytes + geometry.segment_bytes();
                assert!(
                    geometry
                        .grown(larger)
                        .is_none_or(|grown| grown.is_sound() && larger <= geometry.room_bytes())
                );
            }
        }
    }
});
