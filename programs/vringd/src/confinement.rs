//! The sandbox of a daemon, as a person asks for it.

use sandbox::Seccomp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;

/// The sandbox of a daemon: options of the command line, and the `[sandbox]` table of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[command(next_help_heading = "Sandbox")]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Confinement {
    /// Directory that images, directories and sockets may be in that are named while the daemon runs; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) allow: Vec<PathBuf>,
    /// TCP port at which exports may listen that are named while the daemon runs; may be repeated
    #[arg(long, value_name = "PORT")]
    pub(crate) allow_port: Vec<u16>,
    /// Disks of storage rbd may be added while the daemon runs: it may connect to anybody by TCP
    #[arg(long)]
    pub(crate) allow_rbd: bool,
    /// Whether Landlock confines the process to the paths it serves: auto, on (or do not start) or off [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub(crate) landlock: Option<When>,
    /// What becomes of a system call that the daemon has no use for: kill, log, trap or none (allow all) [default: kill]
    #[arg(long, value_name = "ACTION")]
    #[serde(deserialize_with = "action")]
    pub(crate) seccomp: Option<Seccomp>,
    /// Which of root's rights stay: auto (what the exports may need), none or all [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub(crate) capabilities: Option<Keep>,
    /// Who to become when images and sockets are open, by name or number
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
}

/// When Landlock is to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum When {
    /// When the paths are known beforehand and the kernel has it
    #[default]
    Auto,
    /// Always: a kernel without it is an error
    On,
    /// Never
    Off,
}

/// Which capabilities stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keep {
    /// What the exports may need
    #[default]
    Auto,
    /// None
    None,
    /// Those that the process was started with
    All,
}

fn action<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Seccomp>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

impl Confinement {
    /// These options, and what `file` says where they say nothing.
    pub(crate) fn over(self, file: Confinement) -> Confinement {
        Confinement {
            allow: file.allow.into_iter().chain(self.allow).collect(),
            allow_port: file.allow_port.into_iter().chain(self.allow_port).collect(),
            allow_rbd: self.allow_rbd || file.allow_rbd,
            landlock: self.landlock.or(file.landlock),
            seccomp: self.seccomp.or(file.seccomp),
            capabilities: self.capabilities.or(file.capabilities),
            user: self.user.or(file.user),
        }
    }

    /// What can be refused without looking at the system.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.landlock == Some(When::Off) && !self.allow.is_empty() {
            return Err("sandbox.allow: means nothing with landlock off: leave one of the two out".to_owned());
        }
        if self.user.is_some() && self.capabilities == Some(Keep::All) {
            return Err("sandbox.capabilities: another user has none of root's: leave `all` or `user` out".to_owned());
        }
        Ok(())
    }
}
