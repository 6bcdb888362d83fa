//! Two servers that get the same requests: one with little memory and flash, one with much memory. Their answers are alike.

use std::net::TcpStream;

use crate::common::{Client, TestServer, serve};
use crate::tier::Tier;

/// The servers, each with a client.
pub struct Pair {
    pub tier: Tier,
    memory: TestServer,
    pub flash: Client<TcpStream>,
    pub plain: Client<TcpStream>,
}

impl Pair {
    pub fn new(flags: &str) -> Option<Pair> {
        let tier = Tier::new(flags)?;
        let memory = serve(&format!("-m 256 {flags}"));
        let (flash, plain) = (tier.server.connect(), memory.connect());
        Some(Pair { tier, memory, flash, plain })
    }

    /// Sends the requests to both servers.
    pub fn say_to_both(&mut self, requests: &[u8]) {
        self.flash.say(requests);
        self.plain.say(requests);
    }

    pub fn stop(self) {
        self.tier.server.stop();
        self.memory.stop();
    }
}

/// What differs between two answers of the same meaning: CAS values, and seconds that passed.
#[derive(Clone, Copy, Debug)]
pub struct Cas {
    /// The item's on the server with flash, and on the other.
    pub old: [u64; 2],
}

impl Cas {
    /// Returns whether answers of the server with flash and of the other mean the same.
    pub fn are_alike(self, flash: &str, plain: &str) -> bool {
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
                let is_cas =
                    |flash: i64, plain: i64| (flash as u64 == self.old[0]) == (plain as u64 == self.old[1]);
                let is_time =
                    |flash: i64, plain: i64| (flash < 0) == (plain < 0) && (flash - plain).abs() <= 3;
                // The last access is known to a few seconds, and the size has the chunks of a long value.
                let is_near = |flash: i64, plain: i64| (flash - plain).abs() <= 30;
                let is_size = |flash: i64, plain: i64| (flash - plain).abs() <= 64 + plain / 20;
                flash == plain
                    || has_cas && at == 4 && are("", &is_cas)
                    || are("c", &is_cas)
                    || are("cas=", &is_cas)
                    || ["t", "exp="].iter().any(|prefix| are(prefix, &is_time))
                    || ["l", "la="].iter().any(|prefix| are(prefix, &is_near))
                    || are("size=", &is_size)
            })
    }
}
