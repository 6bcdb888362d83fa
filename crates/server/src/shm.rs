//! Access to shared memory, and its limits.

use std::sync::{Mutex, Once, PoisonError};

use anyhow::{Context, Result, bail};
use fabcache_layout::channel::{
    SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS_MAX, SLOTS_MIN, STAGING_BYTES_MAX, STAGING_BYTES_MIN, Shape,
};
use fabcache_transport::{Credentials, Kind, Link};
use nix::unistd::{Group, Uid, User};

use crate::openshmem::PROVIDER;
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
/// The user, and the group, that the kernel reports in place of all that this process's user namespace does not map
/// (user_namespaces(7)).
const UNMAPPED: u32 = 65534;
/// Root may open any file for writing.
const ROOT: u32 = 0;

/// A client's user is unmapped.
const UNMAPPED_CLIENT: &str =
    "user 65534 stands for every user that the server's namespace does not know, and never shares memory";
/// `--shm-users` and `--shm-groups` do not name the client.
const UNLISTED_CLIENT: &str = "shared memory is not for this user; see --shm-users and --shm-groups";
/// A client could write the memory file.
const WRITING_CLIENT: &str =
    "this user could write the server's memory file (-e); see --shm-same-user and --shm-users";

/// The memory that clients get for reading, if they can map it at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// A memory file of the server's own, which is sealed.
    Sealed,
    /// A file that outlives the server (`-e`).
    Kept,
    /// The symmetric heap of a job (`--fabric openshmem`), whose region has this server's shard of the keys.
    Symmetric,
}

/// What `--shm` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmSettings {
    /// The channel that each client gets.
    pub shape: Shape,
    /// Users that may share memory.
    pub users: Vec<u32>,
    /// Groups whose processes may share memory.
    pub groups: Vec<u32>,
    /// The memory that they get.
    pub memory: SharedMemory,
    /// Users that are refused because they could write the region.
    pub writers: Vec<u32>,
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
                ("--shm-same-user", options.shm_same_user.unwrap_or(false)),
                ("--shm-slots", options.shm_slots.is_some()),
                ("--shm-slot-size", options.shm_slot_size.is_some()),
                ("--shm-staging", options.shm_staging.is_some()),
            ];
            if let Some((option, _)) = lone.iter().find(|(_, given)| *given) {
                bail!("{option} needs --shm: give it too, or leave {option} out");
            }
            return Ok(None);
        }
        let memory = if options.memory_file.is_some() {
            SharedMemory::Kept
        } else if options.fabric.as_deref() == Some(PROVIDER) {
            SharedMemory::Symmetric
        } else {
            SharedMemory::Sealed
        };
        let is_kept = memory == SharedMemory::Kept;
        let trusts_writers = options.shm_same_user.unwrap_or(false);
        if trusts_writers && !is_kept {
            bail!(
                "--shm-same-user needs the memory file (-e): give it too, or leave --shm-same-user out; other memory needs no such \
                 trust"
            );
        }
        let own = own_user(options)?;
        let mut users: Vec<u32> =
            options.shm_users.iter().map(|user| user_of(user)).collect::<Result<_>>()?;
        let groups: Vec<u32> =
            options.shm_groups.iter().map(|group| group_of(group)).collect::<Result<_>>()?;
        if trusts_writers || users.is_empty() && groups.is_empty() {
            users.push(own);
        }
        let writers = if is_kept && !trusts_writers { vec![own, ROOT] } else { Vec::new() };
        let settings = ShmSettings { shape: shape(options)?, users, groups, memory, writers };
        settings.check_anybody_is_admitted()?;
        Ok(Some(settings))
    }

    /// Refuses settings that refuse all clients.
    fn check_anybody_is_admitted(&self) -> Result<()> {
        let is_refused = |user: &u32| *user == UNMAPPED || self.writers.contains(user);
        if self.groups.iter().any(|group| *group != UNMAPPED) || !self.users.iter().all(is_refused) {
            return Ok(());
        }
        if self.writers.is_empty() {
            bail!("--shm shares memory with nobody: {UNMAPPED_CLIENT}; name another with --shm-users");
        }
        bail!(
            "--shm shares the memory file (-e) with nobody: the server's user and root could write it; name other users with \
             --shm-users, or trust the server's user with --shm-same-user"
        )
    }

    /// Checks that a process with these credentials and supplementary groups may share memory.
    ///
    /// # Errors
    /// The reason if it may not, or if the system does not report its credentials.
    pub fn check(&self, who: Option<Credentials>, groups: &[u32]) -> Result<(), &'static str> {
        let is_named = |group: &u32| *group != UNMAPPED && self.groups.contains(group);
        let who = who.ok_or(UNLISTED_CLIENT)?;
        if who.user == UNMAPPED {
            return Err(UNMAPPED_CLIENT);
        }
        if !self.users.contains(&who.user) && !is_named(&who.group) && !groups.iter().any(is_named) {
            return Err(UNLISTED_CLIENT);
        }
        if self.writers.contains(&who.user) { Err(WRITING_CLIENT) } else { Ok(()) }
    }

    /// Returns the protection of the region against its clients, as `stats fabcache` names it.
    pub fn protection(&self) -> &'static str {
        match self.memory {
            SharedMemory::Sealed => "sealed",
            SharedMemory::Kept => "kept",
            SharedMemory::Symmetric => "symmetric",
        }
    }

    /// Logs how the region is protected against its clients.
    pub fn log_protection(&self) {
        match (self.memory, self.writers.is_empty()) {
            (SharedMemory::Sealed, _) => tracing::info!("shared memory is sealed: clients cannot write it"),
            (SharedMemory::Symmetric, _) => tracing::info!(
                "clients map the symmetric heap, for reading: only the job, the heap's owner and root can write it"
            ),
            (SharedMemory::Kept, false) => {
                tracing::info!(
                    "shared memory is kept in a file (-e): clients that could write it are refused"
                );
            }
            (SharedMemory::Kept, true) => tracing::warn!(
                "shared memory is kept in a file (-e): clients of the server's user can write it, and are trusted \
                 (--shm-same-user)"
            ),
        }
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

/// Returns the shape of the channels.
fn shape(options: &Options) -> Result<Shape> {
    let slots = options.shm_slots.unwrap_or(DEFAULT_SLOTS);
    if !slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&slots) {
        bail!("--shm-slots takes a power of two from {SLOTS_MIN} to {SLOTS_MAX}, not {slots}");
    }
    let slot_bytes = lines("--shm-slot-size", options.shm_slot_size.as_deref().unwrap_or(DEFAULT_SLOT_SIZE))?;
    let slot_bytes = u32::try_from(slot_bytes).unwrap_or(u32::MAX);
    if !(SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes) {
        bail!("--shm-slot-size takes from {SLOT_BYTES_MIN} to {SLOT_BYTES_MAX} bytes");
    }
    let staging_bytes = lines("--shm-staging", options.shm_staging.as_deref().unwrap_or(DEFAULT_STAGING))?;
    if !(STAGING_BYTES_MIN..=STAGING_BYTES_MAX).contains(&staging_bytes) {
        bail!("--shm-staging takes from {STAGING_BYTES_MIN} to {STAGING_BYTES_MAX} bytes");
    }
    Ok(Shape { slots, slot_bytes, staging_bytes })
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

    fn of(user: u32, group: u32) -> Option<Credentials> {
        Some(Credentials { user, group })
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn only_the_servers_user_is_allowed_by_default() {
        let own = Uid::effective().as_raw();
        let usual = settings(Options::default()).expect("defaults");
        assert_eq!(usual.check(of(own, 7), &[]), Ok(()));
        assert_eq!(usual.check(of(own + 1, 7), &[12]), Err(UNLISTED_CLIENT));
        let named = Options { shm_users: names(&["4711"]), shm_groups: names(&["12"]), ..Options::default() };
        let named = settings(named).expect("numbers");
        for (who, groups) in [(of(4711, 1), &[][..]), (of(99_999, 12), &[]), (of(99_999, 1), &[11, 12])] {
            assert_eq!(named.check(who, groups), Ok(()));
        }
        assert_eq!(named.check(of(own, 99_998), &[11]), Err(UNLISTED_CLIENT));
        let root = settings(Options { shm_users: names(&["root"]), ..Options::default() }).expect("a user");
        assert_eq!(root.users, [0]);
    }

    #[test]
    fn unmapped_users_are_refused_although_they_are_named() {
        for memory_file in [None, Some("/dev/shm/x".into())] {
            let (shm_users, shm_groups) = (names(&["65534", "4711"]), names(&["65534", "12"]));
            let options = Options { shm_users, shm_groups, memory_file, ..Options::default() };
            let named = settings(options).expect("numbers");
            assert_eq!(named.check(of(65534, 12), &[12]), Err(UNMAPPED_CLIENT));
            assert_eq!(named.check(of(99_999, 65534), &[65534]), Err(UNLISTED_CLIENT));
            assert_eq!(named.check(of(4711, 65534), &[65534]), Ok(()));
        }
    }

    #[test]
    fn clients_that_could_write_the_memory_file_must_be_trusted() {
        let own = Uid::effective().as_raw();
        let on_file = |shm_users: &[&str], same_user: Option<bool>| {
            let shm_users = names(shm_users);
            let memory_file = Some("/dev/shm/x".into());
            settings(Options { shm_users, memory_file, shm_same_user: same_user, ..Options::default() })
        };
        let own_name = own.to_string();
        let refusing = on_file(&["4711", "0", &own_name], None).expect("numbers");
        assert_eq!(refusing.check(of(4711, 1), &[]), Ok(()));
        assert_eq!(refusing.check(of(0, 1), &[]), Err(WRITING_CLIENT));
        assert_eq!(refusing.check(of(own, 1), &[]), Err(WRITING_CLIENT));
        let trusting = on_file(&["4711"], Some(true)).expect("numbers");
        assert_eq!(trusting.check(of(4711, 1), &[]), Ok(()));
        assert_eq!(trusting.check(of(own, 1), &[]), Ok(()));
        assert_eq!(trusting.check(of(4712, 1), &[]), Err(UNLISTED_CLIENT));
        assert_eq!(on_file(&[], Some(true)).expect("the server's user").users, [own]);
        for users in [&[][..], &["0"], &[&own_name], &["65534", "root"]] {
            let error = format!("{:#}", on_file(users, None).expect_err("it admits nobody"));
            assert!(
                ["--shm-users", "--shm-same-user", "-e"].iter().all(|option| error.contains(option)),
                "{error}"
            );
        }
        let unmapped = settings(Options { shm_users: names(&["65534"]), ..Options::default() });
        assert!(format!("{:#}", unmapped.expect_err("it admits nobody")).contains("--shm-users"));
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
            (Options { shm_same_user: Some(true), ..Options::default() }, "-e"),
        ] {
            assert!(error(options.clone()).contains(named), "{}", error(options));
        }
        let lone = Options { shm_slots: Some(4), ..Options::default() };
        assert!(format!("{:#}", ShmSettings::new(&lone).expect_err("without --shm")).contains("--shm-slots"));
    }
}
