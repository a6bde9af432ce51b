//! What a job needs before it runs: nodes looked up, files opened, and data checked.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

use super::client::{Client, Open, drain, forget};
use super::job::Job;
use super::port::Request;
use super::scratch::{
    BIG, FILE_COUNT, FILES, Key, READ_FILE, Scratch, TREE, TREE_DIRS, TREE_FILES, WORK, WRITE_FILE, entry_name,
    file_name, fill, first_wrong, tree_name,
};
use super::wire::{dir_entry, opcode};
use crate::frontend::rng::Rng;

/// Linux asks for so much of a directory at once, at most (32 pages).
pub(crate) const LISTING_BYTES: usize = 32 * 4096;
/// Blocks that the untimed check looks at.
const BLOCKS_CHECKED: u64 = 256;

/// A name with what the server said about it.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) name: Box<[u8]>,
    pub(crate) node: u64,
    pub(crate) size_bytes: u64,
}

/// What requests of a job name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fixture {
    /// Makes names of this run differ from those that another may have left behind.
    pub(crate) run: u32,
    /// The file that is read or written, its blocks, and their size.
    pub(crate) file: Open,
    pub(crate) blocks: u64,
    pub(crate) block_bytes: usize,
    /// The directory that names are looked up or made in.
    pub(crate) dir: u64,
    /// Files in it.
    pub(crate) files: Vec<Known>,
    /// Names in the tree, by level.
    pub(crate) tree_names: [Vec<Box<[u8]>>; 3],
    /// The large directory, opened once for each queue, and its entries, with `.` and `..` when they are listed.
    pub(crate) listings: Vec<Open>,
    pub(crate) entries: u64,
}

/// What a job is prepared for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) job: Job,
    /// Differs from run to run.
    pub(crate) run: u32,
    pub(crate) block_bytes: usize,
    pub(crate) direct: bool,
    /// Entries of the large directory.
    pub(crate) entries: u32,
    pub(crate) scratch: &'a Scratch,
    /// Where the scratch directory is in what the server shares.
    pub(crate) base: &'a Path,
}

impl Fixture {
    /// Prepares a job on `client`, and checks that the server reads and writes what is in the host's files.
    pub(crate) fn prepare(client: &mut Client, order: &Order<'_>) -> Result<Self> {
        let job = order.job;
        let mut fixture = Self { run: order.run, block_bytes: order.block_bytes, ..Self::default() };
        match job {
            Job::ReadSeq | Job::ReadRand | Job::WriteSeq | Job::WriteRand => fixture.prepare_file(client, order)?,
            Job::Getattr | Job::LookupHit | Job::LookupMiss | Job::OpenRelease => {
                fixture.dir = client.walk(&order.base.join(FILES))?;
                fixture.look_up_files(client)?;
            }
            Job::CreateUnlink | Job::MkdirRmdir | Job::Rename => {
                fixture.dir = client.walk(&order.base.join(WORK))?;
            }
            Job::Tree => {
                fixture.dir = client.walk(&order.base.join(TREE))?;
                let names = |kind, count| (0..count).map(|n| tree_name(kind, n).into_bytes().into()).collect();
                fixture.tree_names = [names('a', TREE_DIRS), names('b', TREE_DIRS), names('f', TREE_FILES)];
            }
            Job::Readdirplus | Job::ReaddirplusCold => fixture.prepare_listing(client, order)?,
        }
        Ok(fixture)
    }

    fn prepare_file(&mut self, client: &mut Client, order: &Order<'_>) -> Result<()> {
        let (name, flags) =
            if order.job.reads_data() { (READ_FILE, OFlags::RDONLY) } else { (WRITE_FILE, OFlags::RDWR) };
        let node = client.walk(&order.base.join(name))?;
        let flags = if order.direct { flags | OFlags::DIRECT } else { flags };
        self.file = client.open(node, flags).context(name)?;
        self.blocks = client.size_bytes(node)? / self.block_bytes as u64;
        ensure!(self.blocks > 0, "--file-size: smaller than --bs");
        if order.job.writes_data() {
            let most = client.granted.write_bytes_max;
            ensure!(self.block_bytes <= most as usize, "--bs: the server takes WRITE up to {most} bytes");
        }
        let mut rng = Rng::new(self.blocks, 7);
        let mut data = vec![0; self.block_bytes];
        for index in 0..BLOCKS_CHECKED.min(self.blocks) {
            // The first, the last, and some between.
            let block = match index {
                0 => 0,
                1 => self.blocks - 1,
                _ => rng.below(self.blocks),
            };
            let offset = block * self.block_bytes as u64;
            if order.job.reads_data() {
                let seen = client.read(&self.file, offset, self.block_bytes)?;
                let (len, wrong) = (seen.len(), first_wrong(seen, offset, Key::LaidOut));
                ensure!(len == self.block_bytes, "READ at {offset}: {len} bytes of {}", self.block_bytes);
                ensure!(wrong.is_none(), "READ at {offset}: wrong data at {wrong:?}");
            } else {
                fill(&mut data, offset, Key::Written);
                client.write(&self.file, offset, &data)?;
                order.scratch.check_written(offset, self.block_bytes)?;
                // So that the next check does not see what this one wrote.
                fill(&mut data, offset, Key::LaidOut);
                client.write(&self.file, offset, &data)?;
            }
        }
        Ok(())
    }

    fn look_up_files(&mut self, client: &mut Client) -> Result<()> {
        for n in 0..FILE_COUNT {
            let name = file_name(n).into_bytes();
            let node = client.lookup(self.dir, &name)?.with_context(|| format!("{FILES}: file {n} is missing"))?;
            let size_bytes = u64::from(n) + 1;
            let seen = client.size_bytes(node)?;
            ensure!(seen == size_bytes, "GETATTR of file {n}: {seen} bytes, not {size_bytes}");
            self.files.push(Known { name: name.into(), node, size_bytes });
        }
        Ok(())
    }

    /// Lists the directory once, whole, and compares the names with the host's.
    fn prepare_listing(&mut self, client: &mut Client, order: &Order<'_>) -> Result<()> {
        let node = client.walk(&order.base.join(BIG))?;
        for _ in 0..client.device.ports.len() {
            self.listings.push(client.open(node, OFlags::RDONLY | OFlags::DIRECTORY)?);
        }
        let Some(listing) = self.listings.first().copied() else { return Ok(()) };
        let (mut names, mut nodes) = (Vec::new(), Vec::new());
        let mut offset = 0;
        loop {
            let request = Request { opcode: opcode::READDIRPLUS, node, data_in: LISTING_BYTES, ..Request::default() };
            let reply = client.call(request, &[], |args| {
                args.transfer(listing.handle(), offset, LISTING_BYTES as u32, listing.flags);
            })?;
            ensure!(reply.errno == 0, "READDIRPLUS: {}", super::client::error(reply.errno));
            if reply.len == 0 {
                break;
            }
            let mut rest = client.device.ports[0].data(reply);
            while !rest.is_empty() {
                let (entry, len) = dir_entry(rest)?;
                names.push(entry.name.to_vec());
                nodes.extend((entry.node != 0).then_some(entry.node));
                offset = entry.offset;
                rest = &rest[len..];
            }
            ensure!(names.len() <= order.entries as usize + 2, "READDIRPLUS lists more than there is");
            if order.job == Job::ReaddirplusCold {
                // At once, as the job does: a server may have a descriptor open for each file that it knows.
                let port = client.device.forgets.as_mut().context("the high-priority queue")?;
                forget(port, client.server_pid, &nodes, true)?;
                drain(port, client.server_pid)?;
                nodes.clear();
            }
        }
        self.entries = names.len() as u64;
        names.retain(|name| name != b"." && name != b"..");
        names.sort_unstable();
        let is_same = names.iter().cloned().eq((0..order.entries).map(|n| entry_name(n).into_bytes()));
        ensure!(is_same, "READDIRPLUS: {} names, not the {} that are there", names.len(), order.entries);
        Ok(())
    }
}
