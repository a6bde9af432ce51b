//! QEMU guests whose root is the lab's Debian, and which run one script after the other: each waits for what this side sees and does.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::{Machine, Shell as _, qemu};

use crate::device::Device;
use crate::lab::Lab;
use crate::script::WAIT_FOR;

const MACHINE: Machine = Machine { processors: 2, memory_mib: 512, one_node: false, instruction_clock: false };
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// A guest that waits for scripts.
#[derive(Debug)]
pub struct Debian {
    guest: guest::Guest,
    spare: PathBuf,
}

impl Debian {
    /// Boots it with two processors.
    pub fn boot(lab: &Lab, devices: &[Device]) -> Result<Self> {
        Ok(Self { guest: qemu::boot(&lab.kit(), &MACHINE, devices)?, spare: lab.spare_modules() })
    }

    /// Loads the spare module `name` of the lab with `options`, and before it what it needs.
    pub fn load(&mut self, name: &str, options: &str) -> Result<()> {
        let place = self.guest.share().join(name);
        fs::create_dir(&place)?;
        let from = self.spare.join(name);
        for file in fs::read_dir(&from).with_context(|| format!("the lab has no {}", from.display()))? {
            let file = file?;
            fs::copy(file.path(), place.join(file.file_name()))?;
        }
        let script = format!(
            "for module in $job/{name}/*.ko; do
                 case $module in *-{name}.ko) busybox insmod $module {options} ;; *) busybox insmod $module ;; esac
             done"
        );
        self.run(&script, LOAD_LIMIT)?;
        Ok(())
    }

    /// Runs a script, which may [wait](WAIT_FOR), and fails if it does. Returns what it wrote to its standard output.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<String> {
        let ended = self.guest.run(&format!("{WAIT_FOR}\n{script}"), limit)?;
        let (status, console) = (ended.status, self.guest.console());
        ensure!(
            status == 0,
            "the script ended with {status} and said:\n{}{}\nthe console:\n{console}",
            ended.stdout,
            ended.stderr
        );
        Ok(ended.stdout)
    }
}
