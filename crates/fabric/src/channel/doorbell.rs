//! Doorbells: when an end notifies the other, if the provider has no descriptor to sleep on.
//!
//! Each end sees messages only when it polls, and only the TCP socket beside the link wakes it. Bytes on that socket
//! are *doorbells*; their values do not matter.
//! - The client notifies the server after sending, but not at once: an end that is awake sees the message itself. It
//!   notifies at the latest when it goes to sleep, or when it stays awake and nothing has arrived for a while
//!   ([`ClientDoorbells`]).
//! - The server notifies a client that has notified it before, as soon as it has sent anything ([`ServerDoorbells`]).
//!
//! Why no wakeup is lost: every end *posts first, then notifies*; a woken end *drains the doorbells first, then
//! polls*, and sleeps only if that poll, which began after the last doorbell that it drained, was unsuccessful. The
//! socket orders the two: an end that has drained a doorbell sees everything posted before it.
//! - The server sleeps, and a message of the client is pending. It was posted after the server's last poll, so its
//!   doorbell, which follows it, was not drained before that poll: it is in the socket, or the client has not sent it
//!   yet, and then it is awake and will.
//! - The client sleeps, and a message of the server is pending. Before it slept it had notified the server since the
//!   server's last doorbell ([`ClientDoorbells::must_notify_before_sleep`]), so the server has drained that doorbell,
//!   or will. If it has sent the message before it drains it, it notifies at once, because it counts what it has sent
//!   since its own last doorbell, seen or not; if it sends the message later, it notifies then. So the peer performs
//!   the second poll that a sleeper would have to perform after announcing its sleep.
//!
//! The only unnecessary notification goes to a client that sleeps for the first time since a message was sent to it
//! and has already seen that message.
//!
//! The tests try all orders in which the two ends can take their steps.

use std::time::{Duration, Instant};

/// A client that stays awake sends a doorbell for messages that were posted this long ago without anything arriving
/// since: as long as a server polls before it sleeps.
pub const RING_AFTER: Duration = Duration::from_micros(200);

/// A client's state of the doorbells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientDoorbells {
    /// When something was posted without a doorbell since.
    unrung: Option<Instant>,
    /// Whether it has notified the server since the server's last doorbell.
    is_announced: bool,
}

impl ClientDoorbells {
    /// Records a posted message, or the attempt at one, that the server must see.
    pub fn posted(&mut self, now: Instant) {
        self.unrung.get_or_insert(now);
    }

    /// Notes a doorbell of the server.
    pub fn heard(&mut self) {
        self.is_announced = false;
    }

    /// Returns whether to notify now, after an unsuccessful poll, without sleeping.
    pub fn must_notify_awake(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let must_notify =
            self.unrung.is_some_and(|since| now().saturating_duration_since(since) >= RING_AFTER);
        if must_notify {
            self.notify();
        }
        must_notify
    }

    /// Returns whether to notify before sleeping, after an unsuccessful poll.
    pub fn must_notify_before_sleep(&mut self) -> bool {
        let must_notify = self.unrung.is_some() || !self.is_announced;
        if must_notify {
            self.notify();
        }
        must_notify
    }

    /// Notes a doorbell of this client.
    pub fn notify(&mut self) {
        (self.unrung, self.is_announced) = (None, true);
    }
}

/// A server's state of a client's doorbells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerDoorbells {
    /// Whether the client has notified this end since this end's last doorbell.
    is_wanted: bool,
    /// Whether something was sent since then.
    has_sent: bool,
}

impl ServerDoorbells {
    /// Records a posted message.
    pub fn posted(&mut self) {
        self.has_sent = true;
    }

    /// Notes a doorbell of the client.
    pub fn heard(&mut self) {
        self.is_wanted = true;
    }

    /// Returns whether to notify now.
    pub fn must_notify(&mut self) -> bool {
        let must_notify = self.is_wanted && self.has_sent;
        if must_notify {
            *self = ServerDoorbells::default();
        }
        must_notify
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The state of an end.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum At {
        /// It drains the doorbells.
        Bells,
        /// It polls.
        Poll,
        /// The server: it answers, and notifies if that is requested.
        Answer,
        /// Its poll was unsuccessful, and it must notify before it sleeps.
        Ring,
        /// It sleeps until a doorbell arrives.
        Asleep,
    }

    /// Two ends and the socket between them.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        client: (At, ClientDoorbells),
        server: (At, ServerDoorbells),
        requests: u8,
        answers: u8,
        bells_to_server: bool,
        bells_to_client: bool,
        /// Messages that the client will still send, and those that await an answer.
        left: u8,
        awaited: u8,
        /// Messages that the server has received and not answered; this many are a request.
        taken: u8,
        length: u8,
        /// The client never sleeps.
        is_restless: bool,
    }

    impl World {
        fn new(length: u8, is_restless: bool) -> World {
            World {
                client: (At::Poll, ClientDoorbells::default()),
                server: (At::Poll, ServerDoorbells::default()),
                requests: 0,
                answers: 0,
                bells_to_server: false,
                bells_to_client: false,
                left: 4,
                awaited: 0,
                taken: 0,
                length,
                is_restless,
            }
        }

        /// The client's next step, if it can take one; `sends` if it sends where it has a choice.
        fn client_steps(&self, start: Instant, sends: bool) -> Option<World> {
            let mut next = self.clone();
            let (at, doorbells) = &mut next.client;
            match *at {
                // Another thread of its process wakes it, to send more.
                At::Asleep if sends && self.left > 0 => *at = At::Poll,
                At::Asleep if !self.bells_to_client => return None,
                At::Asleep => *at = At::Bells,
                At::Bells => {
                    if std::mem::take(&mut next.bells_to_client) {
                        doorbells.heard();
                    }
                    *at = At::Poll;
                }
                At::Poll if sends => {
                    next.left = self.left.checked_sub(1)?;
                    next.requests += 1;
                    next.awaited += 1;
                    doorbells.posted(start);
                }
                At::Poll if self.answers > 0 => {
                    next.awaited -= self.length * std::mem::take(&mut next.answers);
                }
                // It has received everything.
                At::Poll if self.awaited == 0 => return None,
                At::Poll if self.is_restless => {
                    next.bells_to_server |= doorbells.must_notify_awake(|| start + RING_AFTER);
                    *at = At::Bells;
                }
                At::Poll => *at = At::Ring,
                At::Ring | At::Answer => {
                    next.bells_to_server |= doorbells.must_notify_before_sleep();
                    *at = At::Asleep;
                }
            }
            Some(next)
        }

        fn server_steps(&self) -> Option<World> {
            let mut next = self.clone();
            let (at, doorbells) = &mut next.server;
            match *at {
                At::Asleep if !self.bells_to_server => return None,
                At::Asleep => *at = At::Bells,
                At::Bells => {
                    if std::mem::take(&mut next.bells_to_server) {
                        doorbells.heard();
                        next.bells_to_client |= doorbells.must_notify();
                    }
                    *at = At::Poll;
                }
                At::Poll => {
                    next.taken += std::mem::take(&mut next.requests);
                    let has_request = next.taken >= self.length;
                    *at = match self.requests {
                        _ if has_request => At::Answer,
                        0 => At::Asleep,
                        _ => At::Poll,
                    };
                }
                At::Answer | At::Ring => {
                    next.taken -= self.length;
                    next.answers += 1;
                    doorbells.posted();
                    next.bells_to_client |= doorbells.must_notify();
                    // It may or may not read the socket before it polls again.
                    *at = if next.taken >= self.length { At::Answer } else { At::Poll };
                }
            }
            Some(next)
        }
    }

    /// Explores all executions; `stuck` checks the states in which no end can proceed.
    fn explore(first: World, mut stuck: impl FnMut(&World)) -> usize {
        let start = Instant::now();
        let (mut seen, mut left) = (HashSet::from([first.clone()]), vec![first]);
        while let Some(world) = left.pop() {
            let next =
                [world.client_steps(start, true), world.client_steps(start, false), world.server_steps()];
            if next.iter().all(Option::is_none) {
                stuck(&world);
            }
            left.extend(next.into_iter().flatten().filter(|next| seen.insert(next.clone())));
        }
        seen.len()
    }

    #[test]
    fn receiver_never_sleeps_while_a_message_is_ready() {
        for (length, is_restless) in [(1, false), (1, true), (2, false), (2, true)] {
            let mut ends = 0;
            let count = explore(World::new(length, is_restless), |world| {
                assert_eq!((world.left, world.awaited, world.answers), (0, 0, 0), "{world:?}");
                ends += 1;
            });
            assert!(ends > 0 && count > 100, "{count}");
        }
    }

    #[test]
    fn spinning_waiter_rings_once_for_its_messages() {
        let now = Instant::now();
        let mut doorbells = ClientDoorbells::default();
        assert!(!doorbells.must_notify_awake(|| panic!("nothing was sent")));
        doorbells.posted(now);
        doorbells.posted(now + RING_AFTER);
        assert!(!doorbells.must_notify_awake(|| now));
        assert!(doorbells.must_notify_awake(|| now + RING_AFTER));
        assert!(!doorbells.must_notify_awake(|| panic!("the doorbell was sent")));
        assert!(!doorbells.must_notify_before_sleep(), "the server was notified");
        doorbells.heard();
        assert!(doorbells.must_notify_before_sleep() && !doorbells.must_notify_before_sleep());
    }
}
