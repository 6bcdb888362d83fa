//! A proxy that alters answers, to test that the comparison detects it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::Result;

/// The alteration of every suitable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Harm {
    /// Changes one bit of one byte.
    Flip,
    /// Drops the last byte that has arrived.
    Drop,
    /// Adds a line end, as memcached 1.6.45 does after a get of a key that is too long.
    Extra,
    /// Replaces "stored" by "not stored".
    NotStored,
    /// Turns a miss into a hit.
    Hit,
    /// Changes the CAS value, in text and meta.
    Cas,
    /// Drops the flag that the client won.
    Win,
    /// Changes an unlimited time to live to 0.
    Ttl,
    /// Changes the status of a binary answer.
    Status,
    /// Changes the CAS value of a binary answer.
    BinaryCas,
    /// Closes the connection.
    Close,
    /// Sends no answer.
    Silence,
}

/// A proxy in front of a server.
#[derive(Debug)]
pub struct Saboteur {
    address: SocketAddr,
    done: Arc<AtomicU64>,
}

impl Saboteur {
    /// Starts a proxy that alters every `every`-th opportunity. Its threads end with the process: it is for
    /// short runs.
    pub fn start(server: SocketAddr, harm: Harm, every: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let done = Arc::new(AtomicU64::new(0));
        let opportunities = Arc::new(AtomicU64::new(0));
        let count = done.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(server) else { return };
                let (count, opportunities) = (count.clone(), opportunities.clone());
                let act = move |answer: &mut Vec<u8>| {
                    if !offers(harm, answer) {
                        return true;
                    }
                    if opportunities.fetch_add(1, Ordering::Relaxed) % every != every - 1 {
                        return true;
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    apply(harm, answer)
                };
                serve(client, upstream, act);
            }
        });
        Ok(Self { address, done })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of alterations.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

fn serve(client: TcpStream, upstream: TcpStream, mut act: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static) {
    let halves = (client.try_clone(), upstream.try_clone());
    let (Ok(client_back), Ok(upstream_back)) = halves else { return };
    let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
    thread::spawn(move || copy(client, upstream, |_| true));
    thread::spawn(move || copy(upstream_back, client_back, &mut act));
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut act: impl FnMut(&mut Vec<u8>) -> bool) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut chunk) {
        let mut bytes = chunk[..len].to_vec();
        if !act(&mut bytes) {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

const MADE_UP_HIT: (&[u8], &[u8]) = (b"EN\r\n", b"HD\r\n");

/// Returns whether these bytes can be altered.
fn offers(harm: Harm, answer: &[u8]) -> bool {
    let binary = answer.first() == Some(&0x81);
    match harm {
        Harm::Flip | Harm::Drop | Harm::Extra | Harm::Close | Harm::Silence => true,
        Harm::NotStored => find(answer, b"STORED\r\n").is_some(),
        Harm::Hit => !binary && find(answer, MADE_UP_HIT.0).is_some(),
        Harm::Cas => cas_digit(answer).is_some(),
        Harm::Win => find(answer, b" W\r\n").is_some(),
        Harm::Ttl => find(answer, b" t-1").is_some(),
        Harm::Status => binary,
        Harm::BinaryCas => binary && answer.len() >= 24 && answer[16..24] != [0; 8],
    }
}

/// Alters the bytes; returns false to close the connection.
fn apply(harm: Harm, answer: &mut Vec<u8>) -> bool {
    match harm {
        Harm::Flip => {
            let middle = answer.len() / 2;
            answer[middle] ^= 1;
        }
        Harm::Drop => {
            answer.pop();
        }
        Harm::Extra => answer.extend(b"\r\n"),
        Harm::NotStored => replace(answer, b"STORED\r\n", b"NOT_STORED\r\n"),
        Harm::Hit => replace(answer, MADE_UP_HIT.0, MADE_UP_HIT.1),
        Harm::Cas => {
            let digit = cas_digit(answer).expect("there is one");
            answer[digit] = b'1' + (answer[digit] - b'0' + 1) % 9;
        }
        Harm::Win => replace(answer, b" W\r\n", b"\r\n"),
        Harm::Ttl => replace(answer, b" t-1", b" t0"),
        Harm::Status => answer[7] ^= 1,
        Harm::BinaryCas => answer[23] ^= 1,
        Harm::Close => return false,
        Harm::Silence => answer.clear(),
    }
    true
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

fn replace(bytes: &mut Vec<u8>, pattern: &[u8], by: &[u8]) {
    let at = find(bytes, pattern).expect("it is there");
    bytes.splice(at..at + pattern.len(), by.iter().copied());
}

/// Returns the first digit of the CAS value in a meta answer.
fn cas_digit(answer: &[u8]) -> Option<usize> {
    let mut start = 0;
    for line in answer.split_inclusive(|&byte| byte == b'\n') {
        let place =
            find(line, b" c").map(|at| at + 2).filter(|&at| line.get(at).is_some_and(u8::is_ascii_digit));
        if let Some(at) = place.filter(|_| line.starts_with(b"HD ") || line.starts_with(b"VA ")) {
            return Some(start + at);
        }
        start += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harmed(harm: Harm, answer: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = answer.to_vec();
        (offers(harm, answer) && apply(harm, &mut bytes)).then_some(bytes)
    }

    #[test]
    fn harm_alters_matching_answers() {
        assert_eq!(harmed(Harm::NotStored, b"STORED\r\n").unwrap(), b"NOT_STORED\r\n");
        assert_eq!(harmed(Harm::NotStored, b"EXISTS\r\n"), None);
        assert_eq!(harmed(Harm::Extra, b"x").unwrap(), b"x\r\n");
        assert_eq!(harmed(Harm::Win, b"HD X W\r\n").unwrap(), b"HD X\r\n");
        assert_eq!(harmed(Harm::Ttl, b"HD t-1\r\n").unwrap(), b"HD t0\r\n");
        assert_ne!(harmed(Harm::Cas, b"HD c19\r\n").unwrap(), b"HD c19\r\n");
        assert_eq!(harmed(Harm::Cas, b"HD kc1\r\n"), None);
        assert_eq!(harmed(Harm::Close, b"x"), None);
    }
}
