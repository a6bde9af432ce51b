//! One frontend after the other, without a pause. Alone in its program: a test beside it that starts a process would, for a
//! moment, hold this one's sockets open after they were closed.

use anyhow::Result;
use tests::daemon::{DIRECTORY, Daemon};
use tests::driver::writable;
use tests::frontend::{DATA, Frontend, kind, status};

/// Whoever comes right after another has left is served, and not turned away for the one that has left.
#[test]
fn the_next_frontend_need_not_wait() -> Result<()> {
    let daemon = Daemon::serve(&format!(
        "[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 1\n\
         storage = {{ kind = 'memory', size = '1M' }}\n"
    ))?;
    for _ in 0..500 {
        let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
        let mut ring = frontend.ring(0, 64)?;
        assert_eq!(ring.run(kind::IN, 0, &[writable(DATA, 4096)]), (status::OK, 4097));
    }
    assert_eq!(daemon.export("disk")?.sessions.connects, 500);
    daemon.stop()
}
