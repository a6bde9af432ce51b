//! One request queue at work: its operations, their requests, and what came of them.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;

use super::client::{self, Open, forget};
use super::fixture::Fixture;
use super::port::{Port, Reply, Request};
use super::step::{Step, steps};
use super::wire::{ATTR_BYTES, ENTRY_BYTES, OPEN_BYTES, WRITE_BYTES, dir_entry, opcode};
use crate::bytes::{u32_at, u64_at};
use crate::frontend::rng::Rng;
use crate::fs::job::Job;
use crate::fs::lane::{self, LISTING_BYTES, Lane as _, Offsets, Yield, missing_digits};
use crate::fs::patience::{NO_ENTRY, NOT_IMPLEMENTED, error};
use crate::fs::scratch::{Key, word};

/// Where the size is in `struct fuse_attr_out` and in `struct fuse_entry_out`.
const ATTR_SIZE_AT: usize = 16 + 8;
const ENTRY_SIZE_AT: usize = 40 + 8;
/// How many FORGETs go out at once.
const FORGETS_GATHERED: usize = 32;

/// The state of one operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operation {
    /// The name it makes, and for a rename its other one.
    names: [Box<[u8]>; 2],
    /// The file of the fixture it works on, or the places of its names in the tree.
    target: [usize; 3],
    /// Nodes on its path.
    nodes: [u64; 3],
    open: Open,
    /// Where it reads, writes or lists.
    offset: u64,
    /// Entries listed since the directory's beginning.
    listed: u64,
    has_moved: bool,
}

/// The high-priority queue, which all lanes share.
pub(crate) type Forgets = Arc<Mutex<Port>>;

/// A queue with a job.
pub(crate) struct Lane {
    port: Port,
    server_pid: Option<u32>,
    job: Job,
    index: usize,
    fixture: Arc<Fixture>,
    forgets: Forgets,
    to_forget: Vec<u64>,
    rng: Rng,
    offsets: Offsets,
}

impl Lane {
    /// Lane `index` of `lanes`, on `port`.
    pub(crate) fn new(
        port: Port,
        (index, lanes): (usize, usize),
        job: Job,
        fixture: Arc<Fixture>,
        forgets: Forgets,
        server_pid: Option<u32>,
    ) -> Self {
        let offsets = Offsets::new(job, (index, lanes), fixture.blocks, fixture.block_bytes);
        Self {
            port,
            server_pid,
            job,
            index,
            fixture,
            forgets,
            to_forget: Vec::new(),
            rng: Rng::new(1, index as u64),
            offsets,
        }
    }

    /// Its queue, and its share of the other one.
    pub(crate) fn into_parts(self) -> (Port, Forgets) {
        (self.port, self.forgets)
    }

    /// One request, waited for, while nothing else is in flight.
    fn call(&mut self, operation: &mut Operation, step: Step) -> Result<()> {
        self.submit(0, operation, step);
        self.port.places.queue.publish()?;
        let reply = loop {
            match self.port.take()? {
                Some(reply) => break reply,
                None => client::wait(&mut self.port, self.server_pid)?,
            }
        };
        self.settle(reply, operation, step).map(|_| ())
    }

    fn judge(&mut self, reply: Reply, operation: &mut Operation, step: Step) -> Result<Yield> {
        if step == Step::LookupMiss && reply.errno == NO_ENTRY {
            return Ok(Yield::default());
        }
        if step == Step::Open && reply.errno == NOT_IMPLEMENTED {
            bail!("the server keeps no state for opens (FUSE_NO_OPEN_SUPPORT), so that there is nothing to measure");
        }
        if reply.errno != 0 {
            return Err(error(reply.errno).into());
        }
        let args = self.port.args(reply);
        match step {
            Step::Read => {
                let data = self.port.data(reply);
                ensure!(data.len() == self.fixture.block_bytes, "{} bytes at {}", data.len(), operation.offset);
                let right = word(operation.offset, Key::LaidOut);
                ensure!(data.get(..8) == Some(&right), "wrong data at {}", operation.offset);
            }
            Step::Write => {
                let written = u32_at(args, 0)?;
                ensure!(written as usize == self.fixture.block_bytes, "{written} bytes at {}", operation.offset);
            }
            Step::Getattr => {
                let file = self.fixture.files.get(operation.target[0]).context("a file")?;
                let size_bytes = u64_at(args, ATTR_SIZE_AT)?;
                ensure!(size_bytes == file.size_bytes, "{size_bytes} bytes, not {}", file.size_bytes);
            }
            Step::LookupHit => {
                let file = self.fixture.files.get(operation.target[0]).context("a file")?;
                let (node, size_bytes) = (u64_at(args, 0)?, u64_at(args, ENTRY_SIZE_AT)?);
                ensure!(
                    (node, size_bytes) == (file.node, file.size_bytes),
                    "node {node} of {size_bytes} bytes, not {} of {}",
                    file.node,
                    file.size_bytes
                );
            }
            Step::LookupMiss => ensure!(u64_at(args, 0)? == 0, "a name that does not exist was found"),
            Step::Open => operation.open.fh = Some(u64_at(args, 0)?),
            Step::Create | Step::Mkdir => {
                let node = u64_at(args, 0)?;
                ensure!(node > 1, "node {node}");
                operation.nodes[2] = node;
                operation.open.node = node;
                if step == Step::Create {
                    operation.open.fh = Some(u64_at(args, ENTRY_BYTES)?);
                }
            }
            Step::LookupOuter | Step::LookupInner | Step::LookupFile => {
                let node = u64_at(args, 0)?;
                ensure!(node > 1, "node {node}");
                operation.nodes[level(step)] = node;
            }
            Step::LookupNew => {
                let node = u64_at(args, 0)?;
                ensure!(node == operation.nodes[2], "node {node}, not {}", operation.nodes[2]);
            }
            Step::GetattrFile => ensure!(reply.len == ATTR_BYTES, "{} bytes", reply.len),
            Step::Rename => {
                ensure!(reply.len == 0, "{} bytes", reply.len);
                operation.has_moved = !operation.has_moved;
            }
            Step::Readdir | Step::Readdirplus => return self.judge_listing(reply, operation),
            Step::Release | Step::Unlink | Step::Rmdir | Step::Forget => {
                ensure!(reply.len == 0, "{} bytes", reply.len);
            }
        }
        Ok(Yield::default())
    }

    fn judge_listing(&mut self, reply: Reply, operation: &mut Operation) -> Result<Yield> {
        if reply.len == 0 {
            let (listed, entries) = (operation.listed, self.fixture.entries);
            ensure!(listed == entries, "{listed} entries, not {entries}");
            operation.listed = 0;
            operation.offset = 0;
            return Ok(Yield { is_end: true, ..Yield::default() });
        }
        let mut rest = self.port.data(reply);
        let mut entries = 0;
        while !rest.is_empty() {
            let (entry, len) = dir_entry(rest, self.job != Job::Readdir)?;
            operation.offset = entry.offset;
            if self.job == Job::ReaddirplusCold && entry.node != 0 {
                self.to_forget.push(entry.node);
            }
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
        steps(self.job)
    }

    fn step_name(step: Step) -> &'static str {
        step.name()
    }

    fn depth(&self) -> u16 {
        self.port.depth()
    }

    fn block_bytes(&self) -> usize {
        self.fixture.block_bytes
    }

    fn operation(&self, n: usize) -> Operation {
        let (run, index) = (self.fixture.run, self.index);
        let name = |kind: char| format!("{kind}{run}-{index}-{n}").into_bytes().into_boxed_slice();
        let open = self.fixture.listings.get(self.index).copied().unwrap_or_default();
        Operation { names: [name('a'), name('b')], open, ..Operation::default() }
    }

    fn prepare(&mut self, operation: &mut Operation) -> Result<()> {
        if self.job != Job::Rename {
            return Ok(());
        }
        self.call(operation, Step::Create)?;
        self.call(operation, Step::Release)
    }

    fn clean_up(&mut self, operation: &mut Operation) -> Result<()> {
        if self.job != Job::Rename {
            return Ok(());
        }
        if operation.has_moved {
            operation.names.swap(0, 1);
        }
        self.tell(operation);
        self.call(operation, Step::Unlink)
    }

    fn fill_data(&mut self) {
        if !self.job.writes_data() {
            return;
        }
        for slot in 0..self.port.depth() {
            Rng::new(u64::from(slot), self.index as u64).fill(self.port.data_mut(slot));
        }
    }

    fn submit(&mut self, slot: u16, operation: &mut Operation, step: Step) {
        let fixture = Arc::clone(&self.fixture);
        let (dir, bytes) = (fixture.dir, fixture.block_bytes);
        let port = &mut self.port;
        let request = |opcode, node, args_in| Request { opcode, node, args_in, ..Request::default() };
        let create = (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::LARGEFILE).bits();
        match step {
            Step::Read | Step::Write => {
                let (offset, file) = (self.offsets.next(), fixture.file);
                operation.offset = offset;
                let request = if step == Step::Read {
                    Request { data_in: bytes, ..request(opcode::READ, file.node, 0) }
                } else {
                    Request { data_out: bytes, ..request(opcode::WRITE, file.node, WRITE_BYTES) }
                };
                self.port.submit(slot, request, |args| {
                    args.transfer(file.handle(), offset, bytes as u32, file.flags);
                });
            }
            Step::Getattr | Step::LookupHit | Step::Open => {
                operation.target[0] = self.rng.below(fixture.files.len() as u64) as usize;
                let Some(file) = fixture.files.get(operation.target[0]) else { return };
                match step {
                    Step::Getattr => port.submit(slot, request(opcode::GETATTR, file.node, ATTR_BYTES), |args| {
                        args.u32(0).u32(0).u64(0);
                    }),
                    Step::LookupHit => port.submit(slot, request(opcode::LOOKUP, dir, ENTRY_BYTES), |args| {
                        args.name(&file.name);
                    }),
                    _ => {
                        operation.open =
                            Open { node: file.node, fh: None, flags: (OFlags::RDONLY | OFlags::LARGEFILE).bits() };
                        let flags = operation.open.flags;
                        port.submit(slot, request(opcode::OPEN, file.node, OPEN_BYTES), |args| {
                            args.u32(flags).u32(0);
                        });
                    }
                }
            }
            Step::LookupMiss => {
                let digits = missing_digits(&mut self.rng);
                port.submit(slot, request(opcode::LOOKUP, dir, ENTRY_BYTES), |args| {
                    args.bytes(b"missing-").name(&digits);
                });
            }
            Step::Create => {
                operation.open.flags = (OFlags::RDWR | OFlags::LARGEFILE).bits();
                port.submit(slot, request(opcode::CREATE, dir, ENTRY_BYTES + OPEN_BYTES), |args| {
                    args.u32(create).u32(0o100_644).u32(0o022).u32(0).name(&operation.names[0]);
                });
            }
            Step::Release => port.submit(slot, request(opcode::RELEASE, operation.open.node, 0), |args| {
                args.release(operation.open.handle(), operation.open.flags);
            }),
            Step::Mkdir => port.submit(slot, request(opcode::MKDIR, dir, ENTRY_BYTES), |args| {
                args.u32(0o755).u32(0o022).name(&operation.names[0]);
            }),
            Step::Unlink | Step::Rmdir => {
                let opcode = if step == Step::Unlink { opcode::UNLINK } else { opcode::RMDIR };
                port.submit(slot, request(opcode, dir, 0), |args| _ = args.name(&operation.names[0]));
            }
            Step::Rename => {
                let [first, second] = &operation.names;
                let (from, to) = if operation.has_moved { (second, first) } else { (first, second) };
                port.submit(slot, request(opcode::RENAME, dir, 0), |args| _ = args.u64(dir).name(from).name(to));
            }
            Step::LookupNew => port.submit(slot, request(opcode::LOOKUP, dir, ENTRY_BYTES), |args| {
                args.name(&operation.names[0]);
            }),
            Step::Readdir | Step::Readdirplus => {
                let (listing, offset) = (operation.open, operation.offset);
                let opcode = if step == Step::Readdir { opcode::READDIR } else { opcode::READDIRPLUS };
                let request = Request { data_in: LISTING_BYTES, ..request(opcode, listing.node, 0) };
                port.submit(slot, request, |args| {
                    args.transfer(listing.handle(), offset, LISTING_BYTES as u32, listing.flags);
                });
            }
            Step::LookupOuter | Step::LookupInner | Step::LookupFile => {
                let level = level(step);
                let names = &fixture.tree_names[level];
                operation.target[level] = self.rng.below(names.len() as u64) as usize;
                let parent = if level == 0 { dir } else { operation.nodes[level - 1] };
                let Some(name) = names.get(operation.target[level]) else { return };
                port.submit(slot, request(opcode::LOOKUP, parent, ENTRY_BYTES), |args| _ = args.name(name));
            }
            Step::GetattrFile => {
                port.submit(slot, request(opcode::GETATTR, operation.nodes[2], ATTR_BYTES), |args| {
                    args.u32(0).u32(0).u64(0);
                });
            }
            Step::Forget => {}
        }
    }

    fn publish(&mut self) -> Result<()> {
        self.port.places.queue.publish()
    }

    fn in_flight(&self) -> usize {
        self.port.in_flight
    }

    fn has_reply(&mut self) -> Result<bool> {
        Ok(self.port.places.queue.has_used())
    }

    fn wait(&mut self) -> Result<()> {
        if self.port.places.queue.has_used() {
            return Ok(());
        }
        client::wait(&mut self.port, self.server_pid)
    }

    fn take(&mut self) -> Result<Option<(u16, Reply)>> {
        Ok(self.port.take()?.map(|reply| (reply.slot, reply)))
    }

    fn settle(&mut self, reply: Reply, operation: &mut Operation, step: Step) -> Result<Yield> {
        self.judge(reply, operation, step).with_context(|| format!("{} failed", step.name()))
    }

    fn is_mute(step: Step) -> bool {
        step == Step::Forget
    }

    fn tell(&mut self, operation: &Operation) {
        self.to_forget.push(operation.nodes[2]);
    }

    fn tidy(&mut self, all: bool) -> Result<()> {
        if !all && self.to_forget.len() < FORGETS_GATHERED {
            return Ok(());
        }
        // A lane that panicked has failed the run.
        let mut port = self.forgets.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        forget(&mut port, self.server_pid, &self.to_forget, self.job == Job::ReaddirplusCold)?;
        self.to_forget.clear();
        if all { client::drain(&mut port, self.server_pid) } else { Ok(()) }
    }
}

/// The level of the tree that a step looks up.
fn level(step: Step) -> usize {
    match step {
        Step::LookupOuter => 0,
        Step::LookupInner => 1,
        _ => 2,
    }
}
