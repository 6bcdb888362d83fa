//! Meta text: like `text`, but every chunk of the data is a meta line.
#![no_main]

#[path = "../../crates/protocol/tests/common/mod.rs"]
mod common;
mod pieces;

use common::Setup;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let mut stream = Vec::new();
    for piece in rest.split(|byte| *byte == 0xff) {
        let Some((letter, words)) = piece.split_first() else { continue };
        let letter = b"gsdaemn"[usize::from(*letter % 7)];
        stream.extend_from_slice(&[b'm', letter, b' ']);
        stream.extend_from_slice(words);
        stream.extend_from_slice(b"\r\n");
    }
    pieces::compare(*choice, &stream, Setup::default());
});
