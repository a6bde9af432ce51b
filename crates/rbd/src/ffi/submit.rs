//! Requests: handed to librbd on a worker, completed on one of librbd's threads.
//!
//! A task belongs to its storage from its start to its end, stays in its place, and its buffers stay mapped until then
//! ([`Storage`](storage::Storage)): there is no way to give a request up, and none to take it back from librbd. So its list of buffers, which
//! librbd looks into until a read has ended, and the place of its reply may be the task's own, and no request allocates anything.

use super::library::{Library, RawCompletion, ZEROES_KEEP_SPACE};
use super::{Errno, Image, answer};
use crate::budget;
use engine::Reply;
use libc::iovec;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use storage::{Operation, Progress, Task};

/// Where the reply of a task waits for its end. Apart from the task's state, so that nobody who looks at that looks at this.
struct Waiting {
    library: Option<&'static Library>,
    reply: Option<Reply>,
    permit: Option<Permit>,
    /// The image that it was handed to last.
    image: u64,
    flying: Option<InFlight>,
}

/// A request that an image has.
struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn on(image: &Image) -> InFlight {
        image.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight(image.in_flight.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that waits for others to end.
pub(crate) struct Parked {
    pub(crate) ready: Ready,
    pub(crate) reply: Reply,
    /// The image that it follows on, if it is right nowhere else.
    pub(crate) follows: Option<u64>,
}

/// A request's part of what librbd may keep.
pub(crate) type Permit = budget::Permit<Parked>;

/// What a task remembers. Kept for the task's next requests.
pub(crate) struct Flight {
    waiting: NonNull<Waiting>,
    /// The image whose write has ended, of which a flush is under way that makes it durable.
    pub(crate) flushing: Option<u64>,
}

// SAFETY: of what it points to it is the only owner, but for one completion at a time, which comes before the task goes on.
unsafe impl Send for Flight {}

impl Default for Flight {
    fn default() -> Flight {
        let waiting = Box::leak(Box::new(Waiting { library: None, reply: None, permit: None, image: 0, flying: None }));
        Flight { waiting: NonNull::from(waiting), flushing: None }
    }
}

impl Flight {
    /// Which image the request has gone to that has ended.
    pub(crate) fn image(&self) -> u64 {
        // SAFETY: nothing of the task is under way, so that nobody else uses it.
        unsafe { self.waiting.as_ref().image }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak`; a task is dropped when nothing of it is under way any more.
        drop(unsafe { Box::from_raw(self.waiting.as_ptr()) });
    }
}

impl Progress for Flight {}

/// A request that is about to be handed over, on whatever thread.
pub(crate) struct Ready {
    operation: Operation,
    list: *const iovec,
    count: usize,
    waiting: *mut Waiting,
}

// SAFETY: what it points to is the task's, which stays in its place until its reply was completed: that comes with `submit` at the earliest.
unsafe impl Send for Ready {}

impl Ready {
    /// `operation` on what the task has.
    pub(crate) fn of(task: &mut Task, operation: Operation) -> Ready {
        let (list, count) = (task.buffers.as_ptr(), task.buffers.len());
        Ready { operation, list, count, waiting: task.state.of::<Flight>().waiting.as_ptr() }
    }

    /// Hands it to librbd: `reply` is completed with what that returns, bytes or a negated errno. Waits for nothing, and copies what is to be
    /// written.
    pub(crate) fn submit(self, image: &Image, reply: Reply, permit: Permit) {
        let (library, waiting) = (image.library, self.waiting);
        let (reply, permit, flying) = (Some(reply), Some(permit), Some(InFlight::on(image)));
        // SAFETY: it is the task's, of which nothing is under way.
        unsafe { *waiting = Waiting { library: Some(library), reply, permit, image: image.number, flying } };
        let mut completion = ptr::null_mut();
        // SAFETY: what waits stays in its place until it was told.
        let made = unsafe { (library.rbd_aio_create_completion)(waiting.cast(), ended, &raw mut completion) };
        let taken = answer(made).and_then(|_| {
            // SAFETY: the image is open, and whoever has the task keeps it so; the completion was made just now. The rest is the task's, of
            // which see the module.
            let taken = answer(unsafe { self.hand_over(image, completion) });
            if taken.is_err() {
                // SAFETY: librbd does not know of it.
                unsafe { (library.rbd_aio_release)(completion) };
            }
            taken
        });
        if let Err(Errno(errno)) = taken {
            // SAFETY: nobody else knows of it.
            let (reply, permit, flying) =
                unsafe { ((*waiting).reply.take(), (*waiting).permit.take(), (*waiting).flying.take()) };
            drop((permit, flying));
            if let Some(reply) = reply {
                reply.complete(-errno);
            }
        }
    }

    /// # Safety
    /// The buffers of the task are mapped until the completion has been called, and their list stays in its place.
    unsafe fn hand_over(&self, image: &Image, completion: RawCompletion) -> c_int {
        let Image { library, raw, .. } = image;
        let (raw, list) = (*raw, self.list);
        let Ok(count) = c_int::try_from(self.count) else { return -libc::EINVAL };
        let wide = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: promised by our caller.
        unsafe {
            match self.operation {
                Operation::Read { offset } => (library.rbd_aio_readv)(raw, list, count, offset, completion),
                // It is copied within this call (`rbd_disable_zero_copy_writes`): a guest that changes a page afterwards breaks no checksum.
                Operation::Write { offset, .. } => (library.rbd_aio_writev)(raw, list, count, offset, completion),
                Operation::Flush => (library.rbd_aio_flush)(raw, completion),
                Operation::Discard { offset, len } => (library.rbd_aio_discard)(raw, offset, len, completion),
                Operation::WriteZeroes { offset, len, unmap, .. } => {
                    let keep = if unmap { 0 } else { ZEROES_KEEP_SPACE };
                    (library.rbd_aio_write_zeroes)(raw, offset, wide(len), completion, keep, 0)
                }
            }
        }
    }
}

/// Called on a thread of librbd's.
unsafe extern "C" fn ended(completion: RawCompletion, waiting: *mut c_void) {
    let waiting = waiting.cast::<Waiting>();
    // SAFETY: the task is under way, so that this is in its place and nobody else uses it. It is taken out before the task is told, which may
    // go on with another request at once.
    let (library, reply, permit) = unsafe { ((*waiting).library, (*waiting).reply.take(), (*waiting).permit.take()) };
    // SAFETY: as above.
    let flying = unsafe { (*waiting).flying.take() };
    let (Some(library), Some(reply)) = (library, reply) else { return };
    // SAFETY: the completion is the one that has ended; it is released once, here.
    let returned = unsafe {
        let returned = (library.rbd_aio_get_return_value)(completion);
        (library.rbd_aio_release)(completion);
        returned
    };
    // librbd has nothing of it any more. Before whoever has the image is told, who may let go of it.
    drop(permit);
    reply.complete(i32::try_from(returned).unwrap_or(i32::MAX));
    // From here on the image may be closed by whoever has replaced it.
    drop(flying);
}
