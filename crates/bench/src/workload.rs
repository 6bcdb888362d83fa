//! What is asked of a server: text requests over one connection, a batch at a time.

use std::fmt::Write as _;

use serde::Serialize;

/// Bytes of a key.
pub const KEY_BYTES: usize = 20;

/// What one batch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// So many `get`s, pipelined.
    Get {
        /// Requests sent before their answers are read.
        pipeline: usize,
    },
    /// So many `set`s, pipelined.
    Set {
        /// Requests sent before their answers are read.
        pipeline: usize,
    },
    /// One `get` of so many keys.
    Multiget {
        /// Keys of the request.
        keys: usize,
    },
}

/// A kind of batch over a set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// What one batch does.
    pub kind: Kind,
    /// Keys that are used, all of them resident.
    pub keys: u32,
    /// Bytes of each value.
    pub value_bytes: usize,
}

/// A batch, ready to send, and the answer that is right.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What is sent.
    pub request: Vec<u8>,
    /// What must come back.
    pub answer: Vec<u8>,
    /// Operations in it: keys read or written.
    pub operations: u64,
}

/// The name of key `i`.
pub fn key(i: u32) -> String {
    let key = format!("key-{i:016}");
    debug_assert_eq!(key.len(), KEY_BYTES);
    key
}

/// The value of key `i`: it tells whose it is.
pub fn value(i: u32, bytes: usize) -> String {
    let stamp = format!("{i:010}.");
    stamp.chars().cycle().take(bytes).collect()
}

impl Workload {
    /// Keys of one batch.
    pub fn batch_keys(&self) -> usize {
        match self.kind {
            Kind::Get { pipeline } | Kind::Set { pipeline } => pipeline,
            Kind::Multiget { keys } => keys,
        }
    }

    /// A name for tables.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Get { pipeline } => format!("get, pipeline {pipeline}"),
            Kind::Set { pipeline } => format!("set, pipeline {pipeline}"),
            Kind::Multiget { keys } => format!("multiget of {keys}"),
        }
    }

    /// The batch of these keys.
    pub fn batch(&self, keys: &[u32]) -> Batch {
        let (mut request, mut answer) = (String::new(), String::new());
        if let Kind::Multiget { .. } = self.kind {
            request.push_str("get");
        }
        for i in keys {
            let (key, value) = (key(*i), value(*i, self.value_bytes));
            let hit = format!("VALUE {key} 0 {}\r\n{value}\r\n", self.value_bytes);
            // Writing to a string cannot fail.
            let _ = match self.kind {
                Kind::Get { .. } => {
                    answer.push_str(&hit);
                    answer.push_str("END\r\n");
                    write!(request, "get {key}\r\n")
                }
                Kind::Set { .. } => {
                    answer.push_str("STORED\r\n");
                    write!(request, "set {key} 0 0 {}\r\n{value}\r\n", self.value_bytes)
                }
                Kind::Multiget { .. } => {
                    answer.push_str(&hit);
                    write!(request, " {key}")
                }
            };
        }
        if let Kind::Multiget { .. } = self.kind {
            request.push_str("\r\n");
            answer.push_str("END\r\n");
        }
        Batch { request: request.into_bytes(), answer: answer.into_bytes(), operations: keys.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_say_what_they_mean() {
        let workload = |kind| Workload { kind, keys: 10, value_bytes: 5 };
        let get = workload(Kind::Get { pipeline: 1 }).batch(&[7]);
        assert_eq!(get.request, b"get key-0000000000000007\r\n");
        assert_eq!(get.answer, b"VALUE key-0000000000000007 0 5\r\n00000\r\nEND\r\n");
        let set = workload(Kind::Set { pipeline: 2 }).batch(&[1, 2]);
        assert!(set.request.starts_with(b"set key-0000000000000001 0 0 5\r\n00000\r\nset "));
        assert_eq!((set.answer, set.operations), (b"STORED\r\nSTORED\r\n".to_vec(), 2));
        let many = workload(Kind::Multiget { keys: 2 }).batch(&[1, 2]);
        assert_eq!(many.request, b"get key-0000000000000001 key-0000000000000002\r\n");
        assert!(many.answer.ends_with(b"\r\nEND\r\n"));
    }
}
