//! Users and their passwords, from a file of `user:password` lines.

use std::path::{Path, PathBuf};
use std::sync::RwLock;

use anyhow::{Context, Result, bail};

use crate::bounds::{CREDENTIAL_BYTES_MAX, CREDENTIALS_MAX};

/// The users of one file. It is read again when the operator says so.
#[derive(Debug)]
pub struct Credentials {
    path: PathBuf,
    users: RwLock<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Credentials {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is invalid.
    pub fn load(path: &Path) -> Result<Credentials> {
        Ok(Credentials { users: RwLock::new(read(path)?), path: path.to_owned() })
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// As for [`Credentials::load`]; the users stay as they were.
    pub fn reload(&self) -> Result<()> {
        let users = read(&self.path)?;
        *self.users.write().expect("no thread panics while it holds the users") = users;
        Ok(())
    }

    /// Returns whether user and password are right. The duration does not reveal how much of them was right.
    pub fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        let users = self.users.read().expect("no thread panics while it holds the users");
        users.iter().fold(false, |found, (known_user, known_password)| {
            found | (same(known_user, user) & same(known_password, password))
        })
    }
}

/// Compares all bytes, wherever the first difference is.
fn same(known: &[u8], given: &[u8]) -> bool {
    let differing = known.iter().zip(given.iter()).fold(0, |differing, (a, b)| differing | (a ^ b));
    (known.len() == given.len()) & (std::hint::black_box(differing) == 0)
}

fn read(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let text = std::fs::read(path).with_context(|| format!("cannot read the users in {}", path.display()))?;
    let mut users = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let at = || format!("{}, line {}", path.display(), number + 1);
        if line.len() > CREDENTIAL_BYTES_MAX {
            bail!("{}: longer than {CREDENTIAL_BYTES_MAX} bytes", at());
        }
        let mut fields = line.splitn(2, |byte| *byte == b':');
        let (Some(user), Some(password)) = (fields.next(), fields.next()) else {
            bail!("{}: not of the form user:password", at());
        };
        if user.is_empty() {
            bail!("{}: no user before the colon", at());
        }
        if users.len() == CREDENTIALS_MAX {
            bail!("{}: more than {CREDENTIALS_MAX} users", at());
        }
        users.push((user.to_vec(), password.to_vec()));
    }
    if users.is_empty() {
        bail!("{} names no user; give lines of the form user:password", path.display());
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_load_and_reload() {
        let path = std::env::temp_dir().join(format!("fabcache-users-{}", std::process::id()));
        std::fs::write(&path, "ann:secret\r\n\nbob:with:colon\n").expect("a file in the temporary directory");
        let users = Credentials::load(&path).expect("valid");
        assert!(users.admit(b"ann", b"secret") && users.admit(b"bob", b"with:colon"));
        assert!(
            !users.admit(b"ann", b"secre") && !users.admit(b"ann", b"with:colon") && !users.admit(b"", b"")
        );
        std::fs::write(&path, "no colon").expect("still there");
        assert!(users.reload().expect_err("not a line").to_string().contains("line 1"));
        assert!(users.admit(b"ann", b"secret"), "a file that is wrong changes nothing");
        std::fs::write(&path, "eve:x").expect("still there");
        users.reload().expect("valid");
        assert!(!users.admit(b"ann", b"secret") && users.admit(b"eve", b"x"));
        std::fs::remove_file(&path).expect("still there");
        assert!(users.reload().is_err());
    }
}
