//! One of each thing that a file system can be asked for.

mod data;
mod metadata;
mod names;

use std::path::Path;

use anyhow::{Context, Result};

/// How files may be mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mapping {
    /// Only for reading, or with private changes.
    Private,
    /// Shared too.
    Shared,
}

type Check = fn(&Path) -> Result<()>;

/// Runs every check in a fresh directory each, below `directory`.
pub(crate) fn run(directory: &Path, mapping: Mapping) -> Result<()> {
    let mut checks: Vec<(&str, Check)> = Vec::new();
    checks.extend(names::CHECKS);
    checks.extend(data::CHECKS);
    checks.extend(metadata::CHECKS);
    match mapping {
        Mapping::Private => checks.push(("no-shared-mapping", data::no_shared_mapping)),
        Mapping::Shared => checks.push(("shared-mapping", data::shared_mapping)),
    }
    let mut failures = Vec::new();
    for (name, check) in checks {
        let place = directory.join(name);
        std::fs::create_dir(&place).with_context(|| format!("a directory for {name}"))?;
        if let Err(error) = check(&place) {
            failures.push(format!("{name}: {error:#}"));
        }
    }
    anyhow::ensure!(failures.is_empty(), "these do not work:\n{}", failures.join("\n"));
    Ok(())
}
