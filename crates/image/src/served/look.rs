//! What a read, a write or a discard does next, as the tables say.

use super::chain::{Local, Piece};
use super::change::{ALLOCATE_BYTES_MAX, Plan};
use super::error::Trouble;
use super::machine::Flow;
use super::progress::{Gift, Job, Parts, Stage, Sub, Writes};
use super::shared::{InLine, Shared};
use crate::claims::Asked;
use libc::iovec;
use std::ops::Range;
use storage::Operation;
use storage::kit::{Lent, ON_THE_SPOT_MAX, copy_in, range};
use storage::ways::LINE;

/// Most bytes that one job lets read as zeroes: they are claimed meanwhile.
const UNMAP_BYTES_MAX: u64 = 256 << 20;

/// Largest clusters that are decompressed on the worker where its files are memory.
const DECOMPRESS_HERE_BYTES_MAX: u64 = 64 << 10;

/// Fills bytes of the buffers with zeroes.
///
/// # Safety
/// They are mapped and writable.
unsafe fn zero(buffers: &[iovec], from: u64, len: u64) {
    let mut part = Vec::new();
    range(buffers, from, len, &mut part);
    // SAFETY: vouched for by the caller.
    unsafe { storage::kit::zero(&part, 0) };
}

impl Parts<'_, '_> {
    /// Goes on with the operation behind what is done of it.
    pub(super) fn look(&mut self) -> Flow {
        let (offset, len) = self.extent();
        let done = self.progress.done;
        if done >= len {
            return self.whole();
        }
        let (at, rest) = (offset + done, len - done);
        match self.operation {
            Operation::Read { .. } => self.look_read(at, rest),
            Operation::Write { .. } if self.progress.writes == Writes::Gaps => self.look_gap(at, rest),
            Operation::Write { .. } => self.look_write(at, rest, false),
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => self.look_clear(at, rest),
            Operation::Flush => Flow::Done(Ok(())),
        }
    }

    /// All is done; a durable operation may owe a flush.
    fn whole(&mut self) -> Flow {
        let durable = match self.operation {
            Operation::Write { durable, .. } | Operation::WriteZeroes { durable, .. } => durable,
            _ => false,
        };
        self.progress.stage = if durable && self.progress.owes_flush { Stage::Cover } else { Stage::End };
        Flow::Again
    }

    fn look_read(&mut self, at: u64, rest: u64) -> Flow {
        let (piece, len) = match self.shared.chain.resolve(at, rest) {
            Ok(found) => found,
            Err(trouble) => return self.trouble(trouble),
        };
        if piece != Piece::Missing {
            return self.read_piece(piece, len);
        }
        self.job(Job::Find, move |shared| {
            let (piece, len) = shared.chain.resolve_loading(at, rest)?;
            Ok(Gift::Piece(piece, len))
        })
    }

    /// Reads what comes next, and lies in one place.
    pub(super) fn read_piece(&mut self, piece: Piece, len: u64) -> Flow {
        self.progress.stage = Stage::Look;
        let done = self.progress.done;
        let at = self.extent().0 + done;
        match piece {
            Piece::Zero => {
                if self.progress.on_the_spot + len <= ON_THE_SPOT_MAX {
                    // SAFETY: the buffers of a started task are mapped and writable.
                    unsafe { zero(self.buffers, done, len) };
                    self.progress.on_the_spot += len;
                    self.progress.done += len;
                    return Flow::Again;
                }
                let lent = Lent::new(self.buffers);
                self.job(Job::Fill(len), move |_| {
                    // SAFETY: the task waits for this job, with its buffers mapped and writable.
                    unsafe { zero(lent.list(), done, len) };
                    Ok(Gift::Nothing)
                })
            }
            Piece::Data { file, host } => {
                range(self.buffers, done, len, &mut self.progress.sub.buffers);
                self.start(Sub::Move(len), file, Operation::Read { offset: host })
            }
            Piece::Compressed { image, guest, at: compressed } => {
                let lent = Lent::new(self.buffers);
                let work = move |shared: &Shared| {
                    let cluster = shared.chain.decompressed(image, compressed)?;
                    let part = &cluster[(at - guest) as usize..][..len as usize];
                    // SAFETY: as above.
                    unsafe { copy_in(lent.list(), done, part.as_ptr(), len) };
                    Ok(Gift::Nothing)
                };
                // However fast its file is, this takes a while.
                let bytes = self.shared.chain.images[image].geometry.cluster_bytes();
                if bytes > DECOMPRESS_HERE_BYTES_MAX {
                    return self.elsewhere(Job::Fill(len), work);
                }
                self.job(Job::Fill(len), work)
            }
            Piece::Missing => Flow::Done(Err(libc::EIO)),
        }
    }

    /// Writes what the guest has, or zeroes.
    fn look_write(&mut self, at: u64, rest: u64, zeroes: bool) -> Flow {
        let top = self.shared.chain.top();
        let (local, len) = match top.local(at, rest) {
            Ok(found) => found,
            Err(error) => return self.trouble(Trouble::Format(0, error)),
        };
        match local {
            Local::Missing => self.load(at),
            Local::Data { host, copied: true } => {
                self.progress.claim = None;
                self.write_in_place(host, len, zeroes)
            }
            Local::Data { .. } | Local::Unallocated | Local::Zero | Local::Compressed(_) => {
                let nothing = local == Local::Zero || local == Local::Unallocated && !self.shared.chain.has_backing();
                if zeroes && nothing {
                    self.progress.claim = None;
                    self.progress.owes_flush |= self.owes_entries();
                    self.progress.done += len;
                    return Flow::Again;
                }
                self.allocate(at, rest)
            }
        }
    }

    /// Writes what is there where the image has nothing, and leaves what it has.
    fn look_gap(&mut self, at: u64, rest: u64) -> Flow {
        match self.shared.chain.top().local(at, rest) {
            Ok((Local::Missing, _)) => self.load(at),
            // Nobody else changes what is claimed, and it is looked at again once it is.
            Ok((Local::Unallocated, len)) => self.allocate(at, len),
            Ok((Local::Zero | Local::Data { .. } | Local::Compressed(_), len)) => {
                self.progress.claim = None;
                self.progress.done += len;
                Flow::Again
            }
            Err(error) => self.trouble(Trouble::Format(0, error)),
        }
    }

    /// Whether entries that were just looked up may be volatile.
    fn owes_entries(&self) -> bool {
        self.shared.flushed() != self.shared.changes()
    }

    fn write_in_place(&mut self, host: u64, len: u64, zeroes: bool) -> Flow {
        let shared = self.shared;
        let data = shared.chain.top().data;
        let there = shared.chain.file(data).capacity_bytes();
        if host.checked_add(len).is_none_or(|end| end > there) {
            let (guest, rule) = (self.extent().0, "the cluster does not lie behind the end of the image");
            return self.trouble(Trouble::Format(0, crate::FormatError::L2 { guest, value: host, rule }));
        }
        // A durable write of data whose entries are on stable storage needs no more than itself.
        let settled = !self.owes_entries() && !self.progress.owes_flush;
        let (Operation::Write { durable, .. } | Operation::WriteZeroes { durable, .. }) = self.operation else {
            return Flow::Done(Err(libc::EIO));
        };
        self.progress.owes_flush |= !settled;
        if zeroes {
            self.progress.sub.buffers.clear();
            let operation = Operation::WriteZeroes { offset: host, len, unmap: false, durable: durable && settled };
            return self.start(Sub::Move(len), data, operation);
        }
        range(self.buffers, self.progress.done, len, &mut self.progress.sub.buffers);
        self.start(Sub::Move(len), data, Operation::Write { offset: host, durable: durable && settled })
    }

    /// Claims the clusters at `at`; `None`: they are claimed, and it may go on.
    fn claim(&mut self, clusters: Range<u64>) -> Option<Flow> {
        if let Some((_, claimed)) = &self.progress.claim
            && claimed.contains(&clusters.start)
        {
            return None;
        }
        self.progress.claim = None;
        let (io, token) = (&mut *self.io, self.token);
        let (claim, asked) = self.shared.claims.ask(clusters.clone(), || InLine(io.reply_by(LINE, token)));
        self.progress.claim = Some((claim, clusters));
        Some(match asked {
            // It was not when the tables were looked at.
            Asked::Held => Flow::Again,
            Asked::Waits => {
                self.progress.stage = Stage::Line;
                Flow::Pending
            }
            Asked::Refused => Flow::Done(Err(libc::EIO)),
        })
    }

    fn allocate(&mut self, at: u64, rest: u64) -> Flow {
        let bits = self.shared.chain.top().geometry.cluster_bits;
        // At least to the end of a cluster, whatever the most is.
        let most = ALLOCATE_BYTES_MAX.max(1 << bits);
        let stop = (at + rest).min(((at + most) >> bits) << bits);
        let stop = if stop <= at { at + rest } else { stop };
        let clusters = at >> bits..stop.div_ceil(1 << bits);
        if let Some(flow) = self.claim(clusters) {
            return flow;
        }
        let claimed = self.progress.claim.as_ref().map_or(stop, |(_, claimed)| claimed.end << bits);
        let want = at..stop.min(claimed);
        let zeroes = matches!(self.operation, Operation::WriteZeroes { .. });
        match self.shared.prepare(&want, zeroes, false) {
            Ok(Some(plan)) => self.prepared(plan),
            Ok(None) => self.job(Job::Prepare, move |shared| {
                Ok(shared.prepare(&want, zeroes, true)?.map_or(Gift::Nothing, Gift::Plan))
            }),
            Err(trouble) => self.trouble(trouble),
        }
    }

    /// Writes the data of what was prepared.
    pub(super) fn prepared(&mut self, plan: Plan) -> Flow {
        let (target, len) = (plan.target(), plan.write.end - plan.write.start);
        let file = self.shared.chain.top().data;
        let fresh = plan.fresh;
        self.progress.plan = Some(plan);
        if matches!(self.operation, Operation::Write { .. }) {
            range(self.buffers, self.progress.done, len, &mut self.progress.sub.buffers);
            return self.start(Sub::Data, file, Operation::Write { offset: target, durable: false });
        }
        self.progress.sub.buffers.clear();
        if fresh {
            // It reads as zeroes, and did so before it was taken; what was copied beside them may still need a barrier.
            return self.start(Sub::Data, file, Operation::Discard { offset: 0, len: 0 });
        }
        self.start(Sub::Data, file, Operation::WriteZeroes { offset: target, len, unmap: false, durable: false })
    }

    /// Lets whole clusters read as zeroes by their entries, and parts of them by writing.
    fn look_clear(&mut self, at: u64, rest: u64) -> Flow {
        let chain = &self.shared.chain;
        let top = chain.top();
        let cluster = top.geometry.cluster_bytes();
        let discard = matches!(self.operation, Operation::Discard { .. });
        let end_of_disk = top.size_bytes();
        let to_end = at + rest >= end_of_disk;
        let inside = at % cluster;
        let raw = top.header.data_file_is_raw();
        // Zeroes without an entry that says so: there is none in version 2, and a raw data file must have them itself.
        let by_writing = raw || top.geometry.version < 3 && chain.has_backing();
        let whole = if inside != 0 {
            0
        } else if to_end {
            rest
        } else {
            rest / cluster * cluster
        };
        if whole == 0 || by_writing {
            if discard {
                // A discard is advice.
                self.progress.done += if whole == 0 { rest.min(cluster - inside) } else { whole };
                return Flow::Again;
            }
            let part = if whole == 0 { rest.min(cluster - inside) } else { whole.min(ALLOCATE_BYTES_MAX) };
            return self.look_write(at, part, true);
        }
        let (l1, _) = top.geometry.place(at);
        let table_end = top.geometry.guest(l1 + 1, 0);
        let stop = (at + whole).min(table_end);
        if top.tables.l1(l1) == 0 && !chain.has_backing() {
            self.progress.claim = None;
            self.progress.owes_flush |= self.owes_entries();
            self.progress.done += stop - at;
            return Flow::Again;
        }
        let stop = stop.min(at + UNMAP_BYTES_MAX.max(cluster));
        let bits = top.geometry.cluster_bits;
        if let Some(flow) = self.claim(at >> bits..stop.div_ceil(cluster)) {
            return flow;
        }
        let claimed = self.progress.claim.as_ref().map_or(stop, |(_, claimed)| claimed.end << bits);
        let stop = stop.min(claimed);
        let stay = matches!(self.operation, Operation::WriteZeroes { unmap: false, .. });
        self.job(Job::Unmap(stop - at), move |shared| shared.unmap(at, stop, stay).map(|()| Gift::Nothing))
    }
}
