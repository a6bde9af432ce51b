//! Sends one SCSI command to a virtio-scsi device over vhost-user, as a guest's driver would, and says what came back:
//! `RESPONSE STATUS RESIDUAL SENSE DATA`, the last two as hexadecimal digits, each `-` where there is nothing.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use frontkit::scsi::response::{RESIDUAL_AT, RESPONSE_AT, SENSE_AT, SENSE_LEN_AT, STATUS_AT};
use frontkit::scsi::{CDB_AT, address, write_head};
use frontkit::{Areas, Eventfds, Memory, Queue, Session, feature, readable, writable};
use values::Lun;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// A command to send.
#[derive(Parser)]
struct Arguments {
    socket: PathBuf,
    lun: Lun,
    /// Its bytes, as hexadecimal digits.
    cdb: String,
    /// Room for data from the device.
    #[arg(long = "in", default_value_t = 0)]
    in_bytes: u32,
    /// A file with data for the device.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Commands before it whose answer is left alone: TEST UNIT READY, by which a driver hears of what there is to hear first.
    #[arg(long, default_value_t = 1)]
    before: u32,
    /// Seconds between these and the command.
    #[arg(long, default_value_t = 0)]
    pause: u64,
}

/// Control, events, and one for requests.
const QUEUES: u64 = 3;
const QUEUE_SIZE: u16 = 16;
const QUEUE_ROOM: u64 = 0x4000;
const REQUEST: u64 = QUEUES * QUEUE_ROOM;
const RESPONSE: u64 = REQUEST + 0x1000;
const DATA: u64 = RESPONSE + 0x1000;
const DATA_BYTES: u32 = 4 << 20;
/// Longest CDB and sense data of a device that nobody has told otherwise (virtio 1.3, 5.6.4).
const HEAD_BYTES: u32 = CDB_AT as u32 + 32;
const RESPONSE_BYTES: u32 = SENSE_AT as u32 + 96;
/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Device {
    memory: Arc<Memory>,
    queue: Queue,
    eventfds: Eventfds,
    lun: Lun,
    tag: u64,
    _session: Session,
}

impl Device {
    fn connect(arguments: &Arguments) -> Result<Device> {
        let memory = Arc::new(Memory::new(0, DATA + u64::from(DATA_BYTES))?);
        let stream = UnixStream::connect(&arguments.socket)
            .with_context(|| format!("cannot connect to {}", arguments.socket.display()))?;
        let wanted = VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::MQ;
        let unneeded = feature::EVENT_IDX | feature::LOG_ALL;
        let mut session =
            Session::negotiate(stream, |offered| Ok(offered & !unneeded), |offered| Ok(offered & wanted))?;
        session.share(&[&memory])?;
        let mut queues = Vec::new();
        for index in 0..QUEUES {
            let queue = Queue::new(memory.clone(), Areas::packed(index * QUEUE_ROOM, QUEUE_SIZE), QUEUE_SIZE, false);
            let eventfds = Eventfds::new()?;
            session.start(index as usize, &queue, &eventfds, 0)?;
            queues.push((queue, eventfds));
        }
        let (queue, eventfds) = queues.pop().context("there is a queue for requests")?;
        Ok(Device { memory, queue, eventfds, lun: arguments.lun, tag: 0, _session: session })
    }

    fn send(&mut self, cdb: &[u8], out: &[u8], in_bytes: u32) -> Result<(Vec<u8>, Vec<u8>)> {
        ensure!(cdb.len() <= 32 && out.len() <= DATA_BYTES as usize && in_bytes <= DATA_BYTES, "that is too long");
        let mut head = vec![0; HEAD_BYTES as usize];
        self.tag += 1;
        write_head(&mut head, address(self.lun.target, self.lun.number), self.tag, cdb);
        self.memory.write(REQUEST, &head);
        self.memory.write(RESPONSE, &[0xee; RESPONSE_BYTES as usize]);
        self.memory.write(DATA, out);
        let mut buffers = vec![readable(REQUEST, HEAD_BYTES)];
        buffers.extend((!out.is_empty()).then(|| readable(DATA, out.len() as u32)));
        buffers.push(writable(RESPONSE, RESPONSE_BYTES));
        buffers.extend((in_bytes > 0).then(|| writable(DATA, in_bytes)));
        self.queue.add(&buffers, |at| at as u16);
        self.queue.show();
        self.eventfds.kick()?;
        ensure!(self.eventfds.wait_call(PATIENCE)?, "no answer within {} s", PATIENCE.as_secs());
        let used = self.queue.take_used().context("a call without an answer")?;
        let data = used.len.saturating_sub(RESPONSE_BYTES).min(in_bytes);
        Ok((self.memory.read(RESPONSE, RESPONSE_BYTES as usize), self.memory.read(DATA, data as usize)))
    }
}

fn bytes(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<char> = text.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
    digits.chunks(2).map(byte).collect::<Result<_, _>>().with_context(|| format!("{text} are no hexadecimal digits"))
}

fn digits(bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if text.is_empty() { "-".to_owned() } else { text }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let cdb = bytes(&arguments.cdb)?;
    let out = arguments.out.as_ref().map(std::fs::read).transpose().context("cannot read --out")?.unwrap_or_default();
    let mut device = Device::connect(&arguments)?;
    for _ in 0..arguments.before {
        device.send(&[0; 6], &[], 0)?;
    }
    sleep(Duration::from_secs(arguments.pause));
    let (response, data) = device.send(&cdb, &out, arguments.in_bytes)?;
    let word = |at: usize| u32::from_le_bytes([response[at], response[at + 1], response[at + 2], response[at + 3]]);
    let sense_bytes = (word(SENSE_LEN_AT) as usize).min(response.len() - SENSE_AT);
    println!(
        "{} {} {} {} {}",
        response[RESPONSE_AT],
        response[STATUS_AT],
        word(RESIDUAL_AT),
        digits(&response[SENSE_AT..][..sense_bytes]),
        digits(&data)
    );
    Ok(())
}
