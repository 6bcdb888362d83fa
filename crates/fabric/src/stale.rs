//! Removes files that killed processes left behind with the shm provider.
//!
//! Each endpoint has a file named after its process, `/dev/shm/PID:DOMAIN:ENDPOINT`. A killed process leaves the
//! file, and a later process with the same number cannot create an endpoint of that name, because libfabric finds the
//! process alive.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

const FOLDER: &str = "/dev/shm";

/// Held while endpoints are created: between the creation of a file and its mapping it looks like a stale one.
static MAKING: Mutex<()> = Mutex::new(());

pub(crate) fn making() -> MutexGuard<'static, ()> {
    MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Removes the unmapped files that are named after this process. Returns whether there were any.
pub(crate) fn remove(_making: &MutexGuard<'_, ()>) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mapped: Vec<PathBuf> =
        maps.lines().filter_map(|line| line.split(' ').next_back()).map(PathBuf::from).collect();
    let own = std::process::id().to_string();
    let Ok(files) = std::fs::read_dir(FOLDER) else { return false };
    let left = files.flatten().filter(|file| file.file_name().to_str().is_some_and(|name| is_of(name, &own)));
    // Try all files.
    left.map(|file| file.path())
        .filter(|path| !mapped.contains(path) && std::fs::remove_file(path).is_ok())
        .count()
        > 0
}

/// Returns whether the name is that of an endpoint of this process.
fn is_of(name: &str, process: &str) -> bool {
    let mut words = name.split(':');
    words.next() == Some(process)
        && words.clone().count() == 2
        && words.all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_endpoints_of_this_process_count_as_its_own() {
        assert!(is_of("12:0:1", "12") && is_of("12:10:1", "12"));
        for other in ["12", "12:0", "12:0:1:2", "112:0:1", "12:x:1", "12:0:", "12:0:1.lock", "a12:0:1"] {
            assert!(!is_of(other, "12"), "{other}");
        }
    }

    #[test]
    fn mapped_files_stay_and_stale_files_are_removed() {
        let making = making();
        let name = |number: u32| format!("{FOLDER}/{}:4294967295:{number}", std::process::id());
        for number in [1, 2] {
            std::fs::write(name(number), b"left").expect("memory that is shared");
        }
        assert!(remove(&making));
        assert!([1, 2].iter().all(|number| !PathBuf::from(name(*number)).exists()));
        assert!(!remove(&making), "nothing is left");
    }
}
