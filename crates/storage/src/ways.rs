//! What a task waits for that is neither the kernel nor a thread: notes for those who trace requests, beside the engine's own.

use engine::Ways;

/// Another task's end, or room that others have: clusters, bytes of a file, cache slots, buffers.
pub const LINE: Ways = Ways::noted(0);
/// A commit that it leads.
pub const COMMIT_LED: Ways = Ways::noted(1);
/// A commit that another task leads.
pub const COMMIT_JOINED: Ways = Ways::noted(2);
/// A job, which copies what would be written over.
pub const COPY: Ways = Ways::noted(3);
