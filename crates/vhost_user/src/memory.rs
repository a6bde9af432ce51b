//! The guest's memory table: regions that the frontend names become mappings of ours.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, fstat, fstatfs};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vring::{Mapping, Memory, Region};

use crate::refusal::Refusal;

/// One region of guest memory.
#[derive(Debug)]
pub struct RegionState {
    /// First guest physical address.
    pub guest_addr: u64,
    /// The same byte's address in the frontend.
    pub user_addr: u64,
    /// Length, in bytes.
    pub len: u64,
    /// Where in the file it begins, in bytes.
    pub file_offset: u64,
    /// The file. Shared and not duplicated: it may be on a file system that works at each close.
    pub file: Arc<OwnedFd>,
}

/// Most memory regions of one frontend, told by GET_MAX_MEM_SLOTS. The same as libvhost-user's limit for x86: every
/// ACPI memory slot that QEMU can have and three regions of its own.
pub const MEMORY_SLOTS: usize = 509;

/// Filesystem type of hugetlbfs (include/uapi/linux/magic.h, HUGETLBFS_MAGIC).
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// The table of one session. A change is worked out as a new table first and adopted only once the session agrees.
#[derive(Debug, Default)]
pub(crate) struct Table {
    memory: Option<Arc<Memory>>,
    mapped: Vec<Mapped>,
}

/// Which part of which file a mapping shows. The mapping keeps the inode alive, so its number cannot come to mean
/// another file.
#[derive(Debug)]
struct Mapped {
    device: u64,
    inode: u64,
    file_offset: u64,
    len: u64,
    mapping: Arc<Mapping>,
    offset: usize,
    /// Mapped once more by the program that goes on with the session.
    file: Arc<OwnedFd>,
}

impl Table {
    pub(crate) fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// SET_MEM_TABLE: these regions and no others.
    pub(crate) fn replaced(
        &mut self,
        regions: Vec<(VhostUserMemoryRegion, impl Into<Arc<OwnedFd>>)>,
    ) -> Result<Arc<Memory>, Refusal> {
        let mut table = Vec::with_capacity(regions.len());
        for (region, file) in regions {
            table.push(self.map(&region, file.into(), &table)?);
        }
        Ok(Arc::new(Memory::new(table)?))
    }

    /// ADD_MEM_REG: one region more.
    pub(crate) fn added(&mut self, region: &VhostUserMemoryRegion, file: OwnedFd) -> Result<Arc<Memory>, Refusal> {
        let count = self.memory.as_ref().map_or(0, |memory| memory.regions().len());
        if count >= MEMORY_SLOTS {
            return Err(Refusal::MemorySlots(count));
        }
        let before = self.memory.clone().unwrap_or_default();
        let region = self.map(region, file.into(), before.regions())?;
        Ok(Arc::new(before.with(region)?))
    }

    /// REM_MEM_REG: one region less.
    pub(crate) fn removed(&self, region: &VhostUserMemoryRegion) -> Result<Arc<Memory>, Refusal> {
        let memory = self.memory.as_ref().ok_or(Refusal::Body)?;
        let (guest_addr, user_addr, len) = (region.guest_phys_addr, region.user_addr, region.memory_size);
        Ok(Arc::new(memory.without(guest_addr, user_addr, len)?))
    }

    /// What another program needs to map the same table.
    pub(crate) fn state(&self) -> io::Result<Option<Vec<RegionState>>> {
        let Some(memory) = &self.memory else { return Ok(None) };
        let state = |region: &Region| -> io::Result<RegionState> {
            let shown = |mapped: &&Mapped| Arc::ptr_eq(&mapped.mapping, &region.mapping);
            // Every region of the table was mapped here and is kept for as long as the table has it.
            let mapped = self.mapped.iter().find(shown).ok_or_else(|| io::Error::other("a region without its file"))?;
            Ok(RegionState {
                guest_addr: region.guest_addr,
                user_addr: region.user_addr,
                len: region.len,
                file_offset: mapped.file_offset,
                file: mapped.file.clone(),
            })
        };
        memory.regions().iter().map(state).collect::<io::Result<Vec<_>>>().map(Some)
    }

    /// The table that [`Table::state`] described.
    pub(crate) fn restored(&mut self, regions: Vec<RegionState>) -> Result<Arc<Memory>, Refusal> {
        let region = |state: RegionState| {
            let RegionState { guest_addr, user_addr, len, file_offset, file } = state;
            (VhostUserMemoryRegion::new(guest_addr, len, user_addr, file_offset), file)
        };
        self.replaced(regions.into_iter().map(region).collect())
    }

    /// The new table is in force.
    pub(crate) fn adopt(&mut self, memory: Arc<Memory>) {
        self.memory = Some(memory);
        self.forget_unused();
    }

    /// Lets go of mappings that no region of the current table shows, such as those of a table that was refused.
    pub(crate) fn forget_unused(&mut self) {
        let regions = self.memory.as_ref().map_or(&[][..], |memory| memory.regions());
        self.mapped.retain(|mapped| regions.iter().any(|region| Arc::ptr_eq(&region.mapping, &mapped.mapping)));
    }

    /// Maps one region, or finds it mapped: QEMU sends the whole table anew whenever a part of it changes, and a
    /// fresh mapping would fault in every page of the guest again. A mapping serves one region of a table: by an address of
    /// ours it can be told which one ([`Memory::guest_addr_of`]). `others` are the regions that the table has besides.
    fn map(
        &mut self,
        region: &VhostUserMemoryRegion,
        file: Arc<OwnedFd>,
        others: &[Region],
    ) -> Result<Region, Refusal> {
        let guest_addr = region.guest_phys_addr;
        let failed = |error: rustix::io::Errno| Refusal::MemoryMap(guest_addr, error.into());
        let stat = fstat(&file).map_err(failed)?;
        let (device, inode) = (stat.st_dev, stat.st_ino);
        let (file_offset, len) = (region.mmap_offset, region.memory_size);
        let known = self.mapped.iter().find(|mapped| {
            // A frontend that shortened a file and made it longer again shares nothing with a mapping from before.
            let there = !mapped.mapping.is_gone();
            there
                && (mapped.device, mapped.inode) == (device, inode)
                && (mapped.file_offset, mapped.len) == (file_offset, len)
                && !others.iter().any(|other| Arc::ptr_eq(&other.mapping, &mapped.mapping))
        });
        let (mapping, offset) = match known {
            Some(mapped) => (mapped.mapping.clone(), mapped.offset),
            None => {
                let (mapping, offset) = map_file(region, &file, &stat)?;
                let mapping = Arc::new(mapping);
                self.mapped.push(Mapped { device, inode, file_offset, len, mapping: mapping.clone(), offset, file });
                (mapping, offset)
            }
        };
        Ok(Region { guest_addr, user_addr: region.user_addr, len, mapping, offset })
    }
}

/// Maps the pages that hold a region. Returns where in the mapping the region begins.
///
/// A region that reaches beyond its file is refused. A frontend that shortens the file later breaks the rings that
/// meet the hole ([`Mapping::is_gone`]), and nothing else.
fn map_file(
    region: &VhostUserMemoryRegion,
    file: &OwnedFd,
    stat: &rustix::fs::Stat,
) -> Result<(Mapping, usize), Refusal> {
    let guest_addr = region.guest_phys_addr;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Refusal::MemoryFileType(guest_addr));
    }
    let wraps = || Refusal::MemoryWrap(guest_addr);
    let start = region.mmap_offset;
    let end = start.checked_add(region.memory_size).ok_or_else(wraps)?;
    let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if end > file_bytes {
        return Err(Refusal::MemoryFileSize { guest_addr, needed: end, file_bytes });
    }
    let page_bytes = page_bytes(file).map_err(|error| Refusal::MemoryMap(guest_addr, error))?;
    let (map_start, map_len, offset) = span(start, end, page_bytes).ok_or_else(wraps)?;
    let mapping = Mapping::shared(file, map_start, map_len).map_err(|error| Refusal::MemoryMap(guest_addr, error))?;
    Ok((mapping, offset))
}

/// Whole pages around the bytes from `start` to `end` of a file: where they begin, their length, and where in them the
/// bytes begin. `None` where that does not fit into an address.
pub(crate) fn span(start: u64, end: u64, page_bytes: u64) -> Option<(u64, usize, usize)> {
    let map_start = start - start % page_bytes;
    let map_end = end.checked_next_multiple_of(page_bytes)?;
    let map_len = usize::try_from(map_end.checked_sub(map_start)?).ok()?;
    Some((map_start, map_len, usize::try_from(start - map_start).ok()?))
}

/// Granularity of mapping this file, in bytes: hugetlbfs maps (and unmaps) whole huge pages only.
pub(crate) fn page_bytes(file: &OwnedFd) -> io::Result<u64> {
    let filesystem = fstatfs(file)?;
    let bytes = if filesystem.f_type == HUGETLBFS_MAGIC { u64::try_from(filesystem.f_bsize).unwrap_or(0) } else { 0 };
    Ok(bytes.max(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::span;

    const HUGE: u64 = 2 << 20;

    #[test]
    fn aligned_bytes_are_mapped_as_they_are() {
        assert_eq!(span(HUGE, 3 * HUGE, HUGE), Some((HUGE, 4 << 20, 0)));
    }

    #[test]
    fn unaligned_bytes_are_mapped_in_whole_pages() {
        assert_eq!(span(HUGE + 4096, HUGE + 8192, HUGE), Some((HUGE, 2 << 20, 4096)));
        assert_eq!(span(0x1800, 0x2001, 0x1000), Some((0x1000, 0x2000, 0x800)));
    }

    #[test]
    fn the_end_of_the_address_space_is_not_crossed() {
        assert_eq!(span(0, u64::MAX, HUGE), None);
    }
}
