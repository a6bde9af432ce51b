//! Internal snapshots of qcow2 images, changed by QEMU and by us in turn.

use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use testkit::storage as kit;
use tests::lab::Lab;
use tests::qemu_img::{self, img};
use tests::vringd;

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Qemu,
    We,
}

struct Place<'a> {
    lab: &'a Lab,
    directory: TempDir,
    image: String,
}

impl Place<'_> {
    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn tool(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(vringd::program()?).arg("image").args(words).output()?;
        let said = String::from_utf8([output.stdout, output.stderr].concat())?;
        ensure!(output.status.success(), "{words:?}: {said}");
        Ok(said)
    }

    /// `verb` is ours; QEMU has a letter for each.
    fn change(&self, who: Who, verb: &str, name: &str) -> Result<()> {
        let letter = match verb {
            "create" => "-c",
            "apply" => "-a",
            _ => "-d",
        };
        match who {
            Who::Qemu => img(self.lab, &["snapshot", letter, name, &self.image])?.expect_success().map(drop)?,
            Who::We => self.tool(&["snapshot", verb, &self.image, name]).map(drop)?,
        }
        // Sound by both, and without a leak.
        img(self.lab, &["check", "-f", "qcow2", &self.image])?.expect_success()?;
        let checked = self.tool(&["check", &self.image])?;
        ensure!(checked.contains("sound") && !checked.contains("leaked"), "{who:?} {verb} {name}: {checked}");
        Ok(())
    }

    fn write(&self, commands: &[&str]) -> Result<()> {
        qemu_img::io_file(self.lab, "qcow2", Path::new(&self.image), commands)?.expect_success().map(drop)
    }

    /// The contents now, in a raw file.
    fn keep(&self, name: &str) -> Result<()> {
        img(self.lab, &["convert", "-f", "qcow2", "-O", "raw", &self.image, &self.at(name)])?.expect_success().map(drop)
    }

    /// The disk has what was kept under this name.
    fn is(&self, name: &str) -> Result<()> {
        img(self.lab, &["compare", "-f", "qcow2", "-F", "raw", &self.image, &self.at(name)])?.expect_success().map(drop)
    }

    /// The snapshot has what was kept under its name.
    fn was(&self, name: &str) -> Result<()> {
        let words = ["compare", "--format", "qcow2", "--snapshot", name, &self.image, &self.at(name)];
        ensure!(self.tool(&words)?.starts_with("the same"), "{name}");
        let then = self.at("then");
        let theirs = ["convert", "-l", &format!("snapshot.name={name}"), "-O", "raw", &self.image, &then];
        img(self.lab, &theirs)?.expect_success()?;
        img(self.lab, &["compare", "-f", "raw", "-F", "raw", &then, &self.at(name)])?.expect_success().map(drop)
    }
}

#[test]
fn qemu_and_we_change_snapshots_in_turn() -> Result<()> {
    let lab = Lab::take_turn();
    for (options, compressed) in [
        ("cluster_size=64k", false),
        ("cluster_size=64k", true),
        ("cluster_size=512", false),
        ("cluster_size=4k,refcount_bits=4", false),
        ("cluster_size=64k,extended_l2=on", false),
        ("compat=0.10", false),
        ("cluster_size=2M", false),
    ] {
        for (one, other) in [(Who::We, Who::Qemu), (Who::Qemu, Who::We), (Who::We, Who::We)] {
            let directory = TempDir::new_in(kit::shm())?;
            let image = directory.path().join("image.qcow2").display().to_string();
            let place = Place { lab: &lab, directory, image };
            std::fs::write(place.at("base.raw"), vec![0x5a; 5 << 20])?;
            if compressed {
                let words = ["convert", "-q", "-c", "-f", "raw", "-O", "qcow2", "-o", options];
                img(&lab, &[&words[..], &[&place.at("base.raw"), &place.image]].concat())?.expect_success()?;
            } else {
                let words = ["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "-o", options];
                img(&lab, &[&words[..], &[&place.image]].concat())?.expect_success()?;
            }
            place.write(&["write -P 1 0 1M", "write -P 2 3M 100k"])?;
            place.keep("one")?;
            place.change(one, "create", "one")?;
            place.write(&["write -P 3 512k 1M", "write -z 3M 64k"])?;
            place.keep("two")?;
            place.change(other, "create", "two")?;
            place.write(&["write -P 4 700k 9k", "discard 0 256k"])?;
            place.keep("now")?;
            for name in ["one", "two"] {
                place.was(name)?;
            }
            place.is("now")?;
            place.change(one, "apply", "one")?;
            place.is("one")?;
            place.write(&["write -P 5 64k 64k"])?;
            place.was("one")?;
            place.was("two")?;
            place.keep("now")?;
            place.change(other, "delete", "one")?;
            place.is("now")?;
            place.was("two")?;
            place.change(other, "apply", "two")?;
            place.is("two")?;
            place.change(one, "delete", "two")?;
            place.is("two")?;
            // What is written now is written in place: nothing is shared any more.
            place.write(&["write -P 6 0 5M"])?;
            img(&lab, &["check", "-f", "qcow2", &place.image])?.expect_success()?;
        }
    }
    Ok(())
}

#[test]
fn an_image_in_use_and_one_with_narrow_refcounts_are_refused() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::shm())?;
    let image = directory.path().join("image.qcow2").display().to_string();
    img(&lab, &["create", "-q", "-f", "qcow2", "-o", "refcount_bits=1", &image, "4M"])?.expect_success()?;
    qemu_img::io_file(&lab, "qcow2", Path::new(&image), &["write -P 1 0 1M"])?.expect_success()?;
    let before = std::fs::read(&image)?;
    let create = || -> Result<(Option<i32>, String)> {
        let words = ["image", "snapshot", "create", &image, "one"];
        let output = Command::new(vringd::program()?).args(words).output()?;
        Ok((output.status.code(), String::from_utf8(output.stderr)?))
    };
    let (status, said) = create()?;
    ensure!(status == Some(2) && said.contains("refcounts of 1 bits") && said.trim().lines().count() == 1, "{said}");
    ensure!(std::fs::read(&image)? == before, "it was changed");
    let daemon = tests::daemon::Daemon::serve(&format!(
        "[[export]]\nname = 'disk'\nsocket = '{}'\nstorage = {{ kind = 'qcow2', path = '{image}' }}\n",
        directory.path().join("socket").display()
    ))?;
    let (status, said) = create()?;
    ensure!(status == Some(2) && said.contains("in use") && said.trim().lines().count() == 1, "{said}");
    ensure!(!said.contains("--no-lock"), "it has no such option: {said}");
    daemon.stop()?;
    // A disk of no bytes cannot be served, nor could another snapshot be applied then.
    img(&lab, &["create", "-q", "-f", "qcow2", &image, "0"])?.expect_success()?;
    img(&lab, &["snapshot", "-c", "nothing", &image])?.expect_success()?;
    img(&lab, &["resize", "-q", "-f", "qcow2", &image, "8M"])?.expect_success()?;
    let before = std::fs::read(&image)?;
    let apply = Command::new(vringd::program()?).args(["image", "snapshot", "apply", &image, "nothing"]).output()?;
    let said = String::from_utf8(apply.stderr)?;
    ensure!(apply.status.code() == Some(2) && said.contains("disk of 0 bytes"), "{said}");
    ensure!(std::fs::read(&image)? == before, "it was changed");
    Ok(())
}
