//! What the daemon is made of: a bill of materials, in CycloneDX.
//!
//! Nothing of the program is missing from it. It has some crates more than are linked: features that other programs of the workspace turn on
//! count, as cargo-cyclonedx has no way to leave them out.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::links::tracked;
use crate::step::{run, workspace};
use crate::tools::Tool;

const CYCLONEDX: Tool = Tool { name: "cargo-cyclonedx", version: "0.5.9", options: &[] };
/// What it calls its file, without the extension.
const NAME: &str = "vringd.cdx";

/// Writes it to `to`, as a commit of this moment (seconds since 1970) has it.
pub(super) fn write(task: &str, commit_time: &str, to: &Path) -> Result<()> {
    // The program writes a file beside every manifest of a workspace: into a copy.
    let copy = workspace().join("target/sbom-src");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    for file in tracked()?.iter().filter(|file| is_source(file)) {
        let place = copy.join(file);
        fs::create_dir_all(place.parent().context("a file lies in a directory")?)?;
        fs::copy(workspace().join(file), &place).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    let package = copy.join("programs/vringd");
    let mut cyclonedx = Command::new(CYCLONEDX.install(task)?);
    cyclonedx.args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--override-filename", NAME]);
    cyclonedx.arg("--manifest-path").arg(package.join("Cargo.toml")).current_dir(&copy);
    // The commit's time, and no number of its own: whoever makes it of the same commit gets the same bytes.
    run(task, cyclonedx.env("SOURCE_DATE_EPOCH", commit_time))?;
    let text = fs::read_to_string(package.join(format!("{NAME}.json")))?;
    fs::write(to, without(&copy, &text)?)?;
    fs::remove_dir_all(&copy)?;
    Ok(())
}

/// What a list of dependencies is read from; of programs only that they are there.
fn is_source(file: &Path) -> bool {
    let is_manifest = file.file_name().is_some_and(|name| name == "Cargo.toml" || name == "Cargo.lock");
    is_manifest || file.extension().is_some_and(|kind| kind == "rs")
}

/// Names crates of the workspace by where they lie in it, and not on this machine.
fn without(root: &Path, text: &str) -> Result<String> {
    let text = text.replace(&format!("file://{}", root.display()), "file://");
    ensure!(!text.contains(&root.display().to_string()), "the bill of materials names {}", root.display());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_paths_are_left_out() {
        let root = Path::new("/home/me/vringd");
        let text = r#""bom-ref": "path+file:///home/me/vringd/crates/vring#0.1.0", "purl": "pkg:cargo/vring@0.1.0""#;
        let expected = r#""bom-ref": "path+file:///crates/vring#0.1.0", "purl": "pkg:cargo/vring@0.1.0""#;
        assert_eq!(without(root, text).unwrap(), expected);
        assert!(without(root, "in /home/me/vringd/crates").is_err());
    }

    #[test]
    fn manifests_and_sources_are_copied() {
        for file in ["Cargo.toml", "Cargo.lock", "crates/vring/Cargo.toml", "programs/vringd/src/main.rs"] {
            assert!(is_source(Path::new(file)), "{file}");
        }
        for file in ["README.md", "docs/openapi.json", "fuzz/seeds/ring/1"] {
            assert!(!is_source(Path::new(file)), "{file}");
        }
    }
}
