//! Tools on qcow2 images against those of QEMU: what these make of a copy of the same images, and what they find in
//! ours.

use anyhow::{Context, Result, ensure};
use image::tools::{Backing, CreateOptions, From};
use image::{Qcow2Options, tools};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use testkit::{Rng, storage as kit};
use tests::lab::Lab;
use tests::{qemu_img, vringd};

fn img(lab: &Lab, args: &[&str]) -> Result<String> {
    qemu_img::img(lab, args)?.expect_success()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path of a test is UTF-8")
}

/// What `qemu-img measure` says.
fn measured(lab: &Lab, args: &[&str]) -> Result<(u64, u64)> {
    let said = img(lab, &[&["measure", "--output=json"], args].concat())?;
    let said: serde_json::Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let number = |name: &str| said[name].as_u64().with_context(|| said.to_string());
    Ok((number("required")?, number("fully-allocated")?))
}

#[test]
fn what_is_measured_is_what_qemu_says_or_more_where_more_is_made() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let at = |name: &str| directory.path().join(name);
    let options = |size_bytes, cluster_bytes, refcount_bits, subclusters| CreateOptions {
        size_bytes,
        cluster_bytes,
        refcount_bits,
        subclusters,
        backing: None,
        force: true,
    };
    for (cluster_bytes, subclusters) in [(512, false), (4096, false), (65_536, false), (65_536, true), (2 << 20, true)]
    {
        for refcount_bits in [1, 16, 64] {
            for size_bytes in [512, 1 << 20, (1 << 30) + 512, 40 << 30] {
                let options = options(Some(size_bytes), cluster_bytes, refcount_bits, subclusters);
                let ours = tools::measure(None, &options, &mut |_, _| {})?;
                let layout = format!(
                    "cluster_size={cluster_bytes},refcount_bits={refcount_bits},extended_l2={}",
                    if subclusters { "on" } else { "off" }
                );
                let args = ["-O", "qcow2", "-o", &layout, "--size", &size_bytes.to_string()];
                let theirs = measured(&lab, &args)?;
                let said = (ours.required, ours.fully_allocated);
                if cluster_bytes >= 65_536 {
                    ensure!(said == theirs, "{options:?}: QEMU says {theirs:?}, and we {said:?}");
                } else {
                    ensure!(said.0 == theirs.0 && said.1 >= theirs.1, "{options:?}: {theirs:?}, {said:?}");
                    ensure!(said.1 < theirs.1 + theirs.1 / 8, "{options:?}: {theirs:?}, {said:?}");
                }
            }
        }
    }
    let mut rng = Rng(7);
    let path = at("source");
    img(&lab, &["create", "-q", "-f", "qcow2", text(&path), "64M"])?;
    let writes: Vec<String> =
        (0..20).map(|_| format!("write -P 1 {}k {}k", rng.below(60_000), 1 + rng.below(3000))).collect();
    let writes: Vec<&str> = writes.iter().map(String::as_str).collect();
    qemu_img::io_file(&lab, "qcow2", &path, &writes)?.expect_success()?;
    img(&lab, &["convert", "-f", "qcow2", "-O", "raw", text(&path), text(&at("raw"))])?;
    let qcow2 = From::Qcow2(Qcow2Options { read_only: true, ..Qcow2Options::new(&path) });
    for (from, format, source) in [(qcow2, "qcow2", path), (From::Raw(at("raw")), "raw", at("raw"))] {
        for cluster_bytes in [512, 65_536, 2 << 20] {
            let options = options(None, cluster_bytes, 16, false);
            let ours = tools::measure(Some(&from), &options, &mut |_, _| {})?;
            let layout = format!("cluster_size={cluster_bytes}");
            let theirs = measured(&lab, &["-O", "qcow2", "-o", &layout, "-f", format, text(&source)])?;
            let said = (ours.required, ours.fully_allocated);
            ensure!(
                if cluster_bytes > 512 { said == theirs } else { said >= theirs },
                "{format}: {theirs:?}, {said:?}"
            );
            tools::to_qcow2(&from, &at("made"), &options, None, &mut |_, _| {})?;
            let end = tools::check(&at("made"), false, true, &mut |_, _| {})?.end_bytes;
            ensure!(end <= ours.required, "{format}, {cluster_bytes}: {end} bytes were needed, and {said:?} said");
        }
    }
    Ok(())
}

/// QEMU reads what is compressed here, which is not much larger than what it makes itself; but its encoder of zstd is the better one, and ours begins in whole sectors.
#[test]
fn what_is_compressed_is_read_by_qemu() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    let mut rng = Rng(9);
    let words: Vec<u64> = (0..64).map(|_| rng.below(u64::MAX)).collect();
    let text_like = (0..1 << 20).flat_map(|_| words[rng.below(64) as usize].to_le_bytes());
    let mut contents: Vec<u8> = text_like.collect();
    contents.extend((0..1 << 20).map(|_| rng.below(256) as u8));
    contents.resize(12 << 20, 0);
    std::fs::write(at("raw"), &contents)?;
    img(&lab, &["convert", "-f", "raw", "-O", "qcow2", text(&at("raw")), text(&at("plain"))])?;
    for (cluster_bytes, subclusters) in [(4096, false), (65_536, false), (65_536, true)] {
        for (kind, name) in [(image::Compression::Zlib, "zlib"), (image::Compression::Zstd, "zstd")] {
            let options = CreateOptions {
                size_bytes: None,
                cluster_bytes,
                refcount_bits: 16,
                subclusters,
                backing: None,
                force: true,
            };
            tools::to_qcow2(&From::Raw(at("raw")), &at("ours"), &options, Some(kind), &mut |_, _| {})?;
            sound(&lab, &at("ours"))?;
            same(&lab, &at("ours"), &at("plain"))?;
            let layout = format!("cluster_size={cluster_bytes},compression_type={name}");
            let theirs = at("theirs");
            img(&lab, &["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", &layout, text(&at("raw")), text(&theirs)])?;
            let bytes = |name: &str| Ok::<_, anyhow::Error>(tools::info(&at(name))?.allocated_bytes);
            let (ours, theirs) = (bytes("ours")?, bytes("theirs")?);
            ensure!(
                ours < contents.len() as u64 / 2 && ours < theirs + theirs / if name == "zlib" { 4 } else { 2 },
                "{name}: {ours}, and {theirs} of QEMU's"
            );
        }
    }
    Ok(())
}

/// QEMU finds an image sound, without leaks, and so do we.
fn sound(lab: &Lab, image: &Path) -> Result<()> {
    let said = img(lab, &["check", "-f", "qcow2", text(image)])?;
    ensure!(said.contains("No errors were found"), "{said}");
    let ours = tools::check(image, false, true, &mut |_, _| {})?;
    ensure!(ours.sound && ours.leaked_clusters == 0, "{ours:?}");
    Ok(())
}

/// By QEMU's opinion both disks read the same; and they have the same size.
fn same(lab: &Lab, one: &Path, other: &Path) -> Result<()> {
    let said = qemu_img::img(lab, &["compare", "-f", "qcow2", "-F", "qcow2", text(one), text(other)])?;
    said.expect_success().with_context(|| format!("{} and {}", one.display(), other.display()))?;
    ensure!(tools::info(one)?.size_bytes == tools::info(other)?.size_bytes);
    Ok(())
}

/// Makes a chain of images, with a raw one behind them: each has a history, written by QEMU.
struct Chain<'a> {
    lab: &'a Lab,
    directory: PathBuf,
    rng: Rng,
}

impl Chain<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A raw image.
    fn raw(&mut self, name: &str, size_bytes: u64) -> Result<()> {
        std::fs::File::create(self.path(name))?.set_len(size_bytes)?;
        self.history(name, "raw", size_bytes)
    }

    /// An image with a history, over another one or none.
    fn image(&mut self, name: &str, options: &str, behind: Option<(&str, &str)>, size_bytes: u64) -> Result<()> {
        let (path, size) = (self.path(name), size_bytes.to_string());
        let mut args = vec!["create", "-q", "-f", "qcow2", "-o", options];
        if let Some((name, format)) = behind {
            args.extend(["-b", name, "-F", format]);
        }
        args.extend([text(&path), &size]);
        img(self.lab, &args)?;
        self.history(name, "qcow2", size_bytes)?;
        // QEMU may count a cluster of compressed data once more than it uses it, when something else takes its place.
        qemu_img::img(self.lab, &["check", "-q", "-f", "qcow2", "-r", "all", text(&path)])?;
        sound(self.lab, &path)
    }

    fn history(&mut self, name: &str, format: &str, size_bytes: u64) -> Result<()> {
        let mut commands = Vec::new();
        for round in 1..=14 {
            let most = [1, 16, 300, 3000][self.rng.below(4) as usize];
            let sectors = 1 + self.rng.below(most);
            let at = self.rng.below((size_bytes / 512).saturating_sub(sectors).max(1)) * 512;
            let len = (sectors * 512).min(size_bytes - at);
            commands.push(match self.rng.below(6) {
                0 => format!("write -z {at} {len}"),
                1 => format!("write -z -u {at} {len}"),
                2 if format == "qcow2" => {
                    format!("write -c -P {round} {} 64k", at / 65_536 * 65_536 % (size_bytes / 65_536 * 65_536))
                }
                _ => format!("write -P {} {at} {len}", 1 + self.rng.below(250)),
            });
        }
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        // What cannot be compressed into such clusters is refused, and nothing is written.
        let said = qemu_img::io_file(self.lab, format, &self.path(name), &commands)?.output;
        let written = said.lines().filter(|line| line.starts_with("wrote ")).count();
        let others = commands.iter().filter(|command| !command.contains("-c")).count();
        ensure!(written >= others, "{others} of {commands:?} are no compressed writes: {said}");
        Ok(())
    }

    /// An image with the same contents, and nothing behind it.
    fn flat(&self, from: &str, to: &str) -> Result<PathBuf> {
        let to = self.path(to);
        img(self.lab, &["convert", "-f", "qcow2", "-O", "qcow2", text(&self.path(from)), text(&to)])?;
        Ok(to)
    }

    /// A directory with copies of all files, for QEMU.
    fn beside(&self) -> Result<TempDir> {
        let directory = TempDir::new_in(kit::disk())?;
        for file in std::fs::read_dir(&self.directory)? {
            let file = file?;
            std::fs::copy(file.path(), directory.path().join(file.file_name()))?;
        }
        Ok(directory)
    }

    /// A copy of a file, for QEMU.
    fn copy(&self, from: &str, to: &str) -> Result<PathBuf> {
        std::fs::copy(self.path(from), self.path(to))?;
        Ok(self.path(to))
    }
}

/// Options of images, as `qemu-img` has them.
const LAYOUTS: [&str; 6] = [
    "cluster_size=512",
    "cluster_size=64k",
    "cluster_size=2M",
    "cluster_size=64k,extended_l2=on",
    "cluster_size=4k,compat=0.10",
    "cluster_size=4k,refcount_bits=64,compression_type=zstd",
];

#[test]
fn disks_that_are_resized_are_what_qemu_makes_of_them() -> Result<()> {
    let lab = Lab::take_turn();
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        for behind in [None, Some(("base", "raw")), Some(("middle", "qcow2"))] {
            // Of version 2 none says its size.
            for has_snapshot in [false, !layout.contains("compat")] {
                let directory = TempDir::new_in(kit::disk())?;
                let rng = Rng(1 + number as u64 * 77 + u64::from(has_snapshot));
                let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng };
                let context = format!("{layout}, {behind:?}, snapshot {has_snapshot}");
                chain.raw("base", 5 << 20)?;
                chain.image("middle", "cluster_size=4k", Some(("base", "raw")), 6 << 20)?;
                let mut size_bytes = (2 << 20) + 512 * chain.rng.below(300);
                chain.image("ours", layout, behind, size_bytes)?;
                let ours = chain.path("ours");
                if has_snapshot {
                    img(&lab, &["snapshot", "-c", "one", text(&ours)])?;
                    chain.history("ours", "qcow2", size_bytes)?;
                }
                // QEMU has no zeroes for what would come up in an image of version 2.
                let theirs = match layout.contains("compat") && behind.is_some() {
                    true => chain.flat("ours", "theirs")?,
                    false => chain.copy("ours", "theirs")?,
                };
                for more in [512 * (1 + chain.rng.below(100)), 5 << 20, 100 << 20] {
                    size_bytes += more;
                    let image = From::Qcow2(Qcow2Options::new(&ours));
                    tools::resize(&image, tools::NewSize::By(more), false, &mut |_, _| {}).context(context.clone())?;
                    img(&lab, &["resize", "-q", "-f", "qcow2", text(&theirs), &size_bytes.to_string()])?;
                    sound(&lab, &ours).context(context.clone())?;
                    same(&lab, &ours, &theirs).context(context.clone())?;
                }
                let last = format!("write -P 9 {} 64k", size_bytes - 65_536);
                qemu_img::io_file(&lab, "qcow2", &ours, &[&last])?.expect_success()?;
                sound(&lab, &ours).context(context.clone())?;
                if has_snapshot {
                    continue;
                }
                let image = From::Qcow2(Qcow2Options::new(&ours));
                let smaller = 1 << 20;
                let shrunk = tools::resize(&image, tools::NewSize::To(smaller), true, &mut |_, _| {});
                if layout.contains("compat") && behind.is_some() {
                    ensure!(shrunk.is_err_and(|error| error.to_string().contains("backing file")), "{context}");
                    continue;
                }
                shrunk.context(context.clone())?;
                img(&lab, &["resize", "-q", "--shrink", "-f", "qcow2", text(&theirs), &smaller.to_string()])?;
                sound(&lab, &ours).context(context.clone())?;
                same(&lab, &ours, &theirs).context(context)?;
            }
        }
    }
    Ok(())
}

#[test]
fn what_a_new_size_would_lose_is_refused() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let path = directory.path().join("image");
    let image = From::Qcow2(Qcow2Options::new(&path));
    let refused = |size, word: &str| -> Result<()> {
        let before = std::fs::read(&path)?;
        let said = tools::resize(&image, size, true, &mut |_, _| {});
        ensure!(said.as_ref().is_err_and(|error| error.to_string().contains(word)), "{said:?}");
        ensure!(std::fs::read(&path)? == before, "a refusal changes nothing");
        Ok(())
    };
    img(&lab, &["create", "-q", "-f", "qcow2", text(&path), "16M"])?;
    img(&lab, &["bitmap", "--add", text(&path), "one"])?;
    refused(tools::NewSize::By(1 << 20), "bitmaps")?;
    img(&lab, &["bitmap", "--remove", text(&path), "one"])?;
    img(&lab, &["snapshot", "-c", "one", text(&path)])?;
    refused(tools::NewSize::To(1 << 20), "snapshots")?;
    img(&lab, &["create", "-q", "-f", "qcow2", "-o", "compat=0.10", text(&path), "16M"])?;
    img(&lab, &["snapshot", "-c", "one", text(&path)])?;
    refused(tools::NewSize::By(1 << 20), "compat=1.1")
}

/// Both the image and its backing file are what QEMU makes of them.
#[test]
fn what_is_committed_is_what_qemu_commits() -> Result<()> {
    let lab = Lab::take_turn();
    let mut compared = 0;
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        for (second, behind) in [None].into_iter().chain(LAYOUTS.into_iter().map(Some)).enumerate() {
            let directory = TempDir::new_in(kit::disk())?;
            let rng = Rng(1 + number as u64 * 7 + second as u64 * 131);
            let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng };
            let context = format!("{layout} over {behind:?}");
            chain.raw("base", 5 << 20)?;
            let (file, format) = if behind.is_some() { ("middle", "qcow2") } else { ("base", "raw") };
            if let Some(behind) = behind {
                let size_bytes = (3 << 20) + 512 * chain.rng.below(300);
                chain.image("middle", behind, Some(("base", "raw")), size_bytes)?;
            }
            // Smaller and larger than what is behind it.
            let size_bytes = (2 << 20) + 512 * chain.rng.below(9000);
            chain.image("top", layout, Some((file, format)), size_bytes)?;
            let (top, file) = (chain.path("top"), chain.path(file));
            let before = chain.flat("top", "before")?;
            let theirs = chain.beside()?;
            let at = |path: &Path| theirs.path().join(path.file_name().expect("a file has a name"));
            let options = Qcow2Options::new(&top);
            let kept = tools::commit(&options, true, &mut |_, _| {}).context(context.clone())?;
            ensure!(!kept.emptied && kept.backing == file.canonicalize()?);
            same(&lab, &top, &before).context(context.clone())?;
            // Again, as after an interruption.
            tools::commit(&options, false, &mut |_, _| {}).context(context.clone())?;
            same(&lab, &top, &before).context(context.clone())?;
            sound(&lab, &top).context(context.clone())?;
            let found = tools::check(&top, false, true, &mut |_, _| {})?;
            ensure!(found.allocated_clusters == 0, "{context}: {found:?}");
            // QEMU cannot grow every backing file.
            if !qemu_img::img(&lab, &["commit", "-q", "-f", "qcow2", text(&at(&top))])?.success {
                continue;
            }
            compared += 1;
            same(&lab, &top, &at(&top)).context(context.clone())?;
            let other = at(&file);
            let args = ["compare", "-f", format, "-F", format, text(&file), text(&other)];
            img(&lab, &args).context(context.clone())?;
            if behind.is_some() {
                sound(&lab, &file).context(context)?;
            }
        }
    }
    ensure!(compared > 20, "QEMU has committed {compared} of 42");
    Ok(())
}

/// Somebody has the backing file: the image has lost nothing, and all follows later.
#[test]
fn a_commit_that_is_refused_is_done_later() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng: Rng(5) };
    chain.raw("base", 4 << 20)?;
    chain.image("middle", "cluster_size=64k", Some(("base", "raw")), 4 << 20)?;
    chain.image("top", "cluster_size=64k", Some(("middle", "qcow2")), 4 << 20)?;
    let (top, middle) = (chain.path("top"), chain.path("middle"));
    let before = chain.flat("top", "before")?;
    let options = Qcow2Options::new(&top);
    let reader = Qcow2Options { read_only: true, ..Qcow2Options::new(&middle) };
    let held = storage::open(&reader)?;
    let error =
        tools::commit(&options, false, &mut |_, _| {}).map(|_| ()).expect_err("somebody reads the backing file");
    ensure!(error.to_string().contains("middle"), "{error}");
    drop(held);
    same(&lab, &top, &before)?;
    tools::commit(&options, false, &mut |_, _| {})?;
    same(&lab, &top, &before)?;
    same(&lab, &middle, &before)?;
    img(&lab, &["snapshot", "-c", "one", text(&top)])?;
    let error = tools::commit(&options, false, &mut |_, _| {}).map(|_| ()).expect_err("it has a snapshot");
    ensure!(error.to_string().contains("snapshots"), "{error}");
    Ok(())
}

/// What is written would not be in them, and QEMU would not know.
#[test]
fn dirty_bitmaps_are_not_lost() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng: Rng(5) };
    chain.raw("base", 4 << 20)?;
    chain.image("middle", "cluster_size=64k", Some(("base", "raw")), 4 << 20)?;
    chain.image("top", "cluster_size=64k", Some(("middle", "qcow2")), 4 << 20)?;
    let (top, middle) = (chain.path("top"), chain.path("middle"));
    let options = Qcow2Options::new(&top);
    let commit = |keep| tools::commit(&options, keep, &mut |_, _| {}).map(|_| ());
    let rebase = |unchecked| tools::rebase(&options, None, unchecked, &mut |_, _| {}).map(|_| ());
    let refused = |done: Result<(), tools::ToolError>, of: &Path| {
        let error = done.expect_err("there is a bitmap").to_string();
        ensure!(error.contains("dirty bitmaps") && error.starts_with(text(of)), "{error}");
        ensure!(tools::info(of)?.bitmaps == 1, "it is there");
        sound(&lab, of)
    };
    img(&lab, &["bitmap", "--add", text(&middle), "one"])?;
    refused(commit(true), &middle)?;
    refused(commit(false), &middle)?;
    img(&lab, &["bitmap", "--remove", text(&middle), "one"])?;
    img(&lab, &["bitmap", "--add", text(&top), "one"])?;
    refused(commit(false), &top)?;
    refused(rebase(false), &top)?;
    // What it has is as it was, and so is what changes in it.
    commit(true)?;
    rebase(true)?;
    ensure!(tools::info(&top)?.bitmaps == 1);
    sound(&lab, &top)
}

/// Runs a tool on copies of an image, and kills it sooner or later: nothing is lost, nothing is damaged.
fn killed(lab: &Lab, words: &[&str], (first, image): (&Path, &Path), behind: &[&Path], before: &Path) -> Result<()> {
    let mut kills = 0;
    for delay_ms in (0..40).map(|round| round * 4) {
        std::fs::copy(first, image)?;
        let mut command = Command::new(vringd::program()?);
        command.arg("image").args(words).arg(image).stdout(Stdio::null()).stderr(Stdio::null());
        let mut tool = command.spawn()?;
        std::thread::sleep(Duration::from_millis(delay_ms));
        tool.kill()?;
        kills += u32::from(!tool.wait()?.success());
        // What the dead had under way is waited for, and leaks are all that is left of it.
        for image in behind.iter().chain([&image]) {
            ensure!(tools::check(image, true, true, &mut |_, _| {})?.sound, "{} after {delay_ms} ms", image.display());
            sound(lab, image)?;
        }
        same(lab, image, before).with_context(|| format!("killed after {delay_ms} ms"))?;
    }
    ensure!(kills > 3, "{kills} were killed in time");
    Ok(())
}

/// Whoever is killed while the tool runs has lost nothing, and begins again.
#[test]
fn a_commit_that_is_killed_loses_nothing() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng: Rng(5) };
    chain.raw("base", 24 << 20)?;
    chain.image("middle", "cluster_size=4k", Some(("base", "raw")), 24 << 20)?;
    chain.image("first", "cluster_size=512", Some(("middle", "qcow2")), 40 << 20)?;
    let (first, top, middle) = (chain.path("first"), chain.path("top"), chain.path("middle"));
    qemu_img::io_file(&lab, "qcow2", &first, &["write -P 7 3M 5M", "write -P 8 20M 9M"])?.expect_success()?;
    let before = chain.flat("first", "before")?;
    killed(&lab, &["commit"], (&first, &top), &[&middle], &before)?;
    tools::commit(&Qcow2Options::new(&top), false, &mut |_, _| {})?;
    same(&lab, &top, &before)?;
    same(&lab, &middle, &before)
}

/// An image reads as before over other backing files, as QEMU's does; also where it had none, or has none then.
#[test]
fn images_that_are_rebased_read_as_before() -> Result<()> {
    let lab = Lab::take_turn();
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        for (second, behind) in LAYOUTS.into_iter().enumerate() {
            let directory = TempDir::new_in(kit::disk())?;
            let rng = Rng(1 + number as u64 * 7 + second as u64 * 131);
            let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng };
            let context = format!("{layout} over {behind}");
            chain.raw("base", 5 << 20)?;
            let size_bytes = (3 << 20) + 512 * chain.rng.below(3000);
            chain.image("middle", behind, Some(("base", "raw")), size_bytes)?;
            let size_bytes = (2 << 20) + 512 * chain.rng.below(9000);
            chain.image("top", layout, Some(("middle", "qcow2")), size_bytes)?;
            let top = chain.path("top");
            let before = chain.flat("top", "before")?;
            let theirs = chain.beside()?;
            let other = theirs.path().join("top");
            let options = Qcow2Options::new(&top);
            let raw = Backing { name: "base".into(), is_qcow2: false };
            let image = Backing { name: chain.path("middle"), is_qcow2: true };
            for backing in [Some(&raw), None, Some(&image), Some(&raw), Some(&image), None] {
                let context = format!("{context}, then {backing:?}");
                tools::rebase(&options, backing, false, &mut |_, _| {}).context(context.clone())?;
                same(&lab, &top, &before).context(context.clone())?;
                sound(&lab, &top).context(context.clone())?;
                let info = tools::info(&top)?;
                ensure!(info.backing_file == backing.map(|backing| backing.name.display().to_string()), "{info:?}");
                let (name, format) = match backing {
                    Some(backing) => (text(&backing.name), if backing.is_qcow2 { "qcow2" } else { "raw" }),
                    None => ("", "raw"),
                };
                let said = qemu_img::img(&lab, &["rebase", "-f", "qcow2", "-b", name, "-F", format, text(&other)])?;
                said.expect_success().context(context.clone())?;
                same(&lab, &top, &other).context(context)?;
            }
            let more = ["write -P 5 1M 100k", "read -P 5 1M 100k"];
            ensure!(!qemu_img::io_file(&lab, "qcow2", &top, &more)?.expect_success()?.contains("failed"), "{context}");
            sound(&lab, &top).context(context)?;
        }
    }
    Ok(())
}

/// The header alone is what QEMU makes of it as well.
#[test]
fn an_unsafe_rebase_changes_the_header_alone() -> Result<()> {
    let lab = Lab::take_turn();
    for layout in LAYOUTS {
        let directory = TempDir::new_in(kit::disk())?;
        let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng: Rng(3) };
        chain.raw("base", 5 << 20)?;
        chain.raw("another-file-with-a-longer-name", 4 << 20)?;
        chain.image("top", layout, Some(("base", "raw")), 5 << 20)?;
        let (top, theirs) = (chain.path("top"), chain.copy("top", "theirs")?);
        let named = |name: &str| Backing { name: name.into(), is_qcow2: false };
        let longer = named("another-file-with-a-longer-name");
        for backing in [Some(&longer), Some(&named("base")), None, Some(&longer), None, Some(&named("base"))] {
            let rebased = tools::rebase(&Qcow2Options::new(&top), backing, true, &mut |_, _| {})?;
            ensure!(rebased.copied.data_bytes == 0, "{rebased:?}");
            let name = backing.map_or("", |backing| text(&backing.name));
            img(&lab, &["rebase", "-u", "-f", "qcow2", "-b", name, "-F", "raw", text(&theirs)])?;
            same(&lab, &top, &theirs)?;
            sound(&lab, &top)?;
        }
        let gone = named("gone");
        tools::rebase(&Qcow2Options::new(&top), Some(&gone), true, &mut |_, _| {})?;
        tools::rebase(&Qcow2Options::new(&top), Some(&named("base")), true, &mut |_, _| {})?;
        same(&lab, &top, &theirs)?;
    }
    Ok(())
}

#[test]
fn a_rebase_that_is_killed_changes_nothing_that_is_read() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let mut chain = Chain { lab: &lab, directory: directory.path().to_owned(), rng: Rng(5) };
    chain.raw("base", 24 << 20)?;
    chain.image("first", "cluster_size=4k", Some(("base", "raw")), 24 << 20)?;
    qemu_img::io_file(&lab, "raw", &chain.path("base"), &["write -P 7 3M 15M"])?.expect_success()?;
    let before = chain.flat("first", "before")?;
    killed(&lab, &["rebase", "--no-backing"], (&chain.path("first"), &chain.path("top")), &[], &before)
}
