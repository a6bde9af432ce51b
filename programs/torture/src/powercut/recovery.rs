//! Recovery of what a cut has left, and what a second cut in its middle leaves.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use volume::Blocks;
use volume::format::Superblock;
use volume::recover::{self, Recovered};

use super::image::Image;
use super::stamp::SECTOR_BYTES;
use crate::rng::Rng;

/// A step of a recovery.
#[derive(Clone, Debug)]
pub(super) enum Note {
    Write { device: usize, offset: u64, bytes: Vec<u8> },
    Zero { device: usize, offset: u64, len: u64 },
    Flush { device: usize },
}

/// A device that notes what is done to it.
struct Noting<'a, 'b> {
    image: &'b mut Image<'a>,
    device: usize,
    notes: Rc<RefCell<Vec<Note>>>,
}

impl Blocks for Noting<'_, '_> {
    fn len(&self) -> u64 {
        self.image.len()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.image.read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.image.write_at(offset, buf)?;
        self.notes.borrow_mut().push(Note::Write { device: self.device, offset, bytes: buf.to_vec() });
        Ok(())
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.image.zero_at(offset, len)?;
        self.notes.borrow_mut().push(Note::Zero { device: self.device, offset, len });
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.notes.borrow_mut().push(Note::Flush { device: self.device });
        Ok(())
    }
}

/// Recovers a volume in place.
pub(super) fn recover(images: &mut [Image<'_>]) -> Result<Recovered, String> {
    let Some((data, logs)) = images.split_first_mut() else { return Err("there is no device".to_owned()) };
    let log = logs.first_mut().map(|log| -> &mut dyn Blocks { log });
    recover::recover(data, log, &mut |_| {}).map_err(|error| error.to_string())
}

/// Recovers a volume in place, and says by which steps.
pub(super) fn recover_noting(images: &mut [Image<'_>]) -> Result<(Recovered, Vec<Note>), String> {
    let Some((data, logs)) = images.split_first_mut() else { return Err("there is no device".to_owned()) };
    let notes = Rc::new(RefCell::new(Vec::new()));
    let mut data = Noting { image: data, device: 0, notes: notes.clone() };
    let mut log = logs.first_mut().map(|image| Noting { image, device: 1, notes: notes.clone() });
    let log = log.as_mut().map(|log| -> &mut dyn Blocks { log });
    let recovered = recover::recover(&mut data, log, &mut |_| {}).map_err(|error| error.to_string())?;
    Ok((recovered, notes.take()))
}

/// What a cut behind some of a recovery's steps leaves, given what the recovery began with. Each device keeps what was
/// flushed, and of the rest any sector or none.
pub(super) fn cut(images: &mut [Image<'_>], notes: &[Note], rng: &mut Rng) -> usize {
    let steps = rng.within(0..=notes.len() as u64) as usize;
    let notes = &notes[..steps];
    for (device, image) in images.iter_mut().enumerate() {
        let of_device = |note: &Note| match note {
            Note::Write { device: of, .. } | Note::Zero { device: of, .. } | Note::Flush { device: of } => {
                *of == device
            }
        };
        let flushed = notes.iter().rposition(|note| of_device(note) && matches!(note, Note::Flush { .. }));
        // Mostly kept, mostly lost, or torn through and through.
        let lost_of_four = rng.within(0..=4);
        for (step, note) in notes.iter().enumerate().filter(|(_, note)| of_device(note)) {
            let sure = flushed.is_some_and(|last| step < last);
            let mut kept = || sure || rng.within(1..=4) > lost_of_four;
            match note {
                Note::Write { offset, bytes, .. } => {
                    for (at, sector) in (*offset..).step_by(SECTOR_BYTES).zip(bytes.chunks(SECTOR_BYTES)) {
                        if kept() {
                            image.put(at, sector);
                        }
                    }
                }
                Note::Zero { offset, len, .. } => {
                    for at in (*offset..offset + len).step_by(SECTOR_BYTES) {
                        if kept() {
                            image.zero(at, SECTOR_BYTES as u64);
                        }
                    }
                }
                Note::Flush { .. } => {}
            }
        }
    }
    steps
}

/// The superblock that counts.
pub(super) fn superblock(images: &mut [Image<'_>]) -> Result<Superblock, String> {
    let data = images.first_mut().ok_or("there is no device")?;
    volume::format::read_superblock(data).map_err(|error| error.to_string())
}
