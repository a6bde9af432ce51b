//! Directories: whether they can be served with the rights that the daemon keeps, and what they cost where they are.

pub(super) mod read;

use super::file_system::{self, Use};
use super::finding::{About, Area, Finding, Level};
use std::path::PathBuf;

/// A directory, as it was seen by a thread with the daemon's rights.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) subject: String,
    pub(super) path: PathBuf,
    /// What opening it would say.
    pub(super) refusal: Option<String>,
    /// Inodes may be held by file handles, and are.
    pub(super) handles: Handles,
    /// Descriptors that its guest may hold for inodes.
    pub(super) descriptors_max: u32,
    pub(super) file_system: Option<String>,
    /// Extended attributes of users are served, and the file system has them.
    pub(super) xattr: Option<bool>,
    /// Owners that the guest gives are given on the host, and this user may not.
    pub(super) forbidden_owners: Option<u32>,
    /// It would be served by this mount, read-only although writes are allowed.
    pub(super) read_only_mount: bool,
}

/// How inodes are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Handles {
    /// As asked for.
    #[default]
    AsAsked,
    /// By descriptors: file handles were preferred, and cannot be had.
    Lacking,
    /// The same, because Landlock lets nobody open them.
    Landlock,
}

/// What is wrong with them.
pub(super) fn findings(all: &[Facts]) -> Vec<Finding> {
    all.iter().flat_map(of_one).collect()
}

fn of_one(facts: &Facts) -> Vec<Finding> {
    let about = About::new(Area::Directories, &facts.subject);
    let path = facts.path.display();
    if let Some(refusal) = &facts.refusal {
        let cost = "`vringd serve` ends without serving anything: it starts all of its exports or none";
        return vec![about.costs(Level::Fails, "open", refusal, cost)];
    }
    let mut found = vec![about.good("open", format_args!("{path} can be served"))];
    found.push(match facts.handles {
        Handles::AsAsked => about.good("file-handles", "inodes are held as asked for"),
        lacking => {
            let (why, fix) = match lacking {
                Handles::Landlock => (
                    "Landlock lets nobody open files by handles",
                    "landlock = \"off\"    # in [sandbox]; or `vringd dir`, in a sandbox of its own",
                ),
                _ => (
                    "the file system has none, or the daemon lacks CAP_DAC_READ_SEARCH",
                    "inode_file_handles = \"never\"    # of this directory: it may then hold more descriptors",
                ),
            };
            let seen = format!("{path}: no file handles: {why}");
            let cost = format!("each inode that the guest knows holds a descriptor, {} at most", facts.descriptors_max);
            about.costs(Level::Note, "file-handles", seen, cost).fix(fix)
        }
    });
    if let Some(kind) = &facts.file_system {
        found.push(match file_system::cost(kind, Use::Directory) {
            Some((level, cost, fix)) => {
                let found = about.costs(level, "file-system", format_args!("{path} is on {kind}"), cost);
                fix.map_or(found.clone(), |fix| found.fix(fix))
            }
            None => about.good("file-system", format_args!("{path} is on {kind}")),
        });
    }
    if facts.xattr == Some(false) {
        let seen = format!("{path}: its file system has no extended attributes of users");
        found.push(about.costs(Level::Note, "xattr", seen, "the guest's calls for them fail (EOPNOTSUPP)"));
    }
    if let Some(uid) = facts.forbidden_owners {
        let seen = format!("{path}: the daemon serves as user {uid}, and may give files to nobody else");
        let cost = "what the guest creates belongs to that user, and its chown(2) fails (EPERM)";
        found.push(
            about
                .costs(Level::Degraded, "owners", seen, cost)
                .fix("security_model = \"mapped-xattr\"    # of this directory; or start the daemon as root"),
        );
    }
    if facts.read_only_mount {
        let seen = format!("{path}: its mount is read-only");
        found.push(
            about
                .costs(Level::Note, "read-only", seen, "the guest's writes fail (EROFS)")
                .fix("read_only = true    # of this directory: the guest is told beforehand"),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            subject: "export a".into(),
            path: "/srv".into(),
            file_system: Some("ext4".into()),
            xattr: Some(true),
            ..Facts::default()
        }
    }

    fn worst(facts: Facts) -> Vec<(Level, &'static str)> {
        let found = findings(&[facts]).into_iter().filter(|finding| finding.level != Level::Good);
        found.map(|finding| (finding.level, finding.check)).collect()
    }

    #[test]
    fn a_plain_directory_is_good() {
        assert_eq!(worst(facts()), []);
    }

    #[test]
    fn a_refusal_is_all_there_is_to_say() {
        assert_eq!(
            worst(Facts { refusal: Some("no".into()), handles: Handles::Lacking, ..facts() }),
            [(Level::Fails, "open")]
        );
    }

    #[test]
    fn each_fact_is_told_by_itself() {
        for (facts, expected) in [
            (Facts { handles: Handles::Lacking, ..facts() }, (Level::Note, "file-handles")),
            (Facts { handles: Handles::Landlock, ..facts() }, (Level::Note, "file-handles")),
            (Facts { file_system: Some("fuse.sshfs".into()), ..facts() }, (Level::Slow, "file-system")),
            (Facts { xattr: Some(false), ..facts() }, (Level::Note, "xattr")),
            (Facts { forbidden_owners: Some(1000), ..facts() }, (Level::Degraded, "owners")),
            (Facts { read_only_mount: true, ..facts() }, (Level::Note, "read-only")),
        ] {
            assert_eq!(worst(facts), [expected]);
        }
        assert_eq!(worst(Facts { xattr: None, ..facts() }), [], "they are not served");
    }
}
