//! The control groups of this process, and what their files say (cgroups(7)): of version 2, and of the hierarchies of version 1.

use procfs::process::{MountInfo, Process};
use std::path::{Path, PathBuf};

/// What a file says of the control group of this process and of each above it, as far as they can be seen: the own one first. `controller`
/// and `old` are how version 1 calls controller and file.
pub(super) fn along(controller: &str, file: &str, old: &str) -> Vec<(PathBuf, String)> {
    let Ok(this) = Process::myself() else { return Vec::new() };
    let (Ok(groups), Ok(mounts)) = (this.cgroups(), this.mountinfo()) else { return Vec::new() };
    let is_mount = |mount: &MountInfo, group: &procfs::ProcessCGroup| match group.hierarchy {
        0 => mount.fs_type == "cgroup2",
        _ => mount.fs_type == "cgroup" && mount.super_options.contains_key(controller),
    };
    let has =
        |group: &&procfs::ProcessCGroup| group.hierarchy == 0 || group.controllers.iter().any(|it| it == controller);
    let found = groups.0.iter().filter(has).flat_map(|group| {
        let mount = mounts.0.iter().find(|mount| is_mount(mount, group));
        let directories = mount.map(|mount| directories(mount, Path::new(&group.pathname))).unwrap_or_default();
        let name = if group.hierarchy == 0 { file } else { old };
        directories.into_iter().filter_map(move |directory| {
            let text = std::fs::read_to_string(directory.join(name)).ok()?;
            Some((directory, text.trim().to_owned()))
        })
    });
    found.collect()
}

/// The directories of a group and of those above it. A container sees a part of the hierarchy, whose top is the mount's root.
fn directories(mount: &MountInfo, group: &Path) -> Vec<PathBuf> {
    let below = group.strip_prefix(&mount.root).or(group.strip_prefix("/")).unwrap_or(group);
    let whole = mount.mount_point.join(below);
    whole.ancestors().take_while(|path| path.starts_with(&mount.mount_point)).map(Path::to_owned).collect()
}
