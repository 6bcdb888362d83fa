//! Arbitrary messages to both ends of a fabric link while they send and receive: they break the link,
//! or are bytes, but the ends never address memory that they do not have.
#![no_main]

use std::io::IoSlice;

use fabcache_fabric::channel::{
    ProtocolError, ClientEnd, Incoming, LentMemory, MESSAGE_BYTES, SendMode, SHORT_BYTES, ServerEnd, Terms, token_of,
};
use libfuzzer_sys::fuzz_target;

const RING_BYTES: usize = 64 << 10;
const TERMS: Terms = Terms {
    own_token: 5,
    peer_token: 5,
    own_credits: 6,
    peer_credits: 6,
    staging_bytes: RING_BYTES as u64,
    landing_bytes: RING_BYTES as u64,
};

fuzz_target!(|steps: Vec<(u8, Vec<u8>)>| {
    let mut server = ServerEnd::<Vec<u8>, Vec<u8>>::new(TERMS, 5);
    server.want_proof();
    let mut client = ClientEnd::<Vec<u8>>::new(TERMS);
    let (mut arrived, mut ends) = ([0u32; 2], [Ok::<(), ProtocolError>(()); 2]);
    let bytes = [7; 40_000];
    let mut lent = 0;
    let mut message = [0; MESSAGE_BYTES];
    for (what, mut came) in steps {
        let end = usize::from(what & 1);
        match what / 2 % 8 {
            0..4 => {
                // Most messages have the token and the next number.
                let header =
                    [&5u64.to_le_bytes()[..], &[what >> 5, 0, 0, 0], &arrived[end].to_le_bytes()].concat();
                if what / 2 % 8 < 3 {
                    came.splice(0..0, header);
                } else if token_of(&came) != Some(5) && came.len() > 8 {
                    came[..8].copy_from_slice(&5u64.to_le_bytes());
                }
                let len = came.len();
                let came = if end == 0 { server.arrived(came, len) } else { client.arrived(came, len) };
                assert!(ends[end].is_ok() || came == ends[end], "a broken link stays broken");
                ends[end] = came;
                arrived[end] = arrived[end].wrapping_add(u32::from(came.is_ok()));
            }
            4 => serve(&mut server),
            5 => take(&mut client),
            6 if end == 0 => match server.next(usize::from(what) * 150) {
                SendMode::Later => {}
                SendMode::Data => {
                    let draft = server.data(&[IoSlice::new(&bytes)], &mut message).expect("it can be sent");
                    server.sent(draft);
                }
                SendMode::StagingRange(piece) => {
                    assert!(piece.at + piece.bytes <= RING_BYTES);
                    let ticket = server.put_begun(piece);
                    server.put_ended(ticket);
                }
            },
            6 => match client.next(usize::from(what) * 150) {
                SendMode::Later => {}
                SendMode::Data if what & 0x20 != 0 => {
                    let memory = LentMemory { address: 1 << 40, key: 9, bytes: 1 + u64::from(what) };
                    let before = [IoSlice::new(&came[..came.len().min(100)])];
                    let draft = client.lend(&before, &memory, &mut message).expect("it can be lent");
                    client.sent(draft);
                    lent += 1;
                }
                SendMode::Data => {
                    let draft = client.data(&[IoSlice::new(&bytes)], &mut message).expect("it can be sent");
                    client.sent(draft);
                }
                SendMode::StagingRange(piece) => {
                    assert!(piece.at + piece.bytes <= RING_BYTES);
                    client.staged(piece);
                }
            },
            _ => {
                let let_go = client.let_go();
                assert!(let_go <= lent, "no more than was lent");
                lent -= let_go;
                while server.freed().is_some() || client.freed().is_some() {}
                let mut short = [0; SHORT_BYTES];
                while let Some(draft) = server.short(&mut short) {
                    server.sent(draft);
                }
                while let Some(draft) = client.short(&mut short) {
                    client.sent(draft);
                }
            }
        }
    }
});

/// Performs the pending reads and receives.
fn serve(server: &mut ServerEnd<Vec<u8>, Vec<u8>>) {
    while let Some(read) = server.next_read(RING_BYTES) {
        let end = read.at.checked_add(read.bytes as u64).expect("memory ends somewhere");
        assert!(read.bytes > 0 && (read.key.is_some() || end <= RING_BYTES as u64));
        let ticket = server.read_begun(read);
        server.read_ended(ticket, vec![0; read.bytes]);
    }
    server.unread();
    while let Some(len) = server.incoming().map(<[u8]>::len) {
        assert!(len > 0);
        server.consume(len.div_ceil(2));
    }
}

/// Receives pending bytes.
fn take(client: &mut ClientEnd<Vec<u8>>) {
    while let Some(incoming) = client.incoming() {
        let len = match incoming {
            Incoming::Bytes(bytes) => bytes.len(),
            Incoming::Landed(piece) => {
                assert!(piece.at + piece.bytes <= RING_BYTES);
                piece.bytes
            }
        };
        assert!(len > 0);
        client.consume(len.div_ceil(2));
    }
}
