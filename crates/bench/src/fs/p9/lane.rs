//! One queue or connection at work: its operations, their requests, and what came of them.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};

use super::channel::{Reply, Request};
use super::client::{Attributes, Client, ok};
use super::fixture::{Fixture, Known};
use super::step::{Step, steps};
use super::wire::{AT_REMOVEDIR, QID_BYTES, STATS_BASIC, dir_entry, kind, open, qid_path_at, walked};
use crate::bytes::u32_at;
use crate::frontend::rng::Rng;
use crate::fs::job::Job;
use crate::fs::lane::{self, Lane as _, Offsets, Yield, missing_digits};
use crate::fs::patience::{NO_ENTRY, error};
use crate::fs::scratch::{Key, word};

/// Fids of operations begin here; those of fixtures stay below.
const OPERATION_FIDS: u32 = 1 << 20;
/// Most operations of a lane.
const OPERATIONS_MAX: u32 = 1 << 14;

/// The state of one operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operation {
    /// The name it makes, and for a rename its other one.
    names: [Box<[u8]>; 2],
    /// The fid that it works with, and the one for what it made.
    work: u32,
    made: u32,
    /// The file of the fixture it works on, or the places of its names in the tree.
    target: [usize; 3],
    /// The qid's path of what it made or walked to.
    path: u64,
    /// Where it reads, writes or lists, and how many bytes of the block have been moved.
    offset: u64,
    moved: usize,
    /// Entries listed since the directory's beginning.
    listed: u64,
    has_moved: bool,
}

/// A queue or a connection with a job.
pub(crate) struct Lane {
    client: Client,
    job: Job,
    index: usize,
    /// Which of the fixture's listings is its own.
    listing: usize,
    fixture: Arc<Fixture>,
    rng: Rng,
    offsets: Offsets,
    /// The group of what is created.
    gid: u32,
}

impl Lane {
    /// Lane `index` of `lanes`, which has listing `listing` of the fixture for itself.
    pub(crate) fn new(
        client: Client,
        (index, lanes): (usize, usize),
        listing: usize,
        job: Job,
        fixture: Arc<Fixture>,
    ) -> Self {
        let offsets = Offsets::new(job, (index, lanes), fixture.blocks, fixture.block_bytes);
        let gid = rustix::process::getegid().as_raw();
        Self { client, job, index, listing, fixture, rng: Rng::new(1, index as u64), offsets, gid }
    }

    /// Its way to the server.
    pub(crate) fn into_client(self) -> Client {
        self.client
    }

    /// One request, waited for, while nothing else is in flight.
    fn call(&mut self, operation: &mut Operation, step: Step) -> Result<()> {
        self.submit(0, operation, step);
        self.publish()?;
        let reply = self.client.wait_for_reply()?;
        self.settle(reply, operation, step).map(|_| ())
    }

    /// Bytes of the block that the next request of an operation moves.
    fn piece(&self, operation: &Operation) -> usize {
        self.fixture.piece_bytes.min(self.fixture.block_bytes - operation.moved)
    }

    /// Notes that another piece of an operation's block has been moved.
    fn moved(&self, operation: &mut Operation, piece: usize) -> Yield {
        operation.moved += piece;
        let again = operation.moved < self.fixture.block_bytes;
        if !again {
            operation.moved = 0;
        }
        Yield { again, ..Yield::default() }
    }

    fn target(&self, operation: &Operation) -> Result<&Known> {
        self.fixture.files.get(operation.target[0]).context("a file")
    }

    fn judge(&self, reply: Reply, operation: &mut Operation, step: Step) -> Result<Yield> {
        if step == Step::WalkMissing {
            return match reply.errno {
                NO_ENTRY => Ok(Yield::default()),
                0 => bail!("a name that does not exist was found"),
                errno => Err(error(errno).into()),
            };
        }
        let reply = ok(reply)?;
        if step == Step::Read {
            return self.judge_read(reply, operation);
        }
        if step == Step::ReadDir {
            return self.judge_listing(reply, operation);
        }
        let fields = self.client.channel.fields(reply);
        match step {
            Step::Write => {
                let (written, piece) = (u32_at(fields, 0)? as usize, self.piece(operation));
                ensure!(written == piece, "{written} bytes of {piece} at {}", operation.offset);
                return Ok(self.moved(operation, piece));
            }
            Step::Getattr | Step::GetattrKnown => {
                let (seen, file) = (Attributes::parse(fields)?, self.target(operation)?);
                let known = Attributes { path: file.path, size_bytes: file.size_bytes };
                ensure!(seen == known, "{seen:?}, not {known:?}");
            }
            Step::GetattrMade | Step::GetattrTree => {
                let seen = Attributes::parse(fields)?;
                ensure!(seen.path == operation.path, "qid path {}, not {}", seen.path, operation.path);
                ensure!(seen.size_bytes == 0, "{} bytes, not 0", seen.size_bytes);
            }
            Step::WalkKnown => {
                let (path, file) = (walked(fields, 1)?, self.target(operation)?);
                ensure!(path == file.path, "qid path {path}, not {}", file.path);
            }
            Step::CloneKnown | Step::CloneDir => _ = walked(fields, 0)?,
            Step::WalkMade => {
                let path = walked(fields, 1)?;
                ensure!(path == operation.path, "qid path {path}, not {}", operation.path);
            }
            Step::WalkTree => operation.path = walked(fields, 3)?,
            Step::Open | Step::Create => {
                ensure!(reply.len == QID_BYTES + 4, "{} bytes", reply.len);
                operation.path = qid_path_at(fields, 0)?;
            }
            Step::Mkdir => {
                ensure!(reply.len == QID_BYTES, "{} bytes", reply.len);
                operation.path = qid_path_at(fields, 0)?;
            }
            Step::RenameAt | Step::Rename => {
                ensure!(reply.len == 0, "{} bytes", reply.len);
                operation.has_moved = !operation.has_moved;
            }
            Step::Clunk | Step::ClunkMade | Step::UnlinkAt | Step::RemoveDirAt | Step::Remove => {
                ensure!(reply.len == 0, "{} bytes", reply.len);
            }
            Step::Read | Step::ReadDir | Step::WalkMissing => {}
        }
        Ok(Yield::default())
    }

    fn judge_read(&self, reply: Reply, operation: &mut Operation) -> Result<Yield> {
        let (data, piece) = (self.client.channel.data(reply), self.piece(operation));
        let at = operation.offset + operation.moved as u64;
        ensure!(data.len() == piece, "{} bytes of {piece} at {at}", data.len());
        // A piece may begin in the middle of a word, or be shorter than one.
        if let (true, Some(first)) = (at.is_multiple_of(8), data.get(..8)) {
            ensure!(first == word(at, Key::LaidOut), "wrong data at {at}");
        }
        Ok(self.moved(operation, piece))
    }

    fn judge_listing(&self, reply: Reply, operation: &mut Operation) -> Result<Yield> {
        if reply.len == 0 {
            let (listed, entries) = (operation.listed, self.fixture.entries);
            ensure!(listed == entries, "{listed} entries, not {entries}");
            operation.listed = 0;
            operation.offset = 0;
            return Ok(Yield { is_end: true, ..Yield::default() });
        }
        let mut rest = self.client.channel.data(reply);
        let mut entries = 0;
        while !rest.is_empty() {
            let (entry, len) = dir_entry(rest)?;
            operation.offset = entry.offset;
            entries += 1;
            rest = &rest[len..];
        }
        operation.listed += entries;
        Ok(Yield { entries, ..Yield::default() })
    }
}

impl lane::Lane for Lane {
    type Step = Step;
    type Operation = Operation;
    type Reply = Reply;

    fn job(&self) -> Job {
        self.job
    }

    fn steps(&self) -> &'static [Step] {
        steps(self.job, self.client.granted.has_at)
    }

    fn step_name(step: Step) -> &'static str {
        step.name()
    }

    fn depth(&self) -> u16 {
        self.client.channel.slots().depth()
    }

    fn block_bytes(&self) -> usize {
        self.fixture.block_bytes
    }

    fn operation(&self, n: usize) -> Operation {
        let (run, index) = (self.fixture.run, self.index);
        let name = |kind: char| format!("{kind}{run}-{index}-{n}").into_bytes().into_boxed_slice();
        // Lanes may share a session, and with it the fids.
        let work = OPERATION_FIDS + 2 * (index as u32 * OPERATIONS_MAX + n as u32 % OPERATIONS_MAX);
        Operation { names: [name('a'), name('b')], work, made: work + 1, ..Operation::default() }
    }

    fn prepare(&mut self, operation: &mut Operation) -> Result<()> {
        if self.job != Job::Rename {
            return Ok(());
        }
        for step in [Step::CloneDir, Step::Create, Step::Clunk] {
            self.call(operation, step)?;
        }
        if self.client.granted.has_at { Ok(()) } else { self.call(operation, Step::WalkMade) }
    }

    fn clean_up(&mut self, operation: &mut Operation) -> Result<()> {
        if self.job != Job::Rename {
            return Ok(());
        }
        if operation.has_moved {
            operation.names.swap(0, 1);
        }
        self.call(operation, if self.client.granted.has_at { Step::UnlinkAt } else { Step::Remove })
    }

    fn fill_data(&mut self) {
        if !self.job.writes_data() {
            return;
        }
        for slot in 0..self.depth() {
            Rng::new(u64::from(slot), self.index as u64).fill(self.client.channel.data_mut(slot));
        }
    }

    fn submit(&mut self, slot: u16, operation: &mut Operation, step: Step) {
        let fixture = Arc::clone(&self.fixture);
        let (dir, work, made, gid) = (fixture.dir, operation.work, operation.made, self.gid);
        let piece = self.piece(operation);
        if operation.moved == 0 && matches!(step, Step::Read | Step::Write) {
            operation.offset = self.offsets.next();
        }
        if matches!(step, Step::Getattr | Step::WalkKnown | Step::CloneKnown) {
            operation.target[0] = self.rng.below(fixture.files.len() as u64) as usize;
        }
        let channel = &mut self.client.channel;
        let plain = |kind| Request { kind, ..Request::default() };
        let at = operation.offset + operation.moved as u64;
        let [first, second] = &operation.names;
        let (from, to) = if operation.has_moved { (second, first) } else { (first, second) };
        match step {
            Step::Read => {
                let request = Request { data_in: piece, ..plain(kind::TREAD) };
                channel.submit(slot, request, |f| _ = f.span(fixture.file, at, piece as u32));
            }
            Step::Write => {
                let request = Request { data_out: piece, ..plain(kind::TWRITE) };
                channel.submit(slot, request, |f| _ = f.span(fixture.file, at, piece as u32));
            }
            Step::ReadDir => {
                let listing = fixture.listings.get(self.listing).copied().unwrap_or_default();
                let count = fixture.listing_bytes;
                let request = Request { data_in: count, ..plain(kind::TREADDIR) };
                channel.submit(slot, request, |f| _ = f.span(listing, at, count as u32));
            }
            Step::Getattr | Step::WalkKnown | Step::CloneKnown => {
                let Some(file) = fixture.files.get(operation.target[0]) else { return };
                match step {
                    Step::Getattr => {
                        channel.submit(slot, plain(kind::TGETATTR), |f| _ = f.u32(file.fid).u64(STATS_BASIC));
                    }
                    Step::WalkKnown => {
                        channel.submit(slot, plain(kind::TWALK), |f| _ = f.walk(dir, work, &[&file.name]));
                    }
                    _ => channel.submit(slot, plain(kind::TWALK), |f| _ = f.walk(file.fid, work, &[])),
                }
            }
            Step::GetattrKnown | Step::GetattrTree => {
                channel.submit(slot, plain(kind::TGETATTR), |f| _ = f.u32(work).u64(STATS_BASIC));
            }
            Step::GetattrMade => channel.submit(slot, plain(kind::TGETATTR), |f| _ = f.u32(made).u64(STATS_BASIC)),
            Step::Clunk => channel.submit(slot, plain(kind::TCLUNK), |f| _ = f.u32(work)),
            Step::ClunkMade => channel.submit(slot, plain(kind::TCLUNK), |f| _ = f.u32(made)),
            Step::Remove => channel.submit(slot, plain(kind::TREMOVE), |f| _ = f.u32(made)),
            Step::WalkMissing => {
                let name = [&b"missing-"[..], &missing_digits(&mut self.rng)].concat();
                channel.submit(slot, plain(kind::TWALK), |f| _ = f.walk(dir, work, &[&name]));
            }
            Step::CloneDir => channel.submit(slot, plain(kind::TWALK), |f| _ = f.walk(dir, work, &[])),
            Step::WalkMade => channel.submit(slot, plain(kind::TWALK), |f| _ = f.walk(dir, made, &[first])),
            Step::WalkTree => {
                let mut names: [&[u8]; 3] = [&[][..]; 3];
                for ((name, known), target) in names.iter_mut().zip(&fixture.tree_names).zip(&mut operation.target) {
                    *target = self.rng.below(known.len() as u64) as usize;
                    *name = known.get(*target).map_or(&[][..], |known| &known[..]);
                }
                channel.submit(slot, plain(kind::TWALK), |f| _ = f.walk(dir, work, &names));
            }
            Step::Open => {
                let flags = open::READ_ONLY | open::LARGE_FILE;
                channel.submit(slot, plain(kind::TLOPEN), |f| _ = f.u32(work).u32(flags));
            }
            Step::Create => {
                let flags = open::READ_WRITE | open::CREATE | open::EXCLUSIVE | open::LARGE_FILE;
                channel.submit(slot, plain(kind::TLCREATE), |f| {
                    f.u32(work).string(first).u32(flags).u32(0o100_644).u32(gid);
                });
            }
            Step::Mkdir => channel.submit(slot, plain(kind::TMKDIR), |f| {
                f.u32(dir).string(first).u32(0o755).u32(gid);
            }),
            Step::UnlinkAt | Step::RemoveDirAt => {
                let flags = if step == Step::UnlinkAt { 0 } else { AT_REMOVEDIR };
                channel.submit(slot, plain(kind::TUNLINKAT), |f| _ = f.u32(dir).string(first).u32(flags));
            }
            Step::RenameAt => channel.submit(slot, plain(kind::TRENAMEAT), |f| {
                f.u32(dir).string(from).u32(dir).string(to);
            }),
            Step::Rename => channel.submit(slot, plain(kind::TRENAME), |f| _ = f.u32(made).u32(dir).string(to)),
        }
    }

    fn publish(&mut self) -> Result<()> {
        self.client.channel.publish()
    }

    fn in_flight(&self) -> usize {
        self.client.channel.slots().in_flight()
    }

    fn has_reply(&mut self) -> Result<bool> {
        self.client.channel.has_reply()
    }

    fn wait(&mut self) -> Result<()> {
        self.client.channel.wait(self.client.server_pid)
    }

    fn take(&mut self) -> Result<Option<(u16, Reply)>> {
        Ok(self.client.channel.take()?.map(|reply| (reply.slot, reply)))
    }

    fn settle(&mut self, reply: Reply, operation: &mut Operation, step: Step) -> Result<Yield> {
        self.judge(reply, operation, step).with_context(|| format!("{} failed", step.name()))
    }
}
