//! Whether KVM works: tried, not assumed.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use crate::kit::Kit;
use crate::process::Group;

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

impl fmt::Display for Accelerator {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// KVM if it runs the kit's kernel, else TCG. The device may be there and be no use: the first call boots a kernel
/// without a root file system, which ends in its panic, and remembers.
pub fn accelerator(kit: &Kit) -> Result<Accelerator> {
    static FOUND: OnceLock<Accelerator> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let (qemu, kernel) = (kit.qemu()?, kit.kernel()?);
    let found =
        if Path::new(KVM).exists() && panics_under_kvm(qemu, kernel)? { Accelerator::Kvm } else { Accelerator::Tcg };
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
