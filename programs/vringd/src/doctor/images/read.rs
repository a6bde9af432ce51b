//! Looks at images as a reader without locks, and asks what a writer with locks would be told. Nothing is written, nor opened for writing.

use super::{Cause, Device, Facts, File, Lock, Refusal, Role, Space};
use crate::config::Config;
use crate::doctor::file_system;
use crate::doctor::finding::{About, Area, Finding, Level};
use crate::doctor::look::at_each;
use crate::doctor::memory::read::foresee;
use crate::doctor::subjects::{named, storages};
use crate::doctor::trial::without_memory_file;
use crate::volume::begins_like_a_volume;
use control::model::MemoryFile;
use disk::{FileOptions, MemoryOptions, StorageSpec};
use std::error::Error;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use storage::kit::{ImageLock, begins_like, check_access, has_left_io};
use storage::{Access, Description, Kind as _, Look, OpenError};

/// Of all storages of `config`, which `daemon` may serve already; and what did not answer.
pub(in crate::doctor) fn read(config: &Config, daemon: Option<u32>) -> (Vec<Facts>, Vec<Finding>) {
    let all: Vec<_> = storages(config).into_iter().map(|(subject, spec)| (subject, spec.clone())).collect();
    let blocks: Vec<_> = all.iter().map(|(subject, _)| told(config, subject)).collect();
    let names: Vec<_> = all.iter().map(|(subject, spec)| (subject.clone(), describe(spec))).collect();
    let (mut facts, mut missed) = (Vec::new(), Vec::new());
    let what: Vec<_> = all.into_iter().zip(blocks).collect();
    let looks = at_each("look-image", what, |((subject, spec), told)| look(subject, &spec, told));
    for (looked, (subject, what)) in looks.into_iter().zip(names) {
        match looked {
            Ok(seen) => facts.push(served(seen, daemon)),
            Err(why) => {
                let cost = "`vringd serve` would wait there as well";
                let about = About::new(Area::Images, &subject);
                missed.push(about.costs(Level::Degraded, "answers", format_args!("{what} {why}"), cost));
            }
        }
    }
    (facts, missed)
}

/// What the daemon of this configuration has locked is no refusal of it.
fn served(facts: Facts, daemon: Option<u32>) -> Facts {
    let by = daemon.filter(|pid| facts.refusal.as_ref().is_some_and(|it| it.words.contains(&format!("(pid {pid})"))));
    match by {
        Some(_) => Facts { refusal: None, is_served: true, ..facts },
        None => facts,
    }
}

/// The block size that the guest of a storage is told, in bytes.
fn told(config: &Config, subject: &str) -> u32 {
    let uses = |export: &&control::model::NewExport| match &export.disk {
        Some(disk) => format!("disk {disk}") == subject,
        None => named(&export.name) == subject,
    };
    config.exports.iter().find(uses).map_or(512, control::model::NewExport::block_size_bytes)
}

/// Its kind, and where it is.
fn describe(spec: &StorageSpec) -> String {
    if let StorageSpec::Rbd(image) = spec {
        return format!("rbd {}", image.spec());
    }
    let path = spec.clone().paths().first().map(|(_, path)| path.display().to_string());
    format!("{} {}", spec.kind(), path.unwrap_or_default()).trim_end().to_owned()
}

fn look(subject: String, spec: &StorageSpec, told: u32) -> Facts {
    let files = files(spec);
    let what = describe(spec);
    // Whoever opens it waits for that.
    let left_io = files.iter().map(|file| &file.path).find(|path| has_left_io(path)).cloned();
    if left_io.is_some() {
        return Facts { subject, what, left_io, discards: true, ..Facts::default() };
    }
    let locks = locks(spec);
    let mut facts = Facts { subject, what, files, locks, discards: true, ..Facts::default() };
    match foresee_open(spec) {
        Ok(Some((about, capacity_bytes))) => {
            facts.blocks = about.direct.then_some((about.block_size_bytes, told));
            // Of a file only who writes to it finds that out.
            facts.discards = about.discard || about.kind != "device";
            grow(&mut facts, spec, capacity_bytes);
        }
        Ok(None) => {}
        Err(refused) => facts.refusal = Some(refused),
    }
    if let StorageSpec::File(file) = spec
        && facts.refusal.is_none()
    {
        facts.looks_like = looks_like(file);
    }
    facts
}

/// What a raw image begins like, and what to do about it.
fn looks_like(file: &FileOptions) -> Option<(String, String)> {
    if begins_like_a_volume(&file.path) {
        return Some(("a volume".to_owned(), "serve it with storage `volume`".to_owned()));
    }
    let looks = begins_like(&file.path).filter(|_| file.luks.is_none())?;
    Some((looks.to_string(), looks.serve.to_owned()))
}

/// What opening would say, in the order in which it would; and what is there.
fn foresee_open(spec: &StorageSpec) -> Result<Option<(Description, u64)>, Refusal> {
    let told = |error: OpenError| refusal(&error);
    if let StorageSpec::Memory(memory) = spec {
        return memory.foresee().map(|()| None).map_err(told);
    }
    if let StorageSpec::Rbd(image) = spec {
        // Ceph's library, the configuration and the keyring. Whether the cluster answers is not for a doctor to wait for.
        return image.open().map(|_| None).map_err(told);
    }
    if let StorageSpec::Sg(device) = spec {
        return device.foresee().map(|()| None).map_err(told);
    }
    for (file, lock) in opened(spec) {
        check_access(&file).map_err(told)?;
        if lock {
            ImageLock::check(&file.path, !file.read_only).map_err(told)?;
        }
    }
    let seen = match spec {
        StorageSpec::File(file) => Some(file.look()),
        // Where a memory file would be is looked at without making that place.
        StorageSpec::Volume(volume) => {
            Some(volume::VolumeOptions { memory_file: MemoryFile::None, ..volume.clone() }.look())
        }
        StorageSpec::Qcow2(image) => Some(image.look()),
        StorageSpec::Rbd(_)
        | StorageSpec::Sg(_)
        | StorageSpec::Memory(_)
        | StorageSpec::Null(_)
        | StorageSpec::Sim(_) => None,
    };
    let seen = seen.transpose().map_err(told)?;
    if let Some((_, Err(error))) = foresee(spec) {
        return Err(refusal(&error));
    }
    if let Some(luks) = spec.luks() {
        luks::Passphrase::read(&luks.key_file).map_err(|error| refusal(&error))?;
        if let StorageSpec::File(file) = spec {
            luks::tools::check(&file.path).map_err(|error| refusal(&error))?;
        }
    }
    Ok(seen)
}

/// The files that are opened, and whether they are locked then. One that changes hands is open only while a guest runs.
fn opened(spec: &StorageSpec) -> Vec<(FileOptions, bool)> {
    let apart = spec.migratable().is_none();
    let of = |path: &Path, read_only, direct, lock: bool| {
        (FileOptions { read_only, direct, ..FileOptions::new(path) }, lock && apart)
    };
    match spec {
        StorageSpec::File(file) => vec![of(&file.path, file.read_only, file.direct, file.lock)],
        StorageSpec::Volume(volume) => std::iter::once(&volume.path)
            .chain(&volume.log)
            .map(|path| of(path, false, volume.direct, volume.lock))
            .collect(),
        StorageSpec::Qcow2(image) => {
            let images =
                needs(spec).into_iter().filter(|(path, ..)| Some(path) != image.log.as_ref().map(|log| &log.path));
            let images = images.map(|(path, writes, _)| of(&path, !writes, image.direct, image.lock));
            images.chain(image.log.iter().map(|log| of(&log.path, false, log.direct, image.lock))).collect()
        }
        StorageSpec::Rbd(_)
        | StorageSpec::Sg(_)
        | StorageSpec::Memory(_)
        | StorageSpec::Null(_)
        | StorageSpec::Sim(_) => Vec::new(),
    }
}

/// Those that are locked, each by the numbers of its inode.
fn locks(spec: &StorageSpec) -> Vec<Lock> {
    let locked = opened(spec).into_iter().filter(|(_, lock)| *lock).map(|(file, _)| file);
    let of_memory = match spec {
        StorageSpec::Memory(MemoryOptions { path: Some(path), read_only, .. }) => {
            Some(FileOptions { read_only: *read_only, ..FileOptions::new(path) })
        }
        _ => None,
    };
    let lock = |file: FileOptions| {
        let about = std::fs::metadata(&file.path).ok()?;
        Some(Lock { inode: (about.dev(), about.ino()), path: file.path, writes: !file.read_only })
    };
    locked.chain(of_memory).filter_map(lock).collect()
}

/// Images and logs that the storage uses: where, whether they are written, and what they are.
fn needs(spec: &StorageSpec) -> Vec<(PathBuf, bool, Role)> {
    if matches!(spec, StorageSpec::Rbd(_) | StorageSpec::Sg(_)) {
        return Vec::new();
    }
    // A place for a memory file would be made by asking where it is.
    let mut quiet = spec.clone();
    without_memory_file(&mut quiet);
    let key = spec.luks().map(|luks| luks.key_file.clone());
    let files = quiet.needs().into_iter().filter(|need| !need.access.makes_files() && Some(&need.path) != key.as_ref());
    let role = |index: usize, field: &str| match (index, field) {
        (_, "storage.log" | "storage.log.path") => Role::Log,
        (0, _) => Role::Image,
        _ => Role::Behind,
    };
    files.enumerate().map(|(index, need)| (need.path, need.access == Access::Write, role(index, need.field))).collect()
}

fn files(spec: &StorageSpec) -> Vec<File> {
    let mut files: Vec<_> = needs(spec).into_iter().map(|(path, writes, role)| file(path, writes, role)).collect();
    // A volume without one of its own has its log inside.
    if let (StorageSpec::Volume(volume), [image]) = (spec, files.as_mut_slice())
        && volume.log.is_none()
    {
        image.role = Role::Log;
    }
    files
}

fn file(path: PathBuf, writes: bool, role: Role) -> File {
    let Ok(about) = std::fs::metadata(&path) else { return File { path, role, writes, ..File::default() } };
    let is_device = about.file_type().is_block_device();
    let device = Device::read(if is_device { about.rdev() } else { about.dev() }, is_device);
    let file_system = (!is_device).then(|| file_system::of(&path)).flatten();
    File { path, role, writes, file_system, space: None, device }
}

impl Device {
    /// As sysfs knows it; a partition's queue is its disk's.
    fn read(number: u64, is_it: bool) -> Option<Device> {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let directory = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if !directory.is_dir() {
            return None;
        }
        let of = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let queue =
            |name: &str| of(directory.join("queue").join(name)).or_else(|| of(directory.join("../queue").join(name)));
        Some(Device {
            is_it,
            rotates: queue("rotational") == Some(1),
            read_only: of(directory.join("ro")) == Some(1),
            misaligned_bytes: of(directory.join("alignment_offset")).unwrap_or(0),
        })
    }
}

/// What the image's file may grow by.
fn grow(facts: &mut Facts, spec: &StorageSpec, capacity_bytes: u64) {
    let Some(file) = facts.files.first_mut().filter(|file| file.writes) else { return };
    let (Ok(about), Ok(room)) = (std::fs::metadata(&file.path), rustix::fs::statvfs(&file.path)) else { return };
    if !about.is_file() {
        return;
    }
    // An external data file has the data.
    let data: u64 = match spec {
        StorageSpec::Qcow2(_) => facts
            .files
            .iter()
            .filter(|file| file.writes && file.role != Role::Log)
            .map(|file| allocated(&file.path))
            .sum(),
        _ => allocated(&facts.files[0].path),
    };
    let space = Space {
        file_system: about.dev(),
        free_bytes: room.f_bavail * room.f_frsize,
        grows_bytes: capacity_bytes.saturating_sub(data),
    };
    facts.files[0].space = Some(space);
}

fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |about| about.blocks() * 512)
}

/// A refusal, by the last cause that is the kernel's.
fn refusal(error: &(dyn Error + 'static)) -> Refusal {
    let words = error.to_string();
    let mut cause = Cause::Said;
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(open) = error.downcast_ref::<OpenError>() {
            cause = match open {
                OpenError::Path { path, source, .. } => match source.kind() {
                    ErrorKind::NotFound => Cause::Missing(path.clone()),
                    ErrorKind::PermissionDenied => Cause::Forbidden(path.clone()),
                    _ => Cause::Said,
                },
                OpenError::Locked { path, .. } => Cause::Locked(path.clone()),
                OpenError::Busy { path } => Cause::Busy(path.clone()),
                _ => Cause::Said,
            };
        }
        next = error.source();
    }
    Refusal { words, cause }
}
