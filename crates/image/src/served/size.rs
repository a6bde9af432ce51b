//! How a disk grows, and its L1 table.
//!
//! A disk that is served grows as far as its L1 table reaches: workers look into that without a lock. Of an image that
//! a tool has alone the L1 table is replaced as well: the new one is on stable storage before the header names it, and
//! the old one is given back after that. What would come up behind the old end is cleared before the header says the
//! new size, so that a power cut leaves either disk.

use super::error::Trouble;
use super::refcounts::patch_header;
use super::{Qcow2Storage, disk, reason};
use crate::header::{self, L1_BYTES_MAX};
use std::sync::atomic::Ordering;
use storage::kit::check_growth;
use storage::{Action, StorageError};

impl Qcow2Storage {
    /// Why the disk does not get a size.
    fn cannot(&self, asked_bytes: u64, reason: String) -> StorageError {
        StorageError::Grow { target: self.shared.chain.top().path.display().to_string(), asked_bytes, reason }
    }

    /// Grows as far as the L1 table reaches.
    pub(super) fn grow(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let chain = &self.shared.chain;
        let top = chain.top();
        let _one_at_a_time = self.shared.header_lock();
        check_growth(&top.path.display().to_string(), top.size_bytes(), capacity_bytes)?;
        if capacity_bytes == top.size_bytes() {
            return Ok(());
        }
        let cannot = |reason| self.cannot(capacity_bytes, reason);
        if self.shared.read_only() || self.shared.is_broken() {
            return Err(cannot("it is not written".to_owned()));
        }
        let most = self.reach_bytes();
        if capacity_bytes > most {
            return Err(cannot(format!(
                "its L1 table ends at {most} bytes: stop the export and use `vringd image resize`"
            )));
        }
        if chain.has_backing() {
            let reason = "what its backing file has there would come up: stop the export and use `vringd image resize`";
            return Err(cannot(reason.to_owned()));
        }
        self.clear_data_file(capacity_bytes)?;
        // Bitmaps that are valid are as long as the disk: QEMU would not open the image. Those in use may be shorter.
        let written = self.shared.make_ready_locked();
        let written = written.and_then(|()| self.shared.bitmaps.resize(chain, capacity_bytes));
        let written = written.and_then(|()| self.write_size(capacity_bytes));
        written.map_err(|trouble| cannot(format!("its header cannot be written: {trouble:?}")))?;
        // A discard up to the old end either has happened before the guest learns of the new one, or sees it.
        let allocator = self.shared.allocator().map_err(|trouble| cannot(format!("{trouble:?}")))?;
        top.size_bytes.store(capacity_bytes, Ordering::Relaxed);
        drop(allocator);
        Ok(())
    }

    /// What lies behind the disk's end in its data file is nobody's, and must not come up.
    fn clear_data_file(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let chain = &self.shared.chain;
        let top = chain.top();
        if !top.has_data_file() {
            return Ok(());
        }
        let cannot = |what, errno| self.cannot(capacity_bytes, format!("{what}: {}", reason(errno)));
        let file = chain.file(top.data);
        let stale = file.capacity_bytes().min(capacity_bytes).saturating_sub(top.size_bytes());
        if stale > 0 {
            let zeroed = disk::zero(file, top.size_bytes(), stale);
            zeroed.map_err(|errno| cannot("what its data file has there cannot be zeroed", errno))?;
        }
        file.resize(capacity_bytes.max(file.capacity_bytes()))?;
        chain.flush(top.data).map_err(|errno| cannot("its data file cannot be flushed", errno))
    }

    fn write_size(&self, size_bytes: u64) -> Result<(), Trouble> {
        let chain = &self.shared.chain;
        patch_header(chain, header::at::SIZE, &size_bytes.to_be_bytes())?;
        Ok(chain.flush(chain.top().file)?)
    }

    /// Bytes of the disk that the L1 table can describe.
    pub(crate) fn reach_bytes(&self) -> u64 {
        let header = &self.shared.chain.top().header;
        u64::from(header.l1_entries).saturating_mul(header.l2_covers_bytes())
    }

    /// Replaces the L1 table by one for a disk of `size_bytes`, and closes the image, which has to be opened again. Of
    /// an image that a tool has alone.
    ///
    /// # Errors
    /// There is no such table, there is no room, or the image cannot be written.
    pub(crate) fn lengthen_l1(self, size_bytes: u64) -> Result<(), StorageError> {
        let top = self.shared.chain.top();
        let entries = size_bytes.div_ceil(top.header.l2_covers_bytes());
        if entries * 8 > L1_BYTES_MAX {
            let (cluster, most) = (top.header.cluster_bytes(), L1_BYTES_MAX / 8 * top.header.l2_covers_bytes());
            let reason = format!(
                "with clusters of {cluster} bytes a disk has at most {most} bytes: copy it with `vringd image convert` into larger ones"
            );
            return Err(self.cannot(size_bytes, reason));
        }
        self.shared
            .make_ready()
            .and_then(|()| self.replace_l1(entries))
            .map_err(|trouble| self.failed(Action::Write, &trouble))
    }

    fn replace_l1(&self, entries: u64) -> Result<(), Trouble> {
        let chain = &self.shared.chain;
        let top = chain.top();
        let (bits, file) = (top.geometry.cluster_bits, chain.file(top.file));
        let clusters = |entries: u64| (entries * 8).div_ceil(top.geometry.cluster_bytes());
        let mut allocator = self.shared.allocator()?;
        let place = allocator.take_together(chain, clusters(entries))?;
        let mut bytes: Vec<u8> = (0..entries).flat_map(|entry| top.tables.l1(entry).to_be_bytes()).collect();
        bytes.resize(((place.end - place.start) << bits) as usize, 0);
        disk::write(file, place.start << bits, &bytes)?;
        chain.flush(top.file)?;
        let field = [&(entries as u32).to_be_bytes()[..], &(place.start << bits).to_be_bytes()].concat();
        patch_header(chain, header::at::L1, &field)?;
        chain.flush(top.file)?;
        let old = top.geometry.l1_offset >> bits;
        allocator.release(chain, old..old + clusters(top.geometry.l1_entries))
    }

    /// Shows the disk with another size than its header says, up to which its L1 table reaches: to clear what is behind
    /// an end before the header names it. Of an image that a tool has alone.
    ///
    /// # Errors
    /// A data file cannot have that size, or the image cannot be written.
    pub(crate) fn preview(&self, size_bytes: u64) -> Result<(), StorageError> {
        self.clear_data_file(size_bytes)?;
        self.shared.make_ready().map_err(|trouble| self.failed(Action::Write, &trouble))?;
        self.shared.chain.top().size_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Brings everything to stable storage, and gives back what was reserved.
    ///
    /// # Errors
    /// That cannot be had.
    pub(crate) fn settle(&self) -> Result<(), StorageError> {
        self.shared.quiesce().map_err(|trouble| self.failed(Action::Write, &trouble))
    }

    /// Brings everything to stable storage, and then writes the size that the disk has from now on. Of an image that a
    /// tool has alone.
    ///
    /// # Errors
    /// The image cannot be written.
    pub(crate) fn settle_size(&self, size_bytes: u64) -> Result<(), StorageError> {
        let written = self.shared.quiesce().and_then(|()| self.write_size(size_bytes));
        written.map_err(|trouble| self.failed(Action::Write, &trouble))?;
        self.shared.chain.top().size_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(())
    }
}
