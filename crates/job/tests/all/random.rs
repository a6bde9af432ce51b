//! Random histories: a backup is the disk at its beginning, and so is a pull all the time; a mirror is the disk at its end.

use crate::tools::{Ends, churn, contents, fill, memory, slow};
use engine::Solo;
use job::{Backup, Mirror, Pull};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;
use storage::Storage;
use testkit::Rng;
use testkit::storage::{assert_same, read};

const LIMITS: [Option<u64>; 5] = [Some(0), Some(3 << 20), Some(30 << 20), Some(300 << 20), None];

#[derive(Clone, Debug)]
struct World {
    sectors: u64,
    seed: u64,
    from_micros: u64,
    to_micros: u64,
    is_blank: bool,
    /// Guests begin before the job runs.
    is_late: bool,
    operations: usize,
    limits: Vec<(usize, u64)>,
}

fn world() -> impl Strategy<Value = World> {
    let sectors = prop_oneof![1 => 1u64..300, 4 => 300u64..12_000];
    let micros = || prop_oneof![Just(0u64), 20u64..400];
    let limits = proptest::collection::vec((0..LIMITS.len(), 0u64..15_000), 0..6);
    let speeds = (micros(), micros(), any::<bool>(), any::<bool>());
    (sectors, 1u64..u64::MAX, speeds, 0usize..150, limits).prop_map(|(sectors, seed, speeds, operations, limits)| {
        let (from_micros, to_micros, is_blank, is_late) = speeds;
        World { sectors, seed, from_micros, to_micros, is_blank, is_late, operations, limits }
    })
}

fn storage(bytes: u64, micros: u64) -> Arc<dyn Storage> {
    if micros == 0 { memory(bytes) } else { slow(bytes, micros) }
}

/// Three guests, each with a third of the disk, whose borders lie inside of clusters.
fn guests(filter: &dyn Storage, before: &[u8], world: &World) -> Vec<u8> {
    let at = |third: u64| world.sectors * third / 3;
    scope(|scope| {
        let guest = |third: u64| {
            let own = before[at(third) as usize * 512..at(third + 1) as usize * 512].to_vec();
            let rng = Rng((world.seed ^ third << 40) | 1);
            scope.spawn(move || churn(filter, at(third)..at(third + 1), own, rng, world.operations))
        };
        let guests: Vec<_> = (0..3).map(guest).collect();
        guests.into_iter().flat_map(|guest| guest.join().unwrap()).collect()
    })
}

fn limits(world: &World, set: impl Fn(Option<u64>)) {
    for (limit, micros) in &world.limits {
        set(LIMITS[*limit]);
        sleep(Duration::from_micros(*micros));
    }
    set(None);
}

fn ends(world: &World) -> (Arc<dyn Storage>, Arc<dyn Storage>, Vec<u8>) {
    let bytes = world.sectors * 512;
    let (from, to) = (storage(bytes, world.from_micros), storage(bytes, world.to_micros));
    let mut rng = Rng(world.seed);
    let before = fill(&*from, &mut rng);
    if !world.is_blank {
        fill(&*to, &mut rng);
    }
    (from, to, before)
}

/// Reads any parts of a view until it is told to stop, and compares them. So many reads.
fn reads(view: &dyn Storage, before: &[u8], mut rng: Rng, stop: &AtomicBool) -> u64 {
    let (mut solo, sectors, mut count) = (Solo::new().unwrap(), before.len() as u64 / 512, 0);
    while count < 3 || !stop.load(Ordering::SeqCst) {
        let at = rng.below(sectors);
        let most = if rng.below(8) == 0 { sectors } else { 300 };
        let (offset, bytes) = (at * 512, (1 + rng.below(most.min(sectors - at))) * 512);
        let wanted = &before[offset as usize..][..bytes as usize];
        if rng.below(4) == 0 {
            let mut at = 0;
            for extent in view.extents(offset..offset + bytes, 1 + rng.below(20) as usize).unwrap() {
                let end = at + extent.bytes as usize;
                assert!(extent.data || wanted[at..end].iter().all(|byte| *byte == 0), "a hole that has data");
                at = end;
            }
            assert!(at > 0);
        } else {
            assert_same(&read(&mut solo, view, offset, bytes as usize), wanted, offset);
        }
        count += 1;
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_backup_is_the_disk_as_it_was(world in world()) {
        let (from, to, before) = ends(&world);
        let backup = Backup::new(from.clone(), to.clone(), world.is_blank).unwrap();
        let filter = backup.filter();
        let (after, copied) = scope(|scope| {
            let run = || {
                sleep(Duration::from_millis(if world.is_late { 5 } else { 0 }));
                backup.run()
            };
            let run = scope.spawn(run);
            scope.spawn(|| limits(&world, |limit| backup.set_limit(limit)));
            let after = guests(&*filter, &before, &world);
            (after, run.join().unwrap())
        });
        let copied = copied.unwrap();
        assert_same(&contents(&*to), &before, 0);
        assert_same(&contents(&*from), &after, 0);
        prop_assert_eq!(copied.data_bytes + copied.zero_bytes, world.sectors * 512);
        let progress = backup.progress();
        prop_assert_eq!((progress.done_bytes, progress.total_bytes), (world.sectors * 512, world.sectors * 512));
    }

    #[test]
    fn a_pull_is_the_disk_as_it_was_whenever_it_is_read(world in world()) {
        let (from, _, before) = ends(&world);
        let pull = Pull::new(from.clone(), storage(world.sectors * 512, world.to_micros)).unwrap();
        let (filter, view) = (pull.filter(), pull.view());
        let is_over = AtomicBool::new(false);
        let (after, counts, copied) = scope(|scope| {
            let _ends = Ends(&pull);
            let run = scope.spawn(|| {
                sleep(Duration::from_millis(if world.is_late { 5 } else { 0 }));
                pull.run(&mut || {})
            });
            let readers = [5, 6].map(|number| {
                let rng = Rng((world.seed ^ number << 50) | 1);
                let (view, before, is_over) = (&*view, &before, &is_over);
                scope.spawn(move || reads(view, before, rng, is_over))
            });
            let after = guests(&*filter, &before, &world);
            is_over.store(true, Ordering::SeqCst);
            let counts = readers.map(|reader| reader.join().unwrap());
            // Guests have written, and nobody writes any more.
            assert_same(&contents(&*view), &before, 0);
            pull.complete();
            (after, counts, run.join().unwrap())
        });
        let copied = copied.unwrap();
        assert_same(&contents(&*from), &after, 0);
        prop_assert_eq!(copied.data_bytes + copied.zero_bytes, pull.progress().done_bytes);
        prop_assert!(world.operations > 0 || copied.data_bytes + copied.zero_bytes == 0, "nobody has written");
        prop_assert!(counts.iter().all(|count| *count >= 3));
    }

    #[test]
    fn a_mirror_is_the_disk_as_it_is(world in world()) {
        let (from, to, before) = ends(&world);
        let mirror = Mirror::new(from.clone(), to.clone(), world.is_blank).unwrap();
        let filter = mirror.filter();
        let (is_over, readies) = (AtomicBool::new(false), AtomicU32::new(0));
        let (after, copied) = scope(|scope| {
            let run = scope.spawn(|| {
                let copied = mirror.run(&mut || readies.store(readies.load(Ordering::SeqCst) + 1, Ordering::SeqCst));
                is_over.store(true, Ordering::SeqCst);
                copied
            });
            let limits = scope.spawn(|| limits(&world, |limit| mirror.set_limit(limit)));
            let after = guests(&*filter, &before, &world);
            if world.is_late {
                limits.join().unwrap();
                sleep(Duration::from_millis(30));
            }
            assert!(!is_over.load(Ordering::SeqCst), "nobody has told it to end");
            mirror.complete();
            (after, run.join().unwrap())
        });
        copied.unwrap();
        assert_same(&contents(&*from), &after, 0);
        assert_same(&contents(&*to), &after, 0);
        prop_assert_eq!(readies.load(Ordering::SeqCst), 1);
        let progress = mirror.progress();
        prop_assert_eq!((progress.done_bytes, progress.dirty_bytes), (world.sectors * 512, 0));
    }
}
