//! A directory over 9p without a device: clients connect to an address.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control::client::Client as Control;
use control::model::{Execution, Export, RingState, SessionState, Settings};
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon};
use tests::process::Group;
use tests::vringd;

const START_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(30);
/// A client that is never answered fails, and does not hang.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Numbers of messages (9P2000.L specification; include/net/9p/9p.h). An answer is one more.
mod kind {
    pub(super) const RLERROR: u8 = 7;
    pub(super) const TLOPEN: u8 = 12;
    pub(super) const TLCREATE: u8 = 14;
    pub(super) const TVERSION: u8 = 100;
    pub(super) const TATTACH: u8 = 104;
    pub(super) const TWALK: u8 = 110;
    pub(super) const TREAD: u8 = 116;
    pub(super) const TWRITE: u8 = 118;
    pub(super) const TCLUNK: u8 = 120;
}

const NOTAG: u16 = u16::MAX;
const NOFID: u32 = u32::MAX;
const NONUNAME: u32 = u32::MAX;
const RDWR: u32 = 2;

/// One message's bytes behind its header.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u16).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

/// From the root to fid 1.
fn walk(names: &[&str]) -> Body {
    let body = Body::default().u32(0).u32(1).u16(names.len() as u16);
    names.iter().fold(body, |body, name| body.text(name))
}

/// A client that has one request under way.
struct Client<S> {
    stream: S,
}

impl Client<UnixStream> {
    fn unix(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self { stream })
    }
}

impl<S: Read + Write> Client<S> {
    /// Sends a request, and returns the answer's kind and bytes.
    fn ask(&mut self, kind: u8, tag: u16, body: Body) -> Result<(u8, Vec<u8>)> {
        let mut message = (7 + body.0.len() as u32).to_le_bytes().to_vec();
        message.push(kind);
        message.extend(tag.to_le_bytes());
        message.extend(body.0);
        self.stream.write_all(&message)?;
        let mut header = [0; 7];
        self.stream.read_exact(&mut header)?;
        let [a, b, c, d, answered, tag_low, tag_high] = header;
        ensure!(u16::from_le_bytes([tag_low, tag_high]) == tag, "an answer for somebody else: {header:?}");
        let bytes = u32::from_le_bytes([a, b, c, d]).checked_sub(7).context("a message has a header")?;
        let mut rest = vec![0; bytes as usize];
        self.stream.read_exact(&mut rest)?;
        Ok((answered, rest))
    }

    /// Sends a request that is granted.
    fn call(&mut self, kind: u8, body: Body) -> Result<Vec<u8>> {
        let (answered, rest) = self.ask(kind, 1, body)?;
        ensure!(answered == kind + 1, "request {kind} is answered by {answered}: {rest:?}");
        Ok(rest)
    }

    /// Sends a request that is refused, and returns the error number.
    fn refused(&mut self, kind: u8, body: Body) -> Result<u32> {
        match self.ask(kind, 1, body)? {
            (kind::RLERROR, rest) => Ok(u32::from_le_bytes(rest.try_into().ok().context("an error is four bytes")?)),
            (answered, rest) => bail!("request {kind} is answered by {answered}: {rest:?}"),
        }
    }

    /// Agrees on a message size, and takes fid 0 for the root.
    fn begin(&mut self, msize: u32) -> Result<u32> {
        let (answered, rest) = self.ask(kind::TVERSION, NOTAG, Body::default().u32(msize).text("9P2000.L"))?;
        ensure!(answered == kind::TVERSION + 1, "the version is answered by {answered}");
        let granted = rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).context("a version has a size")?;
        ensure!(rest.ends_with(b"9P2000.L"), "{rest:?}");
        let attach = Body::default().u32(0).u32(NOFID).text("root").text("").u32(NONUNAME);
        self.call(kind::TATTACH, attach)?;
        Ok(granted)
    }

    /// Makes a file with some contents.
    fn create(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        self.call(kind::TWALK, walk(&[]))?;
        self.call(kind::TLCREATE, Body::default().u32(1).text(name).u32(RDWR).u32(0o640).u32(0))?;
        let write = Body::default().u32(1).u64(0).u32(contents.len() as u32).bytes(contents);
        let written = self.call(kind::TWRITE, write)?;
        ensure!(written == (contents.len() as u32).to_le_bytes(), "{written:?}");
        self.clunk()
    }

    /// Opens a file as fid 1.
    fn open(&mut self, name: &str, flags: u32) -> Result<()> {
        self.call(kind::TWALK, walk(&[name]))?;
        self.call(kind::TLOPEN, Body::default().u32(1).u32(flags)).map(drop)
    }

    fn read(&mut self, name: &str, bytes: u32) -> Result<Vec<u8>> {
        self.open(name, 0)?;
        let answer = self.call(kind::TREAD, Body::default().u32(1).u64(0).u32(bytes))?;
        self.clunk()?;
        let (count, data) = answer.split_first_chunk().context("data has a length")?;
        ensure!(u32::from_le_bytes(*count) as usize == data.len());
        Ok(data.to_vec())
    }

    fn clunk(&mut self) -> Result<()> {
        self.call(kind::TCLUNK, Body::default().u32(1)).map(drop)
    }

    /// Everything a client does first, and whether the host sees it.
    fn works_in(&mut self, shared: &Path, name: &str) -> Result<()> {
        let granted = self.begin(1 << 20)?;
        ensure!(granted == 1 << 20, "{granted} bytes are granted");
        let contents: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
        self.create(name, &contents)?;
        ensure!(fs::read(shared.join(name))? == contents, "the host sees something else");
        ensure!(self.read(name, 1 << 19)? == contents, "the client reads something else");
        ensure!(self.refused(kind::TWALK, walk(&["missing"]))? == rustix::io::Errno::NOENT.raw_os_error() as u32);
        Ok(())
    }
}

/// `vringd dir` over 9p, of a directory `shared` in a place of its own.
struct Server {
    process: Group,
    place: TempDir,
}

impl Server {
    fn start(options: &[&str]) -> Result<Self> {
        let place = tests::daemon::directory()?;
        fs::create_dir(place.path().join("shared"))?;
        let mut command = Command::new(vringd::program()?);
        command.current_dir(place.path()).args(["dir", "--protocol", "9p", "--control", "control.sock"]);
        command.args(options).arg("shared");
        let mut process = Group::start(&command, &place.path().join("server.log"))?;
        let control = Control::new(place.path().join("control.sock"))?;
        process.wait_until(START_LIMIT, |_| control.text("/v1/info").is_ok())?;
        Ok(Self { process, place })
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.place.path().join(name)
    }

    fn export(&self) -> Result<Export> {
        Ok(Control::new(self.at("control.sock"))?.get("/v1/exports/dir")?)
    }

    /// Waits until the export looks as it should.
    fn wait(&mut self, wanted: impl Fn(&Export) -> bool) -> Result<Export> {
        let control = Control::new(self.at("control.sock"))?;
        let look = || control.get::<Export>("/v1/exports/dir").ok();
        self.process.wait_until(START_LIMIT, |_| look().is_some_and(|export| wanted(&export)))?;
        self.export()
    }

    fn end(mut self) -> Result<()> {
        self.process.stop("the server", END_LIMIT)
    }
}

impl Drop for Server {
    /// Leaves its last words in the test's output, which is shown if the test fails.
    fn drop(&mut self) {
        println!("{}:\n{}", self.process.state(), self.process.output());
    }
}

fn connections(export: &Export) -> Option<u64> {
    Some(export.directory.as_ref()?.p9.as_ref()?.connections)
}

#[test]
fn clients_connect_to_a_unix_socket() -> Result<()> {
    for sandbox in ["none", "namespace"] {
        let mut server = Server::start(&["--listen", "unix:p9.sock", "--sandbox", sandbox])?;
        let mut first = Client::unix(&server.at("p9.sock"))?;
        first.works_in(&server.at("shared"), "first").context(sandbox)?;
        let mut second = Client::unix(&server.at("p9.sock"))?;
        second.works_in(&server.at("shared"), "second").context(sandbox)?;
        let export = server.wait(|export| connections(export) == Some(2))?;
        assert_eq!(export.state, SessionState::Connected);
        let directory = export.directory.context("it is a directory")?;
        assert_eq!((directory.protocol.as_deref(), directory.cache, directory.tag), (Some("9P2000.L"), None, None));
        let p9 = directory.p9.context("it is served over 9p")?;
        assert_eq!((p9.msize, p9.msize_max, p9.fids), (Some(1 << 20), 1 << 20, 2));
        for ring in &export.rings[..2] {
            assert_eq!((ring.state, ring.figures.count("Twrite")), (RingState::Running, 1));
            assert_eq!((ring.figures.bytes_written, ring.figures.bytes_read), (200_000, 200_000));
        }
        drop((first, second));
        let export = server.wait(|export| connections(export) == Some(0) && export.state == SessionState::Listening)?;
        assert_eq!(export.directory.map(|directory| directory.open_files), Some(0));
        server.end().context(sandbox)?;
    }
    Ok(())
}

#[test]
fn clients_connect_to_a_port() -> Result<()> {
    let listen = ["--listen", "tcp:0", "--clients-may-be-root"];
    let server = Server::start(&[&listen[..], &["--execution", "pool=2", "--workers", "2"]].concat())?;
    let socket = server.export()?.socket;
    let address = socket.strip_prefix("tcp:").context("the address is shown")?;
    assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"), "{socket}");
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    Client { stream }.works_in(&server.at("shared"), "file")?;
    server.end()
}

#[test]
fn an_inherited_connection_is_a_client() -> Result<()> {
    let place = tests::daemon::directory()?;
    fs::create_dir(place.path().join("shared"))?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut command = Command::new("bash");
    command.current_dir(place.path()).args(["-c", "exec \"$@\" 3<&0 </dev/null", "bash"]);
    command.arg(vringd::program()?).args([
        "dir",
        "--protocol",
        "9p",
        "--listen",
        "fd:3",
        "--sandbox",
        "none",
        "shared",
    ]);
    let mut process = Group::start_with(&command, OwnedFd::from(theirs), &place.path().join("server.log"))?;
    let worked = Client { stream: ours }.works_in(&place.path().join("shared"), "file");
    worked.with_context(|| process.output())?;
    process.stop("the server", END_LIMIT)
}

const EXPORT: &str = "[[export]]\nname = 'p9'\nkind = 'dir'\nlisten = 'unix:@DIR@/p9.sock'\nqueues = 2\n\
                      directory = { path = '@DIR@/shared', protocol = '9p', msize = '64K' }\n";

fn daemon() -> Result<Daemon> {
    let place = tests::daemon::directory()?;
    fs::create_dir(place.path().join("shared"))?;
    ensure!(EXPORT.contains(DIRECTORY));
    Daemon::serve_in(place, &format!("workers = 2\n{EXPORT}"))
}

fn upgrade(daemon: &Daemon) -> Result<(bool, String)> {
    let mut command = Command::new(vringd::program()?);
    command.arg("ctl").arg("--control").arg(daemon.path().join("control.sock")).arg("upgrade");
    let output = command.output()?;
    Ok((output.status.success(), String::from_utf8(output.stderr)?))
}

#[test]
fn a_daemon_of_many_changes_it_while_it_serves() -> Result<()> {
    let daemon = daemon()?;
    let mut client = Client::unix(&daemon.socket("p9"))?;
    // As much as is granted, and no more.
    assert_eq!(client.begin(1 << 20)?, 64 << 10);
    client.create("file", b"words")?;
    for execution in ["inline", "uring", "pool=3", "auto"] {
        let execution: Execution = execution.parse()?;
        daemon.change("p9", &Settings { execution: Some(execution), ..Settings::default() })?;
        let worker = daemon.new_worker(None)?;
        daemon.attach("p9", 0, worker)?;
        assert_eq!(client.read("file", 100)?, b"words", "{execution}");
        assert_eq!(daemon.ring("p9", 0)?.worker, Some(worker), "{execution}");
    }
    let failed = daemon.remove("p9", false).unwrap_err().to_string();
    assert!(failed.contains("connected"), "{failed}");
    daemon.remove("p9", true)?;
    assert!(client.read("file", 100).is_err());
    assert!(!daemon.socket("p9").exists());
    daemon.stop()
}

#[test]
fn an_upgrade_takes_it_along_when_nobody_is_connected() -> Result<()> {
    let daemon = daemon()?;
    let mut client = Client::unix(&daemon.socket("p9"))?;
    client.begin(8192)?;
    let (went_on, line) = upgrade(&daemon)?;
    assert!(!went_on && line.lines().count() == 1, "{line}");
    assert!(line.contains("`p9`") && line.contains("client"), "{line}");
    client.create("file", b"words")?;
    drop(client);
    daemon.wait_disconnected("p9")?;
    let (went_on, line) = upgrade(&daemon)?;
    assert!(went_on, "{line}; the daemon said:\n{}", daemon.output());
    let mut client = Client::unix(&daemon.socket("p9"))?;
    client.begin(8192)?;
    assert_eq!(client.read("file", 100)?, b"words");
    assert_eq!(daemon.export("p9")?.socket, format!("unix:{}", daemon.socket("p9").display()));
    drop(client);
    let socket = daemon.socket("p9");
    daemon.stop()?;
    assert!(!socket.exists(), "the socket is left behind");
    Ok(())
}
