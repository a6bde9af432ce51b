//! What is asked and done before the load begins: each step with the answer that it must have.

use anyhow::{Context, Result, bail, ensure};
use frontkit::scsi::response::SENSE_AT;

use super::answer::{GOOD, Response};
use super::cdb::{self, Cdb};
use super::reserved::{Reserved, TYPES};
use super::{DISK, NOBODY, PAGE_HEADER_BYTES, ROOM_BYTES, Scsi};
use crate::frontend::language::{Answered, Ask, Durability, Geometry, Verdict};
use crate::frontend::pattern::SECTOR_BYTES;
use crate::frontend::request::{Kind, Question, Request};
use crate::frontend::ring::DATA_BYTES_MAX;
use crate::rng::Rng;

/// Stream of the run's seed.
const STREAM: u64 = 0x5c51;

impl Scsi {
    /// Asks the disk what it is, and reserves it.
    ///
    /// # Errors
    /// An answer is not what a unit says that has just been turned on.
    pub(in crate::frontend) fn begin(&mut self, ask: &mut Ask<'_>) -> Result<Geometry> {
        for question in [Question::Ready, Question::OtherReady] {
            ensure!(self.ask(ask, question)?.is_none(), "{question}: the first command is done, and nothing is told");
            ensure!(self.ask(ask, question)?.is_some(), "{question}: the second command is not done");
        }
        let serial = self.command(ask, cdb::inquiry(cdb::SERIAL, ROOM_BYTES as u8), &[], ROOM_BYTES)?;
        ensure!(serial.len() > PAGE_HEADER_BYTES as usize, "the disk has no serial number: {serial:02x?}");
        self.serial = serial;
        self.capacity = self.command(ask, cdb::ask(Question::Capacity, ROOM_BYTES as u8), &[], ROOM_BYTES)?;
        let (last, block) = (be_u64(&self.capacity, 0)?, be_u32(&self.capacity, 8)?);
        ensure!(block.is_power_of_two() && block >= SECTOR_BYTES as u32, "the disk's blocks have {block} bytes");
        self.block_sectors = u64::from(block) / SECTOR_BYTES as u64;

        let limits = self.command(ask, cdb::inquiry(cdb::BLOCK_LIMITS, ROOM_BYTES as u8), &[], ROOM_BYTES)?;
        let provisioning = self.command(ask, cdb::inquiry(cdb::PROVISIONING, ROOM_BYTES as u8), &[], ROOM_BYTES)?;
        // MAXIMUM TRANSFER LENGTH bounds all that the load does; both data of a comparison have to fit into a request.
        let longest = u64::from(be_u32(&limits, 8)?) * u64::from(block);
        ensure!(longest >= u64::from(DATA_BYTES_MAX), "the longest transfer has {longest} bytes");
        let swap_blocks = u64::from(limits[5]).min(u64::from(DATA_BYTES_MAX / block) / 2);
        let (can_unmap, can_write_same) = (provisioning[5] & 0x80 != 0, be_u64(&limits, 36)? > 0);

        let modes = self.command(ask, cdb::caching(ROOM_BYTES as u8), &[], ROOM_BYTES)?;
        let has_cache = modes.get(6).context("the caching page is too short")? & 0x04 != 0;
        ensure!(
            self.durability != Durability::Cacheless || !has_cache,
            "the disk has a write cache, and is to have none"
        );
        let flushes = self.durability == Durability::Flushes;
        self.reserve(ask)?;
        Ok(Geometry {
            sectors: (last + 1) * self.block_sectors,
            block_sectors: self.block_sectors,
            // WRITE SAME has no FUA, and what is given up need not be durable.
            write_zeroes: can_write_same && self.durability != Durability::Forced,
            discard: can_unmap && flushes,
            swap_sectors: swap_blocks * self.block_sectors,
            flush: flushes,
        })
    }

    /// Registers for good and takes a reservation, of any type.
    fn reserve(&mut self, ask: &mut Ask<'_>) -> Result<()> {
        let keys = self.command(ask, cdb::ask(Question::Keys, ROOM_BYTES as u8), &[], ROOM_BYTES)?;
        ensure!(keys == NOBODY, "somebody is registered with a disk that is new: {keys:02x?}");
        let (kind, key) = (Rng::new(self.run, STREAM).pick(&TYPES), self.next_key());
        self.command(ask, cdb::reserve_out(cdb::REGISTER, 0), &cdb::reserve_list(0, key), 0)?;
        self.command(ask, cdb::reserve_out(cdb::RESERVE, kind), &cdb::reserve_list(key, 0), 0)?;
        self.reserved = Some(Reserved::new(kind, key));
        for question in [Question::Keys, Question::Reservation] {
            let data = self.ask(ask, question)?.context("it has something else to say")?;
            self.judge_data(question, &data, 0, false)?;
        }
        Ok(())
    }

    /// What a question brings; `None` when the unit has something to tell first.
    fn ask(&mut self, ask: &mut Ask<'_>, question: Question) -> Result<Option<Vec<u8>>> {
        let request =
            Request { kind: Kind::Ask(question), first: 0, count: 0, generation: 0, lost_before: 0, moment: 0 };
        // No question is asked in several forms.
        let wanted = self.encode(&request, &mut Rng::new(0, 0), &mut []);
        let (answer, data, written) = ask(&wanted, &[])?;
        let how = Answered { written, earlier: false, resubmitted: false };
        match self.judge(&request, answer.bytes(), how).with_context(|| question.to_string())? {
            Verdict::Done => Ok(Some(data)),
            Verdict::NotBegun => Ok(None),
            Verdict::MayBeDone => bail!("{question}: may have been done before"),
        }
    }

    /// What a command brings that must be done.
    fn command(&mut self, ask: &mut Ask<'_>, cdb: Cdb, sent: &[u8], room: u32) -> Result<Vec<u8>> {
        let bytes = if room > 0 { room } else { sent.len() as u32 };
        let wanted = self.wanted(DISK, cdb, bytes, room > 0);
        let (answer, mut data, written) = ask(&wanted, sent)?;
        let response = Response::of(answer.bytes()).with_context(|| format!("command {:02x}h", cdb[0]))?;
        ensure!((response.code, response.status) == (0, GOOD), "command {:02x}h failed: {response:?}", cdb[0]);
        let delivered = (written as usize).checked_sub(SENSE_AT + self.sense_bytes).context("it wrote no answer")?;
        ensure!(
            delivered as u32 + response.residual == room,
            "command {:02x}h: {delivered} bytes of {room} came, {} did not",
            cdb[0],
            response.residual
        );
        data.truncate(delivered);
        Ok(data)
    }
}

fn be_u32(data: &[u8], at: usize) -> Result<u32> {
    let field = data.get(at..at + 4).and_then(|field| field.try_into().ok());
    field.map(u32::from_be_bytes).with_context(|| format!("{data:02x?} is too short"))
}

fn be_u64(data: &[u8], at: usize) -> Result<u64> {
    let field = data.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map(u64::from_be_bytes).with_context(|| format!("{data:02x?} is too short"))
}
