//! Access to shared memory, and its limits.

use std::sync::{Mutex, Once, PoisonError};

use anyhow::{Context, Result, bail};
use fabcache_layout::channel::{
    SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS_MAX, SLOTS_MIN, STAGING_BYTES_MAX, STAGING_BYTES_MIN, Shape,
};
use fabcache_transport::{Credentials, Kind, Link};
use nix::unistd::{Group, Uid, User};

use crate::options::{Options, size};
use crate::process::peer;

/// Default number of slots of each of a client's rings.
const DEFAULT_SLOTS: u32 = 64;
/// Bytes of a slot: a request or an answer with a value of some hundred bytes.
const DEFAULT_SLOT_SIZE: &str = "1k";
/// Bytes of each staging area. Its pages are touched only by clients with values longer than a slot.
const DEFAULT_STAGING: &str = "1m";
/// Refusals that are logged at most: each reason once for each user, as clients ask again on each connection.
const REFUSALS_LOGGED_MAX: usize = 64;

/// What `--shm` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmSettings {
    /// The channel that each client gets.
    pub shape: Shape,
    /// Users that may share memory.
    pub users: Vec<u32>,
    /// Groups whose processes may share memory.
    pub groups: Vec<u32>,
}

impl ShmSettings {
    /// Checks the options; none without `--shm`.
    ///
    /// # Errors
    /// Something given does not make sense; the error names it and says what would.
    pub fn new(options: &Options) -> Result<Option<ShmSettings>> {
        if !options.shm.unwrap_or(false) {
            let lone = [
                ("--shm-users", !options.shm_users.is_empty()),
                ("--shm-groups", !options.shm_groups.is_empty()),
                ("--shm-slots", options.shm_slots.is_some()),
                ("--shm-slot-size", options.shm_slot_size.is_some()),
                ("--shm-staging", options.shm_staging.is_some()),
            ];
            if let Some((option, _)) = lone.iter().find(|(_, given)| *given) {
                bail!("{option} says something about --shm, which is not given");
            }
            return Ok(None);
        }
        if let Some(file) = &options.memory_file {
            bail!(
                "--shm shares memory that only this server can write, which the file {} (-e) is not: leave one of them out",
                file.display()
            );
        }
        let slots = options.shm_slots.unwrap_or(DEFAULT_SLOTS);
        if !slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&slots) {
            bail!("--shm-slots takes a power of two from {SLOTS_MIN} to {SLOTS_MAX}, not {slots}");
        }
        let slot_bytes =
            lines("--shm-slot-size", options.shm_slot_size.as_deref().unwrap_or(DEFAULT_SLOT_SIZE))?;
        let slot_bytes = u32::try_from(slot_bytes).unwrap_or(u32::MAX);
        if !(SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes) {
            bail!("--shm-slot-size takes from {SLOT_BYTES_MIN} to {SLOT_BYTES_MAX} bytes");
        }
        let staging_bytes =
            lines("--shm-staging", options.shm_staging.as_deref().unwrap_or(DEFAULT_STAGING))?;
        if !(STAGING_BYTES_MIN..=STAGING_BYTES_MAX).contains(&staging_bytes) {
            bail!("--shm-staging takes from {STAGING_BYTES_MIN} to {STAGING_BYTES_MAX} bytes");
        }
        let mut users: Vec<u32> =
            options.shm_users.iter().map(|user| user_of(user)).collect::<Result<_>>()?;
        let groups: Vec<u32> =
            options.shm_groups.iter().map(|group| group_of(group)).collect::<Result<_>>()?;
        if users.is_empty() && groups.is_empty() {
            users = vec![own_user(options)?];
        }
        let shape = Shape { slots, slot_bytes, staging_bytes };
        Ok(Some(ShmSettings { shape, users, groups }))
    }

    /// Returns whether a process with these credentials and supplementary groups may share memory.
    pub fn admits(&self, who: Credentials, groups: &[u32]) -> bool {
        let is_named = |group: &u32| self.groups.contains(group);
        self.users.contains(&who.user) || is_named(&who.group) || groups.iter().any(is_named)
    }

    /// Returns the peer's supplementary groups, if groups are configured; none if the system does not report them.
    pub fn groups_of(&self, link: &dyn Link) -> Vec<u32> {
        let (Some(socket), false, Kind::Unix) = (link.descriptor(), self.groups.is_empty(), link.kind())
        else {
            return Vec::new();
        };
        static TOLD: Once = Once::new();
        peer::groups(socket).unwrap_or_else(|error| {
            TOLD.call_once(|| {
                tracing::warn!("cannot read the groups of clients other than their effective ones: {error}");
            });
            Vec::new()
        })
    }
}

/// A size in whole cache lines.
fn lines(option: &str, text: &str) -> Result<u64> {
    Ok(size(option, text, 1)?.next_multiple_of(64))
}

/// Returns the user that the server runs as.
fn own_user(options: &Options) -> Result<u32> {
    match &options.user {
        Some(name) if Uid::effective().is_root() => user_of(name),
        _ => Ok(Uid::effective().as_raw()),
    }
}

fn user_of(text: &str) -> Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let user =
        User::from_name(text).with_context(|| format!("cannot look up the user {text:?} (--shm-users)"))?;
    Ok(user.with_context(|| format!("there is no user {text:?} (--shm-users)"))?.uid.as_raw())
}

fn group_of(text: &str) -> Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let group = Group::from_name(text)
        .with_context(|| format!("cannot look up the group {text:?} (--shm-groups)"))?;
    Ok(group.with_context(|| format!("there is no group {text:?} (--shm-groups)"))?.gid.as_raw())
}

/// The refusals that the log already has: the reason, and the client's user.
#[derive(Debug, Default)]
pub struct LoggedRefusals(Mutex<Vec<(&'static str, Option<u32>)>>);

impl LoggedRefusals {
    /// Logs a refusal, if it is new.
    pub fn log(&self, why: &'static str, user: Option<u32>) {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < REFUSALS_LOGGED_MAX && !logged.contains(&(why, user)) {
            logged.push((why, user));
            let user = user.map(|user| format!(" of user {user}")).unwrap_or_default();
            tracing::info!("a client{user} asked for shared memory and keeps its socket: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: Options) -> Result<ShmSettings> {
        Ok(ShmSettings::new(&Options { shm: Some(true), ..options })?.expect("it is on"))
    }

    #[test]
    fn only_the_servers_user_is_allowed_by_default() {
        let own = Uid::effective().as_raw();
        let of = |user, group| Credentials { user, group };
        let usual = settings(Options::default()).expect("defaults");
        assert!(usual.admits(of(own, 7), &[]) && !usual.admits(of(own + 1, 7), &[12]));
        let named =
            Options { shm_users: vec!["4711".into()], shm_groups: vec!["12".into()], ..Options::default() };
        let named = settings(named).expect("numbers");
        assert!(named.admits(of(4711, 1), &[]) && named.admits(of(99_999, 12), &[]));
        assert!(named.admits(of(99_999, 1), &[11, 12]) && !named.admits(of(own, 99_998), &[11]));
        let root =
            settings(Options { shm_users: vec!["root".into()], ..Options::default() }).expect("a user");
        assert_eq!(root.users, [0]);
    }

    #[test]
    fn contradictory_options_are_rejected() {
        let error = |options: Options| format!("{:#}", settings(options).expect_err("it makes no sense"));
        for (options, named) in [
            (Options { shm_slots: Some(3), ..Options::default() }, "--shm-slots"),
            (Options { shm_slot_size: Some("2m".into()), ..Options::default() }, "--shm-slot-size"),
            (Options { shm_staging: Some("1".into()), ..Options::default() }, "--shm-staging"),
            (Options { shm_users: vec!["no such user".into()], ..Options::default() }, "no such user"),
            (Options { shm_groups: vec!["no such group".into()], ..Options::default() }, "no such group"),
            (Options { memory_file: Some("/dev/shm/x".into()), ..Options::default() }, "-e"),
        ] {
            assert!(error(options.clone()).contains(named), "{}", error(options));
        }
        let lone = Options { shm_slots: Some(4), ..Options::default() };
        assert!(format!("{:#}", ShmSettings::new(&lone).expect_err("without --shm")).contains("--shm-slots"));
    }
}
