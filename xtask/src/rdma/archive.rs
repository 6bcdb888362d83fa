//! The kernel's initial archive: cpio in the format "newc" (Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive under construction.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    /// Adds a folder, whose parent exists already.
    pub fn folder(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    /// Adds a program.
    pub fn program(&mut self, name: &str, bytes: &[u8]) {
        self.entry(name, 0o100_755, bytes);
    }

    /// Returns the bytes of the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.count += 1;
        let size = u32::try_from(bytes.len()).expect("a file of an initial archive is small");
        let name_size = u32::try_from(name.len() + 1).expect("a name is short");
        // Inode, mode, owner, group, links, time, size, the device's numbers, its own, the name's size, a checksum.
        let fields = [self.count, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_as_the_kernel_reads_it() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.program("bin/x", b"hello");
        let bytes = archive.finish();
        let header = |count, mode: &str, size, name| {
            let zero = "00000000";
            format!(
                "070701{count:08x}{mode}{zero}{zero}00000001{zero}{size:08x}{zero}{zero}{zero}{zero}{name:08x}{zero}"
            )
        };
        let mut expected = header(1, "000041ed", 0, 4) + "bin\0\0\0";
        assert_eq!(expected.len() % 4, 0);
        expected += &(header(2, "000081ed", 5, 6) + "bin/x\0" + "hello\0\0\0");
        assert_eq!(expected.len() % 4, 0);
        expected += &(header(3, "00000000", 0, 11) + "TRAILER!!!\0\0\0\0");
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
