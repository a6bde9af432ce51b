//! Figures of a worker and of a ring's stay on it: plain counters that their owner writes and a message collects.

/// What one worker has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerFigures {
    /// Turns of the loop.
    pub turns: u64,
    /// Calls of io_uring_enter.
    pub enters: u64,
    /// Times the worker went to sleep.
    pub sleeps: u64,
    /// Poll windows in which work arrived.
    pub polls_hit: u64,
    /// Poll windows that ended without work.
    pub polls_missed: u64,
    /// Submission queue entries.
    pub sqes: u64,
    /// Completion queue entries.
    pub cqes: u64,
    /// Messages from other threads.
    pub messages: u64,
    /// The poll window now, in nanoseconds.
    pub poll_window_ns: u64,
    /// CPU time of the worker's thread, in nanoseconds.
    pub cpu_ns: u64,
}

/// What the engine counts of one ring, carried along when it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStay {
    /// Kicks received.
    pub kicks: u64,
    /// Times the ring had requests while its worker was looking, so that no kick was needed.
    pub polls_hit: u64,
    /// Times the worker stopped looking and armed the kick.
    pub polls_missed: u64,
    /// Moves to another worker.
    pub moves: u64,
}
