//! Operations as blocking calls, for what is no request: metadata, recovery, tools.

use crate::{Step, Storage, StorageError, Task};
use engine::{Solo, Token};
use std::io;

/// One operation at a time, so that any token does.
const TOKEN: Token = Token::request(0);

/// Runs the operation of a task to its end, on the calling thread.
///
/// # Errors
/// The outer one where the kernel does not say when it ends, the inner one for how it does.
pub fn wait_for(storage: &dyn Storage, solo: &mut Solo, task: &mut Task) -> io::Result<Result<(), StorageError>> {
    let mut step = storage.start(task, TOKEN, &mut solo.io());
    loop {
        match step {
            Step::Done(result) => return Ok(result),
            Step::Pending => {
                let completion = solo.wait()?;
                step = storage.resume(task, completion, &mut solo.io());
            }
        }
    }
}
