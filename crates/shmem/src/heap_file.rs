//! The file behind a part of a symmetric heap: programs of this host map it, too.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use fabcache_layout::Memory;
use fabcache_layout::mapping::Mapping;

/// What the check writes into the memory, one after the other; the last leaves it as it was.
const PROBES: [u64; 3] = [0x6d9b_36da_5b6c_b64d, !0x6d9b_36da_5b6c_b64d, 0];
/// Permissions with which processes of other users could write the file.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A file, open for reading only, and where the memory begins in it.
#[derive(Debug)]
pub struct HeapFile {
    /// The descriptor, for others to map.
    pub file: OwnedFd,
    /// Multiple of the page size.
    pub offset: u64,
}

/// Why no file can be handed out.
#[derive(Debug, thiserror::Error)]
pub enum HeapFileError {
    /// Memory without a file, or of more than one.
    #[error("it is not one shared file")]
    Anonymous,
    /// As for System V segments.
    #[error("this process has no descriptor of its file")]
    NoDescriptor,
    /// Clients could write it.
    #[error("other users could write its file, which has mode {0:03o}")]
    Mode(u32),
    /// The descriptor found shows other memory.
    #[error("its file does not show it")]
    Other,
    /// The system fails.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Finds the file of the memory at these addresses, which is not in use yet; its first and last words are 0.
pub(crate) fn find(memory: &Memory, addresses: Range<u64>) -> Result<HeapFile, HeapFileError> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let (file, offset) = mapped_file(&maps, &addresses).ok_or(HeapFileError::Anonymous)?;
    let is_it = |metadata: &Metadata| {
        let device = metadata.dev();
        (rustix::fs::major(device), rustix::fs::minor(device), metadata.ino()) == file
    };
    let has_it = |path: &std::path::PathBuf| std::fs::metadata(path).is_ok_and(|metadata| is_it(&metadata));
    let descriptors = std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = descriptors.into_iter().find(has_it).ok_or(HeapFileError::NoDescriptor)?;
    // For reading only.
    let file = File::open(found)?;
    let metadata = file.metadata()?;
    if !is_it(&metadata) {
        return Err(HeapFileError::Other);
    }
    if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(HeapFileError::Mode(metadata.mode() & 0o777));
    }
    if !shows(&file, offset, memory)? {
        return Err(HeapFileError::Other);
    }
    Ok(HeapFile { file: file.into(), offset })
}

/// Device and number of a file.
type FileNumbers = (u32, u32, u64);

/// Returns the shared file that is mapped at these addresses, and the offset of the first.
fn mapped_file(maps: &str, addresses: &Range<u64>) -> Option<(FileNumbers, u64)> {
    let mut found: Option<(FileNumbers, u64)> = None;
    let mut end = addresses.start;
    for line in maps.lines() {
        let Some((range, of, file)) = mapping(line) else { continue };
        if !range.contains(&end) {
            continue;
        }
        let offset = of + (end - range.start);
        match found {
            None => found = Some((file, offset)),
            // The rest of memory that the system divides, as where a part is locked.
            Some((first, from)) if (first, from + (end - addresses.start)) == (file, offset) => {}
            Some(_) => return None,
        }
        end = range.end;
        if end >= addresses.end {
            return found;
        }
    }
    None
}

/// Parses a line of `/proc/self/maps`; `None` if it is no shared file.
fn mapping(line: &str) -> Option<(Range<u64>, u64, FileNumbers)> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_shared = words.next()?.ends_with('s');
    let offset = hexadecimal(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode: u64 = words.next()?.parse().ok()?;
    let file = (hexadecimal(major)? as u32, hexadecimal(minor)? as u32, inode);
    (is_shared && inode != 0).then_some((hexadecimal(start)?..hexadecimal(end)?, offset, file))
}

/// Returns whether the file has the memory at this offset: a reader's mapping shows what is written to the memory.
fn shows(file: &File, offset: u64, memory: &Memory) -> io::Result<bool> {
    let mapping = Mapping::part_to_read(file.as_fd(), offset, memory.len())?;
    // SAFETY: it is used before the mapping is dropped, and not written; no PE shrinks the file.
    let shown = unsafe { mapping.memory() };
    let words = [0, (memory.len() - 8) & !7];
    let mut is_shown = true;
    for probe in PROBES {
        for at in words {
            memory.store(at, probe ^ at, Ordering::SeqCst);
        }
        is_shown &= words.iter().all(|at| shown.load(*at, Ordering::SeqCst) == probe ^ at);
    }
    words.iter().for_each(|at| memory.store(*at, 0, Ordering::SeqCst));
    Ok(is_shown)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::OFlags;

    use super::*;
    use crate::local::LocalJob;
    use crate::remote_heaps::SymmetricHeap;

    const PAGE: u64 = 4096;

    #[test]
    fn file_of_a_heap_is_found() {
        let job = LocalJob::on_files(3, 8 * PAGE);
        for (pe, offset) in [(0, PAGE), (1, 2 * PAGE), (2, 0)] {
            let HeapFile { file, offset: there } = job.of(pe).file(offset, 3 * PAGE).expect("a memory file");
            assert_eq!(there, offset);
            assert_eq!(rustix::fs::fcntl_getfl(&file).expect("open") & OFlags::RWMODE, OFlags::RDONLY);
            job.memory(pe).copy_in(offset, b"item");
            let mut bytes = [0; 8];
            rustix::io::pread(&file, &mut bytes, there).expect("readable");
            assert_eq!(bytes, *b"item\0\0\0\0", "the checks have left nothing");
        }
    }

    #[test]
    fn memory_that_others_could_write_is_not_handed_out() {
        let job = LocalJob::on_files(1, 2 * PAGE);
        let file = job.of(0).file(0, PAGE).expect("a memory file").file;
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("ours");
        rustix::fs::fchmod(&again, rustix::fs::Mode::from_raw_mode(0o620)).expect("ours");
        assert!(matches!(job.of(0).file(0, PAGE), Err(HeapFileError::Mode(0o620))));
    }

    #[test]
    fn memory_without_a_file_is_not_handed_out() {
        let job = LocalJob::new(1, 2 * PAGE);
        assert!(matches!(job.of(0).file(0, PAGE), Err(HeapFileError::Anonymous)));
    }

    #[test]
    fn maps_are_read() {
        let maps = "\
            00400000-00500000 r--p 00000000 08:01 12 /usr/bin/true\n\
            ff000000-ff002000 rw-s 00004000 00:1b 42 /dev/shm/ucx_shm (deleted)\n\
            ff002000-ff003000 rw-s 00006000 00:1b 42 /dev/shm/ucx_shm (deleted)\n\
            ff003000-ff004000 rw-s 00008000 00:1b 42 /dev/shm/ucx_shm (deleted)\n\
            ff004000-ff005000 rw-s 00009000 00:1b 43 /dev/shm/other (deleted)\n\
            ff006000-ff007000 rw-s 00000000 00:01 0 [none]\n";
        let file = Some(((0, 0x1b, 42), 0x5000));
        assert_eq!(mapped_file(maps, &(0xff00_1000..0xff00_2000)), file);
        assert_eq!(mapped_file(maps, &(0xff00_1000..0xff00_3000)), file, "two mappings of one part");
        assert_eq!(mapped_file(maps, &(0xff00_1000..0xff00_3001)), None, "another part follows");
        assert_eq!(mapped_file(maps, &(0xff00_3000..0xff00_5000)), None, "another file follows");
        assert_eq!(mapped_file(maps, &(0xff00_4000..0xff00_5001)), None, "nothing follows");
        assert_eq!(mapped_file(maps, &(0xff00_6000..0xff00_7000)), None);
        assert_eq!(mapped_file(maps, &(0x0040_0000..0x0040_1000)), None, "it is private");
    }
}
