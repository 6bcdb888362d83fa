//! The two ends, joined by a simulated fabric that completes operations in any order.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::rc::Rc;

use fabcache_testbed::random::SplitMix64;
use proptest::prelude::*;

use super::*;

type Server = ServerEnd<Vec<u8>, Vec<u8>>;
type Client = ClientEnd<Vec<u8>>;

/// Messages in flight to an end, and its free receive buffers.
struct Wire {
    messages: VecDeque<Vec<u8>>,
    receives: usize,
}

impl Wire {
    fn new(credits: u16) -> Wire {
        Wire { messages: VecDeque::new(), receives: receives_for(credits) }
    }

    /// Delivers a message, unless the fabric rejects it now.
    fn send(&mut self, message: &[u8], refuses: bool) -> bool {
        if !refuses {
            self.messages.push_back(message.to_vec());
            assert!(self.messages.len() <= self.receives, "a message for which nothing is posted");
        }
        !refuses
    }

    /// Returns one of the first few.
    fn take(&mut self, random: &mut SplitMix64) -> Option<Vec<u8>> {
        let index = random.below(self.messages.len().clamp(1, 4));
        let message = self.messages.remove(index)?;
        self.receives -= 1;
        Some(message)
    }
}

/// One direction as the two applications see it.
struct Stream {
    whole: Rc<[u8]>,
    sent: usize,
    received: usize,
}

impl Stream {
    fn new(len: usize) -> Stream {
        Stream { whole: (0..len).map(|at| (at * 7 + at / 251) as u8).collect(), sent: 0, received: 0 }
    }

    /// Returns the whole stream, and the range to send next.
    fn next(&self, most: usize) -> (Rc<[u8]>, Range<usize>) {
        let end = self.whole.len().min(self.sent.saturating_add(most));
        (Rc::clone(&self.whole), self.sent..end)
    }

    fn receive(&mut self, bytes: &[u8]) {
        assert!(self.whole[self.received..self.sent].starts_with(bytes), "changed after {}", self.received);
        self.received += bytes.len();
    }

    fn is_done(&self) -> bool {
        self.received == self.whole.len()
    }
}

struct World {
    random: SplitMix64,
    /// One attempt to send in this many is refused.
    refuses_one_in: usize,
    client: Client,
    server: Server,
    to_client: Wire,
    to_server: Wire,
    staging: Vec<u8>,
    /// Lent memories that the server has not released, with their contents.
    lent: VecDeque<(LentMemory, Vec<u8>)>,
    landing: Vec<u8>,
    reads: Vec<(OperationId, Read)>,
    writes: Vec<(OperationId, StagingRange, Vec<u8>)>,
    up: Stream,
    down: Stream,
    /// The number of steps.
    moves: usize,
}

const TOKENS: (u64, u64) = (0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00);

/// The proof number.
const NUMBER: u64 = 0x0f0e_0d0c_0b0a_0908;

fn terms(own_credits: u16, peer_credits: u16, staging_bytes: u64, landing_bytes: u64) -> Terms {
    let (own_token, peer_token) = TOKENS;
    Terms { own_token, peer_token, own_credits, peer_credits, staging_bytes, landing_bytes }
}

fn mirrored(terms: Terms) -> Terms {
    Terms {
        own_token: terms.peer_token,
        peer_token: terms.own_token,
        own_credits: terms.peer_credits,
        peer_credits: terms.own_credits,
        ..terms
    }
}

impl World {
    fn new(seed: u64, terms: Terms, up: usize, down: usize) -> World {
        assert_eq!(terms.check(), Ok(()));
        let mut server = ServerEnd::new(mirrored(terms), NUMBER);
        if down > 0 {
            server.want_proof();
        }
        World {
            random: SplitMix64::new(seed),
            refuses_one_in: 5,
            client: ClientEnd::new(terms),
            server,
            to_client: Wire::new(terms.own_credits),
            to_server: Wire::new(terms.peer_credits),
            staging: vec![0; terms.staging_bytes as usize],
            lent: VecDeque::new(),
            landing: vec![0; terms.landing_bytes as usize],
            reads: Vec::new(),
            writes: Vec::new(),
            up: Stream::new(up),
            down: Stream::new(down),
            moves: 0,
        }
    }

    fn refuses(&mut self) -> bool {
        self.random.below(self.refuses_one_in.max(1)) == 1
    }

    // ---- the drivers ----

    fn settle_client(&mut self) {
        while self.client.freed().is_some() {
            self.to_client.receives += 1;
        }
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.client.short(&mut message) {
            let refuses = self.refuses();
            if !self.to_server.send(&message[..draft.bytes()], refuses) {
                return;
            }
            self.client.sent(draft);
            self.moves += 1;
        }
    }

    fn settle_server(&mut self) {
        while self.server.freed().is_some() {
            self.to_server.receives += 1;
        }
        let most = if self.random.below(2) == 0 { PIECE_BYTES_MAX / 4 } else { PIECE_BYTES_MAX };
        while let Some(read) = self.server.next_read(most) {
            if self.refuses() {
                break;
            }
            assert!(read.bytes <= PIECE_BYTES_MAX);
            self.memory(&read);
            self.reads.push((self.server.read_begun(read), read));
            assert!(self.server.reads_under_way() <= READS_MAX);
            self.moves += 1;
        }
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.server.short(&mut message) {
            let refuses = self.refuses();
            if !self.to_client.send(&message[..draft.bytes()], refuses) {
                return;
            }
            self.server.sent(draft);
            self.moves += 1;
        }
    }

    /// Returns the memory to read; it exists until the server has released it.
    fn memory(&self, read: &Read) -> Vec<u8> {
        let (memory, at) = match read.key {
            None => (&self.staging, read.at),
            Some(key) => {
                let its = |(lent, _): &&(LentMemory, Vec<u8>)| lent.key == key;
                let (lent, memory) = self.lent.iter().find(its).expect("the memory was released");
                (memory, read.at - lent.address)
            }
        };
        memory[at as usize..][..read.bytes].to_vec()
    }

    /// Lends the next bytes, after some others. Returns false if that is not possible.
    fn client_lends(&mut self, most: usize) -> bool {
        let (whole, range) = self.up.next(most);
        if self.client.next(1) != SendMode::Data || range.len() < 2 {
            return false;
        }
        let (before, memory) =
            whole[range.clone()].split_at(self.random.below(range.len().clamp(1, LENT_BEFORE_MAX)));
        let number = self.moves as u64;
        let lent = LentMemory { address: number << 32, key: !number, bytes: memory.len() as u64 };
        let mut message = [0; MESSAGE_BYTES];
        let draft = self.client.lend(&[IoSlice::new(before)], &lent, &mut message).expect("it can be lent");
        let refuses = self.refuses();
        if !self.to_server.send(&message[..draft.bytes()], refuses) {
            return false;
        }
        assert_eq!(draft.taken(), before.len());
        self.client.sent(draft);
        self.up.sent += range.len();
        self.lent.push_back((lent, memory.to_vec()));
        self.moves += 1;
        true
    }

    fn client_sends(&mut self, most: usize) {
        loop {
            if self.random.below(4) == 0 && self.client_lends(most) {
                continue;
            }
            let (whole, range) = self.up.next(most);
            let waiting = &whole[range];
            let refuses = self.refuses();
            match self.client.next(waiting.len()) {
                SendMode::Later => break,
                SendMode::Data => {
                    let mut message = [0; MESSAGE_BYTES];
                    let (first, second) = waiting.split_at(waiting.len() / 3);
                    let parts = [IoSlice::new(first), IoSlice::new(second)];
                    let draft = self.client.data(&parts, &mut message).expect("data can be sent");
                    if !self.to_server.send(&message[..draft.bytes()], refuses) {
                        break;
                    }
                    self.up.sent += draft.taken();
                    self.client.sent(draft);
                }
                SendMode::StagingRange(piece) => {
                    self.staging[piece.at..piece.at + piece.bytes].copy_from_slice(&waiting[..piece.bytes]);
                    self.up.sent += piece.bytes;
                    self.client.staged(piece);
                }
            }
            self.moves += 1;
            self.settle_client();
        }
        self.settle_client();
    }

    fn server_sends(&mut self, most: usize) {
        loop {
            let (whole, range) = self.down.next(most);
            let waiting = &whole[range];
            let refuses = self.refuses();
            match self.server.next(waiting.len()) {
                SendMode::Later => break,
                SendMode::Data => {
                    let mut message = [0; MESSAGE_BYTES];
                    let parts = [IoSlice::new(waiting)];
                    let draft = self.server.data(&parts, &mut message).expect("data can be sent");
                    if !self.to_client.send(&message[..draft.bytes()], refuses) {
                        break;
                    }
                    self.down.sent += draft.taken();
                    self.server.sent(draft);
                }
                SendMode::StagingRange(piece) => {
                    self.down.sent += piece.bytes;
                    let bytes = waiting[..piece.bytes].to_vec();
                    self.writes.push((self.server.put_begun(piece), piece, bytes));
                }
            }
            self.moves += 1;
        }
        self.settle_server();
    }

    fn client_receives(&mut self, most: usize) {
        let mut left = most;
        while left > 0 {
            let taken = match self.client.incoming() {
                None => break,
                Some(Incoming::Bytes(bytes)) => {
                    let len = bytes.len().min(left);
                    self.down.receive(&bytes[..len]);
                    len
                }
                Some(Incoming::Landed(piece)) => {
                    let len = piece.bytes.min(left);
                    self.down.receive(&self.landing[piece.at..piece.at + len]);
                    len
                }
            };
            self.client.consume(taken);
            left -= taken;
            self.moves += 1;
        }
        self.settle_client();
    }

    fn server_receives(&mut self, most: usize) {
        let mut left = most;
        while left > 0
            && let Some(bytes) = self.server.incoming()
        {
            let len = bytes.len().min(left);
            self.up.receive(&bytes[..len]);
            drop(self.server.consume(len));
            left -= len;
            self.moves += 1;
        }
        self.settle_server();
    }

    // ---- the fabric ----

    fn deliver(&mut self) {
        if let Some(message) = self.to_client.take(&mut self.random) {
            let len = message.len();
            self.client.arrived(message, len).expect("the server keeps the protocol");
            let let_go = self.client.let_go();
            self.lent.drain(..let_go);
            self.moves += 1;
            self.settle_client();
        }
        if let Some(message) = self.to_server.take(&mut self.random) {
            let len = message.len();
            self.server.arrived(message, len).expect("the client keeps the protocol");
            self.moves += 1;
            self.settle_server();
        }
    }

    fn complete(&mut self) {
        if !self.reads.is_empty() {
            let index = self.random.below(self.reads.len().max(1));
            let (ticket, read) = self.reads.swap_remove(index);
            self.server.read_ended(ticket, self.memory(&read));
            self.moves += 1;
        }
        if !self.writes.is_empty() {
            let index = self.random.below(self.writes.len().max(1));
            let (ticket, piece, bytes) = self.writes.swap_remove(index);
            self.landing[piece.at..piece.at + piece.bytes].copy_from_slice(&bytes);
            self.server.put_ended(ticket);
            self.moves += 1;
        }
        self.settle_server();
    }

    /// Runs any of the steps.
    fn step(&mut self) {
        let most = 1 + [10, 9_000, 100_000, 600_000][self.random.below(4)] / (1 + self.random.below(4));
        match self.random.below(8) {
            0 => self.client_sends(most),
            1 => self.server_sends(most),
            2 => self.client_receives(most),
            3 => self.server_receives(most),
            4 => drop(self.server.unread()),
            5 => self.complete(),
            _ => self.deliver(),
        }
    }

    /// Runs all possible steps; bytes for applications that do not receive stay.
    fn run(&mut self, client_receives: bool, server_receives: bool) {
        self.refuses_one_in = usize::MAX;
        loop {
            let before = self.moves;
            self.settle_client();
            self.settle_server();
            self.client_sends(usize::MAX);
            self.server_sends(usize::MAX);
            self.deliver();
            self.complete();
            if client_receives {
                self.client_receives(usize::MAX);
            }
            if server_receives {
                self.server_receives(usize::MAX);
            }
            if self.moves == before {
                return;
            }
        }
    }

    fn assert_done(&self) {
        assert!(self.up.is_done(), "{} of {} bytes got to the server", self.up.received, self.up.whole.len());
        assert!(
            self.down.is_done(),
            "{} of {} bytes got to the client",
            self.down.received,
            self.down.whole.len()
        );
        let untold = self.server.untold();
        assert_eq!(self.lent.len(), untold, "memory comes back with the next message");
        assert!(!self.client.has_unsent() && !self.server.has_unsent() && !self.server.has_incoming());
    }
}

fn any_terms() -> impl Strategy<Value = Terms> {
    let credits = || prop_oneof![Just(2u16), Just(3), Just(5), 2u16..70];
    let ring = || prop_oneof![Just(0u64), Just(RING_BYTES_MIN), RING_BYTES_MIN..300_000, Just(1 << 20)];
    (credits(), credits(), ring(), ring())
        .prop_map(|(own, peer, staging, landing)| terms(own, peer, staging, landing))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn streams_arrive_unchanged_under_any_fabric_behaviour(
        terms in any_terms(), seed: u64, up in 0usize..1_500_000, down in 0usize..1_500_000, steps in 0usize..2_000,
    ) {
        let mut world = World::new(seed, terms, up, down);
        for _ in 0..steps {
            world.step();
        }
        world.run(true, true);
        world.assert_done();
    }

    #[test]
    fn stalled_receiver_does_not_block_the_other_direction(
        terms in any_terms(), seed: u64, bytes in 0usize..1_500_000, client_first: bool,
    ) {
        let mut world = World::new(seed, terms, bytes, bytes);
        world.run(!client_first, client_first);
        let first = if client_first { &world.up } else { &world.down };
        assert!(first.is_done(), "{} of {bytes} bytes", first.received);
        world.run(true, true);
        world.assert_done();
    }

    #[test]
    fn hostile_messages_end_only_their_link(
        terms in any_terms(), seed: u64, steps in 0usize..300, hostile in prop::collection::vec(any_message(), 1..20),
    ) {
        let mut world = World::new(seed, terms, 300_000, 300_000);
        for _ in 0..steps {
            world.step();
        }
        let mut client = world.client;
        let mut server = world.server;
        feed(&hostile, |message, len| client.arrived(message, len), terms.own_token);
        feed(&hostile, |message, len| server.arrived(message, len), terms.peer_token);
        let mut short = [0; SHORT_BYTES];
        while let Some(read) = server.next_read(PIECE_BYTES_MAX) {
            let end = read.at.checked_add(read.bytes as u64).expect("memory ends somewhere");
            assert!(read.key.is_some() || end <= terms.staging_bytes);
            let ticket = server.read_begun(read);
            server.read_ended(ticket, vec![0; read.bytes]);
        }
        while let Some(len) = server.incoming().map(<[u8]>::len) {
            assert!(len > 0);
            server.consume(len);
        }
        while let Some(incoming) = client.incoming() {
            let len = match incoming {
                Incoming::Bytes(bytes) => bytes.len(),
                Incoming::Landed(piece) => {
                    assert!(piece.at + piece.bytes <= terms.landing_bytes as usize);
                    piece.bytes
                }
            };
            assert!(len > 0);
            client.consume(len);
        }
        let _ = (client.short(&mut short), server.short(&mut short), server.drain().count());
    }
}

/// A message without its token: kind, released memories, credits, offset of its number, numbers, length.
type Crafted = (u8, u8, u16, u32, [u64; 3], usize);

fn any_message() -> impl Strategy<Value = Crafted> {
    let small = || prop_oneof![0u64..2_000_000, any::<u64>()];
    let off = prop_oneof![4 => Just(0u32), 1 => 0u32..5, 1 => any::<u32>()];
    let len = prop_oneof![Just(16usize), Just(24), Just(32), Just(40), 0usize..9_000];
    let let_go = prop_oneof![9 => Just(0u8), 1 => any::<u8>()];
    let numbers = [small(), small(), small()];
    (0u8..12, let_go, prop_oneof![Just(0u16), 0u16..70, any::<u16>()], off, numbers, len)
}

/// Delivers messages to an end; a broken end must stay broken.
fn feed(
    crafted: &[Crafted],
    mut arrived: impl FnMut(Vec<u8>, usize) -> Result<(), ProtocolError>,
    token: u64,
) {
    let mut broken = None;
    let mut expected = 0u32;
    for (kind, let_go, credits, off, numbers, len) in crafted {
        let mut message = vec![0; (*len).max(HEADER_BYTES + 24)];
        message[..8].copy_from_slice(&token.to_le_bytes());
        message[8..10].copy_from_slice(&[*kind, *let_go]);
        message[10..12].copy_from_slice(&credits.to_le_bytes());
        message[12..16].copy_from_slice(&expected.wrapping_add(*off).to_le_bytes());
        for (into, number) in message[HEADER_BYTES..].chunks_mut(8).zip(numbers) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        let result = arrived(message, *len);
        if let Err(ProtocolError::Sequence { expected: number, .. }) = result
            && broken.is_none()
        {
            // Only its position matters here.
            expected = number;
        }
        if let Some(before) = broken {
            assert_eq!(result, Err(before), "a broken link stays broken");
        }
        broken = broken.or(result.err());
        expected = expected.wrapping_add(1);
    }
}

// ---- protocol violations ----

const PLAIN: Terms = Terms {
    own_token: 5,
    peer_token: 6,
    own_credits: 4,
    peer_credits: 4,
    staging_bytes: 1 << 16,
    landing_bytes: 1 << 16,
};

/// Builds a message to an end of `PLAIN`.
fn message(kind: u8, credits: u16, sequence: u32, numbers: &[u64]) -> (Vec<u8>, usize) {
    let mut message = 5u64.to_le_bytes().to_vec();
    message.extend([kind, 0]);
    message.extend(credits.to_le_bytes());
    message.extend(sequence.to_le_bytes());
    message.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let len = message.len();
    (message, len)
}

/// Returns the results of the last of these messages at a server's end and at a client's.
fn ends_of(messages: &[(u8, u16, u32, &[u64])]) -> [Result<(), ProtocolError>; 2] {
    let (mut server, mut client) = (Server::new(PLAIN, NUMBER), Client::new(PLAIN));
    let mut ends = [Ok(()); 2];
    for (kind, credits, sequence, numbers) in messages {
        assert!(ends.iter().any(Result::is_ok), "the ends broke before the last message: {ends:?}");
        let (bytes, len) = message(*kind, *credits, *sequence, numbers);
        ends = [server.arrived(bytes.clone(), len), client.arrived(bytes, len)];
    }
    ends
}

const DATA: u8 = 1;
const LONG: u8 = 2;
const TAKEN: u8 = 3;
const PUT: u8 = 4;
const ROOM: u8 = 5;
const CREDITS: u8 = 6;
const BYE: u8 = 7;
const LENT: u8 = 10;

#[test]
fn protocol_violations_are_distinguished_from_valid_messages() {
    let same = |broken: ProtocolError| [Err(broken); 2];
    assert_eq!(ends_of(&[(DATA, 0, 0, &[1])]), [Ok(()); 2]);
    assert_eq!(ends_of(&[(DATA, 0, 0, &[1]), (BYE, 0, 1, &[])]), [Ok(()); 2]);
    assert_eq!(
        ends_of(&[(DATA, 0, 1, &[1]), (DATA, 0, 1, &[1])]),
        same(ProtocolError::Sequence { came: 1, expected: 0 })
    );
    assert_eq!(ends_of(&[(DATA, 0, 7, &[1])]), [Ok(()); 2], "it may have overtaken every message in flight");
    assert_eq!(ends_of(&[(DATA, 0, 8, &[1])]), same(ProtocolError::Sequence { came: 8, expected: 0 }));
    let last = u32::MAX;
    assert_eq!(ends_of(&[(DATA, 0, last, &[1])]), same(ProtocolError::Sequence { came: last, expected: 0 }));
    let data: Vec<(u8, u16, u32, &[u64])> = (0..5).map(|i| (DATA, 0, i, &[1][..])).collect();
    assert_eq!(ends_of(&data[..4]), [Ok(()); 2]);
    assert_eq!(ends_of(&data), same(ProtocolError::Overrun));
    let early: Vec<(u8, u16, u32, &[u64])> = (1..6).map(|i| (CREDITS, 1, i, &[][..])).collect();
    assert_eq!(ends_of(&early[..4]), [Ok(()); 2]);
    assert_eq!(ends_of(&early), same(ProtocolError::Overrun), "waiting messages hold buffers");
    assert_eq!(ends_of(&[(DATA, 1, 0, &[1])]), same(ProtocolError::Credits(1)), "no credit was spent");
    assert_eq!(ends_of(&[(CREDITS, 0, 0, &[])]), same(ProtocolError::Credits(0)), "an empty message");
    assert_eq!(ends_of(&[(BYE, 0, 0, &[]), (DATA, 0, 1, &[1])]), same(ProtocolError::AfterBye));
    assert_eq!(ends_of(&[(LONG, 0, 0, &[0, 1])]), [Ok(()), Err(ProtocolError::Kind(LONG))]);
    assert_eq!(ends_of(&[(PUT, 0, 0, &[0, 1])]), [Err(ProtocolError::Kind(PUT)), Ok(())]);
    assert_eq!(ends_of(&[(TAKEN, 0, 0, &[0])]), [Err(ProtocolError::Kind(TAKEN)), Ok(())]);
    assert_eq!(ends_of(&[(ROOM, 0, 0, &[0])]), [Ok(()), Err(ProtocolError::Kind(ROOM))]);
    assert_eq!(ends_of(&[(ROOM, 0, 0, &[1])])[0], Err(ProtocolError::Total(1)));
    assert_eq!(ends_of(&[(TAKEN, 0, 0, &[1])])[1], Err(ProtocolError::Total(1)));
    for (at, bytes) in [(0, 0), (0, (1 << 16) + 1), (1 << 16, 1), (u64::MAX, 2)] {
        let range = Err(ProtocolError::Range { at, bytes });
        assert_eq!(ends_of(&[(LONG, 0, 0, &[at, bytes])])[0], range);
        assert_eq!(ends_of(&[(PUT, 0, 0, &[at, bytes])])[1], range);
    }
    let most = LENT_BYTES_MAX;
    assert_eq!(ends_of(&[(LENT, 0, 0, &[0, 7, 1])]), [Ok(()), Err(ProtocolError::Kind(LENT))]);
    assert_eq!(ends_of(&[(LENT, 0, 0, &[u64::MAX - most, 7, most])])[0], Ok(()), "at any address");
    for (at, bytes) in [(0, 0), (0, most + 1), (0, u64::MAX), (u64::MAX, 1), (u64::MAX - most + 1, most)] {
        assert_eq!(ends_of(&[(LENT, 0, 0, &[at, 7, bytes])])[0], Err(ProtocolError::Range { at, bytes }));
    }
    assert_eq!(ends_of(&[(LENT, 0, 0, &[0, 1])])[0], Err(ProtocolError::Length(32)));
    let twice = Err(ProtocolError::Range { at: 5, bytes: 1 });
    assert_eq!(ends_of(&[(LONG, 0, 0, &[0, 1 << 16]), (LONG, 0, 1, &[5, 1])])[0], twice);
}

#[test]
fn lent_buffers_are_released_once_consumed() {
    let terms = terms(8, 8, 0, 0);
    let (mut client, mut server) = (Client::new(terms), Server::new(mirrored(terms), NUMBER));
    let mut bytes = [0; MESSAGE_BYTES];
    let mut lend = |client: &mut Client, before: &[u8], lent: u64| {
        let lent = LentMemory { address: 1 << 40, key: 9, bytes: lent };
        let draft = client.lend(&[IoSlice::new(before)], &lent, &mut bytes)?;
        Some(sent(client, draft, &bytes, ClientEnd::sent))
    };
    assert!(lend(&mut client, &[7; LENT_BEFORE_MAX + 1], 1).is_none(), "it must be sent at once");
    for (before, lent) in [(&b"ab"[..], 300_000), (b"", 1)] {
        let message = lend(&mut client, before, lent).expect("there are credits");
        server.arrived(message.clone(), message.len()).expect("a valid message");
    }
    assert_eq!(server.incoming(), Some(&b"ab"[..]));
    assert_eq!(server.next_read(PIECE_BYTES_MAX), None, "there is no proof yet");
    let mut short = [0; SHORT_BYTES];
    let draft = server.short(&mut short).expect("a proof request");
    let request = sent(&mut server, draft, &short, ServerEnd::sent);
    client.arrived(request.clone(), request.len()).expect("a valid message");
    let draft = client.short(&mut short).expect("a proof");
    let proof = sent(&mut client, draft, &short, ClientEnd::sent);
    server.arrived(proof.clone(), proof.len()).expect("a valid message");
    let reads: Vec<Read> = std::iter::from_fn(|| {
        let read = server.next_read(PIECE_BYTES_MAX)?;
        let ticket = server.read_begun(read);
        server.read_ended(ticket, vec![b'c'; read.bytes]);
        Some(read)
    })
    .collect();
    let of = |at: u64, bytes| Read { key: Some(9), at: (1 << 40) + at, bytes };
    let rest = 300_000 - PIECE_BYTES_MAX;
    assert_eq!(reads, [of(0, PIECE_BYTES_MAX), of(PIECE_BYTES_MAX as u64, rest), of(0, 1)]);
    assert!(server.consume(5).is_none(), "at most the bytes of one source");
    assert_eq!(server.incoming().map(<[u8]>::len), Some(PIECE_BYTES_MAX));
    let mut answer = |server: &mut Server| {
        let draft = server.data(&[IoSlice::new(b"x")], &mut bytes).expect("there are credits");
        sent(server, draft, &bytes, ServerEnd::sent)
    };
    server.consume(PIECE_BYTES_MAX);
    server.consume(rest - 1);
    for (let_go, why) in [(0, "a byte is left"), (2, "all was consumed"), (0, "reported once")] {
        let message = answer(&mut server);
        client.arrived(message.clone(), message.len()).expect("a valid message");
        assert_eq!((client.let_go(), client.let_go()), (let_go, 0), "{why}");
        server.consume(1);
        server.consume(1);
    }
    assert!(!server.has_incoming());
    let mut wrong = answer(&mut server);
    wrong[9] = 1;
    assert_eq!(
        client.arrived(wrong.clone(), wrong.len()),
        Err(ProtocolError::LetGo(1)),
        "there is none left"
    );
    let (mut bytes, len) = message(DATA, 0, 0, &[1]);
    bytes[9] = 1;
    assert_eq!(
        Server::new(PLAIN, NUMBER).arrived(bytes, len),
        Err(ProtocolError::LetGo(1)),
        "nothing was lent"
    );
}

#[test]
fn stray_message_is_dropped_and_its_buffer_returned() {
    let mut server = Server::new(PLAIN, NUMBER);
    let (mut bytes, len) = message(DATA, 0, 0, &[1]);
    bytes[0] = 4;
    assert_eq!((server.arrived(bytes, len), server.arrived(vec![5; 3], 3)), (Ok(()), Ok(())));
    assert!(server.freed().is_some() && server.freed().is_some() && server.freed().is_none());
    let mut client = Client::new(PLAIN);
    client.arrived(vec![1; 100], 100).expect("the message is dropped");
    assert_eq!(client.strays(), 1);
    assert_eq!(client.arrived(vec![5; 10], 11), Err(ProtocolError::Length(11)), "more than the buffer holds");
}

#[test]
fn closing_endpoint_says_so_after_its_last_acknowledgement() {
    let mut world = World::new(1, terms(4, 4, 1 << 16, 1 << 16), 0, 100_000);
    world.refuses_one_in = usize::MAX;
    world.settle_server();
    while !world.server.has_proof() {
        world.deliver();
    }
    world.server_sends(20_000);
    world.down.whole = world.down.whole[..world.down.sent].into();
    assert!(world.down.sent >= LONG_BYTES_MIN && world.server.puts_in_flight() > 0);
    world.server.leave();
    world.settle_server();
    assert!(!world.server.has_said_bye(), "bytes are still being written");
    assert_eq!(world.server.next(1), SendMode::Later);
    world.run(true, true);
    world.assert_done();
    assert!(world.server.has_said_bye() && world.client.has_peer_left());
    assert_eq!(world.client.next(1), SendMode::Later);
    world.client.leave();
    world.run(true, true);
    assert!(world.client.has_said_bye() && world.server.has_peer_left());
    assert_eq!(world.server.freed(), None);
}

#[test]
fn out_of_range_terms_are_rejected() {
    assert_eq!(PLAIN.check(), Ok(()));
    for credits in [0, 1, CREDITS_MAX + 1] {
        assert_eq!(Terms { own_credits: credits, ..PLAIN }.check(), Err(TermsError::Credits(credits)));
        assert_eq!(Terms { peer_credits: credits, ..PLAIN }.check(), Err(TermsError::Credits(credits)));
    }
    for bytes in [1, RING_BYTES_MIN - 1, RING_BYTES_MAX + 1, u64::MAX] {
        assert_eq!(Terms { staging_bytes: bytes, ..PLAIN }.check(), Err(TermsError::Ring(bytes)));
        assert_eq!(Terms { landing_bytes: bytes, ..PLAIN }.check(), Err(TermsError::Ring(bytes)));
    }
}

/// Builds a message whose bytes are counted as sent.
fn sent<E>(end: &mut E, draft: Draft, message: &[u8], reported: fn(&mut E, Draft)) -> Vec<u8> {
    let message = message[..draft.bytes()].to_vec();
    reported(end, draft);
    message
}

#[test]
fn server_waits_for_the_client_to_prove_its_address() {
    let terms = terms(4, 4, 1 << 16, 1 << 16);
    let new = || (Client::new(terms), Server::new(mirrored(terms), NUMBER));
    let (mut client, mut server) = new();
    let mut short = [0; SHORT_BYTES];
    assert!(server.short(&mut short).is_none() && !server.lacks_proof(), "nothing was sent");
    client.staged(StagingRange { at: 0, bytes: 20_000 });
    let draft = client.short(&mut short).expect("a message about staged bytes");
    let long = sent(&mut client, draft, &short, ClientEnd::sent);
    client.leave();
    assert!(client.short(&mut short).is_none(), "the goodbye follows the proof");
    server.arrived(long.clone(), long.len()).expect("a valid message");
    assert!(server.lacks_proof() && server.has_incoming() && server.incoming().is_none());
    assert_eq!(
        (server.next_read(PIECE_BYTES_MAX), server.next(1), server.next(100_000)),
        (None, SendMode::Later, SendMode::Later)
    );
    assert!(server.data(&[IoSlice::new(b"x")], &mut [0; MESSAGE_BYTES]).is_none());
    server.leave();
    let draft = server.short(&mut short).expect("a proof request");
    let request = sent(&mut server, draft, &short, ServerEnd::sent);
    assert!(server.short(&mut short).is_none(), "once, and nothing else");
    client.arrived(request.clone(), request.len()).expect("a valid message");
    let draft = client.short(&mut short).expect("a proof");
    let proof = sent(&mut client, draft, &short, ClientEnd::sent);
    assert!(client.short(&mut short).is_some(), "goodbye");
    server.arrived(proof.clone(), proof.len()).expect("a valid message");
    assert!(!server.lacks_proof());
    assert_eq!(server.next_read(PIECE_BYTES_MAX), Some(Read { key: None, at: 0, bytes: 20_000 }));
    assert!(server.short(&mut short).is_some(), "the server says goodbye, too");
    // Requested twice, proven wrongly, or not requested.
    assert_eq!(
        client.arrived(request.clone(), request.len()),
        Err(ProtocolError::Sequence { came: 0, expected: 1 })
    );
    let (mut client, mut server) = new();
    client.arrived(request.clone(), request.len()).expect("a valid message");
    let mut again = request.clone();
    again[12] = 1;
    assert_eq!(client.arrived(again.clone(), again.len()), Err(ProtocolError::Kind(8)));
    let mut early = proof.clone();
    early[10..16].fill(0);
    assert_eq!(server.arrived(early.clone(), early.len()), Err(ProtocolError::Proof), "unasked");
    let (_, mut server) = new();
    server.want_proof();
    let draft = server.short(&mut short).expect("a proof request");
    let _ = sent(&mut server, draft, &short, ServerEnd::sent);
    early[16] ^= 1;
    assert_eq!(server.arrived(early.clone(), early.len()), Err(ProtocolError::Proof), "another number");
}
