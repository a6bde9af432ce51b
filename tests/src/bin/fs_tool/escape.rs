//! Attempts of a guest to reach what lies outside its directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// What lies in the shared directory where the secret lies outside.
const HARMLESS: &str = "harmless";
const SWAPS: u64 = 300;

/// Swaps a directory for a symbolic link all the time, while other threads go through it. `outside`
/// is a directory of the host with a file `secret`: a server that follows the link by itself gives
/// that away, or writes there. The guest has no such path, so its own kernel cannot.
pub(crate) fn run(directory: &Path, outside: &Path) -> Result<()> {
    let outside = outside.to_str().context("temporary directories are UTF-8")?;
    let targets = [
        outside.to_owned(),
        format!("/proc/self/root{outside}"),
        format!("/proc/1/root{outside}"),
        format!("{}{outside}", "../".repeat(20)),
    ];
    for (number, target) in targets.iter().enumerate() {
        let base = directory.join(format!("swap{number}"));
        fs::create_dir_all(base.join("door"))?;
        fs::write(base.join("door/secret"), HARMLESS)?;
        symlink(target, base.join("link"))?;
        swap(&base).with_context(|| format!("by way of {target}"))?;
    }
    Ok(())
}

fn swap(base: &Path) -> Result<()> {
    let over = AtomicBool::new(false);
    let went_in = AtomicU64::new(0);
    thread::scope(|scope| {
        let visitors: Vec<_> = (0..3)
            .map(|number| {
                scope.spawn({
                    let (over, went_in) = (&over, &went_in);
                    move || visit(base, number, over, went_in)
                })
            })
            .collect();
        let swapped = (0..SWAPS)
            .try_for_each(|_| renameat_with(CWD, base.join("door"), CWD, base.join("link"), RenameFlags::EXCHANGE));
        over.store(true, Ordering::Relaxed);
        for visitor in visitors {
            visitor.join().expect("a visitor does not panic")?;
        }
        swapped.context("the swap")
    })?;
    ensure!(went_in.load(Ordering::Relaxed) > 0, "no visitor ever came through the door");
    Ok(())
}

fn visit(base: &Path, number: u64, over: &AtomicBool, went_in: &AtomicU64) -> Result<()> {
    let door = base.join("door");
    while !over.load(Ordering::Relaxed) {
        // Whatever fails here fails because the link was there at that moment.
        if let Ok(content) = fs::read_to_string(door.join("secret")) {
            ensure!(content == HARMLESS, "the guest has read `{content}`");
            went_in.fetch_add(1, Ordering::Relaxed);
        }
        if let Ok(entries) = fs::read_dir(&door) {
            for entry in entries.flatten() {
                ensure!(entry.file_name() != "outside", "the guest has listed the outside");
            }
        }
        let left = door.join(format!("left-by-{number}"));
        if fs::write(&left, "left").is_ok() {
            fs::remove_file(&left).ok();
        }
        fs::set_permissions(door.join("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).ok();
    }
    Ok(())
}
