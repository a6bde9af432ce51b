//! Reads what there is of memory, and what the storages of a configuration would take of it.

use super::{Facts, MemoryFile};
use crate::config::Config;
use crate::doctor::cgroup;
use crate::doctor::look::at_each;
use crate::doctor::subjects::storages;
use disk::StorageSpec;
use procfs::{Current, Meminfo};
use std::path::{Path, PathBuf};
use volume::{Foreseen, VolumeError};

/// Of this machine, for `config`.
pub(in crate::doctor) fn read(config: &Config) -> Facts {
    let info = Meminfo::current().ok();
    let info = info.as_ref();
    let page = info.and_then(|info| info.hugepagesize).unwrap_or(0);
    let free = info.and_then(|info| info.hugepages_free).unwrap_or(0);
    let mut facts = Facts {
        overcommit: number("/proc/sys/vm/overcommit_memory").and_then(|mode| mode.try_into().ok()),
        maps_max: number("/proc/sys/vm/max_map_count"),
        shared_pages: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        huge: (free * page, page),
        available_bytes: info
            .and_then(|info| info.mem_available)
            .map(|bytes| group_left().map_or(bytes, |left| left.min(bytes))),
        swap_bytes: info.map_or(0, |info| info.swap_total),
        guests: config.exports.iter().filter(|export| export.listen.is_none()).count(),
        ..Facts::default()
    };
    let mut logs = Vec::new();
    for (subject, spec) in storages(config) {
        facts.storages_bytes += takes(spec);
        if let StorageSpec::Memory(memory) = spec
            && memory.hugepages
        {
            facts.in_huge.push((subject.clone(), memory.size.map_or(0, |size| size.0)));
        }
        if matches!(spec, StorageSpec::Volume(_)) || spec.log().is_some() {
            logs.push((subject, spec.clone()));
        }
    }
    // What cannot be looked at is for the images' part to say.
    let looked = at_each("look-memory", logs, |(subject, spec)| memory_file(subject, &spec));
    facts.files = looked.into_iter().flatten().flatten().collect();
    facts
}

/// What a storage may keep in memory, in bytes.
fn takes(spec: &StorageSpec) -> u64 {
    match spec {
        StorageSpec::Volume(volume) => volume.dirty_memory.0,
        StorageSpec::Qcow2(image) => image.table_memory.0 + image.log.as_ref().map_or(0, |log| log.dirty_memory.0),
        StorageSpec::Memory(memory) if memory.path.is_none() && !memory.hugepages => {
            memory.size.map_or(0, |size| size.0)
        }
        _ => spec.intent_log().map_or(0, |log| log.dirty_memory.0),
    }
}

/// The memory file that a volume, or a log in front of an image, would have.
fn memory_file(subject: String, spec: &StorageSpec) -> Option<MemoryFile> {
    let (bytes, foreseen) = foresee(spec)?;
    let Foreseen { memory_file, is_there } = foreseen.ok()?;
    let place = memory_file.as_deref().and_then(place);
    Some(MemoryFile { subject, path: memory_file, is_there, bytes, place })
}

/// What a volume, or a log in front of an image, would meet of its memory, and the bytes that it asks for.
pub(in crate::doctor) fn foresee(spec: &StorageSpec) -> Option<(u64, Result<Foreseen, VolumeError>)> {
    match (spec, spec.log()) {
        (StorageSpec::Volume(volume), _) => Some((volume.dirty_memory.0, volume.foresee())),
        (_, Some(log)) => Some((log.file.dirty_memory.0, volume::foresee_log(log.file))),
        _ => None,
    }
}

/// The file system below a path of which the end may be missing: a number, and what is free there in bytes.
fn place(path: &Path) -> Option<(u64, u64)> {
    let there: PathBuf = path.ancestors().find(|path| path.exists())?.to_owned();
    let about = rustix::fs::stat(&there).ok()?;
    let file_system = rustix::fs::statvfs(&there).ok()?;
    // One without a limit says that it has no blocks.
    let free = if file_system.f_blocks == 0 { u64::MAX } else { file_system.f_bavail * file_system.f_frsize };
    Some((about.st_dev, free))
}

/// What the control groups leave of memory, in bytes.
fn group_left() -> Option<u64> {
    let left = cgroup::along("memory", "memory.max", "memory.limit_in_bytes").into_iter().filter_map(|(path, most)| {
        let most: u64 = most.parse().ok()?;
        let used = ["memory.current", "memory.usage_in_bytes"].iter().find_map(|name| number(path.join(name)))?;
        Some(most.saturating_sub(used))
    });
    left.min()
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The word in brackets.
fn chosen(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}
