//! Reads the descriptions that libvirt reads.

use super::{Description, Facts};
use rustix::fs::{Access, access};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Daemons of libvirt that start virtual machines.
const DAEMONS: [&str; 3] = ["/usr/sbin/libvirtd", "/usr/sbin/virtqemud", "/usr/bin/virtqemud"];
/// Where descriptions are. Of two with one name the later place's counts, and an empty file stands for none.
const PLACES: [&str; 2] = ["/usr/share/qemu/vhost-user", "/etc/qemu/vhost-user"];
/// How this program is called where it does as virtiofsd.
const OWN: &str = "vringd";

/// What a description says that matters here.
#[derive(Deserialize)]
struct Text {
    #[serde(rename = "type")]
    kind: String,
    binary: PathBuf,
    #[serde(default)]
    description: String,
}

pub(in crate::doctor) fn read() -> Facts {
    let is_installed = DAEMONS.iter().any(|daemon| Path::new(daemon).exists());
    Facts { is_installed, descriptions: descriptions(&PLACES.map(PathBuf::from)) }
}

fn descriptions(places: &[PathBuf]) -> Vec<Description> {
    let mut files: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for entry in places.iter().flat_map(std::fs::read_dir).flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "json") {
            files.insert(entry.file_name(), entry.path());
        }
    }
    let described = files.into_values().filter_map(|path| {
        let text: Text = serde_json::from_str(&std::fs::read_to_string(&path).ok()?).ok()?;
        let Text { kind, binary, description } = text;
        let is_ours = description.starts_with(OWN) || binary.iter().any(|part| part == OWN);
        let runs = access(&binary, Access::EXEC_OK).is_ok();
        (kind == "fs").then_some(Description { path, binary, runs, is_ours })
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_come_in_the_order_of_their_names_and_are_masked_by_later_places() {
        let (usr, etc) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write =
            |place: &tempfile::TempDir, name: &str, text: &str| std::fs::write(place.path().join(name), text).unwrap();
        let shipped = include_str!("../../../../../share/vhost-user/50-vringd.json");
        write(&usr, "50-vringd.json", shipped);
        write(&usr, "40-other.json", r#"{ "type": "fs", "binary": "/bin/sh" }"#);
        write(&usr, "30-gpu.json", r#"{ "type": "gpu", "binary": "/bin/sh" }"#);
        write(&usr, "20-masked.json", r#"{ "type": "fs", "binary": "/bin/sh" }"#);
        write(&etc, "20-masked.json", "");
        let found = descriptions(&[usr.path().to_owned(), etc.path().to_owned()]);
        let told: Vec<_> =
            found.iter().map(|it| (it.is_ours, it.path.file_name().unwrap().to_str().unwrap())).collect();
        assert_eq!(told, [(false, "40-other.json"), (true, "50-vringd.json")]);
        assert!(found[0].runs);
    }
}
