//! Two servers that get the same requests: one with little memory and flash, one with much memory. Their answers are alike.

use std::net::TcpStream;
use std::time::Instant;

use crate::common::{Client, TestServer, serve};
use crate::tier::Tier;

/// The servers, each with a client.
pub struct Pair {
    pub tier: Tier,
    memory: TestServer,
    started: Instant,
    evicts: bool,
    pub flash: Client<TcpStream>,
    pub plain: Client<TcpStream>,
}

impl Pair {
    pub fn new(flags: &str) -> Option<Pair> {
        let tier = Tier::new(flags)?;
        let memory = serve(&format!("-m 256 {flags}"));
        let (flash, plain) = (tier.server.connect(), memory.connect());
        let evicts = !flags.contains("-M");
        Some(Pair { tier, memory, started: Instant::now(), evicts, flash, plain })
    }

    /// Sends the requests to both servers.
    pub fn say_to_both(&mut self, requests: &[u8]) {
        self.flash.say(requests);
        self.plain.say(requests);
    }

    /// Returns whether answers of the server with flash and of the other mean the same, for an item of which each server
    /// told this CAS value.
    pub fn are_alike(&self, old_cas: [u64; 2], flash: &str, plain: &str) -> bool {
        // The servers tell the last access to within half the age of its segment, which is younger than they are.
        let access_seconds = 30.max(self.started.elapsed().as_secs() as i64);
        Tolerance { old_cas, access_seconds, evicts: self.evicts }.are_alike(flash, plain)
    }

    pub fn stop(self) {
        self.tier.server.stop();
        self.memory.stop();
    }
}

/// What differs between two answers of the same meaning: CAS values, and seconds that passed.
#[derive(Clone, Copy, Debug)]
struct Tolerance {
    /// The item's CAS value on the server with flash, and on the other.
    old_cas: [u64; 2],
    /// The most seconds between the last accesses that they tell.
    access_seconds: i64,
    /// Small items that the server with flash kept unread in memory count as fetched.
    evicts: bool,
}

impl Tolerance {
    fn are_alike(self, flash: &str, plain: &str) -> bool {
        let [flash, plain] = [flash, plain].map(|answer| answer.split("\r\n").collect::<Vec<_>>());
        flash.len() == plain.len()
            && flash
                .iter()
                .zip(&plain)
                .all(|(flash, plain)| flash == plain || self.are_lines_alike(flash, plain))
    }

    fn are_lines_alike(self, flash: &str, plain: &str) -> bool {
        let [flash, plain] = [flash, plain].map(|line| line.split(' ').collect::<Vec<_>>());
        let has_cas = flash[0] == "VALUE" && flash.len() == 5;
        flash.len() == plain.len()
            && flash.iter().zip(&plain).enumerate().all(|(at, (flash, plain))| {
                let number = |token: &str, prefix: &str| {
                    token.strip_prefix(prefix).and_then(|n| n.parse::<i64>().ok())
                };
                let are = |prefix: &str, is_it: &dyn Fn(i64, i64) -> bool| {
                    number(flash, prefix)
                        .zip(number(plain, prefix))
                        .is_some_and(|(flash, plain)| is_it(flash, plain))
                };
                let is_cas = |flash: i64, plain: i64| {
                    (flash as u64 == self.old_cas[0]) == (plain as u64 == self.old_cas[1])
                };
                let is_time =
                    |flash: i64, plain: i64| (flash < 0) == (plain < 0) && (flash - plain).abs() <= 3;
                let is_near = |flash: i64, plain: i64| (flash - plain).abs() <= self.access_seconds;
                // The size has the chunks of a long value.
                let is_size = |flash: i64, plain: i64| (flash - plain).abs() <= 64 + plain / 20;
                let is_kept_unread =
                    self.evicts && [("h1", "h0"), ("fetch=yes", "fetch=no")].contains(&(flash, plain));
                flash == plain
                    || is_kept_unread
                    || has_cas && at == 4 && are("", &is_cas)
                    || are("c", &is_cas)
                    || are("cas=", &is_cas)
                    || ["t", "exp="].iter().any(|prefix| are(prefix, &is_time))
                    || ["l", "la="].iter().any(|prefix| are(prefix, &is_near))
                    || are("size=", &is_size)
            })
    }
}
