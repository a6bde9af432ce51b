//! Mirrors that sleep, wake, fail and end.

use crate::tools::{CLUSTER, Gate, contents, fill, memory, put, soon};
use job::{JobError, Mirror, Progress};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use storage::Storage;
use testkit::Rng;
use testkit::storage::assert_same;

const BYTES: u64 = 4 << 20;

/// Runs a mirror, and something beside it from the moment it is ready. The mirror ends with it, one way or another.
fn beside(mirror: &Mirror, then: impl FnOnce()) -> Result<job::Copied, JobError> {
    let is_ready = AtomicBool::new(false);
    scope(|scope| {
        let run = scope.spawn(|| mirror.run(&mut || is_ready.store(true, Ordering::SeqCst)));
        soon("ready", || is_ready.load(Ordering::SeqCst) || run.is_finished());
        // A test that fails does not leave the job running.
        let ended = Ended(mirror);
        then();
        std::mem::forget(ended);
        run.join().unwrap()
    })
}

struct Ended<'a>(&'a Mirror);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[test]
fn every_write_wakes_a_mirror_that_sleeps() {
    let (from, to) = (memory(BYTES), memory(BYTES));
    let mut expected = fill(&*from, &mut Rng(3));
    let mirror = Mirror::new(from, to.clone(), true).unwrap();
    let filter = mirror.filter();
    let mut rng = Rng(77);
    let copied = beside(&mirror, || {
        for round in 0..150u64 {
            let offset = rng.below(BYTES / 512) * 512;
            expected[offset as usize..][..512].fill(round as u8);
            put(&*filter, offset, &expected[offset as usize..][..512]);
            soon("the write is seen", || mirror.progress().dirty_bytes == 0);
            // About when it falls asleep.
            sleep(Duration::from_micros(rng.below(1000)));
        }
        mirror.complete();
    });
    copied.unwrap();
    assert_same(&contents(&*to), &expected, 0);
}

#[test]
fn a_hot_block_is_not_copied_all_the_time() {
    let (from, to) = (memory(BYTES), Gate::new(memory(BYTES)));
    let mirror = Mirror::new(from, to.clone(), true).unwrap();
    let filter = mirror.filter();
    let copied = beside(&mirror, || {
        let begin = Instant::now();
        let mut round = 0u64;
        while begin.elapsed() < Duration::from_millis(300) {
            round += 1;
            put(&*filter, CLUSTER, &[round as u8 | 1; 512]);
        }
        let writes = to.writes.load(Ordering::SeqCst);
        assert!((2..=31).contains(&writes), "{writes} copies of {round} writes in 300 ms");
        mirror.complete();
    });
    copied.unwrap();
    assert_eq!(contents(&*to), contents(&*filter));
    assert!(to.flushes.load(Ordering::SeqCst) >= 1);
}

/// What the disk does not have yet is not in the copy, which is the last one.
#[test]
fn a_write_counts_when_it_has_ended() {
    let (from, to) = (Gate::new(memory(BYTES)), memory(BYTES));
    let mirror = Mirror::new(from.clone(), to.clone(), true).unwrap();
    let filter = mirror.filter();
    let copied = beside(&mirror, || {
        from.lag_micros.store(60_000, Ordering::SeqCst);
        put(&*filter, CLUSTER, &[1; 512]);
        mirror.complete();
    });
    copied.unwrap();
    assert_same(&contents(&*to), &contents(&*from), 0);
}

/// Where the blank target was written, zeroes are written too.
#[test]
fn what_becomes_zero_becomes_zero_in_the_copy() {
    let (from, to) = (memory(BYTES), Gate::new(memory(BYTES)));
    put(&*from, 0, &vec![1; 2 << 20]);
    let mirror = Mirror::new(from, to.clone(), true).unwrap();
    let filter = mirror.filter();
    let copied = beside(&mirror, || {
        assert_eq!(to.zeroes.load(Ordering::SeqCst), 0);
        put(&*filter, CLUSTER, &vec![0; 3 << 20]);
        mirror.complete();
    });
    copied.unwrap();
    assert!(to.zeroes.load(Ordering::SeqCst) >= 1);
    assert_same(&contents(&*to), &contents(&*filter), 0);
}

#[test]
fn a_mirror_that_is_told_to_end_before_it_runs_ends() {
    let (from, to) = (memory(BYTES), memory(BYTES));
    let expected = fill(&*from, &mut Rng(21));
    let mirror = Mirror::new(from, to.clone(), false).unwrap();
    mirror.set_limit(Some(1));
    mirror.complete();
    let mut readies = 0;
    mirror.run(&mut || readies += 1).unwrap();
    assert_eq!(readies, 1);
    assert_same(&contents(&*to), &expected, 0);
    assert_eq!(mirror.progress(), Progress { done_bytes: BYTES, total_bytes: BYTES, dirty_bytes: 0 });
    assert!(mirror.run(&mut || {}).is_err(), "once");
    put(&*mirror.filter(), 0, &[1; 512]);
}

#[test]
fn a_mirror_is_cancelled_while_it_sleeps_and_while_it_waits_for_its_limit() {
    let mirror = Mirror::new(memory(BYTES), memory(BYTES), true).unwrap();
    let result = beside(&mirror, || {
        sleep(Duration::from_millis(30));
        mirror.cancel();
    });
    assert!(matches!(result, Err(JobError::Cancelled)));
    let from = memory(BYTES);
    fill(&*from, &mut Rng(23));
    let mirror = Mirror::new(from, memory(BYTES), true).unwrap();
    mirror.set_limit(Some(1));
    scope(|scope| {
        let run = scope.spawn(|| mirror.run(&mut || panic!("it is not ready")));
        sleep(Duration::from_millis(30));
        mirror.cancel();
        assert!(matches!(run.join().unwrap(), Err(JobError::Cancelled)));
    });
}

#[test]
fn a_disk_that_grows_ends_its_mirror() {
    let from = memory(BYTES);
    let mirror = Mirror::new(from.clone(), memory(BYTES), true).unwrap();
    let filter = mirror.filter();
    let result = beside(&mirror, || {
        sleep(Duration::from_millis(30));
        filter.resize(BYTES + 512).unwrap();
    });
    assert!(matches!(result, Err(JobError::Resized)));
    // Behind the filter's back it is told at the latest at the end.
    let mirror = Mirror::new(from.clone(), memory(BYTES * 2), true).unwrap();
    let result = beside(&mirror, || {
        from.resize(BYTES + 1024).unwrap();
        mirror.complete();
    });
    assert!(matches!(result, Err(JobError::Resized)));
}

#[test]
fn a_target_that_fails_fails_the_mirror_and_no_guest() {
    let (from, to) = (memory(BYTES), Gate::new(memory(BYTES)));
    let mirror = Mirror::new(from, to.clone(), true).unwrap();
    let filter: Arc<dyn Storage> = mirror.filter();
    let result = beside(&mirror, || {
        to.writes_left.store(0, Ordering::SeqCst);
        put(&*filter, 0, &[1; 512]);
    });
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "cannot write the copy: write: an injected error");
    put(&*filter, 0, &[2; 512]);
}
