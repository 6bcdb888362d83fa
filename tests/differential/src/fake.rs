//! A server for tests: a small part of memcached, with optional faults. Unknown commands always get the
//! same answer, which is enough for a comparison.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::answer::HEADER_LEN;

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault.
    None,
    /// Increments items with client flags 5 by one too many.
    CountsWrong,
    /// Keeps the CAS value when an item is stored again.
    KeepsCas,
    /// Answers a silent store.
    IgnoresNoreply,
    /// Starts to count CAS values from another number, which is correct.
    CountsElsewhere,
}

/// Maximum announced length.
const LEN_MAX: u64 = 2 << 20;

#[derive(Debug, Clone, Default)]
struct Item {
    flags: u64,
    data: Vec<u8>,
    cas: u64,
}

#[derive(Debug)]
struct Cache {
    fault: Fault,
    items: HashMap<Vec<u8>, Item>,
    cas: u64,
}

/// Starts a server; its threads end with the process.
pub(crate) fn start(fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let cas = if fault == Fault::CountsElsewhere { 7000 } else { 0 };
    let cache = Arc::new(Mutex::new(Cache { fault, items: HashMap::new(), cas }));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let cache = cache.clone();
            thread::spawn(move || serve(stream, &cache));
        }
    });
    address
}

fn serve(mut stream: TcpStream, cache: &Mutex<Cache>) {
    let _ = stream.set_nodelay(true);
    let mut input = Vec::new();
    let mut chunk = [0; 16 << 10];
    while let Ok(len @ 1..) = stream.read(&mut chunk) {
        input.extend_from_slice(&chunk[..len]);
        let mut output = Vec::new();
        let mut open = true;
        while open {
            let mut cache = cache.lock().expect("no panic in another connection");
            let used = match input.first() {
                Some(0x80) => cache.packet(&input, &mut output),
                _ => cache.line(&input, &mut output),
            };
            match used {
                Used::Bytes(len) => drop(input.drain(..len)),
                Used::More => break,
                Used::Close => open = false,
            }
        }
        if stream.write_all(&output).is_err() || !open {
            return;
        }
    }
}

enum Used {
    Bytes(usize),
    More,
    Close,
}

impl Cache {
    fn next_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    fn line(&mut self, input: &[u8], output: &mut Vec<u8>) -> Used {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return Used::More };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        let mut used = end + 1;
        let place = match words.first() {
            Some(&b"ms") => 2,
            Some(&(b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas")) => 4,
            _ => 0,
        };
        let mut data = &[][..];
        let len = words.get(place).filter(|_| place > 0).and_then(|word| number(word));
        if let Some(len) = len.filter(|&len| len < LEN_MAX) {
            let len = len as usize;
            if input.len() < used + len + 2 {
                return Used::More;
            }
            data = &input[used..used + len];
            used += len + 2;
            if &input[used - 2..used] != b"\r\n" {
                output.extend(b"CLIENT_ERROR bad data chunk\r\n");
                return Used::Bytes(used);
            }
        } else if place > 0 {
            output.extend(b"CLIENT_ERROR bad command line format\r\n");
            return Used::Bytes(used);
        }
        if words.first() == Some(&&b"quit"[..]) {
            return Used::Close;
        }
        let answer = self.command(&words, data);
        let silent = words.last() == Some(&&b"noreply"[..]) && self.fault != Fault::IgnoresNoreply;
        if !silent {
            output.extend(answer);
        }
        Used::Bytes(used)
    }

    fn command(&mut self, words: &[&[u8]], data: &[u8]) -> Vec<u8> {
        let line = |text: &str| format!("{text}\r\n").into_bytes();
        match *words {
            [b"mn", ..] => line("MN"),
            [b"flush_all", ..] => {
                self.items.clear();
                line("OK")
            }
            [b"set", key, flags, ..] => {
                self.store(key, number(flags).unwrap_or(0), data);
                line("STORED")
            }
            [b"ms", key, ..] => {
                self.store(key, 0, data);
                if words.contains(&&b"q"[..]) { Vec::new() } else { line("HD") }
            }
            [b"get" | b"gets", ref keys @ ..] => self.values(keys, words[0] == b"gets"),
            [b"mg", key, ref flags @ ..] => self.meta_get(key, flags),
            [b"delete", key, ..] => {
                line(if self.items.remove(key).is_some() { "DELETED" } else { "NOT_FOUND" })
            }
            [b"incr", key, delta, ..] => self.count(key, number(delta).unwrap_or(0)),
            _ => line("ERROR"),
        }
    }

    fn store(&mut self, key: &[u8], flags: u64, data: &[u8]) {
        let kept = self.items.get(key).filter(|_| self.fault == Fault::KeepsCas).map(|item| item.cas);
        let cas = kept.unwrap_or_else(|| self.next_cas());
        self.items.insert(key.to_vec(), Item { flags, data: data.to_vec(), cas });
    }

    fn values(&self, keys: &[&[u8]], with_cas: bool) -> Vec<u8> {
        let mut answer = Vec::new();
        for key in keys {
            if let Some(item) = self.items.get(*key) {
                let cas = if with_cas { format!(" {}", item.cas) } else { String::new() };
                answer.extend([b"VALUE ", *key].concat());
                answer.extend(format!(" {} {}{cas}\r\n", item.flags, item.data.len()).into_bytes());
                answer.extend([&item.data[..], b"\r\n"].concat());
            }
        }
        answer.extend(b"END\r\n");
        answer
    }

    fn meta_get(&mut self, key: &[u8], flags: &[&[u8]]) -> Vec<u8> {
        let made = !self.items.contains_key(key) && flags.iter().any(|flag| flag.starts_with(b"N"));
        if made {
            self.store(key, 0, b"");
        }
        let Some(item) = self.items.get(key) else {
            return if flags.contains(&&b"q"[..]) { Vec::new() } else { b"EN\r\n".to_vec() };
        };
        let value = flags.contains(&&b"v"[..]);
        let mut answer = if value { format!("VA {}", item.data.len()) } else { "HD".to_owned() };
        for flag in flags {
            match *flag {
                b"c" => answer.push_str(&format!(" c{}", item.cas)),
                b"t" => answer.push_str(" t-1"),
                b"s" => answer.push_str(&format!(" s{}", item.data.len())),
                _ => {}
            }
        }
        answer.push_str(if made { " W\r\n" } else { "\r\n" });
        let mut answer = answer.into_bytes();
        if value {
            answer.extend([&item.data[..], b"\r\n"].concat());
        }
        answer
    }

    fn count(&mut self, key: &[u8], delta: u64) -> Vec<u8> {
        let fault = self.fault;
        let Some(item) = self.items.get_mut(key) else { return b"NOT_FOUND\r\n".to_vec() };
        let Some(value) = number(&item.data) else { return b"CLIENT_ERROR no number\r\n".to_vec() };
        let wrong = fault == Fault::CountsWrong && item.flags == 5;
        item.data = value.wrapping_add(delta).wrapping_add(u64::from(wrong)).to_string().into_bytes();
        let answer = [&item.data[..], b"\r\n"].concat();
        item.cas = self.cas + 1;
        self.cas += 1;
        answer
    }

    fn packet(&mut self, input: &[u8], output: &mut Vec<u8>) -> Used {
        if input.len() < HEADER_LEN {
            return Used::More;
        }
        let body_len = u32::from_be_bytes(input[8..12].try_into().expect("four bytes")) as usize;
        if body_len > 4 << 20 {
            return Used::Close;
        }
        if input.len() < HEADER_LEN + body_len {
            return Used::More;
        }
        let key_len = usize::from(u16::from_be_bytes([input[2], input[3]]));
        let extras_len = usize::from(input[4]);
        let body = &input[HEADER_LEN..HEADER_LEN + body_len];
        let Some(key) = body.get(extras_len..extras_len + key_len) else { return Used::Close };
        let (status, cas, value): (u16, u64, Vec<u8>) = match input[1] {
            0x01 => {
                self.store(key, 0, &body[extras_len + key_len..]);
                (0, self.items[key].cas, Vec::new())
            }
            0x00 => match self.items.get(key) {
                Some(item) => (0, item.cas, item.data.clone()),
                None => (1, 0, b"Not found".to_vec()),
            },
            0x0a => (0, 0, Vec::new()),
            _ => (0x81, 0, b"Unknown command".to_vec()),
        };
        output.extend([0x81, input[1], 0, 0, 0, 0]);
        output.extend(status.to_be_bytes());
        output.extend((value.len() as u32).to_be_bytes());
        output.extend(&input[12..16]);
        output.extend(cas.to_be_bytes());
        output.extend(value);
        Used::Bytes(HEADER_LEN + body_len)
    }
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
