//! Reads recorded traces of any length, record by record: from a file, or from standard input.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::record::{LINE_BYTES_MAX, ORACLE_BYTES, Record};

/// Bytes read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// The first bytes of compressed files, their format, and the program that reads them.
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b", "gzip", "gzip -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
];

/// The format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// libCacheSim's `oracleGeneral`: records of 24 bytes.
    Oracle,
    /// Twitter's: lines of seven columns.
    Csv,
}

impl Format {
    /// Returns the format of this name; `None` for `auto`.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Option<Format>> {
        Ok(match name {
            "auto" => None,
            "oracle" => Some(Format::Oracle),
            "csv" => Some(Format::Csv),
            _ => bail!("unknown format {name:?}; use auto, oracle (records of 24 bytes) or csv (Twitter's)"),
        })
    }

    /// Detects the format by its beginning: records contain bytes that no text has.
    fn of_start(head: &[u8]) -> Format {
        let is_text = |byte: &u8| !byte.is_ascii_control() || matches!(byte, b'\n' | b'\r' | b'\t');
        if head.iter().all(is_text) { Format::Csv } else { Format::Oracle }
    }
}

/// A record of a trace, as it was read.
enum TraceEntry {
    Record(Record),
    /// A record that is malformed, and how.
    Malformed(anyhow::Error),
}

impl From<Result<Record>> for TraceEntry {
    fn from(record: Result<Record>) -> TraceEntry {
        record.map_or_else(TraceEntry::Malformed, TraceEntry::Record)
    }
}

/// Reads a trace.
pub struct Reader {
    /// The source's name, for errors.
    name: String,
    input: Box<dyn BufRead + Send>,
    format: Format,
    skips_malformed: bool,
    /// Number of records or lines read.
    seen: u64,
    skipped: u64,
    line: Vec<u8>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("name", &self.name).field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be read, or is compressed.
    pub fn open(path: &Path, format: Option<Format>, skips_malformed: bool) -> Result<Reader> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot read the trace {name}"))?;
        Reader::new(&name, file, format, skips_malformed)
    }

    /// Reads from any source. Without a format it is detected.
    ///
    /// # Errors
    /// The source cannot be read, or is compressed.
    pub fn new(
        name: &str,
        mut input: impl Read + Send + 'static,
        format: Option<Format>,
        skips_malformed: bool,
    ) -> Result<Reader> {
        let mut head = Vec::new();
        let start = input.by_ref().take(ORACLE_BYTES as u64).read_to_end(&mut head);
        start.with_context(|| format!("cannot read the trace {name}"))?;
        for (start, method, program) in COMPRESSED {
            if head.starts_with(start) {
                bail!(
                    "{name} is compressed by {method}: have it decompressed on the way, as in \
                     `{program} FILE | fabcache bench trace --file - …`"
                );
            }
        }
        let format = format.unwrap_or_else(|| Format::of_start(&head));
        let input = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(head).chain(input));
        Ok(Reader {
            name: name.to_owned(),
            input: Box::new(input),
            format,
            skips_malformed,
            seen: 0,
            skipped: 0,
            line: Vec::new(),
        })
    }

    /// Returns the number of malformed records that were skipped.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn place(&self) -> String {
        let (name, seen) = (&self.name, self.seen);
        match self.format {
            Format::Csv => format!("{name}, line {seen}, is malformed (--skip-malformed goes on)"),
            Format::Oracle => format!(
                "{name}, record {seen} of {ORACLE_BYTES} bytes, is malformed (--skip-malformed goes on)"
            ),
        }
    }

    fn read_oracle(&mut self) -> std::io::Result<Option<TraceEntry>> {
        self.line.clear();
        self.input.by_ref().take(ORACLE_BYTES as u64).read_to_end(&mut self.line)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        let record = <&[u8; ORACLE_BYTES]>::try_from(self.line.as_slice())
            .with_context(|| format!("it ends after {} bytes", self.line.len()))
            .and_then(Record::of_oracle);
        Ok(Some(record.into()))
    }

    fn read_line(&mut self) -> std::io::Result<Option<TraceEntry>> {
        if self.read_part()? == 0 {
            return Ok(None);
        }
        if self.line.last() != Some(&b'\n') && self.line.len() == LINE_BYTES_MAX {
            // A chunk at a time: a file without line breaks takes no more memory.
            while self.line.last() != Some(&b'\n') && self.read_part()? > 0 {}
            return Ok(Some(TraceEntry::Malformed(anyhow::anyhow!(
                "it is longer than {LINE_BYTES_MAX} bytes"
            ))));
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        Ok(Some(Record::of_line(line.strip_suffix(b"\r").unwrap_or(line)).into()))
    }

    /// Reads to the end of the line, but at most the maximum length of a line.
    fn read_part(&mut self) -> std::io::Result<usize> {
        self.line.clear();
        self.input.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut self.line)
    }
}

/// Iterates over records. A read failure is an error, and so is a malformed record unless it is
/// skipped.
impl Iterator for Reader {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        loop {
            let read = match self.format {
                Format::Oracle => self.read_oracle(),
                Format::Csv => self.read_line(),
            };
            let entry = match read.with_context(|| format!("cannot read the trace {}", self.name)) {
                Ok(entry) => entry?,
                Err(error) => return Some(Err(error)),
            };
            self.seen += 1;
            match entry {
                TraceEntry::Record(record) => return Some(Ok(record)),
                TraceEntry::Malformed(_) if self.skips_malformed => self.skipped += 1,
                TraceEntry::Malformed(error) => return Some(Err(error.context(self.place()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::Operation;
    use super::*;

    fn read(bytes: &[u8], skips: bool) -> Result<(Vec<Record>, u64)> {
        let mut reader = Reader::new("t", Cursor::new(bytes.to_vec()), None, skips)?;
        let records = reader.by_ref().collect::<Result<_>>()?;
        Ok((records, reader.skipped()))
    }

    #[test]
    fn formats_are_detected() {
        let (records, _) = read(b"0,k,1,2,3,set,4\n1,k,1,2,3,get,0", false).expect("lines");
        assert_eq!(records.iter().map(|r| r.operation).collect::<Vec<_>>(), [Operation::Set, Operation::Get]);
        let (records, _) = read(b"0,k,1,2,3,set,4\r\n", false).expect("a line with a CR");
        assert_eq!(records.len(), 1);
        let record = [&7u32.to_le_bytes()[..], &9u64.to_le_bytes(), &5u32.to_le_bytes(), &[0xff; 8]].concat();
        let (records, _) = read(&record.repeat(3), false).expect("records");
        assert_eq!((records.len(), records[2].object, records[2].value_bytes), (3, 9, 5));
        assert!(read(b"", false).expect("nothing").0.is_empty());
    }

    #[test]
    fn malformed_records_are_named_or_counted() {
        let lines = b"0,k,1,2,3,set,4\nnonsense\n1,k,1,2,3,get,0\n";
        let error = format!("{:#}", read(lines, false).expect_err("a malformed line"));
        assert!(error.contains("t, line 2,") && error.contains("seven columns"), "{error}");
        let (records, skipped) = read(lines, true).expect("lines");
        assert_eq!((records.len(), skipped), (2, 1));

        let long = [&b"0,"[..], &vec![b'k'; 3 * LINE_BYTES_MAX], b",1,2,3,set,4\n1,k,1,2,3,get,0\n"].concat();
        let error = format!("{:#}", read(&long, false).expect_err("a long line"));
        assert!(error.contains("line 1,") && error.contains("longer than"), "{error}");
        let (records, skipped) = read(&long, true).expect("lines");
        assert_eq!((records.len(), skipped), (1, 1));

        let records = [0; ORACLE_BYTES * 2 + 7];
        let error = format!("{:#}", read(&records, false).expect_err("half a record"));
        assert!(error.contains("record 3") && error.contains("after 7 bytes"), "{error}");
    }

    #[test]
    fn compressed_files_are_reported() {
        for (start, method, program) in COMPRESSED {
            let error = read(&[start, &[0; 40]].concat(), true).expect_err("compressed").to_string();
            assert!(error.contains(method) && error.contains(program), "{error}");
        }
        let error = Reader::open(Path::new("/nowhere/t"), None, false).expect_err("no file").to_string();
        assert!(error.contains("/nowhere/t"), "{error}");
        assert!(Format::of_name("tsv").expect_err("no format").to_string().contains("csv"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_records_or_skipped(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let Ok((records, skipped)) = read(&bytes, true) else { return Ok(()) };
            prop_assert!(bytes.is_empty() || records.len() as u64 + skipped > 0);
        }
    }
}
