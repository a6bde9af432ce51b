//! A daemon under a file size limit (`RLIMIT_FSIZE`): a client's write beyond it is an error, not the end of the daemon.

use rustix::io::Errno;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Longer than anything here can take on a loaded machine: a wait that reaches it is a hang.
const HANG: Duration = Duration::from_secs(60);
/// Beyond the limit that the daemon is given: 2048 blocks of 512 bytes or of 1 KiB, as the shell counts.
const FAR: u64 = 16 << 20;

/// Ends the daemon with the test.
struct Daemon(Child);

impl Daemon {
    /// Serves `directory` by 9P at `socket`.
    fn start(socket: &Path, directory: &Path) -> Daemon {
        let script = "ulimit -f 2048; exec \"$0\" dir --protocol 9p --security-model none --sandbox none \
                      --listen \"unix:$1\" \"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_vringd")]).arg(socket).arg(directory);
        Daemon(command.spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends one message and returns the reply's type and fields; `None` when the connection is gone.
fn ask(socket: &mut UnixStream, kind: u8, fields: &[&[u8]]) -> Option<(u8, Vec<u8>)> {
    let fields = fields.concat();
    let size = (fields.len() as u32 + 7).to_le_bytes();
    socket.write_all(&[&size[..], &[kind, 1, 0], &fields].concat()).ok()?;
    let mut head = [0; 7];
    socket.read_exact(&mut head).ok()?;
    let mut rest = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize - head.len()];
    socket.read_exact(&mut rest).ok()?;
    Some((head[4], rest))
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

fn connect(socket: &Path) -> UnixStream {
    let end = Instant::now() + HANG;
    loop {
        match UnixStream::connect(socket) {
            Ok(connected) => return connected,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_write_beyond_the_limit_is_refused_and_the_daemon_goes_on() {
    const FID: [u8; 4] = [0; 4];
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    std::fs::create_dir(place.path().join("served")).unwrap();
    let mut daemon = Daemon::start(&socket, &place.path().join("served"));
    let mut client = connect(&socket);
    client.set_read_timeout(Some(HANG)).unwrap();
    let mut asked = |kind: u8, fields: &[&[u8]]| {
        ask(&mut client, kind, fields).unwrap_or_else(|| panic!("message {kind}: {:?}", daemon.0.wait()))
    };
    assert_eq!(asked(100, &[&8192_u32.to_le_bytes(), &text("9P2000.L")]).0, 101);
    let nobody = u32::MAX.to_le_bytes();
    assert_eq!(asked(104, &[&FID, &nobody, &text("test"), &text(""), &0_u32.to_le_bytes()]).0, 105);
    let rdwr_creat = 0o102_u32.to_le_bytes();
    let new: [&[u8]; 5] = [&FID, &text("file"), &rdwr_creat, &0o600_u32.to_le_bytes(), &0_u32.to_le_bytes()];
    assert_eq!(asked(14, &new).0, 15);
    let mut write = |offset: u64| asked(118, &[&FID, &offset.to_le_bytes(), &1_u32.to_le_bytes(), b"x"]);
    assert_eq!(write(FAR), (7, Errno::FBIG.raw_os_error().to_le_bytes().to_vec()));
    assert_eq!(write(0), (119, 1_u32.to_le_bytes().to_vec()));
}
