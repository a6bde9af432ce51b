//! How another thread completes a request.

use crate::{Completion, Token};
use std::sync::Arc;

/// Delivery of a completion to the worker that started the work.
pub(crate) trait Post: Send + Sync {
    fn post(&self, slot: u32, completion: Completion);
}

/// Completes one request from any thread. Dropping it unused completes the request with EIO: no request is ever lost.
pub struct Reply {
    post: Option<Arc<dyn Post>>,
    slot: u32,
    token: Token,
}

impl Reply {
    pub(crate) fn new(post: Arc<dyn Post>, slot: u32, token: Token) -> Self {
        Reply { post: Some(post), slot, token }
    }

    /// Hands in the result: bytes, or a negated errno.
    pub fn complete(mut self, result: i32) {
        self.post(result);
    }

    /// As [`complete`](Self::complete), for another part of the request than this was made for: what the completion is of can be
    /// known late.
    pub fn complete_part(mut self, part: u16, result: i32) {
        self.token = self.token.part(part);
        self.post(result);
    }

    /// What it completes.
    #[cfg(test)]
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    fn post(&mut self, result: i32) {
        if let Some(post) = self.post.take() {
            post.post(self.slot, Completion::new(self.token, result));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.post(-libc::EIO);
    }
}
