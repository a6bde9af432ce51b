//! What a job needs before it runs: fids walked to, files opened, and data checked.

use anyhow::{Context, Result, ensure};

use super::client::Client;
use super::wire::{dir_entry, open};
use crate::fs::check::{Data, check_file, check_listing};
use crate::fs::job::Job;
use crate::fs::lane::{LISTING_BYTES, Order};
use crate::fs::scratch::{BIG, FILE_COUNT, FILES, READ_FILE, TREE, WORK, WRITE_FILE, file_name, tree_names};

/// Data of a direct read or write is a multiple of this, where an operation takes several.
const DIRECT_BYTES: usize = 4096;

/// A name with what the server said about it.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) name: Box<[u8]>,
    pub(crate) fid: u32,
    /// Its qid's path.
    pub(crate) path: u64,
    pub(crate) size_bytes: u64,
}

/// What requests of a job name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fixture {
    /// Makes names of this run differ from those that another may have left behind.
    pub(crate) run: u32,
    /// The file that is read or written, its blocks, their size, and how much of one a request moves.
    pub(crate) file: u32,
    pub(crate) blocks: u64,
    pub(crate) block_bytes: usize,
    pub(crate) piece_bytes: usize,
    /// The directory that names are looked up or made in.
    pub(crate) dir: u32,
    /// Files in it.
    pub(crate) files: Vec<Known>,
    /// Names in the tree, by level.
    pub(crate) tree_names: [Vec<Box<[u8]>>; 3],
    /// The large directory, opened once for each lane, its entries with `.` and `..` when they are listed, and how many
    /// bytes of it a request asks for.
    pub(crate) listings: Vec<u32>,
    pub(crate) entries: u64,
    pub(crate) listing_bytes: usize,
}

/// A file that is open on a server.
struct OpenFile<'a> {
    client: &'a mut Client,
    fid: u32,
    piece_bytes: usize,
}

impl Data for OpenFile<'_> {
    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut data = Vec::with_capacity(len);
        while data.len() < len {
            let piece = self.piece_bytes.min(len - data.len());
            let seen = self.client.read(self.fid, offset + data.len() as u64, piece)?;
            data.extend_from_slice(seen);
            if seen.len() < piece {
                break;
            }
        }
        Ok(data)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let offsets = (offset..).step_by(self.piece_bytes);
        for (piece, at) in data.chunks(self.piece_bytes).zip(offsets) {
            self.client.write(self.fid, at, piece)?;
        }
        Ok(())
    }
}

impl Fixture {
    /// Prepares a job for `lanes` lanes on `client`, and checks that the server reads and writes what is in the host's
    /// files.
    pub(crate) fn prepare(client: &mut Client, order: &Order<'_>, lanes: usize) -> Result<Self> {
        let io_bytes_max = client.granted.io_bytes_max();
        let whole = if order.direct { io_bytes_max / DIRECT_BYTES * DIRECT_BYTES } else { io_bytes_max };
        ensure!(whole > 0, "--direct: msize {} holds no block", client.granted.msize);
        let mut fixture = Self {
            run: order.run,
            block_bytes: order.block_bytes,
            piece_bytes: order.block_bytes.min(whole),
            listing_bytes: LISTING_BYTES.min(io_bytes_max),
            ..Self::default()
        };
        match order.job {
            Job::ReadSeq | Job::ReadRand | Job::WriteSeq | Job::WriteRand => fixture.prepare_file(client, order)?,
            Job::Getattr | Job::LookupHit | Job::LookupMiss | Job::OpenRelease => {
                fixture.dir = client.walk(&order.base.join(FILES))?;
                fixture.walk_to_files(client)?;
            }
            Job::CreateUnlink | Job::CreateStatUnlink | Job::MkdirRmdir | Job::Rename => {
                fixture.dir = client.walk(&order.base.join(WORK))?;
            }
            Job::Tree => {
                fixture.dir = client.walk(&order.base.join(TREE))?;
                fixture.tree_names = tree_names();
            }
            // The last two are not asked for: see `Job::is_in`.
            Job::Readdir | Job::Readdirplus | Job::ReaddirplusCold => fixture.prepare_listing(client, order, lanes)?,
        }
        Ok(fixture)
    }

    fn prepare_file(&mut self, client: &mut Client, order: &Order<'_>) -> Result<()> {
        let (name, access) =
            if order.job.reads_data() { (READ_FILE, open::READ_ONLY) } else { (WRITE_FILE, open::READ_WRITE) };
        self.file = client.walk(&order.base.join(name))?;
        self.blocks = client.attributes(self.file)?.size_bytes / self.block_bytes as u64;
        ensure!(self.blocks > 0, "--file-size: smaller than --bs");
        let direct = if order.direct { open::DIRECT } else { 0 };
        client.open(self.file, access | open::LARGE_FILE | direct).context(name)?;
        check_file(&mut OpenFile { client, fid: self.file, piece_bytes: self.piece_bytes }, order, self.blocks)
    }

    fn walk_to_files(&mut self, client: &mut Client) -> Result<()> {
        for n in 0..FILE_COUNT {
            let name = file_name(n).into_bytes();
            let (fid, path) = client.walk_one(self.dir, &name).context(FILES)?;
            let size_bytes = u64::from(n) + 1;
            let seen = client.attributes(fid)?;
            ensure!(seen.size_bytes == size_bytes, "Tgetattr of file {n}: {} bytes, not {size_bytes}", seen.size_bytes);
            ensure!(seen.path == path, "Tgetattr of file {n}: qid path {}, and {path} by Twalk", seen.path);
            self.files.push(Known { name: name.into(), fid, path, size_bytes });
        }
        Ok(())
    }

    /// Lists the directory once, whole, and compares the names with the host's.
    fn prepare_listing(&mut self, client: &mut Client, order: &Order<'_>, lanes: usize) -> Result<()> {
        for _ in 0..lanes {
            let fid = client.walk(&order.base.join(BIG))?;
            client.open(fid, open::READ_ONLY | open::LARGE_FILE | open::DIRECTORY).context(BIG)?;
            self.listings.push(fid);
        }
        let Some(fid) = self.listings.first().copied() else { return Ok(()) };
        let mut names = Vec::new();
        let mut offset = 0;
        loop {
            let mut rest = client.read_dir(fid, offset, self.listing_bytes)?;
            if rest.is_empty() {
                break;
            }
            while !rest.is_empty() {
                let (entry, len) = dir_entry(rest)?;
                names.push(entry.name.to_vec());
                offset = entry.offset;
                rest = &rest[len..];
            }
            ensure!(names.len() <= order.entries as usize + 2, "a listing has more than there is");
        }
        self.entries = names.len() as u64;
        check_listing(names, order.entries)
    }
}
