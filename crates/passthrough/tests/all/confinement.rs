//! Nothing that a client can say leads out of the directory, and nothing in it is opened that should not be.

use crate::common::{Fixture, SELF, c, everywhere, is_root};
use passthrough::{Change, Options, ROOT, SecurityContext, Source, Tree};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_symbolic_link_is_never_a_way() {
    everywhere(&Options::default(), |at| {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        symlink(outside.path(), at.path("dir")).unwrap();
        symlink(outside.path().join("secret"), at.path("file")).unwrap();
        at.write("own", "");
        let (dir, file, tree) = (at.node("dir"), at.node("file"), &at.tree);
        let notdir = Some(Errno::NOTDIR);
        assert_eq!(tree.lookup(dir, c"secret").err(), notdir);
        assert_eq!(tree.open_dir(dir).err(), notdir);
        assert_eq!(tree.open(dir, libc::O_RDONLY, false).err(), Some(Errno::LOOP));
        assert_eq!(tree.open(file, libc::O_RDONLY, false).err(), Some(Errno::LOOP));
        assert_eq!(tree.node_file(file).err(), Some(Errno::LOOP));
        assert_eq!(tree.create(SELF, dir, c"new", libc::O_RDWR, 0o600, 0, false, None).err(), notdir);
        assert_eq!(tree.create(SELF, ROOT, c"file", libc::O_RDWR, 0o600, 0, false, None).err(), Some(Errno::LOOP));
        assert_eq!(tree.mkdir(SELF, dir, c"new", 0o700, 0, None).err(), notdir);
        assert_eq!(tree.unlink(dir, c"secret").err(), notdir);
        assert_eq!(tree.rename(ROOT, c"own", dir, c"own", 0).err(), notdir);
        assert_eq!(tree.rename(dir, c"secret", ROOT, c"mine", 0).err(), notdir);
        assert_eq!(tree.link(at.node("own"), dir, c"own").err(), notdir);
        assert_eq!(tree.tmpfile(SELF, dir, libc::O_RDWR, 0o600, 0, None).err(), notdir);
        let _ = tree.set_attributes(file, None, &Change { mode: Some(0o777), ..Change::default() });
        assert!(tree.set_attributes(file, None, &Change { size: Some(0), ..Change::default() }).is_err());
        assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    });
}

/// Swaps two names for each other as fast as it can while `work` runs.
fn while_swapping(one: &Path, other: &Path, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        work();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_directory_that_becomes_a_link_under_our_hands_stays_inside() {
    everywhere(&Options::default(), |at| {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "outside").unwrap();
        fs::create_dir(at.path("dir")).unwrap();
        at.write("dir/secret", "inside");
        symlink(outside.path(), at.path("link")).unwrap();
        // Whoever swaps may lose its processor for as long as it likes, with either of them in place: what ends this is
        // that each was met often.
        let (mut found, mut missed) = (0, 0);
        let end = Instant::now() + Duration::from_secs(60);
        while_swapping(&at.path("dir"), &at.path("link"), || {
            for round in 0_u32.. {
                if round >= 3000 && (found >= 20 && missed >= 20 || Instant::now() > end) {
                    break;
                }
                let Ok(dir) = at.tree.lookup(ROOT, c"dir") else { continue };
                if let Ok(secret) = at.tree.lookup(dir.node, c"secret") {
                    assert_eq!(secret.attributes.size, 6, "this is the other one");
                    let handle = at.tree.open(secret.node, libc::O_RDWR, false).unwrap().handle;
                    let mut text = [0; 10];
                    let read = rustix::io::pread(&*at.tree.file(handle).unwrap(), &mut text, 0).unwrap();
                    assert_eq!(&text[..read], b"inside");
                    at.tree.release(handle, None);
                    at.tree.forget(secret.node, 1);
                    found += 1;
                } else {
                    missed += 1;
                }
                let name = c(&format!("new-{}", round % 3000));
                if let Ok((entry, opened)) = at.tree.create(SELF, dir.node, &name, libc::O_RDWR, 0o600, 0, false, None)
                {
                    at.tree.release(opened.handle, None);
                    at.tree.forget(entry.node, 1);
                }
                at.tree.forget(dir.node, 1);
            }
        });
        assert!(found > 0 && missed > 0, "the directory was met {found} times, and the link {missed}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        let after = at.tree.describe();
        assert_eq!((after.nodes, after.handles), (1, 0));
    });
}

#[test]
fn a_file_that_becomes_another_between_two_looks_is_not_mixed_up() {
    everywhere(&Options { descriptors_max: 2, ..Options::default() }, |at| {
        if at.tree.describe().options.file_handles == passthrough::FileHandles::Never {
            return;
        }
        at.write("one", "1");
        at.write("other", "22");
        let one = fs_ino(&at.path("one"));
        let size_of = |ino: u64| if ino == one { 1 } else { 2 };
        while_swapping(&at.path("one"), &at.path("other"), || {
            for _ in 0..5000 {
                let entry = at.lookup("one");
                assert_eq!(entry.attributes.size, size_of(entry.attributes.ino));
                match at.tree.attributes(entry.node, None) {
                    Ok(again) => assert_eq!((again.ino, again.size), (entry.attributes.ino, entry.attributes.size)),
                    // The handle was taken of the other one: seen, and refused.
                    Err(error) => assert_eq!(error, Errno::STALE),
                }
                at.tree.forget(entry.node, 1);
            }
        });
        assert_eq!(at.tree.describe().nodes, 1);
    });
}

fn fs_ino(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).unwrap().ino()
}

#[test]
fn special_files_are_never_opened() {
    everywhere(&Options { xattr: true, ..Options::default() }, |at| {
        // Opening this for reading would wait for a writer, for ever.
        let fifo = at.tree.mknod(SELF, ROOT, c"fifo", libc::S_IFIFO | 0o666, (0, 0), 0, None).unwrap().node;
        let socket = at.tree.mknod(SELF, ROOT, c"socket", libc::S_IFSOCK | 0o666, (0, 0), 0, None).unwrap().node;
        let mut special = vec![fifo, socket];
        if is_root() {
            // Of which the kernel could open one, `/dev/null`.
            special.push(at.tree.mknod(SELF, ROOT, c"device", libc::S_IFCHR | 0o666, (1, 3), 0, None).unwrap().node);
        }
        for node in special {
            for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR | libc::O_TRUNC] {
                assert_eq!(at.tree.open(node, flags, false).err(), Some(Errno::NXIO));
            }
            assert_eq!(at.tree.node_file(node).err(), Some(Errno::NXIO));
            assert_eq!(at.tree.open_dir(node).err(), Some(Errno::NOTDIR));
            let size = Change { size: Some(0), ..Change::default() };
            assert_eq!(at.tree.set_attributes(node, None, &size), Err(Errno::INVAL));
            at.tree.attributes(node, None).unwrap();
            assert!(at.tree.get_xattr(node, c"user.a", &mut Vec::new(), 10).is_err());
        }
        let existing = at.tree.create(SELF, ROOT, c"fifo", libc::O_RDWR, 0o600, 0, false, None);
        assert_eq!(existing.err(), Some(Errno::NXIO));
        let label = Some(SecurityContext { name: c"user.a", value: b"" });
        assert!(at.tree.mknod(SELF, ROOT, c"labelled", libc::S_IFIFO, (0, 0), 0, label).is_err());
    });
}

#[test]
fn the_links_of_proc_lead_nowhere() {
    let tree = Tree::new(Source::Path("/proc/self".into()), Options::default()).unwrap();
    for name in [c"root", c"cwd", c"exe"] {
        let link = tree.lookup(ROOT, name).unwrap();
        assert_eq!(link.attributes.mode & libc::S_IFMT, libc::S_IFLNK);
        assert_eq!(tree.lookup(link.node, c"etc").err(), Some(Errno::NOTDIR));
        assert_eq!(tree.open_dir(link.node).err(), Some(Errno::NOTDIR));
        assert_eq!(tree.open(link.node, libc::O_RDONLY, false).err(), Some(Errno::LOOP));
    }
    let fd = tree.lookup(ROOT, c"fd").unwrap().node;
    let zero = tree.lookup(fd, c"0").unwrap();
    assert_eq!(tree.open(zero.node, libc::O_RDONLY, false).err(), Some(Errno::LOOP));
}

#[test]
fn another_mount_is_announced_and_let_go() {
    if !is_root() {
        return;
    }
    // The mount is this thread's and its children's alone.
    thread::spawn(|| {
        let run = |program: &str, arguments: &[&str]| {
            let status = Command::new(program).args(arguments).status().unwrap();
            assert!(status.success(), "{program} {arguments:?}: {status}");
        };
        // SAFETY: no descriptor table is unshared, and no other thread of the test needs the mounts of this one.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
        run("mount", &["--make-rprivate", "/"]);
        for announce_submounts in [true, false] {
            for file_handles in [passthrough::FileHandles::Never, passthrough::FileHandles::Prefer] {
                let at = Fixture::new(Options { announce_submounts, file_handles, ..Options::default() });
                fs::create_dir(at.path("sub")).unwrap();
                let under = at.lookup("sub");
                let path = at.path("sub");
                let path = path.to_str().unwrap();
                run("mount", &["-t", "tmpfs", "none", path]);
                at.write("sub/file", "text");
                let sub = at.lookup("sub");
                assert_ne!(sub.node, under.node);
                assert_eq!((sub.submount, under.submount), (announce_submounts, false));
                assert_ne!(sub.attributes.mount_id, under.attributes.mount_id);
                let file = at.tree.lookup(sub.node, c"file").unwrap();
                assert_eq!((file.attributes.size, file.submount), (4, false));
                // Again, when it is known.
                assert_eq!(at.lookup("sub").submount, announce_submounts);
                assert_eq!(at.tree.lookup(sub.node, c"file").unwrap().node, file.node);
                assert_eq!(at.tree.rename(sub.node, c"file", ROOT, c"file", 0), Err(Errno::XDEV));
                at.tree.sync_fs(ROOT).unwrap();
                at.tree.sync_fs(sub.node).unwrap();
                let handle = at.tree.open(file.node, libc::O_RDWR, false).unwrap().handle;
                at.tree.release(handle, None);
                at.tree.forget(sub.node, 2);
                at.tree.forget(file.node, 2);
                // A tree that holds nothing of a mount does not keep it busy.
                run("umount", &[path]);
                assert_eq!(at.lookup("sub").node, under.node);
            }
        }
    })
    .join()
    .unwrap();
}
