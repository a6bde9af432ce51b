//! The daemon: one worker for everybody.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use guest::process::Group;
use tempfile::TempDir;

const START_LIMIT: Duration = Duration::from_secs(20);
/// Removing what is left may take the file system long.
const END_LIMIT: Duration = Duration::from_secs(300);
const EXPORTS: [&str; 4] = ["disk", "directory", "fuse", "9p"];

/// A running daemon, killed when it is dropped.
pub(super) struct Server {
    process: Group,
    sockets: TempDir,
    attacked: PathBuf,
}

impl Server {
    /// Starts it on directories in `files`.
    pub(super) fn start(vringd: &Path, files: &Path) -> Result<Self> {
        let sockets = TempDir::with_prefix("vringd-neighbour-")?;
        let (attacked, beside) = (files.join("attacked"), files.join("beside"));
        fs::create_dir(&attacked)?;
        fs::create_dir(&beside)?;
        let toml = |path: &Path| -> Result<String> {
            Ok(serde_json::to_string(path.to_str().context("--dir and $TMPDIR are UTF-8")?)?)
        };
        let socket = |name: &str| toml(&sockets.path().join(format!("{name}.sock")));
        let mut config = format!("control = {}\nworkers = 1\n", socket("control")?);
        for name in EXPORTS {
            config += &format!("[[export]]\nname = '{name}'\nsocket = {}\n", socket(name)?);
            config += &match name {
                "disk" => "queues = 1\nstorage = { kind = 'memory', size = '16M' }\n".to_owned(),
                "directory" => format!("kind = 'dir'\ndirectory = {{ path = {} }}\n", toml(&beside)?),
                "fuse" => format!("kind = 'dir'\ndirectory = {{ path = {} }}\n", toml(&attacked)?),
                _ => format!("kind = 'dir'\ndirectory = {{ path = {}, protocol = '9p' }}\n", toml(&attacked)?),
            };
        }
        let path = sockets.path().join("config.toml");
        fs::write(&path, config)?;
        let mut command = Command::new(vringd);
        command.arg("serve").arg(path);
        let mut process = Group::start(&command, &sockets.path().join("server.log"))?;
        let all = EXPORTS.map(|name| sockets.path().join(format!("{name}.sock")));
        process.wait_for_sockets(START_LIMIT, &all)?;
        Ok(Self { process, sockets, attacked })
    }

    /// The socket of an export.
    pub(super) fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(format!("{name}.sock"))
    }

    /// The directory that both attacked exports share.
    pub(super) fn attacked(&self) -> &Path {
        &self.attacked
    }

    /// What it said.
    pub(super) fn output(&self) -> String {
        self.process.output()
    }

    /// Ends it, which must go well.
    pub(super) fn stop(mut self) -> Result<()> {
        self.process.stop("the server", END_LIMIT)
    }
}
