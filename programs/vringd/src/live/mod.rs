//! What is done to disks while they are served: afterwards, or for as long as it lasts, another storage stands behind them.
//!
//! | file | concern |
//! |---|---|
//! | `swap` | the moment at which storages come and go |
//! | `snapshot` | external snapshots |
//! | `bitmaps` | dirty bitmaps, and what a backup takes of them |
//! | `chain` | what a stream and a commit need before they begin |
//! | `jobs` | the list of jobs, what begins one and what it is told |
//! | `job` | one job, as others see it |
//! | `pull` | what NBD clients read of a disk as it was |
//! | `course` | the thread of a job: from the first copied byte to the end |

mod bitmaps;
mod chain;
mod course;
mod job;
mod jobs;
mod pull;
mod snapshot;
mod swap;

pub(crate) use course::TARGET_THREAD;
pub(crate) use jobs::Jobs;
pub(crate) use swap::END_THREAD;
