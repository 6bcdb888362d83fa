//! Recorded traces in the `oracleGeneral` format of libCacheSim.
//!
//! Records have 24 bytes, little endian: seconds (u32), object (u64), bytes (u32), and the index of the
//! object's next access (i64). The last is ignored, and computed as for any other trace.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::record::{ORACLE_BYTES, Record};
use super::{Object, Request, Trace};

/// Reads a trace. An object keeps its first size.
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
    ensure!(bytes.len().is_multiple_of(ORACLE_BYTES), "its length is {}", bytes.len());
    let mut ids: HashMap<u64, u32> = HashMap::new();
    let mut trace = Trace { name: name.to_owned(), ..Trace::default() };
    let mut start = None;
    let mut last = 0;
    for (i, record) in bytes.chunks_exact(ORACLE_BYTES).enumerate() {
        let record = Record::of_oracle(record.try_into().expect("a record's bytes"))
            .with_context(|| format!("record {i}"))?;
        let second = record.second.checked_sub(*start.get_or_insert(record.second));
        // Both are of 32 bits.
        let second = second.with_context(|| format!("record {i} is before the first"))? as u32;
        ensure!(second >= last, "record {i} is before the one before it");
        last = second;
        let object = *ids.entry(record.object).or_insert_with(|| {
            let Record { key_bytes, value_bytes, .. } = record;
            trace.objects.push(Object { key_bytes, value_bytes, ttl_s: 0 });
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
