//! A save beside files that are still being closed.

use super::*;

/// Has the thread that closes for the tree wait until that is dropped.
fn held_up(tree: &Tree) -> std::sync::mpsc::Sender<()> {
    let (ends, end) = std::sync::mpsc::channel::<()>();
    tree.share.closer.leave(Box::new(move || assert!(end.recv().is_err())));
    ends
}

/// A tree that had a file open on a mount that may report errors when files are closed, as those may of which nothing is known.
fn on_a_mount_that_reports(path: &Path) -> Tree {
    let tree = tree(path, &options());
    let mount = tree.mounts.get(crate::stat::MountKey { id: u64::MAX, device: (0, 0) });
    assert!(mount.reports_at_close() && !tree.share.reports_at_close());
    let open = |flags| {
        let (fd, place) = (fs::File::open("/dev/null").unwrap().into(), tree.room().unwrap());
        drop(crate::OpenFile::new((fd, place), (crate::ROOT, None, flags), mount.clone(), None, None));
        tree.share.reports_at_close()
    };
    assert!(!open(rustix::fs::OFlags::RDONLY) && open(rustix::fs::OFlags::RDWR));
    tree
}

/// Writes a file, and leaves its close to the thread that closes for the tree.
fn leaves_a_close(tree: &Tree, path: &Path) {
    fs::write(path.join("large"), vec![1; 1 << 20]).unwrap();
    let (node, handle) = open(tree, "large", libc::O_RDWR);
    fs::remove_file(path.join("large")).unwrap();
    let serves = || {
        crate::serves_others();
        tree.release(handle, None);
        tree.forget(node, 1);
    };
    std::thread::scope(|scope| scope.spawn(serves).join().unwrap());
}

#[test]
fn what_is_not_wanted_is_not_saved_while_files_are_closed() {
    let place = TempDir::new_in("/dev/shm").unwrap();
    let from = on_a_mount_that_reports(place.path());
    let held = held_up(&from);
    leaves_a_close(&from, place.path());
    assert_eq!(from.files.all().len(), 0);
    assert!(matches!(from.save(&|| false), Err(SaveError::Unwanted)));
    drop(held);
    from.save(&|| true).unwrap();
}

#[test]
fn what_others_have_released_is_not_waited_for() {
    let places = [(); 2].map(|()| TempDir::new_in("/dev/shm").unwrap());
    let [here, other] = places.each_ref().map(|place| on_a_mount_that_reports(place.path()));
    let others_held = held_up(&other);
    leaves_a_close(&other, places[1].path());
    // Its own is closed meanwhile.
    leaves_a_close(&here, places[0].path());
    here.save(&|| true).unwrap();
    assert!(!crate::closing().is_empty());
    drop(others_held);
    let held = held_up(&here);
    leaves_a_close(&here, places[0].path());
    std::thread::scope(|scope| {
        let saves = scope.spawn(|| here.save(&|| true).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!saves.is_finished(), "its own is still to be closed");
        drop(held);
        saves.join().unwrap();
    });
}

#[test]
fn what_is_left_to_the_thread_later_is_not_waited_for() {
    let place = TempDir::new_in("/dev/shm").unwrap();
    let here = on_a_mount_that_reports(place.path());
    let held = held_up(&here);
    leaves_a_close(&here, place.path());
    let held_again = held_up(&here);
    drop(held);
    here.save(&|| true).unwrap();
    assert!(!crate::closing().is_empty());
    drop(held_again);
}
