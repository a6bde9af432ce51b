//! What a user of the host can do who is not root and has no virtual machine: knock at sockets, and change paths under those
//! that root's daemon makes.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use control::client::Client;
use http::Method;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use super::attack::{Admitted, Attack, Expect, On, Scene};
use super::p9;

/// A user who owns nothing.
const NOBODY: u32 = 65534;
/// Sockets that are made while paths are swapped.
const SOCKETS: u32 = 200;
/// How long an answer that must not come is waited for.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) const ATTACKS: &[Attack] = &[
    only("local-user-knocks", "a user connects to the control socket and to each export's", knock),
    only("local-user-at-open-9p", "a user connects to root's 9p socket that everybody may open", open_9p),
    only("local-user-swaps-sockets", "a user puts links to root's file where sockets for him are made", swap),
];

const fn only(name: &'static str, what: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Attack {
    Attack { name, what, on: On::Host, expect: Expect::Anything, run }
}

/// Makes the calling thread, and it alone, nobody's.
fn become_nobody() -> Result<()> {
    let none = std::ptr::null::<libc::gid_t>();
    // SAFETY: three system calls that change who this thread is; the list of groups is empty. The C library's functions of
    // these names would change all threads.
    let done = unsafe {
        [
            libc::syscall(libc::SYS_setgroups, 0, none),
            libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY),
            libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY),
        ]
    };
    ensure!(done == [0; 3], "cannot become another user: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Does something as nobody.
fn as_nobody<T: Send>(act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            become_nobody()?;
            act()
        });
        user.join().map_err(|_| anyhow!("the user panicked"))?
    })
}

fn admitted(where_to: &str) -> anyhow::Error {
    Admitted(format!("user {NOBODY} {where_to}")).into()
}

fn knock(scene: &mut Scene<'_>) -> Result<()> {
    let place = scene.place();
    for name in ["control", "quiet", "disk", "directory", "9p"] {
        let socket = place.join(format!("{name}.sock"));
        as_nobody(|| match UnixStream::connect(&socket) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error).with_context(|| format!("{name}.sock")),
            Ok(_) => Err(admitted(&format!("has connected to {name}.sock"))),
        })?;
    }
    Ok(())
}

/// An export that is there as long as something is done.
fn with_export<T>(control: &Client, export: &Value, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let _added: Value = control.send(Method::POST, "/v1/exports", export).context("adding an export")?;
    let done = act();
    let name = export["name"].as_str().unwrap_or_default();
    control.order(Method::DELETE, &format!("/v1/exports/{name}?force=true")).context("removing an export")?;
    done
}

fn control(scene: &Scene<'_>) -> Result<Client> {
    Ok(Client::new(scene.place().join("control.sock"))?)
}

fn open_9p(scene: &mut Scene<'_>) -> Result<()> {
    let place = scene.place();
    let socket = place.join("open.sock");
    let export = json!({
        "name": "open", "kind": "dir", "listen": format!("unix:{}", socket.display()),
        "directory": { "path": place.join("shared"), "protocol": "9p" },
    });
    with_export(&control(scene)?, &export, || {
        // It would not be made so; an operator may have it so all the same.
        fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
        ensure!(is_answered(&socket)?, "root is not answered");
        if as_nobody(|| is_answered(&socket))? {
            return Err(admitted("is served over 9P by root's daemon"));
        }
        ensure!(is_answered(&socket)?, "root is not answered any more");
        Ok(())
    })
}

/// Whether a server on a stream answers a version.
fn is_answered(socket: &Path) -> Result<bool> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let [version, _attach] = p9::begin();
    // Who hangs up at once may make this fail.
    let _hung_up = stream.write_all(&version);
    let mut answer = [0; 7];
    match stream.read_exact(&mut answer) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ok(false),
            _ => Err(error).context("the server neither answers nor hangs up"),
        },
    }
}

fn swap(scene: &mut Scene<'_>) -> Result<()> {
    let (theirs, secret) = (scene.place().join("theirs"), scene.place().join("secret"));
    fs::write(&secret, "root's")?;
    fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
    if !theirs.exists() {
        fs::create_dir(&theirs)?;
    }
    chown(&theirs, Some(NOBODY), Some(NOBODY))?;
    let control = control(scene)?;
    let (over, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let made = thread::scope(|scope| {
        let user = scope.spawn(|| -> Result<()> {
            become_nobody()?;
            let (socket, link) = (theirs.join("s.sock"), theirs.join("link"));
            symlink(&secret, &link)?;
            while !over.load(Ordering::Relaxed) {
                // One call, again and again: as soon as there is a socket, a link is in its place.
                if renameat_with(CWD, &link, CWD, &socket, RenameFlags::EXCHANGE).is_ok() {
                    swaps.fetch_add(1, Ordering::Relaxed);
                    // The server may have removed what it found at its socket's path.
                    let _gone = fs::remove_file(&socket);
                    let _gone = fs::remove_file(&link);
                    symlink(&secret, &link)?;
                }
            }
            Ok(())
        });
        let made = make_sockets(&control, &theirs.join("s.sock"));
        over.store(true, Ordering::Relaxed);
        user.join().map_err(|_| anyhow!("the user panicked"))??;
        made
    })?;
    let left = fs::metadata(&secret)?;
    let (mode, owner) = (left.mode() & 0o7777, left.uid());
    if (mode, owner) != (0o600, 0) {
        return Err(admitted(&format!("has root's file, with mode {mode:o} and owner {owner}")));
    }
    let swaps = swaps.into_inner();
    ensure!(made > 0 && swaps > 0, "{made} sockets were made, and {swaps} of them were swapped");
    Ok(())
}

/// Adds and removes exports whose socket is for nobody. How many could be added.
fn make_sockets(control: &Client, socket: &Path) -> Result<u32> {
    let mut made = 0;
    for number in 0..SOCKETS {
        let export = json!({
            "name": format!("swapped-{number}"), "socket": socket, "socket_mode": "0666",
            "socket_owner": NOBODY.to_string(), "storage": { "kind": "memory", "size": "1M" },
        });
        match with_export(control, &export, || Ok(())) {
            Ok(()) => made += 1,
            // A socket that is not there any more when its mode is to be set is refused: that is as it should be.
            Err(error) if error.downcast_ref().is_some_and(is_refusal) => {}
            Err(error) => bail!("export {number}: {error:#}"),
        }
    }
    Ok(made)
}

fn is_refusal(error: &control::client::ClientError) -> bool {
    matches!(error, control::client::ClientError::Refused { .. })
}
