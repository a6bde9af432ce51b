//! One of each thing that a file system can be asked for.

mod data;
mod metadata;
mod names;

use std::path::Path;

use anyhow::{Context, Result};
use rustix::io::Errno;

/// How files may be mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mapping {
    /// Only for reading, or with private changes.
    Private,
    /// Shared too.
    Shared,
}

type Check = fn(&Path) -> Result<()>;

/// What can be asked by a protocol.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Checks of what Linux has no message for.
    without: &'static [&'static str],
    /// Checks that show what is answered instead.
    instead: &'static [(&'static str, Check)],
    /// The error when a file is mapped shared and must not be.
    unmapped: Errno,
}

/// Everything.
pub(crate) const FUSE: Asked = Asked { without: &[], instead: &[], unmapped: Errno::NODEV };

/// What 9P2000.L has no message for, or Linux sends none: see `docs/9p.md`, "Where it differs".
pub(crate) const P9: Asked = Asked {
    without: &["rename-flags", "tmpfile", "fallocate", "seek-data", "times", "birth", "flags"],
    instead: &[("whole-times", metadata::times_in_seconds), ("not-in-9p", metadata::not_in_9p)],
    unmapped: Errno::INVAL,
};

/// Runs every check in a fresh directory each, below `directory`.
pub(crate) fn run(directory: &Path, asked: &Asked, mapping: Mapping) -> Result<()> {
    let mut checks: Vec<(&str, Check)> = Vec::new();
    checks.extend(names::CHECKS);
    checks.extend(data::CHECKS);
    checks.extend(metadata::CHECKS);
    for name in asked.without {
        anyhow::ensure!(checks.iter().any(|(check, _)| check == name), "there is no check {name} to leave out");
    }
    checks.retain(|(check, _)| !asked.without.contains(check));
    checks.extend(asked.instead);
    if mapping == Mapping::Shared {
        checks.push(("shared-mapping", data::shared_mapping));
    }
    let mut failures = Vec::new();
    let place_of = |name: &str| {
        let place = directory.join(name);
        std::fs::create_dir(&place).with_context(|| format!("a directory for {name}"))?;
        anyhow::Ok(place)
    };
    for (name, check) in checks {
        if let Err(error) = check(&place_of(name)?) {
            failures.push(format!("{name}: {error:#}"));
        }
    }
    if mapping == Mapping::Private
        && let Err(error) = data::no_shared_mapping(&place_of("no-shared-mapping")?, asked.unmapped)
    {
        failures.push(format!("no-shared-mapping: {error:#}"));
    }
    anyhow::ensure!(failures.is_empty(), "these do not work:\n{}", failures.join("\n"));
    Ok(())
}
