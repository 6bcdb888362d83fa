//! Switching to another user.

use std::ffi::CString;

use anyhow::{Context, Result, bail};
use nix::unistd::{Uid, User, initgroups, setgid, setuid};

/// Gives up root permanently for `name`. Does nothing if the process is not root's, as memcached.
///
/// # Errors
/// There is no such user, or the system refuses.
pub fn become_user(name: &str) -> Result<()> {
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let user = User::from_name(name).with_context(|| format!("cannot look up the user {name:?} (-u)"))?;
    let Some(user) = user else { bail!("there is no user {name:?} (-u)") };
    if user.uid.is_root() {
        return Ok(());
    }
    let c_name = CString::new(name).context("a user's name has no NUL")?;
    initgroups(&c_name, user.gid).with_context(|| format!("cannot take the groups of {name:?}"))?;
    setgid(user.gid).with_context(|| format!("cannot take the group of {name:?}"))?;
    setuid(user.uid).with_context(|| format!("cannot become {name:?}"))?;
    Ok(())
}

/// Returns whether the process is root's although that was not requested.
pub fn is_needlessly_root(user: Option<&str>) -> bool {
    Uid::effective().is_root() && user.is_none()
}
