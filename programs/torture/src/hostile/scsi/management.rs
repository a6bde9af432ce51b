//! Task management of requests that are under way.

use anyhow::{Result, ensure};
use frontkit::scsi;
use tests::driver::Ring;

use super::super::attack::{Attack, Scene};
use super::super::session::{PATIENCE, RING_SIZE, Session, is_used, settle};
use super::{AT_ONCE, Ask, CONTROL, REQUEST, RESPONSE, only, place, read_10, send, wait_until_used, write_10};

/// Functions (virtio 1.3, 5.6.6.2), and one more than there are.
const ABORT_TASK: u32 = 0;
const ABORT_TASK_SET: u32 = 1;
const CLEAR_TASK_SET: u32 = 3;
const NEXUS_RESET: u32 = 4;
const UNIT_RESET: u32 = 5;
const QUERY_TASK: u32 = 6;
pub(super) const QUERY_TASK_SET: u32 = 7;
const FUNCTIONS: u32 = 8;
/// Rounds of requests that are managed.
const ROUNDS: u16 = 60;

pub(super) const ATTACKS: &[Attack] = &[
    only("scsi-tasks-managed", "aborts, queries and resets of requests under way on two queues, without end", managed),
    only("scsi-tasks-of-one-tag", "requests that all have one tag, aborted by it", one_tag),
    only("scsi-tasks-of-a-broken-queue", "resets tasks of a queue that breaks with them", broken),
    only("scsi-leaves-with-tasks", "leaves while task management waits for requests under way", leaves),
    only("scsi-units-nobody-has", "task management of every unit and target that there is not", nobodys),
];

/// A function for a unit of the only target, about the request with this tag.
pub(super) fn tmf(function: u32, lun: u16, tag: u64) -> Ask {
    let head = [&[0; 4][..], &function.to_le_bytes(), &scsi::address(0, lun), &tag.to_le_bytes()].concat();
    Ask { head, out_bytes: 0, response_bytes: 1, in_bytes: 0 }
}

struct Tasks {
    session: Session,
    requests: [Ring; 2],
    control: Ring,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

impl Tasks {
    fn begin(scene: &Scene<'_>) -> Result<Self> {
        let mut session = scene.session()?;
        let requests = [session.ring(REQUEST)?, session.ring(REQUEST + 1)?];
        let control = session.ring(CONTROL)?;
        Ok(Self { session, requests, control })
    }

    /// Reads and writes on both queues, the first with this number.
    fn offer(&mut self, number: u16, tag: impl Fn(u16) -> u64) -> Result<()> {
        for ring in &mut self.requests {
            wait_until_used(ring, number)?;
            for number in number..number + AT_ONCE / 2 {
                let block = u32::from(number) * 8;
                let ask =
                    if number % 2 == 0 { write_10(0, tag(number), block) } else { read_10(0, tag(number), block) };
                ask.offer(ring, number % (AT_ONCE / 2));
            }
            ring.kick();
        }
        Ok(())
    }

    /// Control requests have places that no other requests have.
    fn manage(&mut self, number: u16, ask: &Ask) -> Result<()> {
        if number.is_multiple_of(AT_ONCE / 2) {
            wait_until_used(&self.control, number)?;
        }
        ask.offer(&mut self.control, AT_ONCE / 2 + number % (AT_ONCE / 2));
        self.control.kick();
        Ok(())
    }
}

fn managed(scene: &mut Scene<'_>) -> Result<()> {
    let mut tasks = Tasks::begin(scene)?;
    let (mut offered, mut asked) = (0, 0);
    for _ in 0..ROUNDS {
        tasks.offer(offered, u64::from)?;
        offered += AT_ONCE / 2;
        for _ in 0..4 {
            let random = &mut scene.random;
            let (function, tag) =
                (random.within(0..=u64::from(FUNCTIONS)) as u32, random.within(0..=u64::from(offered)));
            tasks.manage(asked, &tmf(function, random.pick(&[0, 0, 0, 1]), tag))?;
            asked += 1;
        }
    }
    wait_until_used(&tasks.control, asked)?;
    for ring in &tasks.requests {
        wait_until_used(ring, offered)?;
    }
    // What has come behind all of it finds nothing under way.
    tasks.manage(asked, &tmf(QUERY_TASK_SET, 0, 0))?;
    ensure!(is_used(&tasks.control, asked + 1, PATIENCE), "a query is not answered");
    let at = place(AT_ONCE / 2 + asked % (AT_ONCE / 2)) + RESPONSE;
    let answer = tasks.session.memory.read(at, 1);
    ensure!(answer == [0], "tasks are under way although all have ended: {answer:?}");
    scene.keep(tasks);
    Ok(())
}

fn one_tag(scene: &mut Scene<'_>) -> Result<()> {
    let mut tasks = Tasks::begin(scene)?;
    for round in 0..ROUNDS {
        tasks.offer(round * (AT_ONCE / 2), |_| 7)?;
        let function = if round % 2 == 0 { ABORT_TASK } else { QUERY_TASK };
        tasks.manage(round, &tmf(function, 0, 7))?;
    }
    wait_until_used(&tasks.control, ROUNDS)?;
    scene.keep(tasks);
    Ok(())
}

fn broken(scene: &mut Scene<'_>) -> Result<()> {
    let mut tasks = Tasks::begin(scene)?;
    tasks.offer(0, u64::from)?;
    let [ring, _] = &tasks.requests;
    ring.queue.set_available_index(ring.queue.next_available().wrapping_add(RING_SIZE + 1));
    for (number, function) in [UNIT_RESET, ABORT_TASK_SET, NEXUS_RESET, CLEAR_TASK_SET].into_iter().enumerate() {
        tasks.manage(number as u16, &tmf(function, 0, 0))?;
        tasks.requests[0].kick();
    }
    wait_until_used(&tasks.control, 4)?;
    scene.keep(tasks);
    Ok(())
}

fn leaves(scene: &mut Scene<'_>) -> Result<()> {
    for _ in 0..8 {
        let mut tasks = Tasks::begin(scene)?;
        tasks.offer(0, u64::from)?;
        for number in 0..AT_ONCE / 2 {
            tasks.manage(number, &tmf(scene.random.pick(&[UNIT_RESET, ABORT_TASK_SET, NEXUS_RESET]), 0, 0))?;
        }
        // It goes without a word.
        drop(tasks);
    }
    settle();
    Ok(())
}

fn nobodys(scene: &mut Scene<'_>) -> Result<()> {
    let mut session = scene.session()?;
    let mut control = session.ring(CONTROL)?;
    let addresses = [
        [1, 1, 0x40, 0, 0, 0, 0, 0],
        [1, 0, 0x7f, 0xff, 0, 0, 0, 0],
        [1, 0, 0x40, 2, 0, 0, 0, 0],
        // The well known unit, another form, nothing, everything.
        [0xc1, 1, 0, 0, 0, 0, 0, 0],
        [1, 0, 0xc0, 0, 0, 0, 0, 0],
        [0; 8],
        [0xff; 8],
    ];
    let asks = addresses.into_iter().flat_map(|address| {
        (0..=FUNCTIONS).map(move |function| {
            let head = [&[0; 4][..], &function.to_le_bytes(), &address, &[0; 8]].concat();
            Ask { head, out_bytes: 0, response_bytes: 1, in_bytes: 0 }
        })
    });
    send(&mut control, asks)?;
    scene.keep((session, control));
    Ok(())
}
