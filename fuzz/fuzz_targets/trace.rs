//! Recorded traces with arbitrary contents: each record is within bounds, or malformed and counted; a
//! malformed record is an error unless such records are skipped.
#![no_main]

use std::io::Cursor;

use fabcache_bench::trace::reader::{Format, Reader};
use fabcache_bench::trace::record::{KEY_BYTES_MAX, ORACLE_BYTES, Record, VALUE_BYTES_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let format = [None, Some(Format::Csv), Some(Format::Oracle)][usize::from(*choice % 3)];
    let open = |skips| Reader::new("fuzzed", Cursor::new(bytes.to_vec()), format, skips);
    // Both readers refuse compressed traces.
    let (Ok(mut all), Ok(mut strict)) = (open(true), open(false)) else { return };
    let records: Vec<Record> =
        all.by_ref().map(|record| record.expect("malformed ones are skipped")).collect();
    for record in &records {
        assert!((1..=KEY_BYTES_MAX).contains(&record.key_bytes.into()));
        assert!(record.value_bytes <= VALUE_BYTES_MAX);
    }
    let until_malformed = strict.by_ref().map_while(Result::ok).count();
    assert!(until_malformed <= records.len());
    assert!(all.skipped() > 0 || until_malformed == records.len());
    let seen = records.len() as u64 + all.skipped();
    match format {
        Some(Format::Oracle) => assert_eq!(seen, bytes.len().div_ceil(ORACLE_BYTES) as u64),
        Some(Format::Csv) => {
            let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(seen, (ends + usize::from(!bytes.is_empty() && !bytes.ends_with(b"\n"))) as u64);
        }
        None => assert!(bytes.is_empty() || seen > 0),
    }
});
