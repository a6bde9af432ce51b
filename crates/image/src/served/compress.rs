//! Compressed clusters, written into an image that is being made: each cluster once, by whoever has the image alone.

use super::Qcow2Storage;
use super::disk;
use super::error::Trouble;
use super::shared::Shared;
use crate::compressed::compress;
use crate::entry::{Cluster, Compressed};
use engine::{Completion, Io, Token};
use std::sync::Arc;
use storage::kit::{Jobs, Lent, Threads, Through, copy_out};
use storage::{Operation, Step, Storage, StorageError, Task};

/// As many as a copy has pieces under way.
static COMPRESSION: Threads = Threads::new("qcow2-compress", 8, "clusters are compressed one after the other");

/// The image as somebody sees it who has what he writes compressed: whole clusters that nothing was written to.
pub(crate) struct Compressing {
    image: Arc<Qcow2Storage>,
    jobs: Jobs,
}

impl Compressing {
    pub(crate) fn new(image: Arc<Qcow2Storage>) -> Compressing {
        COMPRESSION.prepare();
        Compressing { image, jobs: Jobs::on(&COMPRESSION) }
    }
}

impl Through for Compressing {
    fn below(&self) -> &dyn Storage {
        &*self.image
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let Operation::Write { offset, .. } = task.operation else { return self.image.start(task, token, io) };
        if let Err(error) = task.check(self.image.capacity_bytes(), false) {
            return Step::Done(Err(error));
        }
        let (image, lent, len) = (self.image.clone(), Lent::new(&task.buffers), task.bytes());
        self.jobs.run_elsewhere(io.reply(token), move || {
            let mut data = vec![0; len as usize];
            // SAFETY: the task waits for this job, with its buffers mapped.
            unsafe { copy_out(lent.list(), 0, data.as_mut_ptr(), len) };
            image.write_compressed(offset, &data).map_or_else(|errno| -errno, |()| 0)
        });
        Step::Pending
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let action = task.operation.action();
        match task.operation {
            Operation::Write { .. } if completion.result < 0 => {
                Step::Done(Err(StorageError::errno(action, -completion.result)))
            }
            Operation::Write { .. } => Step::Done(Ok(())),
            _ => self.image.resume(task, completion, io),
        }
    }
}

impl Qcow2Storage {
    /// Writes clusters; only the last that is ever written may be short. Blocks, and takes a while.
    fn write_compressed(&self, offset: u64, data: &[u8]) -> Result<(), i32> {
        let shared = &self.shared;
        let cluster_bytes = shared.chain.top().geometry.cluster_bytes();
        if !offset.is_multiple_of(cluster_bytes) {
            return Err(libc::EINVAL);
        }
        disk::prepare()?;
        let mut whole = vec![0; cluster_bytes as usize];
        for (guest, part) in (offset..).step_by(whole.len()).zip(data.chunks(whole.len())) {
            whole[..part.len()].copy_from_slice(part);
            whole[part.len()..].fill(0);
            shared.put(guest, &whole).map_err(|trouble| shared.settle_trouble(&trouble))?;
        }
        Ok(())
    }
}

impl Shared {
    fn put(&self, guest: u64, whole: &[u8]) -> Result<(), Trouble> {
        let (chain, top) = (&self.chain, self.chain.top());
        if self.must_clear() {
            self.make_ready()?;
        }
        let file = chain.file(top.data);
        let cluster = match compress(top.header.compression, whole) {
            Some(mut data) => {
                let len = data.len() as u64;
                data.resize(data.len().next_multiple_of(512), 0);
                let host = self.allocator()?.pack(chain, len)?;
                disk::write(file, host, &data)?;
                Cluster::Compressed(Compressed { host, len })
            }
            None => {
                let host = self.allocator()?.take(chain, 1, true)?.start << top.geometry.cluster_bits;
                disk::write(file, host, whole)?;
                Cluster::Plain { host: Some(host), copied: true, allocated: !0, zero: 0 }
            }
        };
        let stop = (guest + whole.len() as u64).min(top.size_bytes());
        self.rewrite(guest, 1, stop, |_, _| cluster)
    }
}
