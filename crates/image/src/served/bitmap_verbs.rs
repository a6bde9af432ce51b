//! Dirty bitmaps of an image that is served: listed, added, removed, and what they say taken for a backup. All of it blocks.

use super::Qcow2Storage;
use super::bitmaps::{Listed, Room, State};
use super::error::Trouble;
use crate::bitmap::{self, AUTO, BITMAPS_MAX, Entry, GRANULARITY_BITS, IN_USE, NAME_BYTES_MAX};
use crate::dirty::{self, Bits, Dirty};
use std::sync::Arc;
use storage::{Action, StorageError};

/// A dirty bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapInfo {
    /// Its name.
    pub name: String,
    /// Bytes for which a bit stands.
    pub granularity_bytes: u64,
    /// It follows what is written.
    pub enabled: bool,
    /// It says what was written. One that does not is good for nothing, and can be removed.
    pub consistent: bool,
    /// Bytes of the disk that it says were written; 0 where that is not known.
    pub dirty_bytes: u64,
}

/// Why a bitmap is not changed.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum BitmapError {
    /// {0}
    Refused(String),
    /// {0}
    Failed(StorageError),
}

/// Why something was not done.
enum Why {
    Refused(String),
    Trouble(Trouble),
}

impl From<Trouble> for Why {
    fn from(trouble: Trouble) -> Why {
        Why::Trouble(trouble)
    }
}

impl Qcow2Storage {
    /// The granularity of a bitmap of which nobody says another one.
    pub const GRANULARITY_BYTES: u64 = 64 << 10;

    /// The dirty bitmaps of the image, in the order of its directory; none of one that is only read.
    pub fn bitmaps(&self) -> Vec<BitmapInfo> {
        let state = self.shared.bitmaps.state();
        let told = |one: &Listed| BitmapInfo {
            name: one.entry.shown(),
            granularity_bytes: 1 << one.entry.granularity_bits,
            enabled: one.entry.is(AUTO),
            consistent: one.bits.is_some(),
            dirty_bytes: one.bits.as_ref().map_or(0, |bits| bits.dirty().dirty_bytes()),
        };
        state.listed.iter().map(told).collect()
    }

    /// Adds a bitmap that follows what is written from now on, with nothing in it yet. It is in the image, on stable storage, when this returns. Of
    /// a request that is in flight meanwhile it may hear or not.
    ///
    /// # Errors
    /// There cannot be such a bitmap: nothing has changed. The image cannot be written.
    pub fn add_bitmap(&self, name: &str, granularity_bytes: u64) -> Result<(), BitmapError> {
        let shown = name.escape_debug();
        let refused = |rule: String| Err(Why::Refused(format!("bitmap `{shown}`: {rule}")));
        self.change(|state| {
            let top = self.shared.chain.top();
            let cluster_bits = top.geometry.cluster_bits;
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
                return refused("a name has 1 to 1023 bytes".to_owned());
            }
            if name.contains('\0') {
                // QEMU ends it there, and two names are one.
                return refused("a name has no NUL in it".to_owned());
            }
            let granularity = granularity_bytes.checked_ilog2().filter(|_| granularity_bytes.is_power_of_two());
            let Some(granularity) = granularity.filter(|bits| GRANULARITY_BITS.contains(bits)) else {
                return refused("a granularity is a power of two, 512 bytes to 2 GiB".to_owned());
            };
            if top.header.version < 3 {
                return refused(
                    "an image of version 2 has none: `qemu-img amend -o compat=1.1` makes it one of version 3"
                        .to_owned(),
                );
            }
            if state.find(name).is_some() {
                return refused("there is one of this name already".to_owned());
            }
            if state.listed.len() >= BITMAPS_MAX as usize {
                return refused(format!("an image has at most {BITMAPS_MAX}"));
            }
            let size_bytes = top.size_bytes();
            let memory = |bits: &Bits| Bits::memory_bytes(bits.size_bytes(), bits.granularity_bits());
            let memory: u64 = state.listed.iter().filter_map(|one| Some(memory(one.bits.as_ref()?))).sum();
            let entries = bitmap::table_entries(size_bytes, granularity, cluster_bits);
            let fits = memory + Bits::memory_bytes(size_bytes, granularity) <= dirty::BYTES_MAX;
            let Some(entries) = entries.filter(|_| fits) else {
                let most = dirty::BYTES_MAX >> 20;
                return refused(format!(
                    "all of them would take more than {most} MiB of memory: use a coarser granularity"
                ));
            };
            let mut new = Entry::new(name, granularity as u8, 0, entries);
            let bytes = state.listed.iter().map(|one| one.entry.len_bytes() as u64).sum::<u64>();
            if bytes + new.len_bytes() as u64 > bitmap::DIRECTORY_BYTES_MAX {
                return refused("the directory of bitmaps has at most 64 MiB".to_owned());
            }
            self.within(|room| {
                new.table_offset = room.table(&vec![0; entries as usize * 8])?;
                let bits = Some(Arc::new(Bits::new(size_bytes, granularity)));
                let mut listed = state.listed.clone();
                listed.push(Listed { entry: new, at: 0, bits });
                state.publish(room, listed)
            })
        })
    }

    /// Removes a bitmap, also one that is inconsistent, and frees what it has in the image.
    ///
    /// # Errors
    /// There is none of this name. The image cannot be written.
    pub fn remove_bitmap(&self, name: &str) -> Result<(), BitmapError> {
        self.change(|state| {
            let index = state.find(name).ok_or_else(|| missing(name))?;
            let mut listed = state.listed.clone();
            let gone = listed.remove(index).entry;
            self.within(|room| {
                state.publish(room, listed)?;
                room.free_table(index as u32, &gone);
                Ok(())
            })
        })
    }

    /// Lets a bitmap follow what is written, or stay as it is.
    ///
    /// # Errors
    /// There is none of this name, or it is inconsistent. The image cannot be written.
    pub fn set_bitmap_enabled(&self, name: &str, enabled: bool) -> Result<(), BitmapError> {
        self.change(|state| {
            usable(state, name)?;
            let flags = |flags: u32| flags & !AUTO | IN_USE | if enabled { AUTO } else { 0 };
            let is_it = |one: &Listed| one.entry.name == name.as_bytes() && one.entry.is(AUTO) != enabled;
            let chain = &self.shared.chain;
            Ok(state.flag(chain, |one| if is_it(one) { flags(one.entry.flags) } else { one.entry.flags })?)
        })
    }

    /// Makes a bitmap ready to be [taken](Self::take_bitmap) without I/O, by somebody who keeps guests waiting.
    ///
    /// # Errors
    /// As of that.
    pub fn make_bitmap_ready(&self, name: &str) -> Result<(), BitmapError> {
        self.with_bits(name, |_| ())
    }

    /// Takes what a bitmap says; it says nothing from now on, and begins anew. No request may be in flight, so that what is taken is what was
    /// written before a moment, and what follows is what is written after it.
    ///
    /// # Errors
    /// There is none of this name, or it is inconsistent. The image cannot be written.
    pub fn take_bitmap(&self, name: &str) -> Result<Dirty, BitmapError> {
        self.with_bits(name, Bits::take)
    }

    /// Gives back what was [taken](Self::take_bitmap) and has not been used. Since then the bitmap is in use: nothing is written.
    ///
    /// # Errors
    /// There is none of this name, or it is inconsistent.
    pub fn give_back(&self, name: &str, dirty: &Dirty) -> Result<(), BitmapError> {
        let state = self.shared.bitmaps.state();
        let bits = usable(&state, name).map_err(|why| self.refused(why))?;
        bits.add(dirty);
        Ok(())
    }

    /// Makes a bitmap inconsistent, which has been in use since it was begun or [taken](Self::take_bitmap): nothing is written.
    pub fn forget_bitmap(&self, name: &str) {
        let mut state = self.shared.bitmaps.state();
        if let Some(index) = state.find(name) {
            state.listed[index].bits = None;
        }
        self.shared.bitmaps.follow(&state);
    }

    /// Writes back what they say, as when the image is closed. Of an image that a tool has alone.
    ///
    /// # Errors
    /// The image cannot be written: they are inconsistent.
    pub(crate) fn write_bitmaps_back(&self) -> Result<(), StorageError> {
        self.shared.write_bitmaps_back().map_err(|trouble| self.failed(Action::Write, &trouble))
    }

    /// Changes what a bitmap says, which the file does not say from then on.
    fn with_bits<T>(&self, name: &str, change: impl FnOnce(&Bits) -> T) -> Result<T, BitmapError> {
        self.change(|state| {
            let bits = usable(state, name)?;
            let is_it = |one: &Listed| one.entry.name == name.as_bytes();
            let flags = |one: &Listed| one.entry.flags | if is_it(one) { IN_USE } else { 0 };
            state.flag(&self.shared.chain, flags)?;
            Ok(change(&bits))
        })
    }

    /// Of an image that is ready to be changed, with everything that concerns bitmaps locked.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T, Why>) -> Result<T, BitmapError> {
        let shared = &self.shared;
        let done = (|| {
            if shared.read_only() {
                return Err(Why::Refused("its dirty bitmaps stay as they are: it is only read".to_owned()));
            }
            let _one_at_a_time = shared.header_lock();
            shared.check_written()?;
            shared.make_ready_locked()?;
            let mut state = shared.bitmaps.state();
            let done = change(&mut state);
            shared.bitmaps.follow(&state);
            done
        })();
        done.map_err(|why| self.refused(why))
    }

    fn refused(&self, why: Why) -> BitmapError {
        match why {
            Why::Refused(reason) => {
                BitmapError::Refused(format!("{}: {reason}", self.shared.chain.top().path.display()))
            }
            Why::Trouble(trouble) => BitmapError::Failed(self.failed(Action::Write, &trouble)),
        }
    }

    /// With clusters for what is new. What was taken for it is given back where that fails.
    fn within(&self, work: impl FnOnce(&mut Room<'_>) -> Result<(), Trouble>) -> Result<(), Why> {
        let chain = &self.shared.chain;
        let mut allocator = self.shared.allocator()?;
        let mut room = Room { chain, allocator: &mut allocator, taken: Vec::new() };
        let done = work(&mut room);
        Ok(done.inspect_err(|trouble| room.give_back_after(trouble))?)
    }
}

fn missing(name: &str) -> Why {
    Why::Refused(format!("bitmap `{}`: there is none of this name", name.escape_debug()))
}

/// The bits of a bitmap that has some.
fn usable(state: &State, name: &str) -> Result<Arc<Bits>, Why> {
    let index = state.find(name).ok_or_else(|| missing(name))?;
    state.listed[index].bits.clone().ok_or_else(|| {
        let shown = name.escape_debug();
        Why::Refused(format!("bitmap `{shown}`: it is inconsistent, and can only be removed"))
    })
}
