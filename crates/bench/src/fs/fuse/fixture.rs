//! What a job needs before it runs: nodes looked up, files opened, and data checked.

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

use super::client::{Client, Open, drain, forget};
use super::port::Request;
use super::wire::{dir_entry, opcode};
use crate::fs::check::{Data, check_file, check_listing};
use crate::fs::job::Job;
use crate::fs::lane::{LISTING_BYTES, Order};
use crate::fs::patience::error;
use crate::fs::scratch::{BIG, FILE_COUNT, FILES, READ_FILE, TREE, WORK, WRITE_FILE, file_name, tree_names};

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

/// A file that is open on a server.
struct OpenFile<'a> {
    client: &'a mut Client,
    file: Open,
}

impl Data for OpenFile<'_> {
    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
        Ok(self.client.read(&self.file, offset, len)?.to_vec())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.client.write(&self.file, offset, data)
    }
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
            Job::CreateUnlink | Job::CreateStatUnlink | Job::MkdirRmdir | Job::Rename => {
                fixture.dir = client.walk(&order.base.join(WORK))?;
            }
            Job::Tree => {
                fixture.dir = client.walk(&order.base.join(TREE))?;
                fixture.tree_names = tree_names();
            }
            Job::Readdir | Job::Readdirplus | Job::ReaddirplusCold => fixture.prepare_listing(client, order)?,
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
        check_file(&mut OpenFile { client, file: self.file }, order, self.blocks)
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
            let opcode = if order.job == Job::Readdir { opcode::READDIR } else { opcode::READDIRPLUS };
            let request = Request { opcode, node, data_in: LISTING_BYTES, ..Request::default() };
            let reply = client.call(request, &[], |args| {
                args.transfer(listing.handle(), offset, LISTING_BYTES as u32, listing.flags);
            })?;
            ensure!(reply.errno == 0, "a listing: {}", error(reply.errno));
            if reply.len == 0 {
                break;
            }
            let mut rest = client.device.ports[0].data(reply);
            while !rest.is_empty() {
                let (entry, len) = dir_entry(rest, order.job != Job::Readdir)?;
                names.push(entry.name.to_vec());
                nodes.extend((entry.node != 0).then_some(entry.node));
                offset = entry.offset;
                rest = &rest[len..];
            }
            ensure!(names.len() <= order.entries as usize + 2, "a listing has more than there is");
            if order.job == Job::ReaddirplusCold {
                // At once, as the job does: a server may have a descriptor open for each file that it knows.
                let port = client.device.forgets.as_mut().context("the high-priority queue")?;
                forget(port, client.server_pid, &nodes, true)?;
                drain(port, client.server_pid)?;
                nodes.clear();
            }
        }
        self.entries = names.len() as u64;
        check_listing(names, order.entries)
    }
}
