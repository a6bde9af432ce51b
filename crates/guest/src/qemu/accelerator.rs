//! Whether KVM works: tried, not assumed.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::kit::Kit;
use crate::process::Group;

/// Says `kvm` or `tcg`, for who knows: trying takes seconds where a device is there and no use.
pub const ACCELERATOR_VARIABLE: &str = "VRINGD_ACCELERATOR";

const KVM: &str = "/dev/kvm";
/// A kernel that runs at all gets this far in less than one.
const LIMIT: Duration = Duration::from_secs(5);

/// How a guest's processors are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By this machine's processor.
    Kvm,
    /// By QEMU's translator, a thread each.
    Tcg,
}

impl Accelerator {
    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => &["-accel", "tcg,thread=multi"],
        }
    }
}

impl Accelerator {
    fn word(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    fn named(word: &OsStr) -> Result<Self> {
        let named = [Self::Kvm, Self::Tcg].into_iter().find(|accelerator| word == accelerator.word());
        named.with_context(|| format!("{ACCELERATOR_VARIABLE}={}: say kvm or tcg", word.display()))
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.word())
    }
}

/// What [`ACCELERATOR_VARIABLE`] says; else KVM if it runs the kit's kernel, else TCG. The device may be there and be no use:
/// the first call boots a kernel without a root file system, which ends in its panic, and remembers.
///
/// # Errors
/// The variable says something else, or QEMU or the kernel is not there.
pub fn accelerator(kit: &Kit) -> Result<Accelerator> {
    static FOUND: OnceLock<Accelerator> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let found = match env::var_os(ACCELERATOR_VARIABLE) {
        Some(word) => Accelerator::named(&word)?,
        None if Path::new(KVM).exists() && panics_under_kvm(kit.qemu()?, kit.kernel()?)? => Accelerator::Kvm,
        None => Accelerator::Tcg,
    };
    Ok(*FOUND.get_or_init(|| found))
}

fn panics_under_kvm(qemu: &Path, kernel: &Path) -> Result<bool> {
    let directory = TempDir::with_prefix("vringd-kvm-")?;
    let mut command = Command::new(qemu);
    command
        .args(Accelerator::Kvm.options())
        .args(["-m", "256M", "-machine", "q35", "-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-append", "console=ttyS0 panic=-1", "-kernel"])
        .arg(kernel);
    let mut guest = Group::start(&command, &directory.path().join("console"))?;
    let panics = guest.wait_until(LIMIT, |console| console.contains("Kernel panic")).is_ok();
    crate::interrupt::check()?;
    Ok(panics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerators_are_known_by_their_words() {
        for accelerator in [Accelerator::Kvm, Accelerator::Tcg] {
            assert_eq!(Accelerator::named(OsStr::new(&accelerator.to_string())).unwrap(), accelerator);
        }
        let refused = Accelerator::named(OsStr::new("hvf")).unwrap_err().to_string();
        assert_eq!(refused, "VRINGD_ACCELERATOR=hvf: say kvm or tcg");
    }
}
