//! Opens directories as the daemon would, by threads with the rights that it would keep. What is open is closed again at once.

use super::{Facts, Handles};
use crate::config::Config;
use crate::directory;
use crate::doctor::file_system;
use crate::doctor::finding::{About, Area, Finding, Level};
use crate::doctor::look::{Missed, at_each};
use crate::doctor::subjects::named;
use crate::doctor::trial::Trial;
use control::model::{Directory, FileHandles, NewExport, SecurityModel};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use std::path::Path;

/// What does not answer of the directories that `config` serves.
pub(in crate::doctor) fn missed(config: &Config) -> Vec<Finding> {
    let directories =
        config.exports.iter().filter_map(|export| Some((named(&export.name), export.directory.as_ref()?.path.clone())));
    let (subjects, paths): (Vec<_>, Vec<_>) = directories.unzip();
    let looks = at_each("look-directory", paths, |path| std::fs::metadata(path).map(drop));
    looks.into_iter().zip(subjects).filter_map(|(looked, subject)| Some(late(&subject, &looked.err()?))).collect()
}

fn late(subject: &str, why: &Missed) -> Finding {
    let about = About::new(Area::Directories, subject);
    about.costs(
        Level::Degraded,
        "answers",
        format_args!("its directory {why}"),
        "`vringd serve` would wait there as well",
    )
}

/// Of all directories that the trial's configuration serves; and what did not answer.
pub(in crate::doctor) fn read(trial: &Trial) -> (Vec<Facts>, Vec<Finding>) {
    let exports: Vec<_> = trial.config().exports.iter().filter(|export| export.directory.is_some()).cloned().collect();
    let names: Vec<_> = exports.iter().map(|export| export.name.clone()).collect();
    let inside = trial.clone();
    let looks = at_each("look-directory", exports, move |export| look(export, &inside));
    let (mut facts, mut missed) = (Vec::new(), Vec::new());
    for (looked, name) in looks.into_iter().zip(names) {
        match looked {
            Ok(seen) => facts.extend(seen),
            Err(why) => missed.push(late(&named(&name), &why)),
        }
    }
    (facts, missed)
}

/// Where the sandbox is refused, which is told of there, the directory is opened all the same.
fn look(mut export: NewExport, trial: &Trial) -> Option<Facts> {
    let asked = export.directory.clone()?;
    let held = trial.enter().unwrap_or_default();
    let facts = Facts {
        subject: named(&export.name),
        path: asked.path.clone(),
        descriptors_max: asked.descriptors_max(),
        ..Facts::default()
    };
    let opened = held.admit(&mut export).and_then(|()| {
        let admitted = export.directory.as_ref().unwrap_or(&asked);
        directory::open(admitted, None).map(|tree| (tree, admitted.inode_file_handles))
    });
    let (tree, admitted) = match opened {
        Ok(opened) => opened,
        Err(error) => return Some(Facts { refusal: Some(error.to_string()), ..facts }),
    };
    let handles = match (asked.inode_file_handles, admitted) {
        (FileHandles::Prefer, FileHandles::Never) => Handles::Landlock,
        (FileHandles::Prefer, _) if !tree.describe().by_file_handles => Handles::Lacking,
        _ => Handles::AsAsked,
    };
    let shown = held.shown().ok()?;
    let gives = shown.capabilities.iter().any(|name| name == "cap_chown");
    Some(Facts {
        handles,
        file_system: file_system::of(&asked.path),
        xattr: asked.xattr.then(|| has_xattr(&asked.path)),
        forbidden_owners: (!gives && asked.security_model == SecurityModel::Passthrough && !asked.read_only)
            .then_some(shown.uid),
        read_only_mount: !asked.read_only && is_read_only(&asked),
        ..facts
    })
}

/// Whether the file system has attributes of users, whatever this file has.
fn has_xattr(path: &Path) -> bool {
    rustix::fs::getxattr(path, c"user.vringd", &mut [0_u8; 1][..]) != Err(Errno::OPNOTSUPP)
}

fn is_read_only(directory: &Directory) -> bool {
    rustix::fs::statvfs(&directory.path).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::RDONLY))
}
