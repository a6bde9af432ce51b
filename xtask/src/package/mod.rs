//! `cargo xtask package`: a package for Debian and an image for containers, and a try of the package in fresh roots of Debian's.

mod oci;
mod root;
mod sbom;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::make::Mirror;
use crate::step::{cargo, output, run, workspace};
use crate::tools::Tool;

const CARGO_DEB: Tool = Tool { name: "cargo-deb", version: "3.8.0", options: &[] };
/// Debian's releases in which it is tried.
const SUITES: [&str; 2] = ["bookworm", "trixie"];

/// Options of `cargo xtask package`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Install, upgrade under a running daemon, and purge it in fresh roots of Debian 12 and 13, fetched with mmdebstrap.
    #[arg(long)]
    check: bool,
    /// Also make an OCI image, in target/oci: the daemon, the libraries it is linked with, nothing else.
    #[arg(long)]
    oci: bool,
}

/// Makes the package in `target/debian`.
pub(crate) fn make(options: &Options) -> Result<()> {
    let task = "package";
    let target = workspace().join("target");
    let program = target.join("release/vringd");
    run(task, &mut cargo(&["build", "--release", "--locked", "--package", "vringd"]))?;
    let place = target.join("release/package");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    run(task, Command::new(&program).arg("man").arg(place.join("man")))?;
    // As Debian's policy has them; cargo-deb does so with those alone that no build has made.
    let pages = fs::read_dir(place.join("man"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let status =
        Command::new("gzip").args(["--best", "--no-name"]).args(pages).status().context("cannot start gzip")?;
    ensure!(status.success(), "gzip failed with {status}");
    for shell in ["bash", "zsh", "fish"] {
        let file = File::create(place.join(format!("vringd.{shell}")))?;
        run(task, Command::new(&program).args(["completions", shell]).stdout(file))?;
    }
    symlink("../../bin/vringd", place.join("virtiofsd"))?;
    let (commit, materials) = (commit()?, place.join("vringd.cdx.json"));
    sbom::write(task, &commit.time.to_string(), &materials)?;
    let mut deb = Command::new(CARGO_DEB.install(task)?);
    deb.args(["--package", "vringd", "--no-build", "--strip", "--locked", "--output"]).arg(target.join("debian"));
    // Whoever makes it of the same commit gets the same times.
    deb.env("SOURCE_DATE_EPOCH", commit.time.to_string()).current_dir(workspace());
    run(task, &mut deb)?;
    let package = newest(&target.join("debian"))?;
    println!("package: {} has {} KiB", package.display(), fs::metadata(&package)?.len() >> 10);
    if options.oci {
        let image = oci::write(task, &program, &materials, &commit)?;
        println!("package: {} has {} KiB", image.display(), fs::metadata(&image)?.len() >> 10);
    }
    if options.check {
        SUITES.iter().try_for_each(|suite| check(&package, suite))?;
    }
    Ok(())
}

/// What a package is made of.
struct Commit {
    hash: String,
    /// When it was made, in seconds since 1970.
    time: u64,
    /// The same as RFC 3339 has it.
    date: String,
}

fn commit() -> Result<Commit> {
    let mut log = Command::new("git");
    log.args(["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%H %ct %cd"]).env("TZ", "UTC");
    let line = output(log.current_dir(workspace())).context("a package is made of a commit")?;
    let mut words = line.split_whitespace();
    let mut word = || words.next().map(str::to_owned).context("`git log` names no commit");
    Ok(Commit { hash: word()?, time: word()?.parse()?, date: word()? })
}

fn newest(directory: &Path) -> Result<PathBuf> {
    let made = |path: &PathBuf| fs::metadata(path).and_then(|about| about.modified()).ok();
    let packages = fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path()));
    let packages = packages.filter(|path| path.extension().is_some_and(|kind| kind == "deb"));
    packages.max_by_key(made).with_context(|| format!("there is no package in {}", directory.display()))
}

/// Tries it in a root that exists for that alone.
fn check(package: &Path, suite: &str) -> Result<()> {
    let mirror = Mirror::of_this_machine()?;
    let script = workspace().join("dist/debian/check");
    let name = package.file_name().unwrap_or_default().display();
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap
        .args(["--quiet", "--variant=minbase", "--include=ca-certificates,diffutils,findutils", "--format=null"])
        .arg(format!("--keyring={}", mirror.keyring))
        .arg(format!("--customize-hook=copy-in {} {} /root", package.display(), script.display()))
        .arg(format!("--customize-hook=chroot \"$1\" /root/check /root/{name}"))
        .arg(suite)
        .arg("/dev/null")
        .arg(mirror.line(suite));
    run(&format!("package: {suite}"), &mut mmdebstrap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spec_of_rpm_has_the_version_of_the_workspace() {
        let spec = fs::read_to_string(workspace().join("dist/rpm/vringd.spec")).unwrap();
        let version = concat!("Version: ", env!("CARGO_PKG_VERSION"));
        assert!(spec.lines().any(|line| line == version), "{version}");
    }
}
