//! The file with the process id.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A file with the process id, removed when dropped.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. A stale file is replaced; the file of a running process is replaced with a warning, as
    /// memcached does.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(path: &Path) -> Result<PidFile> {
        let old = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u32>().ok());
        if let Some(old) = old
            && old != std::process::id()
            && Path::new(&format!("/proc/{old}")).exists()
        {
            tracing::warn!("the pid file {} names process {old}, which is running", path.display());
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".tmp");
        let write = || -> std::io::Result<()> {
            std::fs::write(&beside, format!("{}\n", std::process::id()))?;
            std::fs::rename(&beside, path)
        };
        write().with_context(|| format!("cannot write the pid file {} (-P)", path.display()))?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
