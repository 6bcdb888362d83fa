//! Recorded traces: records of 24 bytes, little endian: seconds (u32), object (u64), bytes (u32), and the index of the
//! object's next access (i64), which is not used: it is worked out here as for any other trace. This is the
//! `oracleGeneral` format of libCacheSim.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Object, Request, Trace};

const RECORD_BYTES: usize = 24;
/// Records name no keys: these are as long as the number of a block on a volume, written out.
const KEY_BYTES: u8 = 24;

/// Reads a trace. An object has the size it had first.
///
/// # Errors
/// The file cannot be read, or is not a trace.
pub fn read(path: &Path) -> Result<Trace> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
    let name = path.file_name().map_or("file".into(), |name| name.to_string_lossy());
    let name = name.split('.').next().unwrap_or("file");
    parse(name, &bytes).with_context(|| format!("{} is not a trace of 24-byte records", path.display()))
}

fn parse(name: &str, bytes: &[u8]) -> Result<Trace> {
    ensure!(!bytes.is_empty(), "it is empty");
    ensure!(bytes.len().is_multiple_of(RECORD_BYTES), "its length is {}", bytes.len());
    let mut ids: HashMap<u64, u32> = HashMap::new();
    let mut trace = Trace { name: name.to_owned(), ..Trace::default() };
    let mut start = None;
    let mut last = 0;
    for (i, record) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
        let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
        let id = u64::from_le_bytes(record[4..12].try_into().expect("eight bytes"));
        let second = word(0).checked_sub(*start.get_or_insert(word(0)));
        let second = second.with_context(|| format!("record {i} is before the first"))?;
        ensure!(second >= last, "record {i} is before the one before it");
        last = second;
        let object = *ids.entry(id).or_insert_with(|| {
            trace.objects.push(Object { key_bytes: KEY_BYTES, value_bytes: word(12), ttl_s: 0 });
            trace.objects.len() as u32 - 1
        });
        trace.requests.push(Request { second, object });
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: u32, id: u64, bytes: u32) -> Vec<u8> {
        [&second.to_le_bytes()[..], &id.to_le_bytes(), &bytes.to_le_bytes(), &(-1i64).to_le_bytes()].concat()
    }

    #[test]
    fn records_are_read() {
        let bytes = [record(100, 1 << 40, 512), record(100, 7, 4096), record(103, 1 << 40, 512)].concat();
        let trace = parse("t", &bytes).expect("a trace");
        let seen: Vec<_> = trace.requests.iter().map(|r| (r.second, r.object)).collect();
        assert_eq!(seen, [(0, 0), (0, 1), (3, 0)]);
        assert_eq!(trace.objects.iter().map(|o| o.value_bytes).collect::<Vec<_>>(), [512, 4096]);
        assert!(parse("t", &bytes[..50]).is_err());
        assert!(parse("t", &[]).is_err());
        assert!(parse("t", &[record(5, 1, 1), record(4, 1, 1)].concat()).is_err(), "time goes back");
    }
}
