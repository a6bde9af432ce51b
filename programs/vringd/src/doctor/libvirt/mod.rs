//! libvirt, where it is installed: whether it would find this program for directories (docs/with/libvirt.md).

pub(super) mod read;

use super::finding::{About, Area, Finding, Level};
use std::path::PathBuf;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) is_installed: bool,
    /// Descriptions of type `fs`, in the order in which libvirt takes them.
    pub(super) descriptions: Vec<Description>,
}

/// A description of a vhost-user program (QEMU's `docs/interop/vhost-user.json`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) path: PathBuf,
    pub(super) binary: PathBuf,
    /// It is there, and may be executed.
    pub(super) runs: bool,
    /// It is this program's.
    pub(super) is_ours: bool,
}

/// Where distributions put it.
const PLACE: &str = "/usr/share/qemu/vhost-user";
/// What comes before all that distributions have.
const FIRST: &str = "/etc/qemu/vhost-user/10-vringd.json";

/// What is wrong with it.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    if !facts.is_installed {
        return Vec::new();
    }
    let machine = About::machine(Area::Libvirt);
    let Some(ours) = facts.descriptions.iter().find(|description| description.is_ours) else {
        let seen = "libvirt is installed, and has no description of this program";
        let cost = "domains with directories start another virtiofsd, unless they name `binary`";
        let fix = format!("install -D -m 644 share/vhost-user/50-vringd.json {PLACE}/50-vringd.json");
        return vec![machine.costs(Level::Note, "description", seen, cost).fix(fix)];
    };
    let (path, binary) = (ours.path.display(), ours.binary.display());
    if !ours.runs {
        let seen = format!("{path} names {binary}, which cannot be executed");
        let found = machine.costs(
            Level::Degraded,
            "description",
            seen,
            "domains with directories do not start where it is the first description",
        );
        return vec![found.fix(format_args!("ln -s /usr/bin/vringd {binary}"))];
    }
    match facts.descriptions.first().filter(|first| !first.is_ours) {
        Some(first) => {
            let seen = format!("libvirt takes {}, which comes before {path}", first.path.display());
            let found = machine.costs(
                Level::Note,
                "description",
                seen,
                format_args!("domains with directories start {}, unless they name `binary`", first.binary.display()),
            );
            vec![found.fix(format_args!("mkdir -p /etc/qemu/vhost-user && ln -s {path} {FIRST}"))]
        }
        None => vec![machine.good("description", format_args!("libvirt takes {path}"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(path: &str, is_ours: bool, runs: bool) -> Description {
        Description { path: path.into(), binary: "/usr/libexec/virtiofsd".into(), runs, is_ours }
    }

    #[test]
    fn the_first_description_is_the_one_that_counts() {
        let of = |descriptions: &[Description]| {
            let found = findings(&Facts { is_installed: true, descriptions: descriptions.to_vec() });
            (found[0].level, found[0].fix.clone().unwrap_or_default())
        };
        let (ours, theirs) = (description("/50-vringd.json", true, true), description("/40-other.json", false, true));
        assert_eq!(of(&[ours.clone(), theirs.clone()]).0, Level::Good);
        let (level, fix) = of(&[theirs.clone(), ours]);
        assert!(
            level == Level::Note && fix.ends_with("ln -s /50-vringd.json /etc/qemu/vhost-user/10-vringd.json"),
            "{fix}"
        );
        assert!(of(&[theirs]).1.starts_with("install "));
        assert_eq!(of(&[description("/50-vringd.json", true, false)]).0, Level::Degraded);
        assert!(findings(&Facts::default()).is_empty());
    }
}
