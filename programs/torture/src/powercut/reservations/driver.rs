//! A guest's driver of a SCSI device, one command at a time.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use frontkit::scsi::response::{RESPONSE_AT, SENSE_AT, SENSE_LEN_AT, STATUS_AT};
use frontkit::scsi::{self, CDB_AT};
use frontkit::{Areas, Eventfds, Memory, Queue, Session, feature, readable, writable};
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use super::state::{ANSWER_BYTES_MAX, Found};

/// How long an answer may take.
const HANG: Duration = Duration::from_secs(60);
/// Control, events, requests.
const QUEUES: u64 = 3;
const REQUEST: usize = 2;
const QUEUE_SIZE: u16 = 16;
const QUEUE_ROOM: u64 = 0x4000;
const MEMORY_BYTES: u64 = 1 << 20;
/// Where a request, its response and what both move stand.
const HEAD: u64 = 0x1_0000;
const REPLY: u64 = 0x1_1000;
const OUT: u64 = 0x1_2000;
const IN: u64 = 0x2_0000;
/// Header with a CDB of 32 bytes, response with sense data of 96 (virtio 1.3, 5.6.6.1).
const HEAD_BYTES: u32 = CDB_AT as u32 + 32;
const REPLY_BYTES: u32 = SENSE_AT as u32 + 96;
/// How often a command is sent again of which the unit says something else first, or that it is busy.
const TRIES: u32 = 10_000;

/// Statuses.
const GOOD: u8 = 0;
const CHECK: u8 = 2;
const BUSY: u8 = 8;
const CONFLICT: u8 = 0x18;
/// UNIT ATTENTION; HARDWARE ERROR, INTERNAL TARGET FAILURE.
const ATTENTION: u8 = 6;
const FAILED: (u8, u8) = (4, 0x44);

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Good(Vec<u8>),
    /// RESERVATION CONFLICT.
    Conflict,
    /// It could not be stored.
    Failed,
    /// Another CHECK CONDITION: sense key and code.
    Check(u8, u8),
}

/// A driver.
pub(super) struct Driver {
    session: Session,
    memory: Arc<Memory>,
    queues: Vec<(Queue, Eventfds)>,
    tag: u64,
}

impl Driver {
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let memory = Arc::new(Memory::new(0, MEMORY_BYTES)?);
        let wanted =
            VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::MQ;
        // It waits for each call.
        let features = |offered| Ok(offered & !feature::EVENT_IDX);
        let mut session = Session::negotiate(UnixStream::connect(socket)?, features, |offered| Ok(offered & wanted))?;
        session.share(&[&memory])?;
        let queue = |index| {
            let areas = Areas::packed(index * QUEUE_ROOM, QUEUE_SIZE);
            Ok((Queue::new(memory.clone(), areas, QUEUE_SIZE, false), Eventfds::new()?))
        };
        let queues = (0..QUEUES).map(queue).collect::<Result<Vec<_>>>()?;
        for (index, (queue, eventfds)) in queues.iter().enumerate() {
            session.start(index, queue, eventfds, 0)?;
        }
        Ok(Self { session, memory, queues, tag: 0 })
    }

    /// Sends a command, and once more where the unit has something else to say first.
    pub(super) fn ask(&mut self, cdb: &[u8], out: &[u8], in_bytes: u16) -> Result<Answer> {
        for _ in 0..TRIES {
            let (status, sense, data) = self.send(cdb, out, in_bytes)?;
            match (status, sense) {
                (GOOD, _) => return Ok(Answer::Good(data)),
                (CONFLICT, _) => return Ok(Answer::Conflict),
                (CHECK, (ATTENTION, _)) => {}
                (CHECK, FAILED) => return Ok(Answer::Failed),
                (CHECK, (key, code)) => return Ok(Answer::Check(key, code)),
                (BUSY, _) => std::thread::sleep(Duration::from_millis(1)),
                _ => bail!("status {status:#x} of {cdb:x?}"),
            }
        }
        bail!("{cdb:x?} is never taken")
    }

    fn send(&mut self, cdb: &[u8], out: &[u8], in_bytes: u16) -> Result<(u8, (u8, u8), Vec<u8>)> {
        self.tag += 1;
        let mut head = vec![0; HEAD_BYTES as usize];
        scsi::write_head(&mut head, scsi::address(0, 0), self.tag, cdb);
        self.memory.write(HEAD, &head);
        self.memory.write(REPLY, &[0xee; REPLY_BYTES as usize]);
        self.memory.write(OUT, out);
        let mut buffers = vec![readable(HEAD, HEAD_BYTES)];
        if !out.is_empty() {
            buffers.push(readable(OUT, out.len() as u32));
        }
        buffers.push(writable(REPLY, REPLY_BYTES));
        if in_bytes > 0 {
            buffers.push(writable(IN, in_bytes.into()));
        }
        let (queue, eventfds) = &mut self.queues[REQUEST];
        queue.add(&buffers, |at| at as u16);
        queue.show();
        eventfds.kick()?;
        let used = loop {
            if let Some(used) = queue.take_used() {
                break used;
            }
            ensure!(eventfds.wait_call(HANG)?, "{cdb:x?} is not answered");
        };
        let reply = self.memory.read(REPLY, REPLY_BYTES as usize);
        ensure!(reply[RESPONSE_AT] == 0, "response {} to {cdb:x?}", reply[RESPONSE_AT]);
        let sense_bytes = reply[SENSE_LEN_AT];
        let sense = if sense_bytes > 12 { (reply[SENSE_AT + 2] & 0xf, reply[SENSE_AT + 12]) } else { (0, 0) };
        let moved = used.len.saturating_sub(REPLY_BYTES).min(in_bytes.into());
        Ok((reply[STATUS_AT], sense, self.memory.read(IN, moved as usize)))
    }

    /// Asks for all that there is of reservations.
    pub(super) fn find(&mut self) -> Result<Found> {
        let mut answers = Vec::new();
        // READ FULL STATUS, READ RESERVATION, REPORT CAPABILITIES.
        for action in [3, 1, 2] {
            let [high, low] = ANSWER_BYTES_MAX.to_be_bytes();
            match self.ask(&[0x5e, action, 0, 0, 0, 0, 0, high, low, 0], &[], ANSWER_BYTES_MAX)? {
                Answer::Good(answer) => answers.push(answer),
                // Reserved by RESERVE (6), beside which nobody is registered.
                Answer::Conflict => return Ok(Found::default()),
                other => bail!("PERSISTENT RESERVE IN is answered by {other:x?}"),
            }
        }
        Found::of_answers(&answers[0], &answers[1], &answers[2])
    }

    /// Ends the connection, and with it what RESERVE (6) has reserved.
    pub(super) fn leave(self) {
        drop(self.session);
    }
}
