//! The life of requests that took long, for who asks: by stages, each with its time.
//!
//! A ring looks once a batch, and at each completion, whether anybody traces its export. If not, that is all. If so, it notes for each
//! request when it came from stage to stage, which costs it a reading of the clock, and forgets the fast ones when they are shown.
//!
//! | file | concern |
//! |---|---|
//! | `slow` | a slow request as it is told, and where its time went |
//! | `stages` | what is noted of a request under way |
//! | `tracer` | one ring's notes |
//! | `recorder` | who reads an export's slow requests, and what has been kept for each |

mod recorder;
mod slow;
mod stages;
mod tracer;
#[cfg(test)]
mod tracer_tests;

pub use recorder::{READERS_MAX, Recorder, Taken};
pub use slow::{LOCK, OTHER, Object, SlowRequest, Times, Wait, What};
pub(crate) use tracer::Tracer;
