//! Units that perform commands themselves.

use super::driver::{Driver, REQUEST, Server, read_10, unit, write_10};
use crate::nbd::server::{eventually, memory};
use engine::{Completion, Io, Reply, Token};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use storage::{
    Description, Execution, Handed, Loss, Pass, PassCommand, PassData, Passed, Refusal, Step, Storage, StorageError,
    Task,
};

/// A device of the host: it notes what it is sent, and answers as it is told, at once or when it is let go.
struct Host {
    is_disk: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// CDB, which way the data goes, and what comes or how much may go.
    seen: Vec<(Vec<u8>, PassData, Vec<u8>)>,
    answers: VecDeque<(Passed, Vec<u8>)>,
    holds: bool,
    held: Vec<Reply>,
}

impl Host {
    fn new(is_disk: bool) -> Arc<Host> {
        Arc::new(Host { is_disk, state: Mutex::default() })
    }

    fn answers(&self, status: u8, sense: &[u8], moved_bytes: u64, data: &[u8]) {
        let answered = Passed::Answered { status, sense: sense.to_vec(), moved_bytes };
        self.state.lock().unwrap().answers.push_back((answered, data.to_vec()));
    }

    fn fails(&self, passed: Passed) {
        self.state.lock().unwrap().answers.push_back((passed, Vec::new()));
    }

    fn seen(&self) -> Vec<(Vec<u8>, PassData, Vec<u8>)> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }

    fn hold(&self, holds: bool) {
        let mut state = self.state.lock().unwrap();
        state.holds = holds;
        let held = std::mem::take(&mut state.held);
        drop(state);
        held.into_iter().for_each(|reply| reply.complete(0));
    }
}

impl Pass for Host {
    fn is_disk(&self) -> bool {
        self.is_disk
    }

    fn transfer_bytes_max(&self) -> u32 {
        64 << 10
    }

    fn block_bytes(&self) -> Option<u32> {
        Some(512)
    }

    fn pass(&self, task: &mut Task, command: PassCommand, reply: Reply) {
        let mut state = self.state.lock().unwrap();
        let bytes = task.bytes();
        let mut sent = vec![0; if command.data == PassData::Out { bytes as usize } else { 0 }];
        // SAFETY: the task's buffers are mapped until the reply completes.
        unsafe { storage::kit::copy_out(&task.buffers, 0, sent.as_mut_ptr(), sent.len() as u64) };
        if command.data == PassData::In {
            sent = bytes.to_be_bytes().to_vec();
        }
        state.seen.push((command.cdb, command.data, sent));
        if let Some((passed, data)) = state.answers.pop_front() {
            // SAFETY: as above.
            unsafe { storage::kit::copy_in(&task.buffers, 0, data.as_ptr(), data.len() as u64) };
            command.place.set(passed).unwrap();
        }
        drop(command.place);
        if state.holds {
            state.held.push(reply);
        } else {
            drop(state);
            reply.complete(0);
        }
    }
}

impl Storage for Host {
    fn describe(&self) -> Description {
        Description { kind: "sg", execution: Execution::Auto, ..memory(512).describe() }
    }

    fn capacity_bytes(&self) -> u64 {
        1 << 20
    }

    fn start(&self, task: &mut Task, _token: Token, _io: &mut Io<'_>) -> Step {
        Step::Done(Err(StorageError::Unsupported(task.operation.action())))
    }

    fn resume(&self, _task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        unreachable!("nothing is begun")
    }

    fn resize(&self, _capacity_bytes: u64) -> Result<(), StorageError> {
        unreachable!("nobody resizes it")
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        unreachable!("nobody takes it over")
    }

    fn set_execution(&self, _execution: Execution) -> Result<(), StorageError> {
        Ok(())
    }

    fn passes(&self) -> Option<&dyn Pass> {
        Some(self)
    }
}

fn served(host: &Arc<Host>) -> (Server, Driver) {
    let server = Server::new(vec![unit("0", "sg", host.clone()), unit("1", "ours", Arc::new(memory(1 << 20)))]);
    let mut driver = server.driver();
    host.answers(0, &[], 0, &[]);
    driver.settle("0");
    assert_eq!(host.seen(), [(vec![0; 6], PassData::None, vec![])], "power on is ours to tell, and is told first");
    (server, driver)
}

#[test]
fn commands_go_as_they_are_and_answers_come_as_they_are() {
    let host = Host::new(false);
    let (server, mut driver) = served(&host);
    // A vendor's, with data for the device.
    host.answers(0, &[], 3, &[]);
    let answer = driver.ask("0", &[0xc5, 1, 2, 3, 4, 5, 6, 7, 8, 9], b"abc", 0);
    assert_eq!((answer.response, answer.status, answer.residual), (0, 0, 0));
    assert_eq!(host.seen(), [(vec![0xc5, 1, 2, 3, 4, 5, 6, 7, 8, 9], PassData::Out, b"abc".to_vec())]);
    // One that reads less than there is room for: READ (6) of a tape, with a short block.
    let sense = [0xf0, 0, 0x20, 0, 0, 0, 7, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    host.answers(2, &sense, 5, b"block");
    let answer = driver.ask("0", &[0x08, 0, 0, 0, 12, 0], &[], 12);
    assert_eq!((answer.response, answer.status, answer.residual), (0, 2, 7));
    assert_eq!((answer.sense, answer.data), (sense.to_vec(), b"block".to_vec()));
    assert_eq!(host.seen(), [(vec![0x08, 0, 0, 0, 12, 0], PassData::In, 12_u64.to_be_bytes().to_vec())]);
    // Another status, without sense data: what the one before had is gone.
    host.answers(0x18, &[], 0, &[]);
    let answer = driver.ask("0", &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512], 0);
    assert_eq!((answer.status, answer.residual, answer.sense.len()), (0x18, 512, 0));
    // The unit beside it is ours.
    driver.settle("1");
    driver.write("1", 0, &[9; 512]).good();
    assert_eq!(driver.read("1", 0, 1), [9; 512]);
    assert_eq!(host.seen().len(), 1);
    let figures =
        server.export.rings().iter().fold((0, 0), |(read, written), ring| {
            (read + ring.figures.bytes_read, written + ring.figures.bytes_written)
        });
    assert_eq!(figures, (5 + 512, 3 + 512), "what was moved, and no more");
}

#[test]
fn what_units_there_are_is_ours_to_say() {
    let host = Host::new(false);
    let (_server, mut driver) = served(&host);
    let luns = driver.ask("0", &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64).good();
    assert_eq!(luns[..8], [0, 0, 0, 16, 0, 0, 0, 0], "two units");
    assert!(host.seen().is_empty());
    host.answers(0, &[], 36, &[1; 36]);
    assert_eq!(driver.ask("0", &[0x12, 0, 0, 0, 36, 0], &[], 36).good(), [1; 36]);
    assert_eq!(host.seen().len(), 1);
}

#[test]
fn what_did_not_arrive_is_told_by_its_kind() {
    let host = Host::new(true);
    let (_server, mut driver) = served(&host);
    for (passed, response) in [
        (Loss::Gone, 3),
        (Loss::Busy, 5),
        (Loss::Aborted, 2),
        (Loss::Reset, 4),
        (Loss::Transport, 6),
        (Loss::Target, 7),
        (Loss::Nexus, 8),
        (Loss::Other, 9),
    ] {
        host.fails(Passed::Lost(passed));
        let answer = driver.ask("0", &read_10(0, 1), &[], 512);
        assert_eq!((answer.response, answer.residual), (response, 512), "{passed:?}");
    }
    for (refusal, sense) in [
        (Refusal::Opcode, (5, 0x20, 0)),
        (Refusal::Field, (5, 0x24, 0)),
        (Refusal::WriteProtected, (7, 0x27, 0)),
        (Refusal::Helper, (0xb, 8, 0)),
    ] {
        host.fails(Passed::Refused(refusal));
        assert_eq!(driver.ask("0", &write_10(0, &[1; 512]), &[1; 512], 0).sense_code(), sense, "{refusal:?}");
    }
    // Whoever was to perform it has panicked: nothing was put there.
    assert_eq!(driver.ask("0", &read_10(0, 1), &[], 512).response, 9);
}

#[test]
fn the_page_of_limits_says_what_the_host_moves() {
    let host = Host::new(true);
    let (_server, mut driver) = served(&host);
    let mut page = vec![0; 64];
    (page[1], page[3]) = (0xb0, 60);
    page[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    page[60] = 7;
    host.answers(0, &[], 64, &page);
    let told = driver.ask("0", &[0x12, 1, 0xb0, 0, 64, 0], &[], 64).good();
    assert_eq!(told[8..12], [0, 0, 0, 128], "64 KiB in blocks of 512 bytes");
    assert_eq!((told[60], &told[12..16]), (7, &[0; 4][..]));
    // A part of it, and another page.
    host.answers(0, &[], 10, &page[..10]);
    assert_eq!(driver.ask("0", &[0x12, 1, 0xb0, 0, 10, 0], &[], 10).good(), page[..10]);
    host.answers(0, &[], 64, &page);
    assert_eq!(driver.ask("0", &[0x12, 1, 0xb1, 0, 64, 0], &[], 64).good(), page);
}

#[test]
fn data_in_both_directions_is_nothing_that_the_host_sends() {
    let host = Host::new(true);
    let (_server, mut driver) = served(&host);
    let answer = driver.ask("0", &[0xc0; 10], &[1; 8], 8);
    assert!(answer.response == 9 || answer.sense_code() == (5, 0x20, 0), "{answer:?}");
    assert!(host.seen().is_empty());
}

#[test]
fn a_command_that_takes_long_keeps_nobody_else() {
    let host = Host::new(false);
    let (server, mut driver) = served(&host);
    driver.settle("1");
    host.hold(true);
    host.answers(0, &[], 0, &[]);
    // REWIND.
    let rewind = driver.begin(REQUEST, "0", &[1, 0, 0, 0, 0, 0], &[], 0);
    eventually("it is under way", || !host.state.lock().unwrap().held.is_empty());
    let write = driver.begin(REQUEST + 1, "1", &write_10(0, &[1; 512]), &[1; 512], 0);
    driver.end(write).good();
    assert!(!driver.has_answer(REQUEST));
    // A queue that is stopped waits for it, and so does whoever closes the storage.
    let stopped = driver.begin_to_stop(REQUEST);
    host.hold(false);
    stopped.join().unwrap();
    driver.end(rewind).good();
    drop(driver);
    drop(server);
    let host: Arc<dyn Storage> = host;
    eventually("nobody has it", || Arc::strong_count(&host) == 1);
}
