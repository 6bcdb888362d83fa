//! Who rings when, where a provider has no descriptor to sleep on.
//!
//! Each end sees messages only when it polls, and nothing but the TCP socket beside the link wakes it. Bytes on that are
//! *bells*; what they are is of no matter.
//! - The client rings for the server behind what it sends, but not at once: an end that is awake sees it by itself. It
//!   rings at the latest when it goes to sleep, or when nothing came for a while that it does not sleep
//!   ([`ClientDoorbells`]).
//! - The server rings for a client that has rung before, as soon as it has sent it anything ([`ServerDoorbells`]).
//!
//! Why no wake-up is lost. Every end *posts first, rings then*; who is woken *takes the bells first, polls then*, and sleeps
//! only if that poll, which began behind the last bell that it took, found nothing. The socket orders the two: who has
//! taken a bell sees all that was posted before it.
//! - The server sleeps, and a message of the client's lies there. It was posted behind the server's last poll, so its
//!   bell, which comes behind it, was not taken before that poll: it is in the socket, or the client has not rung yet,
//!   and then it is awake and will.
//! - The client sleeps, and a message of the server's lies there. Before it slept it had rung since the server's last bell
//!   ([`ClientDoorbells::must_notify_before_sleep`]), so the server has taken that bell, or will. When it takes it, it has sent the
//!   message already and rings at once, for it counts what it has sent since its own last bell, seen or not; or it sends it
//!   later, and rings then. That is the second look that a sleeper would have to take behind its announcement: its peer
//!   takes it.
//!
//! The only unnecessary notification goes to a client that sleeps for the first time since a message was sent to it
//! and has already seen that message.
//!
//! The tests try all orders in which the two ends can take their steps.

use std::time::{Duration, Instant};

/// What was sent so long ago, and nothing came since, is rung for by a client that does not sleep: as long as a server looks
/// before it sleeps.
pub const RING_AFTER: Duration = Duration::from_micros(200);

/// What a client knows of bells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientDoorbells {
    /// Something was posted, and no bell followed; since then.
    unrung: Option<Instant>,
    /// It has rung since the server last did.
    is_announced: bool,
}

impl ClientDoorbells {
    /// Something was posted that the server is to see: a message, or the attempt at one.
    pub fn posted(&mut self, now: Instant) {
        self.unrung.get_or_insert(now);
    }

    /// The server has rung.
    pub fn heard(&mut self) {
        self.is_announced = false;
    }

    /// Whether to ring now, behind a poll that found nothing, without sleeping.
    pub fn must_notify_awake(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let must_notify =
            self.unrung.is_some_and(|since| now().saturating_duration_since(since) >= RING_AFTER);
        if must_notify {
            self.notify();
        }
        must_notify
    }

    /// Whether to ring before sleeping, behind a poll that found nothing.
    pub fn must_notify_before_sleep(&mut self) -> bool {
        let must_notify = self.unrung.is_some() || !self.is_announced;
        if must_notify {
            self.notify();
        }
        must_notify
    }

    /// It rings.
    pub fn notify(&mut self) {
        (self.unrung, self.is_announced) = (None, true);
    }
}

/// What a server knows of a client's bells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerDoorbells {
    /// The client has rung since this end last did.
    is_wanted: bool,
    /// Something was sent since then.
    has_sent: bool,
}

impl ServerDoorbells {
    /// A message was posted.
    pub fn posted(&mut self) {
        self.has_sent = true;
    }

    /// The client has rung.
    pub fn heard(&mut self) {
        self.is_wanted = true;
    }

    /// Whether to ring now.
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

    /// Where an end is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum At {
        /// It takes the bells.
        Bells,
        /// It polls.
        Poll,
        /// The server: it answers, and rings if that is wanted.
        Answer,
        /// It has found nothing, and is to ring before it sleeps.
        Ring,
        /// It sleeps, until there is a bell.
        Asleep,
    }

    /// Two ends, and what is between them.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        client: (At, ClientDoorbells),
        server: (At, ServerDoorbells),
        requests: u8,
        answers: u8,
        bells_to_server: bool,
        bells_to_client: bool,
        /// Messages that the client will still send, and those that it waits for an answer to.
        left: u8,
        awaited: u8,
        /// Messages that the server has taken and not answered; so many are a request.
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

        /// The client's next step, if it can take one; `sends` if it is to send, where it can do one or the other.
        fn client_steps(&self, start: Instant, sends: bool) -> Option<World> {
            let mut next = self.clone();
            let (at, doorbells) = &mut next.client;
            match *at {
                // Somebody else of its process wakes it, to send more.
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
                // It has what it wanted.
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
                    // It may look at the socket, or not, before it polls again.
                    *at = if next.taken >= self.length { At::Answer } else { At::Poll };
                }
            }
            Some(next)
        }
    }

    /// All that can come of it; those where nobody can do anything are looked at.
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
    fn whatever_the_order_nobody_sleeps_on_beside_a_message() {
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
    fn who_waits_awake_rings_once_for_what_it_sent() {
        let now = Instant::now();
        let mut doorbells = ClientDoorbells::default();
        assert!(!doorbells.must_notify_awake(|| panic!("nothing was sent")));
        doorbells.posted(now);
        doorbells.posted(now + RING_AFTER);
        assert!(!doorbells.must_notify_awake(|| now));
        assert!(doorbells.must_notify_awake(|| now + RING_AFTER));
        assert!(!doorbells.must_notify_awake(|| panic!("it has rung")));
        assert!(!doorbells.must_notify_before_sleep(), "the server knows that it waits");
        doorbells.heard();
        assert!(doorbells.must_notify_before_sleep() && !doorbells.must_notify_before_sleep());
    }
}
