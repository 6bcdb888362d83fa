//! Flow control of both ends: message numbers, credits and ordering.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::ops::Deref;

use super::message::{
    self, Acknowledgement, Body, HEADER_BYTES, Kind, LENT_HEADER_BYTES, LentMemory, MESSAGE_BYTES, Message,
    SHORT_BYTES,
};
use super::{CREDITS_MESSAGES_MAX, ProtocolError, Terms};

/// How bytes of the stream can be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// Not now: credits or room must be returned first, or writes complete.
    Later,
    /// In a message.
    Data,
    /// Through memory.
    StagingRange(StagingRange),
}

/// A range of staging or landing memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingRange {
    /// Its offset.
    pub at: usize,
    /// Its length, at least one.
    pub bytes: usize,
}

/// A built message, which counts once the fabric has accepted it: build no other before that.
#[derive(Debug)]
#[must_use = "a message that was sent but not reported with `sent` breaks the link"]
pub struct Draft {
    bytes: usize,
    taken: usize,
    acknowledgement: Acknowledgement,
    pub(super) body: Body,
}

impl Draft {
    fn new(bytes: usize, taken: usize, acknowledgement: Acknowledgement, body: Body) -> Draft {
        Draft { bytes, taken, acknowledgement, body }
    }

    /// Returns its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of the stream in it, except those in lent memory.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

/// Copies the parts behind the first `at` bytes, as far as there is room in a message: where they end.
fn copy(parts: &[IoSlice<'_>], at: usize, into: &mut [u8]) -> usize {
    let most = into.len().min(MESSAGE_BYTES);
    let mut end = at;
    for part in parts {
        let len = part.len().min(most.saturating_sub(end));
        into[end..end + len].copy_from_slice(&part[..len]);
        end += len;
    }
    end
}

/// Returns the part of the credits that only Taken, Room and Bye may use. This many are worth a message.
pub(super) fn reserve(credits: u16) -> u16 {
    credits.div_ceil(4)
}

/// Numbers and credits of both directions.
#[derive(Debug)]
pub(super) struct FlowControl<B> {
    terms: Terms,
    // ---- to the peer ----
    /// The next message's number.
    sequence: u32,
    credits: u16,
    /// Lent memories that the peer may read …
    lent: usize,
    /// … and those released since the driver last asked.
    let_go: usize,
    // ---- from the peer ----
    /// The next message's number.
    expected: u32,
    /// Messages that arrived early.
    early: BTreeMap<u32, (B, Message)>,
    /// Messages that are next in order.
    pub ready: VecDeque<(B, Body)>,
    /// Messages that arrived and whose credits were not returned …
    unreturned: u16,
    /// … and those of them that were consumed.
    owed: u16,
    freed: Vec<B>,
    /// The number of lent memories that this end has released without telling the peer.
    untold: usize,
    /// Messages with another token.
    strays: u64,
    broken: Option<ProtocolError>,
    /// The peer's last message has arrived.
    has_peer_left: bool,
    is_leaving: bool,
    has_said_bye: bool,
}

impl<B: Deref<Target = [u8]>> FlowControl<B> {
    pub fn new(terms: Terms) -> FlowControl<B> {
        FlowControl {
            terms,
            sequence: 0,
            credits: terms.peer_credits,
            lent: 0,
            let_go: 0,
            expected: 0,
            early: BTreeMap::new(),
            ready: VecDeque::new(),
            unreturned: 0,
            owed: 0,
            freed: Vec::new(),
            untold: 0,
            strays: 0,
            broken: None,
            has_peer_left: false,
            is_leaving: false,
            has_said_bye: false,
        }
    }

    // ---- receiving ----

    /// Handles a message: it, and those that waited for it, become ready.
    pub fn arrived(&mut self, buffer: B, len: usize) -> Result<(), ProtocolError> {
        self.check()?;
        let arrived = self.try_arrived(buffer, len);
        arrived.map_err(|broken| self.fail(broken))
    }

    fn try_arrived(&mut self, buffer: B, len: usize) -> Result<(), ProtocolError> {
        let bytes = buffer.get(..len).ok_or(ProtocolError::Length(len))?;
        if message::token_of(bytes) != Some(self.terms.own_token) {
            self.strays += 1;
            self.freed.push(buffer);
            return Ok(());
        }
        let message = message::read(bytes)?;
        let (came, expected) = (message.sequence, self.expected);
        let window = u32::from(self.terms.own_credits) + u32::from(CREDITS_MESSAGES_MAX);
        if came.wrapping_sub(expected) >= window || self.early.contains_key(&came) {
            return Err(ProtocolError::Sequence { came, expected });
        }
        if message.body != Body::Credits {
            if self.unreturned == self.terms.own_credits {
                return Err(ProtocolError::Overrun);
            }
            self.unreturned += 1;
        } else if came != expected && self.early_credits() == usize::from(CREDITS_MESSAGES_MAX) {
            // They hold receive buffers beyond those granted for them.
            return Err(ProtocolError::Overrun);
        }
        if came != expected {
            self.early.insert(came, (buffer, message));
            return Ok(());
        }
        self.take_turn(buffer, message)?;
        while let Some((buffer, message)) = self.early.remove(&self.expected) {
            self.take_turn(buffer, message)?;
        }
        Ok(())
    }

    /// Counts credits that arrived early.
    fn early_credits(&self) -> usize {
        self.early.values().filter(|(_, message)| message.body == Body::Credits).count()
    }

    fn take_turn(&mut self, buffer: B, message: Message) -> Result<(), ProtocolError> {
        if self.has_peer_left {
            return Err(ProtocolError::AfterBye);
        }
        self.expected = self.expected.wrapping_add(1);
        let Message { credits, let_go, body, .. } = message;
        let spent = self.terms.peer_credits - self.credits;
        if credits > spent || body == Body::Credits && credits < reserve(self.terms.peer_credits) {
            return Err(ProtocolError::Credits(credits));
        }
        self.lent = self.lent.checked_sub(let_go.into()).ok_or(ProtocolError::LetGo(let_go))?;
        self.let_go += usize::from(let_go);
        self.credits += credits;
        self.ready.push_back((buffer, body));
        Ok(())
    }

    /// Handles a message of another kind than this end receives, or one that is consumed at once.
    pub fn take_common(&mut self, buffer: B, body: &Body) -> Result<(), ProtocolError> {
        match body {
            Body::Credits => {}
            Body::Bye => self.has_peer_left = true,
            other => return Err(self.fail(ProtocolError::Kind(other.kind() as u8))),
        }
        self.consumed(buffer, body.kind());
        Ok(())
    }

    /// Records that a message was consumed, and its buffer can receive another.
    pub fn consumed(&mut self, buffer: B, kind: Kind) {
        self.owed += u16::from(kind != Kind::Credits);
        self.freed.push(buffer);
    }

    pub fn freed(&mut self) -> Option<B> {
        self.freed.pop()
    }

    /// Returns how many memories the peer has released since the last call.
    pub fn let_go(&mut self) -> usize {
        std::mem::take(&mut self.let_go)
    }

    /// Releases a memory of the peer; the next message reports it.
    pub fn lets_go(&mut self) {
        self.untold += 1;
    }

    #[cfg(test)]
    pub fn untold(&self) -> usize {
        self.untold
    }

    /// Returns what the next message gives back to the peer.
    fn acknowledgement(&self) -> Acknowledgement {
        Acknowledgement { credits: self.owed, let_go: self.untold.min(u8::MAX.into()) as u8 }
    }

    pub fn check(&self) -> Result<(), ProtocolError> {
        self.broken.map_or(Ok(()), Err)
    }

    pub fn fail(&mut self, broken: ProtocolError) -> ProtocolError {
        self.broken = Some(broken);
        broken
    }

    pub fn has_peer_left(&self) -> bool {
        self.has_peer_left
    }

    pub fn strays(&self) -> u64 {
        self.strays
    }

    // ---- sending ----

    /// Returns the number of messages with bytes of the stream that may be sent now.
    pub fn stream_credits(&self) -> usize {
        usize::from(self.credits.saturating_sub(reserve(self.terms.peer_credits)))
    }

    /// Ends the stream.
    pub fn is_over(&self) -> bool {
        self.broken.is_some() || self.is_leaving || self.has_peer_left
    }

    pub fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Returns whether a message was sent; the number wraps around.
    pub fn has_sent(&self) -> bool {
        self.sequence > 0
    }

    pub fn has_said_bye(&self) -> bool {
        self.has_said_bye
    }

    /// Returns the next message that carries no bytes of the stream: memory released, progress of the stream, the
    /// goodbye if nothing of the stream waits, or credits.
    pub fn short(
        &self,
        into: &mut [u8; SHORT_BYTES],
        reported: Option<Body>,
        stream: Option<Body>,
        waits: bool,
    ) -> Option<Draft> {
        if self.broken.is_some() || self.has_said_bye {
            return None;
        }
        let bye = (self.is_leaving && !waits).then_some(Body::Bye);
        let stream = stream.filter(|_| self.stream_credits() > 0);
        let spending = reported.or(stream).or(bye).filter(|_| self.credits > 0);
        let is_worth_it = self.owed >= reserve(self.terms.own_credits);
        let body = spending.or(is_worth_it.then_some(Body::Credits))?;
        let given_back = self.acknowledgement();
        message::write_header(into, self.terms.peer_token, body.kind(), given_back, self.sequence);
        Some(Draft::new(message::write_body(into, &body), 0, given_back, body))
    }

    /// Builds a message with as much of `parts` as it holds, in a buffer for at least one byte of them.
    pub fn data(&self, parts: &[IoSlice<'_>], into: &mut [u8]) -> Option<Draft> {
        if self.is_over() || self.stream_credits() == 0 {
            return None;
        }
        let end = copy(parts, HEADER_BYTES, into);
        if end == HEADER_BYTES {
            return None;
        }
        let given_back = self.acknowledgement();
        message::write_header(into, self.terms.peer_token, Kind::Data, given_back, self.sequence);
        Some(Draft::new(end, end - HEADER_BYTES, given_back, Body::Data(HEADER_BYTES..end)))
    }

    /// Builds a message with all of `before`, and lent memory whose bytes follow; `None` if the buffer has no room for
    /// it.
    pub fn lend(&self, before: &[IoSlice<'_>], lent: &LentMemory, into: &mut [u8]) -> Option<Draft> {
        let whole: usize = before.iter().map(|part| part.len()).sum();
        let has_room = LENT_HEADER_BYTES + whole <= into.len().min(MESSAGE_BYTES);
        if self.is_over() || self.stream_credits() == 0 || !has_room {
            return None;
        }
        let end = copy(before, LENT_HEADER_BYTES, into);
        let given_back = self.acknowledgement();
        message::write_header(into, self.terms.peer_token, Kind::LentMemory, given_back, self.sequence);
        let LentMemory { address, key, bytes } = *lent;
        for (into, number) in into[HEADER_BYTES..].chunks_mut(8).zip([address, key, bytes]) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        let body = Body::LentMemory { lent: *lent, before: LENT_HEADER_BYTES..end };
        Some(Draft::new(end, whole, given_back, body))
    }

    /// Records that the fabric has accepted it.
    pub fn sent(&mut self, draft: &Draft) {
        self.sequence = self.sequence.wrapping_add(1);
        let Acknowledgement { credits, let_go } = draft.acknowledgement;
        self.owed -= credits;
        self.unreturned -= credits;
        self.untold -= usize::from(let_go);
        self.lent += usize::from(draft.body.kind() == Kind::LentMemory);
        self.credits -= u16::from(draft.body != Body::Credits);
        self.has_said_bye |= draft.body == Body::Bye;
    }

    /// Takes all buffers that wait or can be returned.
    pub fn drain(&mut self) -> impl Iterator<Item = B> {
        let early = std::mem::take(&mut self.early).into_values().map(|(buffer, _)| buffer);
        let ready = std::mem::take(&mut self.ready).into_iter().map(|(buffer, _)| buffer);
        std::mem::take(&mut self.freed).into_iter().chain(early).chain(ready)
    }
}
