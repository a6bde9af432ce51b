//! Does what its arguments say, in order, and prints a line for each: how a process feels inside of its sandbox.

use rustix::fs::{CWD, Mode, OFlags};
use sandbox::{Capabilities, Entered, Grant, Identity, Landlock, Reach, Role, Sandbox, Seccomp, Sockets, State};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

type Outcome = Result<String, Box<dyn std::error::Error>>;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut entered: Option<Entered> = None;
    while let Some(word) = arguments.next() {
        let mut argument = || arguments.next().unwrap_or_default();
        let outcome = match word.as_str() {
            "enter" => enter(&argument(), &argument(), &argument(), &argument()).map(|inside| {
                entered = Some(inside);
                "entered".to_owned()
            }),
            "list" => inside(&entered).and_then(|inside| list(inside.root.as_fd())),
            "read" => inside(&entered).and_then(|inside| read(inside, &argument())),
            "above" => inside(&entered).and_then(|inside| above(inside.proc_self_fd.as_fd())),
            "path" => Ok(std::fs::symlink_metadata(argument()).is_ok().to_string()),
            "ids" => Ok(format!("{} {}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())),
            "groups" => Ok(rustix::process::getgroups().map_or(0, |groups| groups.len()).to_string()),
            "pid" => Ok(rustix::process::getpid().to_string()),
            "interfaces" => Ok(interfaces().to_string()),
            "own" => inside(&entered).and_then(|inside| own(inside.root.as_fd(), &argument(), &argument())),
            "threads" => {
                std::thread::spawn(std::thread::park);
                Ok("two".to_owned())
            }
            "capabilities" => capabilities(&argument(), &argument()),
            "seccomp" => seccomp(&argument(), Role::Directory),
            "seccomp-of-disks" => seccomp(&argument(), Role::Disks),
            "seccomp-of-daemon" => seccomp(&argument(), Role::Daemon),
            "seccomp-of-streams" => seccomp_of_streams(&argument()),
            "reach" => reach(&argument()),
            "open" => open(&argument(), &argument()),
            "tcp" => Ok(kind(std::net::TcpStream::connect("127.0.0.1:1").map(drop))),
            "bind" => Ok(kind(bind(&argument()))),
            "udp" => Ok(kind(std::net::UdpSocket::bind("127.0.0.1:0").map(drop))),
            "unix" => Ok(kind(std::os::unix::net::UnixDatagram::unbound().map(drop))),
            "user-namespace" => Ok(kind(user_namespace())),
            "program" => Ok(kind(std::process::Command::new("/bin/true").status().map(drop))),
            "thread" => std::thread::spawn(|| "ran".to_owned()).join().map_err(|_| "it has panicked".into()),
            "become" => become_user(&argument(), &argument()),
            "no-new-privileges" => {
                sandbox::give_up_new_privileges().map(|()| "given up".to_owned()).map_err(Into::into)
            }
            "state" => state(),
            "forbidden" => forbidden(),
            "seccomp-of-thread" => argument().parse::<Seccomp>().map_err(Into::into).and_then(forbidden_in_thread),
            "open-files" => {
                let wanted = argument();
                sandbox::set_open_files_max(wanted.parse().ok()).map(|limit| limit.to_string()).map_err(Into::into)
            }
            "work" => inside(&entered).and_then(|inside| work(inside.root.as_fd())),
            "wait" => {
                println!("waiting");
                loop {
                    std::thread::park();
                }
            }
            "exit" => std::process::exit(argument().parse().unwrap_or(99)),
            _ => Err(format!("{word}: no such thing to do").into()),
        };
        match outcome {
            Ok(line) => println!("{line}"),
            Err(error) => {
                println!("error: {error}");
                std::process::exit(1);
            }
        }
    }
}

fn inside(entered: &Option<Entered>) -> Result<&Entered, Box<dyn std::error::Error>> {
    entered.as_ref().ok_or_else(|| "not inside of anything".into())
}

fn enter(mode: &str, shared_dir: &str, uids: &str, gids: &str) -> Result<Entered, Box<dyn std::error::Error>> {
    let map = |text: &str| text.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>();
    let sandbox =
        Sandbox { mode: mode.parse()?, shared_dir: shared_dir.into(), uid_map: map(uids)?, gid_map: map(gids)? };
    Ok(sandbox.enter()?)
}

fn open_directory(parent: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(parent, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn names(directory: impl AsFd) -> rustix::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(&name).to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The names in the shared directory, and in the root directory, which may be the same.
fn list(root: BorrowedFd<'_>) -> Outcome {
    let (shared, all) = (names(open_directory(root, ".")?)?, names(open_directory(CWD, "/")?)?);
    Ok(format!("{} {}", shared.join(","), if shared == all { "only" } else { "and more" }))
}

/// A file of the shared directory, opened again through its descriptor as a tree does.
fn read(inside: &Entered, name: &str) -> Outcome {
    let path =
        rustix::fs::openat(&inside.root, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let number = path.as_raw_fd().to_string();
    let file = rustix::fs::openat(&inside.proc_self_fd, number, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Whether something is above `/proc/self/fd`.
fn above(proc_self_fd: BorrowedFd<'_>) -> Outcome {
    let inode =
        |path: &str| rustix::fs::statat(proc_self_fd, path, rustix::fs::AtFlags::empty()).map(|stat| stat.st_ino);
    let other = inode(".")? != inode("..")? || inode("../../self").is_ok() || inode("../../1/root").is_ok();
    Ok(if other { "something" } else { "nothing" }.to_owned())
}

/// Makes a file and gives it away. Answers with the owner seen here.
fn own(root: BorrowedFd<'_>, name: &str, id: &str) -> Outcome {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, name, flags, Mode::from_bits_retain(0o644))?;
    let id: u32 = id.parse()?;
    rustix::fs::fchown(&file, Some(rustix::process::Uid::from_raw(id)), Some(rustix::process::Gid::from_raw(id)))?;
    let stat = rustix::fs::fstat(&file)?;
    Ok(format!("{} {}", stat.st_uid, stat.st_gid))
}

fn interfaces() -> usize {
    std::fs::read_to_string("/proc/net/dev").map_or_else(
        |_| {
            // No /proc inside: ask for the only name that every network has, then for the first that others may have.
            (1..64).filter(|index| name_of_interface(*index)).count()
        },
        |text| text.lines().count().saturating_sub(2),
    )
}

fn name_of_interface(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call demands.
    !unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null()
}

fn capabilities(changes: &str, handles: &str) -> Outcome {
    Capabilities::new(handles == "handles", Some(changes).filter(|changes| !changes.is_empty()))?.apply()?;
    let sets = rustix::thread::capabilities(None)?;
    let rest = sets.permitted.difference(sets.effective).union(sets.inheritable);
    Ok(format!("{:x} {:x}", sets.effective.bits(), rest.bits()))
}

/// A call that no daemon makes and that has no effect.
fn forbidden() -> Outcome {
    // SAFETY: asks for the present personality.
    let answer = unsafe { libc::syscall(libc::SYS_personality, 0xffff_ffff_u32) };
    Ok(format!("answered {}", answer >= 0))
}

/// The forbidden call in a thread that has existed before it was forbidden.
fn forbidden_in_thread(seccomp: Seccomp) -> Outcome {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let told = receiver.recv();
        told.is_ok() && forbidden().is_ok()
    });
    seccomp.apply(Role::Directory)?;
    println!("installed");
    sender.send(())?;
    Ok(format!("lived {:?}", thread.join()))
}

/// What a tree, a worker and a log do.
fn work(root: BorrowedFd<'_>) -> Outcome {
    let thread = std::thread::Builder::new().name("worker".to_owned()).spawn(|| {
        // SAFETY: a thread of its own, whose umask nobody else uses.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
    })?;
    thread.join().map_err(|_| "the thread has panicked")??;
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, "work", flags, Mode::from_bits_retain(0o600))?;
    rustix::io::pwrite(&file, b"words", 0)?;
    rustix::fs::fsync(&file)?;
    // File systems without flags say so, which is an answer too.
    let _ = rustix::fs::ioctl_getflags(&file);
    rustix::fs::renameat(root, "work", root, "done")?;
    rustix::fs::unlinkat(root, "done", rustix::fs::AtFlags::empty())?;
    let names = names(open_directory(root, ".")?)?.len();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    rustix::io::write(&event, &1_u64.to_ne_bytes())?;
    Ok(format!("worked among {names}"))
}

fn seccomp(action: &str, role: Role) -> Outcome {
    action.parse::<Seccomp>()?.apply(role)?;
    Ok("installed".to_owned())
}

/// Of a daemon whose exports may listen at TCP ports that are named later.
fn seccomp_of_streams(action: &str) -> Outcome {
    action.parse::<Seccomp>()?.apply_with(Role::Daemon, Sockets::Tcp)?;
    Ok("installed".to_owned())
}

/// Listens at a TCP port.
fn bind(port: &str) -> std::io::Result<()> {
    std::net::TcpListener::bind(format!("127.0.0.1:{port}")).map(drop)
}

/// Confines the process to `PATH=GRANT` and `PORT=port`, with commas in between, and to what any daemon reads.
fn reach(rules: &str) -> Outcome {
    let mut reach = Reach::of_system(None);
    for rule in rules.split(',').filter(|rule| !rule.is_empty()) {
        let (path, grant) = rule.split_once('=').ok_or("PATH=GRANT")?;
        if grant == "port" {
            reach.tcp_ports.push(path.parse()?);
            continue;
        }
        let grant = match grant {
            "read" => Grant::Read,
            "image" => Grant::Image,
            "sockets" => Grant::Sockets,
            "all" => Grant::All,
            _ => return Err(format!("{grant}: no such grant").into()),
        };
        reach.allow(path, grant);
    }
    Ok(match reach.enforce()? {
        Landlock::Held { complete: true, .. } => "held".to_owned(),
        Landlock::Held { complete: false, .. } => "held in part".to_owned(),
        Landlock::Missing(_) => "missing".to_owned(),
    })
}

/// Opens, makes or removes what a path names.
fn open(how: &str, path: &str) -> Outcome {
    let done = match how {
        "read" => File::open(path).map(drop),
        "write" => std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(4096)),
        "list" => std::fs::read_dir(path).map(drop),
        "make" => File::create_new(path).map(drop),
        "bind" => std::os::unix::net::UnixListener::bind(path).map(drop),
        "remove" => std::fs::remove_file(Path::new(path)),
        _ => return Err(format!("{how}: no way to open").into()),
    };
    Ok(kind(done))
}

/// `done`, or what kind of error there was.
fn kind(done: std::io::Result<()>) -> String {
    done.map_or_else(|error| error.kind().to_string(), |()| "done".to_owned())
}

/// A process in a user namespace of its own, in which it would be root.
fn user_namespace() -> std::io::Result<()> {
    let flags = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
    // SAFETY: a copy of this process, which has one thread, on a copy of its stack.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        // SAFETY: ends the copy at once.
        0 => unsafe { libc::_exit(0) },
        1.. => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn become_user(uid: &str, gid: &str) -> Outcome {
    let (uid, gid) = (uid.parse()?, gid.parse()?);
    Identity { uid, gid, groups: vec![gid] }.assume()?;
    let own = Identity::own();
    Ok(format!("{} {} {:?}", own.uid, own.gid, own.groups))
}

fn state() -> Outcome {
    let State { no_new_privs, capabilities, seccomp, uid, gid } = State::of_thread()?;
    Ok(format!("{no_new_privs} {seccomp} {uid}:{gid} [{}]", capabilities.join(" ")))
}
