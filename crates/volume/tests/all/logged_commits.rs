//! Writers of a volume share commits, and what becomes of those that lead them.

use crate::common::{figures, fresh, serial};
use engine::{Solo, Token};
use std::time::Duration;
use storage::{Operation, Step, Storage, StorageError, Task};
use testkit::storage::{Arena, write};

const BLOCK: usize = 4096;

/// Writers that write a block of their own and flush, over and over, all on this thread. Gives the requests flushed.
fn writers(storage: &dyn Storage, count: usize, rounds: usize) -> u64 {
    let mut solo = Solo::new().unwrap();
    let mut arena = Arena::new(BLOCK);
    let mut tasks: Vec<Task> = (0..count).map(|_| Task::new()).collect();
    let buffers = arena.buffers(0, BLOCK, &[BLOCK]);
    let start = |solo: &mut Solo, task: &mut Task, index: usize| {
        task.buffers.clone_from(&buffers);
        task.begin(Operation::Write { offset: (index * BLOCK) as u64, durable: false });
        let stored = storage.start(task, Token::request(index as u16), &mut solo.io());
        assert!(matches!(stored, Step::Done(Ok(()))), "there are slots for all");
        task.begin(Operation::Flush);
        let step = storage.start(task, Token::request(index as u16), &mut solo.io());
        assert!(matches!(step, Step::Pending), "a flush of something new takes its time here");
    };
    let (mut left, mut flushed) = (vec![rounds; count], 0);
    for (index, task) in tasks.iter_mut().enumerate() {
        start(&mut solo, task, index);
    }
    let mut waiting = count;
    while waiting > 0 {
        let completion = solo.wait().unwrap();
        let index = completion.index();
        if let Step::Done(result) = storage.resume(&mut tasks[index], completion, &mut solo.io()) {
            result.unwrap();
            flushed += 1;
            waiting -= 1;
            left[index] -= 1;
            if left[index] > 0 {
                start(&mut solo, &mut tasks[index], index);
                waiting += 1;
            }
        }
    }
    flushed
}

/// Its queue panicked: the task goes with what it had begun.
#[test]
fn a_leader_that_is_lost_is_the_end_of_the_volume_and_holds_nobody_up() {
    let storage = fresh(serial(1 << 20, Duration::from_millis(1)), 1 << 20, 1 << 20);
    let (mut lost, mut other) = (Solo::new().unwrap(), Solo::new().unwrap());
    write(&mut lost, storage.as_ref(), 0, &[1; 512]).unwrap();
    let mut leader = Task::new();
    leader.begin(Operation::Flush);
    assert!(matches!(storage.start(&mut leader, Token::request(1), &mut lost.io()), Step::Pending));
    let mut follower = Task::new();
    follower.begin(Operation::Flush);
    assert!(matches!(storage.start(&mut follower, Token::request(2), &mut other.io()), Step::Pending));
    // What the device does with the dead one's write is over before its memory goes.
    lost.wait().unwrap();
    drop(leader);
    let completion = other.wait().unwrap();
    let step = storage.resume(&mut follower, completion, &mut other.io());
    assert!(matches!(step, Step::Done(Err(StorageError::Failed { .. }))), "{step:?}");
    assert!(matches!(write(&mut other, storage.as_ref(), 0, &[2; 512]), Err(StorageError::Failed { .. })));
    assert!(storage.volume().unwrap().status().failure.is_some());
}

#[test]
fn writers_share_commits() {
    let storage = fresh(serial(1 << 20, Duration::from_millis(2)), 1 << 20, 1 << 20);
    let flushed = writers(storage.as_ref(), 32, 20);
    let figures = figures(storage.as_ref());
    assert_eq!(flushed, 640);
    assert_eq!(figures.committed_requests, 640);
    assert!(figures.commits * 8 < 640, "{figures:?}");
}

#[test]
fn writers_on_two_threads_share_commits() {
    let storage = fresh(serial(1 << 20, Duration::from_millis(2)), 1 << 20, 1 << 20);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| writers(storage.as_ref(), 16, 20));
        }
    });
    let figures = figures(storage.as_ref());
    assert_eq!(figures.committed_requests, 640);
    assert!(figures.commits * 8 < 640, "{figures:?}");
}
