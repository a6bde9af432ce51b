//! What becomes of a volume that is given up, and is not closed in order at once.

use super::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What fails then is told, and tried again: nobody else can take it.
#[test]
fn a_volume_that_is_not_closed_in_order_is_closed_again() {
    let directory = place();
    for spec in images(&directory).into_iter().skip(2) {
        let StorageSpec::Volume(at) = plain(&spec) else { unreachable!("it is a volume") };
        let fails = || {
            let here = Migratable::new(spec.clone(), Has::Open(Arc::new(NoHoles(opened(&plain(&spec)), false))));
            let left = [at.path.clone(), at.path.with_extension("memory")].map(|path| (std::fs::read(&path), path));
            let refused = here.give_up(PATIENCE).unwrap_err().to_string();
            assert!(refused.contains("not closed in order") && refused.contains("vringd volume replay"), "{refused}");
            assert!(here.is_held() && here.held().is_none() && here.hand_over().is_err());
            // What is below has been closed by its end.
            left.into_iter().for_each(|(bytes, path)| std::fs::write(path, bytes.unwrap()).unwrap());
            assert!(!volume::tools::info(&at).unwrap().clean && at.path.with_extension("memory").exists());
            here
        };
        let here = fails();
        assert!(here.give_up(PATIENCE).unwrap() && !here.is_held() && !here.give_up(PATIENCE).unwrap());
        assert!(volume::tools::info(&at).unwrap().clean && !at.path.with_extension("memory").exists());
        // A reader that locks it for a moment has not closed it.
        let here = fails();
        let reader = FileOptions { read_only: true, ..FileOptions::new(&at.path) };
        let reader = opened(&StorageSpec::File(reader));
        assert!(here.give_up(PATIENCE).unwrap_err().to_string().contains("is in use") && here.is_held());
        drop(reader);
        assert!(here.give_up(PATIENCE).unwrap() && volume::tools::info(&at).unwrap().clean);
        // Whoever has gone on with it has closed it.
        let here = fails();
        drop(plain(&spec).open().unwrap().start().unwrap());
        assert!(here.give_up(PATIENCE).unwrap() && !here.is_held());
        // Or a guest here does.
        let here = fails();
        drop(here.take(&|| true).unwrap());
        assert!(here.give_up(PATIENCE).unwrap() && !here.is_held());
    }
}

/// Where taking it fails, it may have been opened: whoever gives it up sees to it.
#[test]
fn a_volume_whose_opening_fails_is_closed_when_it_can_be() {
    testkit::child::run("migratable::tests::closes::child_takes_what_it_cannot_write");
}

#[test]
#[ignore = "limits its process"]
fn child_takes_what_it_cannot_write() {
    let directory = place();
    let mut solo = Solo::new().unwrap();
    for spec in images(&directory).into_iter().skip(2) {
        let StorageSpec::Volume(at) = plain(&spec) else { unreachable!("it is a volume") };
        let storage = opened(&plain(&spec));
        write(&mut solo, &*storage, 0, &[0xaa; 1 << 16]).unwrap();
        let left = [at.path.clone(), at.path.with_extension("memory")].map(|path| (std::fs::read(&path), path));
        let here = Migratable::new(spec.clone(), Has::Seen(storage.describe(), storage.capacity_bytes()));
        drop(storage);
        left.into_iter().for_each(|(bytes, path)| std::fs::write(path, bytes.unwrap()).unwrap());
        assert!(!here.is_held());
        let limit = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(0), ..limit }).unwrap();
        here.take(&|| true).map(drop).unwrap_err();
        assert!(here.is_held() && here.hand_over().is_err() && here.give_up(PATIENCE).is_err() && here.is_held());
        setrlimit(Resource::Fsize, limit).unwrap();
        assert!(here.give_up(PATIENCE).unwrap() && !here.is_held());
        assert!(volume::tools::info(&at).unwrap().clean);
        assert_eq!(read(&mut solo, &*here.take(&|| true).unwrap(), 0, 1 << 16), [0xaa; 1 << 16]);
        assert!(here.give_up(PATIENCE).unwrap());
    }
    // One that is not wanted as it is was open all the same.
    let directory = place();
    let [.., spec, _] = images(&directory);
    let (about, capacity_bytes) = spec.migratable().unwrap().look().unwrap();
    let here = Migratable::new(spec, Has::Seen(about, capacity_bytes + MIB));
    assert!(matches!(here.take(&|| true).map(drop), Err(OpenError::Shrunk { .. })));
    assert!(here.is_held() && here.give_up(PATIENCE).unwrap() && !here.is_held());
    testkit::child::end();
}

/// Whoever looks holds it for a moment, and somebody may have panicked with it.
#[test]
fn an_end_is_to_be_told_whoever_looks_meanwhile() {
    let directory = place();
    let spec = raw(&directory);
    let here = Migratable::new(spec.clone(), crate::migratable::seen(&spec).unwrap());
    assert!(!here.is_to_be_given_up());
    let looks = here.changing();
    assert!(here.is_to_be_given_up(), "nobody can say that nothing is to be told");
    drop(looks);
    *here.changing() = Some(std::sync::mpsc::channel().1);
    scope(|scope| {
        let panics = || {
            let _changing = here.changing();
            panic!("with the lock");
        };
        assert!(scope.spawn(panics).join().is_err());
    });
    assert!(here.changing.is_poisoned() && here.is_to_be_given_up());
    *here.changing() = None;
    assert!(!here.is_to_be_given_up());
}

/// Workers let go of what they have when whoever gives it up is told.
#[test]
fn the_end_of_a_close_is_told_also_where_a_guest_came_too_early() {
    let directory = place();
    let [_, _, spec, _] = images(&directory);
    let (here, ends) = hangs_in_its_close(&spec);
    drop(ends);
    let by = Instant::now() + PATIENCE;
    while here.is_held() {
        assert!(Instant::now() < by, "it is closed");
        sleep(Duration::from_millis(5));
    }
    // The guest gets nothing, as somebody else has it.
    let other = opened(&plain(&spec));
    assert!(matches!(here.take(&|| false).map(drop), Err(OpenError::Unwanted { .. })));
    drop(other);
    assert!(here.is_to_be_given_up());
    assert!(here.give_up(Duration::ZERO).unwrap() && !here.is_to_be_given_up());
    assert!(!here.give_up(Duration::ZERO).unwrap());
    // Whoever has it has something to give up anyway.
    drop(here.take(&|| true).unwrap());
    assert!(here.changing().is_none() && here.give_up(PATIENCE).unwrap());
}
