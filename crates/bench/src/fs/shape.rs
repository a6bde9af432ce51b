//! How many requests are wanted, and how large they may be.

/// How many queues or connections, how deep, and how much of what protocols agree on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Request queues, or connections, that are wanted.
    pub(crate) queues: u16,
    /// Requests in flight on each of them; a server with fewer queues gets as many altogether.
    pub(crate) depth: u16,
    /// Data of a request, in bytes.
    pub(crate) data_bytes: usize,
    /// Whether EVENT_IDX is taken when it is offered.
    pub(crate) event_idx: bool,
    /// The longest message that is offered over 9P, in bytes.
    pub(crate) msize: u32,
}

impl Shape {
    /// Requests in flight on each of `lanes` queues.
    pub(crate) fn depth_on(&self, lanes: u16) -> u16 {
        self.depth * (self.queues / lanes.max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_fewer_queues_gets_as_many_requests() {
        let shape = Shape { queues: 4, depth: 8, data_bytes: 0, event_idx: true, msize: 0 };
        assert_eq!((shape.depth_on(4), shape.depth_on(2), shape.depth_on(1)), (8, 16, 32));
        assert_eq!(shape.depth_on(3), 8, "not more than were asked for");
    }
}
