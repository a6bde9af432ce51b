//! What `vectors.c` has written.

mod numbers;
mod replies;
mod requests;

pub(crate) use numbers::*;
pub(crate) use replies::*;
pub(crate) use requests::*;
