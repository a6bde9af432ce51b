//! Starts a server of a directory and waits until its socket is there.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use control::client::Client;
use control::model::{Export, RingInfo};
use tempfile::TempDir;

use crate::device::Device;
use crate::lab::Lab;
use crate::process::Group;
use crate::vringd;

/// Set to `virtiofsd`, it puts the lab's virtiofsd in vringd's place: a failure that both have is
/// the test's or the guest's. What only vringd can do then fails.
pub const PEER_VARIABLE: &str = "VRINGD_TEST_PEER";

/// The tag of every directory that the tests serve and do not call otherwise, and the name of its export.
pub const TAG: &str = "share";

const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(20);

/// For how long a guest may believe what it was told: the words of `--cache`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cache {
    /// Not at all.
    Never,
    /// Names and attributes for a day, data not at all.
    Metadata,
    /// Names and attributes for a second, data as long as the file is open.
    Auto,
    /// For a day.
    Always,
}

impl Cache {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Never, Self::Metadata, Self::Auto, Self::Always];

    /// As the command line says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Metadata => "metadata",
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }

    /// Whether a guest may map a file shared: without cached data only if the server allows it.
    pub fn keeps_data(self) -> bool {
        matches!(self, Self::Auto | Self::Always)
    }
}

/// What is spoken with the guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protocol {
    /// FUSE, as a virtio-fs device.
    VirtioFs,
    /// 9p, as a virtio-9p device.
    P9,
}

/// What can serve a directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Program {
    /// The program under test.
    Vringd,
    /// The lab's virtiofsd, with its own defaults but for its sandbox.
    Virtiofsd,
}

/// A directory to serve.
#[derive(Clone, Debug)]
pub struct Directory {
    /// What the guest sees as its root.
    pub path: PathBuf,
    /// By what a guest knows it: directories of one guest have different ones.
    pub tag: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The cache policy; by 9p that is the guest's own business.
    pub cache: Cache,
    /// The sandbox of the server: `none`, `chroot` or `namespace`.
    pub sandbox: &'static str,
    /// Who runs the server, if not the user that runs the test.
    pub user: Option<u32>,
    /// Request queues offered.
    pub queues: Option<u16>,
    /// What `--workers` says, if it is to say something.
    pub workers: Option<&'static str>,
    /// What `--execution` says, if it is to say something.
    pub execution: Option<&'static str>,
    /// More options, spelled as virtiofsd spells them too.
    pub options: Vec<String>,
}

impl Directory {
    /// A directory with the default policy, for a server that is not confined.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            tag: TAG.to_owned(),
            protocol: Protocol::VirtioFs,
            cache: Cache::Auto,
            sandbox: "none",
            user: None,
            queues: None,
            workers: None,
            execution: None,
            options: Vec::new(),
        }
    }

    /// A directory by 9p.
    pub fn p9(path: impl Into<PathBuf>) -> Self {
        Self { protocol: Protocol::P9, ..Self::new(path) }
    }

    /// With another cache policy.
    #[must_use]
    pub fn cache(self, cache: Cache) -> Self {
        Self { cache, ..self }
    }

    /// With another tag.
    #[must_use]
    pub fn tag(self, tag: impl Into<String>) -> Self {
        Self { tag: tag.into(), ..self }
    }

    /// With one more option.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }
}

/// A running server. It is killed when dropped.
#[derive(Debug)]
pub struct DirectoryServer {
    process: Group,
    files: TempDir,
    program: Program,
    protocol: Protocol,
    tag: String,
}

impl DirectoryServer {
    /// Serves `directory` with the program under test.
    pub fn start(lab: &Lab, directory: &Directory) -> Result<Self> {
        let program = match env::var(PEER_VARIABLE) {
            Err(_) => Program::Vringd,
            Ok(peer) if peer == "virtiofsd" => Program::Virtiofsd,
            Ok(peer) => bail!("{PEER_VARIABLE} can be `virtiofsd` or unset, and is `{peer}`"),
        };
        Self::start_as(lab, program, directory)
    }

    /// Serves `directory` with `program`.
    pub fn start_as(lab: &Lab, program: Program, directory: &Directory) -> Result<Self> {
        ensure!(
            program == Program::Vringd || directory.protocol == Protocol::VirtioFs,
            "only vringd serves 9p, and {PEER_VARIABLE} is set"
        );
        let files = TempDir::with_prefix("vringd-test-")?;
        let socket = files.path().join("share.sock");
        let command = match program {
            Program::Vringd => vringd::serve_directory(directory, &socket, &files.path().join("control.sock"))?,
            Program::Virtiofsd => virtiofsd(lab, directory, &socket),
        };
        let command = match directory.user {
            Some(user) => as_user(&command, user, files.path())?,
            None => command,
        };
        let mut process = Group::start(&command, &files.path().join("server.log"))?;
        process.wait_for_sockets(START_LIMIT, &[socket])?;
        Ok(Self { process, files, program, protocol: directory.protocol, tag: directory.tag.clone() })
    }

    /// Where a frontend connects.
    pub fn socket(&self) -> PathBuf {
        self.files.path().join("share.sock")
    }

    /// The directory, for a guest.
    pub fn device(&self) -> Device {
        let (socket, tag) = (self.socket(), self.tag.clone());
        match self.protocol {
            Protocol::VirtioFs => Device::Directory { socket, tag, queues: 1 },
            Protocol::P9 => Device::Directory9p { socket, tag },
        }
    }

    /// The directory, for a guest with a DAX window.
    pub fn dax_device(&self) -> Device {
        Device::DirectoryDax { socket: self.socket(), tag: self.tag.clone() }
    }

    /// What is spoken with the guest.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// By what a guest knows the directory.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The process id of the server, or of the one that watches over it.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The control API.
    pub fn client(&self) -> Result<Client> {
        ensure!(self.program == Program::Vringd, "only vringd has a control socket");
        Ok(Client::new(self.files.path().join("control.sock"))?)
    }

    /// What the control API says of the export.
    pub fn export(&self) -> Result<Export> {
        Ok(self.client()?.get(&format!("/v1/exports/{}", self.tag))?)
    }

    /// How many requests of a kind a ring has seen: an operation by its name in small letters, or
    /// `malformed`.
    pub fn requests(&self, ring: u16, kind: &str) -> Result<u64> {
        let ring: RingInfo = self.client()?.get(&format!("/v1/exports/{}/rings/{ring}", self.tag))?;
        Ok(ring.figures.requests.get(kind).copied().unwrap_or_default())
    }

    /// What the server has said so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Fails if the server has ended, with its last words.
    ///
    /// virtiofsd serves one frontend and ends, which is no failure of its.
    pub fn check_alive(&mut self) -> Result<()> {
        if self.program == Program::Vringd { self.process.check_alive("the server") } else { Ok(()) }
    }

    /// Ends the server as an operator does (SIGTERM). It must end well.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop("the server", END_LIMIT)
    }
}

impl Drop for DirectoryServer {
    /// Leaves the server's last words in the test's output, which is shown if the test fails.
    fn drop(&mut self) {
        eprintln!("server {}, said:\n{}", self.process.state(), self.output());
    }
}

fn virtiofsd(lab: &Lab, directory: &Directory, socket: &Path) -> Command {
    let mut command = Command::new(lab.program("virtiofsd"));
    command
        .arg("--shared-dir")
        .arg(&directory.path)
        .arg("--socket-path")
        .arg(socket)
        .args(["--tag", directory.tag.as_str(), "--seccomp", "none", "--xattr"])
        .args(["--sandbox", directory.sandbox, "--cache", directory.cache.name()])
        .args(&directory.options);
    command
}

/// `command` run by a user that owns `files`, with a copy of the program that the user can reach.
fn as_user(command: &Command, user: u32, files: &Path) -> Result<Command> {
    let program = files.join("server");
    fs::copy(command.get_program(), &program)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    chown(files, Some(user), Some(user))?;
    let mut wrapped = Command::new("setpriv");
    wrapped
        .arg(format!("--reuid={user}"))
        .arg(format!("--regid={user}"))
        .args(["--clear-groups", "--"])
        .arg(program)
        .args(command.get_args());
    Ok(wrapped)
}
