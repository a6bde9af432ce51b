//! What a call that is left to a thread has to do with other calls.

use engine::{Pool, Reply};
use passthrough::{Changing, OpenFile};
use std::sync::Arc;

/// What others keep away from, and what it waits for, while it runs.
pub(crate) struct Care {
    /// Files and directories are being changed until it is over.
    pub(crate) changing: Option<Changing>,
    /// It appends to this, behind those that were left before.
    pub(crate) appends: Option<Arc<OpenFile>>,
}

impl Care {
    /// Nobody need know.
    pub(crate) fn none() -> Care {
        Care { changing: None, appends: None }
    }

    /// Has a thread of the pool make a call.
    pub(crate) fn leave(self, pool: &Pool, reply: Reply, call: impl FnOnce() -> i32 + Send + 'static) {
        let Care { changing, appends } = self;
        match appends {
            None => pool.run(reply, move || passthrough::with_time(changing, call)),
            Some(file) => file.append_in_line(|append| {
                pool.run(reply, move || {
                    let _append = append.wait();
                    passthrough::with_time(changing, call)
                });
            }),
        }
    }
}
