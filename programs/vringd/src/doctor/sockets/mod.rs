//! Sockets: whether they can be made, and who could connect.

pub(super) mod read;

use super::finding::{About, Area, Finding, Level, word};
use super::process::Process;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

/// A socket, as it was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) subject: String,
    /// Its path or address.
    pub(super) place: String,
    /// What making it would say.
    pub(super) refusal: Option<String>,
    /// Somebody listens there; and who, as far as this user may see.
    pub(super) taken: Option<Option<Process>>,
    /// A file is there that nobody listens at.
    pub(super) is_stale: bool,
    /// It is to belong to another user or group, which this one may not bring about: who that is.
    pub(super) forbidden_owner: Option<String>,
    /// Numbers of its directory, and its name there.
    pub(super) name: Option<(u64, u64, OsString)>,
    /// Other users may make and remove files in its directory.
    pub(super) others_write: Option<String>,
    /// A frontend of another user could connect, as far as the file says it. `None` for what is no file.
    pub(super) admits_others: Option<bool>,
}

/// What is wrong with them. `daemon` serves this configuration already.
pub(super) fn findings(all: &[Facts], daemon: Option<u32>) -> Vec<Finding> {
    let mut found: Vec<_> = all.iter().flat_map(|facts| of_one(facts, daemon)).collect();
    found.extend(twice(all));
    let alone: Vec<_> = all.iter().filter(|facts| facts.admits_others == Some(false)).collect();
    if let Some(first) = alone.first() {
        let seen = format!(
            "{} socket(s) admit root and the daemon's own user alone, as that of {}",
            alone.len(),
            first.subject
        );
        let cost = "a frontend of another user cannot connect, as QEMU under libvirt (libvirt-qemu, qemu)";
        let found_alone = About::machine(Area::Sockets).costs(Level::Note, "admits", seen, cost);
        found.push(found_alone.fix("socket_mode = \"0660\", socket_group = \"kvm\"    # of the export"));
    }
    found
}

/// Sockets of one place that the configuration names in two ways: the second is refused.
fn twice(all: &[Facts]) -> Vec<Finding> {
    let mut first = HashMap::new();
    let mut found = Vec::new();
    for Facts { subject, place, name, .. } in all {
        let Some(name) = name else { continue };
        if let Some(before) = first.insert(name, subject) {
            let seen = format!("{place}: is where {before} listens");
            let about = About::new(Area::Sockets, subject);
            found.push(about.costs(Level::Fails, "place", seen, REFUSED).fix("give each socket its own path"));
        }
    }
    found
}

/// What serving ends with then.
const REFUSED: &str = "`vringd serve` ends without serving anything: it starts all of its exports or none";

fn of_one(facts: &Facts, daemon: Option<u32>) -> Vec<Finding> {
    let Facts { subject, place, .. } = facts;
    let about = About::new(Area::Sockets, subject);
    let mut found = Vec::new();
    match (&facts.refusal, &facts.taken, &facts.forbidden_owner) {
        (_, Some(Some(process)), _) if Some(process.pid) == daemon => {
            let cost = "another daemon of this configuration cannot start meanwhile; limits and files were looked at all the same";
            let seen = format!("{place}: {} (pid {}) serves it already", process.name, process.pid);
            found.push(about.costs(Level::Note, "served", seen, cost));
        }
        (_, Some(taken), _) => {
            let (who, fix) = match taken {
                Some(Process { pid, name }) => (
                    format!("{name} (pid {pid})"),
                    format!("systemctl status {pid}    # what it belongs to: stop that, or choose another path"),
                ),
                None => (
                    "another process".to_owned(),
                    format!("ss -xlp src {}    # as root: who listens", word(Path::new(place))),
                ),
            };
            found.push(
                about.costs(Level::Fails, "place", format_args!("{place}: {who} listens there"), REFUSED).fix(fix),
            );
        }
        (Some(refusal), ..) => found.push(about.costs(Level::Fails, "place", refusal, REFUSED)),
        (None, None, Some(owner)) => {
            let seen = format!("{place}: is to belong to {owner}, to whom this user cannot give files");
            found.push(about.costs(Level::Fails, "owner", seen, REFUSED).fix(
                "start the daemon as root, or leave `socket_owner` out: `socket_group` admits a group of this user's",
            ));
        }
        (None, None, None) => {
            let stale = if facts.is_stale { "; a file is there that nobody listens at, and is replaced" } else { "" };
            found.push(about.good("place", format_args!("{place} can be made{stale}")));
        }
    }
    if let Some(directory) = &facts.others_write {
        let seen = format!("{place}: other users may write to {directory}");
        let cost = "they can remove the socket, or listen at its name first: guests would connect to them";
        found.push(
            about
                .costs(Level::Note, "directory", seen, cost)
                .fix("a directory of the daemon's own: RuntimeDirectory= in a unit, or /run/vringd"),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_two_sockets_have_fails_the_second() {
        let at =
            |subject: &str, name: &str| Facts { subject: subject.into(), name: Some((1, 2, name.into())), ..facts() };
        let found = twice(&[at("control", "a"), at("export a", "b"), at("export b", "a"), facts()]);
        assert_eq!(found.iter().map(|it| it.subject.as_str()).collect::<Vec<_>>(), ["export b"]);
        assert!(found[0].seen.contains("control listens"), "{}", found[0].seen);
    }

    fn facts() -> Facts {
        Facts { subject: "export a".into(), place: "/run/a.sock".into(), admits_others: Some(true), ..Facts::default() }
    }

    fn worst(facts: Facts) -> Vec<(Level, &'static str)> {
        let found = findings(&[facts], Some(7)).into_iter().filter(|finding| finding.level != Level::Good);
        found.map(|finding| (finding.level, finding.check)).collect()
    }

    #[test]
    fn who_listens_decides() {
        let of = |pid| Facts { taken: Some(Some(Process { pid, name: "vringd".into() })), ..facts() };
        assert_eq!(worst(of(7)), [(Level::Note, "served")]);
        assert_eq!(worst(of(8)), [(Level::Fails, "place")]);
        assert_eq!(worst(Facts { taken: Some(None), ..facts() }), [(Level::Fails, "place")]);
        assert_eq!(worst(Facts { is_stale: true, ..facts() }), []);
    }

    #[test]
    fn what_refuses_it_fails() {
        assert_eq!(worst(Facts { refusal: Some("too long".into()), ..facts() }), [(Level::Fails, "place")]);
        assert_eq!(worst(Facts { forbidden_owner: Some("qemu".into()), ..facts() }), [(Level::Fails, "owner")]);
        assert_eq!(worst(Facts { others_write: Some("/tmp".into()), ..facts() }), [(Level::Note, "directory")]);
    }

    #[test]
    fn sockets_of_root_alone_are_told_of_once() {
        let alone = || Facts { admits_others: Some(false), ..facts() };
        let found = findings(&[alone(), alone(), facts()], None);
        let told: Vec<_> = found.iter().filter(|finding| finding.check == "admits").collect();
        assert!(told.len() == 1 && told[0].seen.starts_with("2 socket(s)"), "{told:?}");
    }
}
