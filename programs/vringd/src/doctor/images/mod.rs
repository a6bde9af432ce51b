//! Images, devices and logs: whether they can be opened, and what they cost where they are.

pub(super) mod read;

use super::file_system::{self, Use};
use super::finding::{About, Area, Finding, Level, word};
use crate::out::size;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A file system with less than this part of what may be written is about to be full.
const NEARLY_FULL: u64 = 20;

/// A storage, as it was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) subject: String,
    /// Its kind, and its path or a few words.
    pub(super) what: String,
    /// What opening it would say.
    pub(super) refusal: Option<Refusal>,
    /// The daemon of this configuration has it locked: it was looked at no further.
    pub(super) is_served: bool,
    /// A killed server still has I/O under way on this file.
    pub(super) left_io: Option<PathBuf>,
    /// Its files: the image first, then what it leads to.
    pub(super) files: Vec<File>,
    /// The files that it locks.
    pub(super) locks: Vec<Lock>,
    /// A raw image that begins like something else: what, and what to do.
    pub(super) looks_like: Option<(String, String)>,
    /// What the storage addresses without a detour, and what the guest is told, in bytes.
    pub(super) blocks: Option<(u32, u32)>,
    /// Discards of the guest give space back.
    pub(super) discards: bool,
}

/// Why a storage would not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// As `vringd serve` says it.
    pub(super) words: String,
    pub(super) cause: Cause,
}

/// What may help against a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Missing(PathBuf),
    /// This user may not.
    Forbidden(PathBuf),
    Locked(PathBuf),
    Busy(PathBuf),
    /// The message says it.
    Said,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    #[default]
    Image,
    /// It is read through an image.
    Behind,
    Log,
}

/// A file or device of a storage.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) role: Role,
    pub(super) writes: bool,
    /// The type of its file system; nothing for a device.
    pub(super) file_system: Option<String>,
    /// The file system: its number and what is free there; and what the file may still grow by, in bytes.
    pub(super) space: Option<Space>,
    /// The block device that it is, or is on.
    pub(super) device: Option<Device>,
}

/// A file that a storage locks: nobody else may write to it meanwhile, and who writes shares it with nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lock {
    /// Numbers of its file system and of itself.
    pub(super) inode: (u64, u64),
    pub(super) path: PathBuf,
    pub(super) writes: bool,
}

/// Room for a sparse file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) file_system: u64,
    pub(super) free_bytes: u64,
    pub(super) grows_bytes: u64,
}

/// A block device (Documentation/ABI/stable/sysfs-block).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    /// The file is the device itself.
    pub(super) is_it: bool,
    pub(super) rotates: bool,
    pub(super) read_only: bool,
    /// Bytes by which its blocks are shifted against those of the disk.
    pub(super) misaligned_bytes: u64,
}

/// What is wrong with them.
pub(super) fn findings(all: &[Facts]) -> Vec<Finding> {
    let mut found: Vec<_> = all.iter().flat_map(of_one).collect();
    found.extend(shared(all));
    found.extend(space(all));
    found
}

fn of_one(facts: &Facts) -> Vec<Finding> {
    let about = About::new(Area::Images, &facts.subject);
    let mut found = Vec::new();
    found.push(match &facts.refusal {
        Some(refusal) => refused(about, refusal),
        None if facts.is_served => {
            about.good("open", format_args!("{} is open in the daemon that serves it", facts.what))
        }
        None => about.good("open", format_args!("{} can be opened", facts.what)),
    });
    if let Some(path) = &facts.left_io {
        let seen = format!("{}: a server that was killed still has I/O under way on it", path.display());
        let cost = "`vringd serve` waits for it, for 45 seconds at most; nothing else of the image was looked at";
        found.push(about.costs(Level::Note, "left-io", seen, cost));
    }
    if let Some((looks, fix)) = &facts.looks_like {
        let seen = format!("begins like {looks}, and is served as raw bytes");
        let cost = "the guest sees the format's own structures, and destroys them by what it writes";
        found.push(about.costs(Level::Degraded, "format", seen, cost).fix(fix));
    }
    if let Some((storage, told)) = facts.blocks
        && storage > told
    {
        let seen = format!("the device has blocks of {storage} bytes, and the guest is told of {told}");
        let cost = "a write of less than a block is a read, a copy and a write, one after the other";
        found.push(
            about
                .costs(Level::Slow, "block-size", seen, cost)
                .fix(format_args!("block_size = {storage}    # for a new disk: a guest's file system depends on it")),
        );
    }
    if facts.refusal.is_none()
        && facts.files.first().is_some_and(|file| file.writes)
        && !facts.discards
        && facts.left_io.is_none()
    {
        let cost = "what a guest has deleted stays allocated";
        found.push(about.costs(Level::Note, "discard", "discards give no space back where it lies", cost));
    }
    found.extend(facts.files.iter().flat_map(|file| place(about, file)));
    found
}

/// What serving ends with then.
const REFUSED: &str = "`vringd serve` ends without serving anything: it starts all of its exports or none";

fn refused(about: About<'_>, refusal: &Refusal) -> Finding {
    let found = about.costs(Level::Fails, "open", &refusal.words, REFUSED);
    match &refusal.cause {
        Cause::Missing(path) => found.fix(format_args!(
            "vringd image create --size SIZE {0}    # or, for a raw one, truncate -s SIZE {0}",
            word(path)
        )),
        Cause::Forbidden(path) => found.fix(format_args!(
            "setfacl -m u:USER:rw {}    # and the right to search the directories above it",
            word(path)
        )),
        Cause::Locked(path) => {
            found.fix(format_args!("lslocks | grep -F {}    # who it is; stop that one first", word(path)))
        }
        Cause::Busy(path) => {
            found.fix(format_args!("lsblk {}    # what uses it; unmount or stop that first", word(path)))
        }
        Cause::Said => found,
    }
}

fn place(about: About<'_>, file: &File) -> Vec<Finding> {
    let path = file.path.display();
    let mut found = Vec::new();
    if let Some(kind) = &file.file_system {
        found.push(match file_system::cost(kind, Use::Image { writes: file.writes }) {
            Some((level, cost, fix)) => {
                let found = about.costs(level, "file-system", format_args!("{path} is on {kind}"), cost);
                match fix {
                    Some(fix) => found.fix(fix.replace("DIR", &word(file.path.parent().unwrap_or(Path::new("."))))),
                    None => found,
                }
            }
            None => about.good("file-system", format_args!("{path} is on {kind}")),
        });
    }
    if let Some(device) = file.device {
        if file.role == Role::Log && device.rotates {
            let seen = format!("{path}: the log is on what the kernel takes for a rotating disk");
            let cost = "each commit waits for the disk to turn: some 100 commits a second";
            found.push(
                about
                    .costs(Level::Slow, "log-rotates", seen, cost)
                    .fix("log = \"/dev/nvme0n1p3\"    # docs/volumes.md: a log on its own device"),
            );
        }
        // Linux lets a writer open it all the same.
        if device.is_it && device.read_only && file.writes {
            let fix = format!("blockdev --setrw {}    # or read_only = true", word(&file.path));
            let seen = format!("{path}: the device is read-only");
            found.push(about.costs(Level::Degraded, "read-only", seen, "each write of the guest fails").fix(fix));
        }
        if device.misaligned_bytes > 0 {
            let seen = format!(
                "{path}: its blocks are shifted by {} bytes against those of its disk",
                device.misaligned_bytes
            );
            let cost = "each write of a block is a read and a write of two";
            found.push(
                about.costs(Level::Slow, "alignment", seen, cost).fix("begin the partition at a multiple of 1 MiB"),
            );
        }
    }
    found
}

/// Files that two storages of the configuration lock, of which one writes: the second is refused.
fn shared(all: &[Facts]) -> Vec<Finding> {
    let mut first: HashMap<(u64, u64), Vec<(&Facts, &Lock)>> = HashMap::new();
    let mut found = Vec::new();
    for (facts, lock) in all.iter().flat_map(|facts| facts.locks.iter().map(move |lock| (facts, lock))) {
        let others = first.entry(lock.inode).or_default();
        let other =
            others.iter().find(|(other, before)| other.subject != facts.subject && (before.writes || lock.writes));
        if let Some((other, before)) = other {
            let who = if before.writes { "to write to it" } else { "as well, and lets nobody write" };
            let seen = format!("{}: is in use, {} opens it {who}", lock.path.display(), other.subject);
            let about = About::new(Area::Images, &facts.subject);
            found.push(about.costs(Level::Fails, "open", seen, REFUSED).fix(
                "read_only = true    # of each; or one [[disk]] in place of both; `lock = false` only where the file does not change",
            ));
        } else {
            others.push((facts, lock));
        }
    }
    found
}

/// Sparse files of one file system share its room.
fn space(all: &[Facts]) -> Vec<Finding> {
    let mut file_systems: Vec<(Space, PathBuf, usize)> = Vec::new();
    let spaces = all.iter().flat_map(|facts| &facts.files).filter_map(|file| Some((file.space?, file.path.clone())));
    for (space, path) in spaces.filter(|(space, _)| space.grows_bytes > 0) {
        match file_systems.iter_mut().find(|(known, ..)| known.file_system == space.file_system) {
            Some((known, _, count)) => {
                known.grows_bytes = known.grows_bytes.saturating_add(space.grows_bytes);
                *count += 1;
            }
            None => file_systems.push((space, path, 1)),
        }
    }
    let machine = About::machine(Area::Images);
    let of = |(Space { free_bytes, grows_bytes, .. }, path, count): (Space, PathBuf, usize)| {
        let parent = path.parent().unwrap_or(Path::new("."));
        let directory = parent.display();
        let seen = format!(
            "{count} thin image(s) in the file system of {directory} may grow by {}, and {} are free",
            size(grows_bytes),
            size(free_bytes)
        );
        if free_bytes >= grows_bytes {
            return machine.good("space", seen);
        }
        let level = if free_bytes < grows_bytes / NEARLY_FULL { Level::Degraded } else { Level::Note };
        machine
            .costs(
                level,
                "space",
                seen,
                "once it is full, guests' writes fail, and their file systems become read-only",
            )
            .fix(format_args!("df -h {}", word(parent)))
    };
    file_systems.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        File { path: "/srv/a.img".into(), writes: true, file_system: Some("ext4".into()), ..File::default() }
    }

    fn facts(files: Vec<File>) -> Facts {
        Facts { subject: "export a".into(), what: "file /srv/a.img".into(), files, discards: true, ..Facts::default() }
    }

    fn worst(all: &[Facts]) -> Vec<(Level, &'static str)> {
        let found = findings(all).into_iter().filter(|finding| finding.level != Level::Good);
        found.map(|finding| (finding.level, finding.check)).collect()
    }

    #[test]
    fn a_plain_image_is_good() {
        assert_eq!(worst(&[facts(vec![file()])]), []);
    }

    #[test]
    fn a_refusal_has_the_fix_of_its_cause() {
        let fix = |cause| {
            let refusal = Some(Refusal { words: "no".into(), cause });
            let found = findings(&[Facts { refusal, ..facts(vec![]) }]);
            assert_eq!((found.len(), found[0].level), (1, Level::Fails));
            found[0].fix.clone().unwrap_or_default()
        };
        assert!(fix(Cause::Missing("/a".into())).contains("truncate -s SIZE /a"));
        assert!(fix(Cause::Forbidden("/a".into())).contains("setfacl -m u:USER:rw /a"));
        assert!(fix(Cause::Locked("/a".into())).contains("lslocks"));
        assert!(fix(Cause::Busy("/dev/a".into())).contains("lsblk /dev/a"));
        assert_eq!(fix(Cause::Said), "");
        // A name that an image says is not to be run by whoever types the line.
        assert!(fix(Cause::Missing("/a; reboot".into())).contains("SIZE '/a; reboot' "));
    }

    #[test]
    fn places_cost_what_they_cost() {
        let on = |kind: &str| vec![File { file_system: Some(kind.into()), ..file() }];
        assert_eq!(worst(&[facts(on("nfs4"))]), [(Level::Slow, "file-system")]);
        let fix = findings(&[facts(on("btrfs"))]).into_iter().find_map(|finding| finding.fix).unwrap();
        assert!(fix.starts_with("chattr +C /srv "), "{fix}");
        let device = |device| vec![File { file_system: None, device: Some(device), ..file() }];
        let read_only = Device { is_it: true, read_only: true, ..Device::default() };
        assert_eq!(worst(&[facts(device(read_only))]), [(Level::Degraded, "read-only")]);
        assert_eq!(
            worst(&[facts(device(Device { misaligned_bytes: 512, ..Device::default() }))]),
            [(Level::Slow, "alignment")]
        );
        let rotates = Device { rotates: true, ..Device::default() };
        assert_eq!(worst(&[facts(device(rotates))]), [], "an image may");
        let log = vec![file(), File { role: Role::Log, device: Some(rotates), ..file() }];
        assert_eq!(worst(&[facts(log)]), [(Level::Slow, "log-rotates")]);
    }

    #[test]
    fn what_the_guest_would_find_is_noted() {
        let blocks = Facts { blocks: Some((4096, 512)), ..facts(vec![file()]) };
        assert_eq!(worst(&[blocks]), [(Level::Slow, "block-size")]);
        assert_eq!(worst(&[Facts { blocks: Some((512, 4096)), ..facts(vec![file()]) }]), []);
        let looks_like = Some(("a qcow2 image".to_owned(), "serve it with storage `qcow2`".to_owned()));
        assert_eq!(worst(&[Facts { looks_like, ..facts(vec![file()]) }]), [(Level::Degraded, "format")]);
        assert_eq!(worst(&[Facts { discards: false, ..facts(vec![file()]) }]), [(Level::Note, "discard")]);
    }

    #[test]
    fn a_file_that_two_open_fails_the_second_if_one_writes() {
        let with = |subject: &str, locks: &[(u64, bool)]| {
            let lock =
                |(inode, writes): &(u64, bool)| Lock { inode: (1, *inode), path: "/srv/a".into(), writes: *writes };
            Facts { subject: subject.into(), locks: locks.iter().map(lock).collect(), ..facts(vec![]) }
        };
        let fails = |all: &[Facts]| shared(all).into_iter().map(|finding| finding.subject).collect::<Vec<_>>();
        assert_eq!(fails(&[with("a", &[(1, true), (1, true)]), with("b", &[(2, true)])]), [""; 0]);
        assert_eq!(fails(&[with("a", &[(1, false)]), with("b", &[(1, false)])]), [""; 0]);
        assert_eq!(fails(&[with("a", &[(1, false)]), with("b", &[(1, true)]), with("c", &[(1, false)])]), ["b"]);
        assert_eq!(fails(&[with("a", &[(1, true)]), with("b", &[(1, false)]), with("c", &[(2, false)])]), ["b"]);
    }

    #[test]
    fn thin_images_of_one_file_system_are_added_up() {
        let thin = |file_system, grows_bytes| {
            facts(vec![File { space: Some(Space { file_system, free_bytes: 100, grows_bytes }), ..file() }])
        };
        assert_eq!(worst(&[thin(1, 60), thin(2, 60)]), []);
        assert_eq!(worst(&[thin(1, 60), thin(1, 60)]), [(Level::Note, "space")]);
        assert_eq!(worst(&[thin(1, 60), thin(1, 60_000)]), [(Level::Degraded, "space")]);
    }
}
