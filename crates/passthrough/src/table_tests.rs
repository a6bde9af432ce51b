use super::*;
use crate::handover::descriptors::Outgoing;
use proptest::prelude::*;
use rustix::fs::{CWD, Mode};
use std::thread;

/// Nothing that anybody reads: a descriptor is a descriptor.
fn descriptor() -> OwnedFd {
    rustix::fs::openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn mount() -> Arc<Mount> {
    Mount::made_up(Key::made_up(0).mount)
}

fn table(descriptors_max: usize, permanent_max: usize) -> Table {
    let max = Bounds { nodes: usize::MAX, descriptors: descriptors_max, permanent: permanent_max };
    Table::new(descriptor(), Key::made_up(0), Kind::file(), mount(), max, Share::of_process())
}

fn by_handle(generation: u8) -> Hold {
    Hold { path: None, handle: Some(FileHandle::made_up(&[generation])), verified: true }
}

fn with_descriptor(generation: u8) -> Hold {
    Hold { path: Some(descriptor()), ..by_handle(generation) }
}

#[derive(Clone, Debug)]
enum Step {
    /// A look-up that found this inode, held by its handle or by a descriptor alone.
    Intern(u64, u8),
    Forget(usize, u64),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (1_u64..6, 0_u8..3).prop_map(|(ino, generation)| Step::Intern(ino, generation)),
        20 => (0_usize..20, 0_u64..4).prop_map(|(which, count)| Step::Forget(which, count)),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    /// References, numbers and identities behave as a list of (inode, generation, node, count) does.
    #[test]
    fn as_a_list_would(steps in proptest::collection::vec(step(), 0..100)) {
        let table = table(usize::MAX, usize::MAX);
        let mount = mount();
        let mut known: Vec<(u64, u8, Node, u64)> = Vec::new();
        let mut given: Vec<Node> = vec![ROOT];
        for step in steps {
            match step {
                Step::Intern(ino, generation) => {
                    let hold = by_handle(generation);
                    let inode = table.intern(Key::made_up(ino), Kind::file(), &mount, hold).unwrap();
                    // The latest of an inode number is who is found: the earlier ones are gone from the host.
                    let latest = known.iter_mut().filter(|entry| entry.0 == ino).max_by_key(|entry| entry.2);
                    match latest {
                        Some(entry) if entry.1 == generation => {
                            prop_assert_eq!(inode.node, entry.2);
                            entry.3 += 1;
                        }
                        _ => {
                            prop_assert!(!given.contains(&inode.node));
                            given.push(inode.node);
                            known.push((ino, generation, inode.node, 1));
                        }
                    }
                }
                Step::Forget(which, count) => {
                    let Some(&node) = given.get(which) else { continue };
                    table.forget(node, count);
                    for entry in known.iter_mut().filter(|entry| entry.2 == node) {
                        entry.3 = entry.3.saturating_sub(count);
                    }
                    // Whoever is found by a number after the latest is forgotten is new, even with an earlier one alive.
                    let gone: Vec<_> = known.iter().filter(|entry| entry.3 == 0).copied().collect();
                    known.retain(|entry| entry.3 > 0);
                    for (ino, ..) in gone {
                        let latest = known.iter().filter(|entry| entry.0 == ino).map(|entry| entry.2).max();
                        if latest.is_some_and(|latest| latest < node) {
                            for entry in known.iter_mut().filter(|entry| entry.0 == ino) {
                                entry.0 = u64::MAX;
                            }
                        }
                    }
                }
                Step::Clear => {
                    table.clear();
                    known.clear();
                }
            }
            prop_assert_eq!(table.len(), known.len() + 1);
            for &node in &given {
                let counted = known.iter().find(|entry| entry.2 == node).map(|entry| entry.3);
                let found = table.get(node).ok().map(|inode| inode.references.load(Ordering::Relaxed));
                prop_assert_eq!(found, if node == ROOT { Some(1) } else { counted });
            }
        }
    }
}

#[test]
fn memory_comes_back_when_everything_is_forgotten() {
    let table = table(usize::MAX, usize::MAX);
    let mount = mount();
    let count = 100_000;
    let nodes: Vec<Node> = (1..=count)
        .map(|ino| table.intern(Key::made_up(ino), Kind::file(), &mount, by_handle(1)).unwrap().node)
        .collect();
    let capacity = |table: &Table| {
        let nodes: usize = table.nodes.iter().map(|shard| read(&shard.nodes).capacity()).sum();
        nodes + table.identities.iter().map(|part| read(&part.0).capacity()).sum::<usize>()
    };
    let full = capacity(&table);
    assert!(full >= 2 * nodes.len());
    for node in nodes {
        table.forget(node, 1);
    }
    assert_eq!(table.len(), 1);
    assert!(capacity(&table) <= 2 * SHARDS * CAPACITY_MIN * 2, "{} of {full} places are left", capacity(&table));
}

#[test]
fn descriptors_stay_within_their_bound() {
    let table = table(10, 3);
    let mount = mount();
    let first = table.intern(Key::made_up(1), Kind::file(), &mount, with_descriptor(1)).unwrap();
    let pinned = first.pin().unwrap();
    for ino in 2..2000 {
        table.intern(Key::made_up(ino), Kind::file(), &mount, with_descriptor(1)).unwrap();
        assert!(table.descriptors() <= 11, "{} descriptors", table.descriptors());
    }
    assert!(first.pin().is_none(), "the least recently used was closed");
    rustix::fs::fstat(&pinned).expect("but not for who has it in hand");
    drop(pinned);
    assert!(table.descriptors() <= 10);
    let held = |node| table.get(node).unwrap().is_pinned();
    assert_eq!((2..=table.len() as u64).filter(|&node| held(node)).count(), table.descriptors() - 1);
    let clock: usize = table.nodes.iter().map(|shard| lock(&shard.clock).nodes.len()).sum();
    assert!(clock <= 10, "{clock} nodes wait to be closed");

    // What has no handle stays open, so it has a quota: the root is one of the three.
    let by_path = || Hold { path: Some(descriptor()), handle: None, verified: true };
    let intern = |ino| table.intern(Key::made_up(ino), Kind::file(), &mount, by_path());
    let one = intern(5000).unwrap();
    intern(5001).unwrap();
    assert_eq!(intern(5002).err(), Some(Errno::NFILE));
    assert_eq!(intern(5001).unwrap().references.load(Ordering::Relaxed), 2, "a known node needs no more");
    for ino in 6000..6200 {
        table.intern(Key::made_up(ino), Kind::file(), &mount, with_descriptor(1)).unwrap();
    }
    assert!(one.pin().is_some());
    let node = one.node;
    drop(one);
    table.forget(node, 1);
    intern(5002).unwrap();
}

#[test]
fn nodes_that_went_do_not_wait_to_be_closed() {
    let table = table(usize::MAX, usize::MAX);
    let mount = mount();
    for ino in 1..20_000 {
        let node = table.intern(Key::made_up(ino), Kind::file(), &mount, with_descriptor(1)).unwrap().node;
        table.forget(node, 1);
    }
    assert_eq!(table.descriptors(), 1);
    let clock: usize = table.nodes.iter().map(|shard| lock(&shard.clock).nodes.len()).sum();
    assert!(clock <= SHARDS * (CLOCK_LEN_MIN + 1), "{clock} nodes that are gone");
}

#[test]
fn threads_count_the_same_inodes() {
    let table = table(4, usize::MAX);
    let mount = mount();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (table, mount) = (&table, &mount);
            scope.spawn(move || {
                for round in 0..20_000_u64 {
                    let ino = 1 + (round * (thread + 1)) % 7;
                    let hold = if round % 16 == 0 { with_descriptor(1) } else { by_handle(1) };
                    let inode = table.intern(Key::made_up(ino), Kind::file(), mount, hold).unwrap();
                    let again = table.reference_again(&inode).is_ok();
                    assert!(again, "an inode that this thread has referenced is not gone");
                    table.forget(inode.node, 1 + u64::from(again));
                }
            });
        }
    });
    assert_eq!((table.len(), table.descriptors()), (1, 1));
    assert!(table.identities.iter().map(|part| read(&part.0).len()).sum::<usize>() == 1);
}

#[test]
fn an_inode_whose_key_another_has_is_displaced() {
    let (table, mount, key) = (table(usize::MAX, usize::MAX), mount(), Key::made_up(1));
    let intern = |generation| table.intern(key, Kind::file(), &mount, by_handle(generation)).unwrap();
    let displaced = |inode: &Inode| inode.displaced.load(Ordering::Relaxed);
    let first = intern(0);
    assert!(Arc::ptr_eq(&first, &intern(0)) && !displaced(&first));
    let second = intern(1);
    assert_eq!((displaced(&first), displaced(&second)), (true, false));
    assert_eq!(table.node_of(&key), Some(second.node));
    // It is as it was in the next program.
    let forms: Vec<_> =
        [&first, &second].iter().map(|inode| table.node_form(inode, &mut Outgoing::default())).collect();
    let next = self::table(usize::MAX, usize::MAX);
    next.expect(forms.len());
    for form in &forms {
        next.adopt(form, Arc::clone(&mount), None).unwrap();
    }
    assert_eq!(next.node_of(&key), Some(second.node));
    assert!(displaced(&next.get(first.node).unwrap()));
}
