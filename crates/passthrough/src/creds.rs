//! Whose power a thread has: the ids, groups, capabilities and umask of the calling thread, one operation long.
//!
//! A new file belongs to who asked for it, so the calls that create run with the caller's ids; everything else runs with
//! the daemon's, because the client has checked permissions before it asks. The daemon's ids come back as soon as such a
//! call returns: a thread that stayed somebody else would lose the right to search directories and to open file handles,
//! would let io_uring clear set-id bits, and would show a foreign group to a network file system. What can stay, stays:
//! a caller who is the daemon costs nothing, and the umask, which only creating calls look at, changes when it must.
//!
//! The ids are set with `setfsuid` and `setfsgid`: they are a thread's own, they leave `CAP_SETUID` and `CAP_SETGID` in
//! effect, and the kernel drops and restores the capabilities over files by itself when the user changes from 0 and back.
//! `CAP_FSETID` must be among the dropped, or a set-group-id bit that the caller may not give would stay.
//!
//! A daemon changes capabilities before its first operation on a thread, not after: the thread remembers them.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets, UnshareFlags};
use std::cell::{Cell, OnceCell};

/// What happens for a caller whose ids the daemon may not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `EPERM`.
    Fails,
    /// The call is made as the daemon itself.
    AsSelf,
}

/// Who asks: the ids, as the host knows them, that a new file is created with.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The user. 0 is the daemon's own user, whichever that is: only a privileged daemon can tell them apart, and it is 0.
    pub uid: u32,
    /// The group. 0 is the daemon's own group.
    pub gid: u32,
    /// Supplementary groups the file may be created with, usually none or one.
    pub groups: &'a [u32],
}

/// The capabilities that follow the file-system user (`CAP_FS_SET` in the kernel's `linux/capability.h`).
const OVER_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// How many ids a thread remembers as possible. A power of two.
const REMEMBERED: usize = 64;

/// No user and no group: the kernel's `-1`.
const NOBODY: u32 = u32::MAX;

/// A set of ids that answers for the latest only, which spares a system call and never an error.
struct Seen([Cell<u32>; REMEMBERED]);

impl Seen {
    fn new() -> Seen {
        Seen([const { Cell::new(NOBODY) }; REMEMBERED])
    }

    fn place(&self, id: u32) -> Option<&Cell<u32>> {
        self.0.get(id as usize % REMEMBERED)
    }

    fn holds(&self, id: u32) -> bool {
        id != NOBODY && self.place(id).is_some_and(|place| place.get() == id)
    }

    fn add(&self, id: u32) {
        if let Some(place) = self.place(id) {
            place.set(id);
        }
    }
}

/// What this thread is when it is nobody else.
struct Thread {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    capabilities: CapabilitySets,
    /// The kernel adapts the effective capabilities when the file-system user changes from and to 0.
    adapts: bool,
    /// Ids that the kernel let this thread take. It does not forbid later what it allowed once: its capability is the same,
    /// and the ids of a user namespace are given once.
    users_seen: Seen,
    groups_seen: Seen,
    /// The umask, once it is this thread's alone.
    umask: Cell<Option<u32>>,
    /// Inside of [`as_caller`], with other ids.
    acting: Cell<bool>,
}

impl Thread {
    fn read() -> Result<Thread, Errno> {
        let uid = rustix::process::geteuid().as_raw();
        let fixed = rustix::thread::capabilities_secure_bits()?.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP);
        Ok(Thread {
            uid,
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups()?.into_iter().map(rustix::process::Gid::as_raw).collect(),
            capabilities: rustix::thread::capabilities(None)?,
            adapts: uid == 0 && !fixed,
            users_seen: Seen::new(),
            groups_seen: Seen::new(),
            umask: Cell::new(None),
            acting: Cell::new(false),
        })
    }

    fn set_effective(&self, effective: CapabilitySet) -> Result<(), Errno> {
        rustix::thread::set_capabilities(None, CapabilitySets { effective, ..self.capabilities })
    }
}

thread_local! {
    static THREAD: OnceCell<Thread> = const { OnceCell::new() };
}

fn with_thread<T>(call: impl FnOnce(&Thread) -> Result<T, Errno>) -> Result<T, Errno> {
    THREAD.with(|cell| {
        if let Some(thread) = cell.get() {
            return call(thread);
        }
        let read = Thread::read()?;
        call(cell.get_or_init(|| read))
    })
}

/// The file-system user before; nothing changes for [`NOBODY`] and for a user the thread may not take.
fn set_user(uid: u32) -> u32 {
    // SAFETY: the call takes an integer and touches nothing but this thread's credentials.
    unsafe { libc::setfsuid(uid) }.cast_unsigned()
}

/// The file-system group before, as [`set_user`] does it.
fn set_group(gid: u32) -> u32 {
    // SAFETY: the call takes an integer and touches nothing but this thread's credentials.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}

fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    let groups: Vec<_> = groups.iter().map(|&gid| rustix::process::Gid::from_raw(gid)).collect();
    rustix::thread::set_thread_groups(&groups)
}

/// The thread is somebody else until this is dropped.
struct Acting<'a> {
    thread: &'a Thread,
    user: bool,
    group: bool,
    groups: bool,
    capabilities: bool,
}

impl<'a> Acting<'a> {
    fn new(thread: &'a Thread, uid: Option<u32>, gid: Option<u32>, groups: &[u32]) -> Result<Acting<'a>, Errno> {
        // What was done when a later step fails is undone by the drop.
        let mut acting = Acting { thread, user: false, group: false, groups: false, capabilities: false };
        thread.acting.set(true);
        // Groups say nothing to a user who may do everything.
        if uid.is_some() && groups != thread.groups {
            if groups.contains(&NOBODY) {
                return Err(Errno::INVAL);
            }
            set_groups(groups)?;
            acting.groups = true;
        }
        if let Some(gid) = gid {
            acting.group = true;
            set_group(gid);
            if !thread.groups_seen.holds(gid) {
                if set_group(NOBODY) != gid {
                    return Err(Errno::PERM);
                }
                thread.groups_seen.add(gid);
            }
        }
        if let Some(uid) = uid {
            acting.user = true;
            set_user(uid);
            if !thread.users_seen.holds(uid) {
                if set_user(NOBODY) != uid {
                    return Err(Errno::PERM);
                }
                thread.users_seen.add(uid);
            }
            if !thread.adapts && thread.capabilities.effective.intersects(OVER_FILES) {
                thread.set_effective(thread.capabilities.effective.difference(OVER_FILES))?;
                acting.capabilities = true;
            }
        }
        Ok(acting)
    }

    /// Lets the caller pass where the host's permissions would stop it. False when the daemon itself could not.
    fn override_permissions(&mut self) -> bool {
        let own = self.thread.capabilities.effective;
        if !self.user || !own.contains(CapabilitySet::DAC_OVERRIDE) {
            return false;
        }
        let more = own.difference(OVER_FILES).union(CapabilitySet::DAC_OVERRIDE);
        let raised = self.thread.set_effective(more).is_ok();
        self.capabilities |= raised;
        raised
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        // A thread may always take its own ids back, and the capabilities are among the permitted ones all along.
        if self.user {
            set_user(self.thread.uid);
        }
        if self.group {
            set_group(self.thread.gid);
        }
        if self.groups && set_groups(&self.thread.groups).is_err() {
            // Cannot be: the capability that let the groups change is still in effect.
            tracing::error!("a thread could not take its supplementary groups back");
        }
        let own = &self.thread.capabilities;
        // The kernel gives all permitted capabilities back, which is too much for a thread that did not use all of them.
        let exact =
            self.thread.adapts && own.effective.intersection(OVER_FILES) == own.permitted.intersection(OVER_FILES);
        let restore = if self.thread.adapts { self.user && !exact } else { self.capabilities };
        if restore && self.thread.set_effective(own.effective).is_err() {
            tracing::error!("a thread could not take its capabilities back");
        }
        self.thread.acting.set(false);
    }
}

/// Runs one creating system call as `caller`, and is the daemon again afterwards.
///
/// `call` is made a second time, with `CAP_DAC_OVERRIDE`, when the host's permissions refuse it: the client has checked
/// permissions already, with groups and access lists of which it tells only part. So it must be one system call that has
/// no effect when it fails with `EACCES`. Neither this function nor another that needs the daemon's power may be called
/// inside.
///
/// A caller with the daemon's ids costs nothing. Another one costs four cheap system calls, two more when this thread has
/// not had its ids lately, and two when its groups are not the daemon's: a daemon does well to drop its own.
///
/// # Errors
/// What `call` answers; `EPERM` where the daemon may not take these ids, unless `refused` says otherwise; `EINVAL` for a
/// group that is none.
pub(crate) fn as_caller<T>(
    caller: Caller<'_>,
    refused: Refused,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    with_thread(|thread| {
        let uid = (caller.uid != 0 && caller.uid != thread.uid).then_some(caller.uid);
        let gid = (caller.gid != 0 && caller.gid != thread.gid).then_some(caller.gid);
        if thread.acting.get() {
            debug_assert!(false, "a caller inside of a caller would return to the daemon too early");
            return Err(Errno::PERM);
        }
        if uid.is_none() && gid.is_none() {
            return call();
        }
        let mut acting = match Acting::new(thread, uid, gid, caller.groups) {
            Err(Errno::PERM) if refused == Refused::AsSelf => return call(),
            acting => acting?,
        };
        match call() {
            Err(Errno::ACCESS) if acting.override_permissions() => call(),
            answer => answer,
        }
    })
}

/// Runs `call` without `CAP_FSETID`, so that the kernel drops set-id bits and file capabilities as it does for a user. Two
/// system calls; none where the thread lacks the capability anyway.
///
/// # Errors
/// What `call` answers, or what stood against the change of capabilities.
pub(crate) fn without_fsetid<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    /// The thread lacks the capability until this is dropped.
    struct Lacking<'a>(&'a Thread);

    impl Drop for Lacking<'_> {
        fn drop(&mut self) {
            if self.0.set_effective(self.0.capabilities.effective).is_err() {
                // Cannot be: the capability is still a permitted one.
                tracing::error!("a thread could not take CAP_FSETID back");
            }
        }
    }

    with_thread(|thread| {
        let effective = thread.capabilities.effective;
        if thread.acting.get() || !effective.contains(CapabilitySet::FSETID) {
            return call();
        }
        thread.set_effective(effective.difference(CapabilitySet::FSETID))?;
        let _lacking = Lacking(thread);
        call()
    })
}

/// As [`without_fsetid`], within the group `gid`: a set-group-id bit that nobody executes stays. Two system calls more.
/// Where the daemon may not take the group, the bit goes.
///
/// # Errors
/// As [`without_fsetid`].
pub(crate) fn without_fsetid_in<T>(gid: u32, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    /// The thread has another group until this is dropped.
    struct Inside<'a>(&'a Thread);

    impl Drop for Inside<'_> {
        fn drop(&mut self) {
            set_group(self.0.gid);
        }
    }

    with_thread(|thread| {
        if thread.acting.get() || gid == thread.gid || thread.groups.contains(&gid) {
            return without_fsetid(call);
        }
        set_group(gid);
        let _inside = Inside(thread);
        without_fsetid(call)
    })
}

/// Runs `call` under `umask`, which is this thread's alone. Every creating call goes through here, those that want 0 too:
/// the umask of the one before is still in force, and a thread of its own has none of the process's.
///
/// The first time costs a thread two system calls, later only a change costs one.
///
/// # Errors
/// What `call` answers, or what stood against a umask of the thread's own.
pub(crate) fn with_umask<T>(umask: u32, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    with_thread(|thread| {
        let present = thread.umask.get();
        if present.is_none() {
            // SAFETY: `FS` gives this thread its own umask, root and working directory, which begin as they were. No file
            // descriptor is unshared, so nothing that another thread holds changes its meaning.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
        }
        // The kernel keeps these bits alone.
        let umask = umask & 0o777;
        if present != Some(umask) {
            rustix::process::umask(Mode::from_bits_retain(umask));
            thread.umask.set(Some(umask));
        }
        call()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, CWD, OFlags};
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    const USER: u32 = 1234;
    const GROUP: u32 = 2345;
    const EXTRA: u32 = 3456;

    fn caller(groups: &[u32]) -> Caller<'_> {
        Caller { uid: USER, gid: GROUP, groups }
    }

    /// Ids and capabilities as the kernel shows them, without the lines that change by themselves.
    fn credentials() -> Vec<String> {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let wanted = ["Uid:", "Gid:", "Groups:", "CapEff:", "CapPrm:", "CapInh:"];
        status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))).map(str::to_owned).collect()
    }

    fn create(path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        with_umask(0, || rustix::fs::openat(CWD, path, flags, Mode::from_bits_retain(mode)))
    }

    /// A directory with this owner, group and mode, or nothing where the test has no right to give one away.
    fn directory(gid: u32, mode: u32) -> Option<tempfile::TempDir> {
        let directory = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            rustix::fs::chown(directory.path(), None, Some(rustix::process::Gid::from_raw(gid))).unwrap();
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            return Some(directory);
        }
        // What remains to be said of a daemon that may not take other ids.
        let refused = as_caller(caller(&[]), Refused::Fails, || create(&directory.path().join("file"), 0o600));
        assert_eq!(refused.err(), Some(Errno::PERM));
        None
    }

    #[test]
    fn a_new_file_belongs_to_its_caller() {
        let before = credentials();
        let Some(directory) = directory(0, 0o777) else { return };
        let path = directory.path().join("file");
        as_caller(caller(&[]), Refused::Fails, || create(&path, 0o600)).unwrap();
        let file = fs::metadata(&path).unwrap();
        assert_eq!((file.uid(), file.gid()), (USER, GROUP));
        assert_eq!(credentials(), before);

        let path = directory.path().join("group");
        as_caller(Caller { uid: 0, gid: GROUP, groups: &[] }, Refused::Fails, || create(&path, 0o600)).unwrap();
        let file = fs::metadata(&path).unwrap();
        assert_eq!((file.uid(), file.gid()), (0, GROUP));
        assert_eq!(credentials(), before);
    }

    #[test]
    fn the_daemon_itself_is_not_switched() {
        let own =
            Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), groups: &[] };
        let before = credentials();
        assert_eq!(as_caller(own, Refused::Fails, || Ok(credentials())), Ok(before.clone()));
        assert_eq!(
            as_caller(Caller { uid: 0, gid: 0, groups: &[EXTRA] }, Refused::Fails, || Ok(credentials())),
            Ok(before)
        );
    }

    #[test]
    fn permissions_that_the_client_has_checked_do_not_stop_the_caller() {
        let Some(directory) = directory(0, 0o700) else { return };
        let path = directory.path().join("file");
        let before = credentials();
        let mut calls = 0;
        let made = as_caller(caller(&[]), Refused::Fails, || {
            calls += 1;
            create(&path, 0o600)
        });
        made.unwrap();
        assert_eq!(calls, 2, "the second with the right to pass");
        assert_eq!(fs::metadata(&path).unwrap().uid(), USER);
        assert_eq!(credentials(), before);
        assert_eq!(as_caller(caller(&[]), Refused::Fails, || create(&path, 0o600)).err(), Some(Errno::EXIST));
    }

    #[test]
    fn a_daemon_whose_capabilities_do_not_follow_its_user_loses_them_all_the_same() {
        let Some(directory) = directory(0, 0o700) else { return };
        // As for a daemon that is not root and has its capabilities from a service manager. The thread's alone.
        rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP).unwrap();
        let before = credentials();
        let path = directory.path().join("file");
        let mut seen = Vec::new();
        let made = as_caller(caller(&[]), Refused::Fails, || {
            seen.push(rustix::thread::capabilities(None)?.effective.intersection(OVER_FILES));
            create(&path, 0o600)
        });
        made.unwrap();
        assert_eq!(seen, [CapabilitySet::empty(), CapabilitySet::DAC_OVERRIDE]);
        assert_eq!(fs::metadata(&path).unwrap().uid(), USER);
        assert_eq!(credentials(), before);
    }

    #[test]
    fn the_set_group_id_bit_needs_the_group() {
        let Some(directory) = directory(EXTRA, 0o2777) else { return };
        let without = directory.path().join("without");
        as_caller(caller(&[]), Refused::Fails, || create(&without, 0o2755)).unwrap();
        let file = fs::metadata(&without).unwrap();
        assert_eq!((file.gid(), file.mode() & 0o7777), (EXTRA, 0o755));
        let with = directory.path().join("with");
        let before = credentials();
        as_caller(caller(&[EXTRA]), Refused::Fails, || create(&with, 0o2755)).unwrap();
        let file = fs::metadata(&with).unwrap();
        assert_eq!((file.gid(), file.mode() & 0o7777), (EXTRA, 0o2755));
        assert_eq!(credentials(), before);
    }

    #[test]
    fn ids_that_are_none_are_refused() {
        let before = credentials();
        let nothing = || -> Result<(), Errno> { panic!("nobody may come here") };
        assert_eq!(as_caller(Caller { uid: NOBODY, gid: 0, groups: &[] }, Refused::Fails, nothing), Err(Errno::PERM));
        assert_eq!(as_caller(Caller { uid: 0, gid: NOBODY, groups: &[] }, Refused::Fails, nothing), Err(Errno::PERM));
        assert_eq!(as_caller(caller(&[NOBODY]), Refused::Fails, nothing), Err(Errno::INVAL));
        assert_eq!(credentials(), before);
    }

    #[test]
    fn credentials_come_back_from_a_panic() {
        let before = credentials();
        let caught = std::panic::catch_unwind(|| {
            as_caller(caller(&[EXTRA]), Refused::Fails, || -> Result<(), Errno> { panic!("in here") })
        });
        assert_eq!(caught.is_err(), rustix::process::geteuid().is_root());
        assert_eq!(credentials(), before);
    }

    #[test]
    fn a_write_without_fsetid_drops_the_set_id_bits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = create(&path, 0o644).unwrap();
        let mode = |bits: u32| rustix::fs::chmodat(CWD, &path, Mode::from_bits_retain(bits), AtFlags::empty()).unwrap();
        let before = credentials();
        mode(0o6755);
        without_fsetid(|| rustix::io::write(&file, b"a")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
        assert_eq!(credentials(), before);
        if rustix::process::geteuid().is_root() {
            mode(0o6755);
            rustix::io::write(&file, b"a").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6755, "the daemon's own write keeps them");
        }
    }

    #[test]
    fn a_umask_is_the_threads_own() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str, umask| {
            let path = directory.path().join(name);
            with_umask(umask, || rustix::fs::mkdir(&path, Mode::from_bits_retain(0o777))).unwrap();
            fs::metadata(&path).unwrap().mode() & 0o777
        };
        let process = rustix::process::umask(Mode::from_bits_retain(0o033));
        std::thread::scope(|scope| {
            let threads = [0o022, 0o077, 0].map(|umask| {
                scope.spawn(move || {
                    for round in 0..20 {
                        assert_eq!(make(&format!("{umask:o}-{round}"), umask), 0o777 & !umask);
                    }
                    assert_eq!(make(&format!("{umask:o}-other"), 0o111), 0o666);
                    assert_eq!(make(&format!("{umask:o}-none"), 0), 0o777);
                })
            });
            for thread in threads {
                thread.join().unwrap();
            }
        });
        assert_eq!(rustix::process::umask(process).bits(), 0o033, "the process has kept its own");
    }
}
