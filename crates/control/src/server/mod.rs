//! The server: HTTP/1.1 on a unix socket, in a thread of its own.
//!
//! Only root and the daemon's own user are answered. The socket's mode says so (0600), and the kernel's word on the
//! peer (SO_PEERCRED) is checked as well, because a mode can be changed and the socket's directory may be shared.

mod answer;
mod connection;
mod disks;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod groups;
mod jobs;
mod listen;
mod metrics;
mod openapi;
mod policy;
mod routes;
mod runtime;
mod traces;
mod units;

use crate::daemon::Daemon;
pub use error::StartError;
use listen::Listener;
pub use listen::{ControlSocket, ControlSocketState};
pub use openapi::openapi_json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long answers in progress are waited for when the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// A running control server. Stops when it is dropped.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves the control API of `daemon` on a unix socket at `path`: [`ControlSocket::bind`] and [`serve`].
///
/// # Errors
/// [`StartError`]; its message names the path and the fix.
pub fn start(path: &Path, daemon: Arc<dyn Daemon>) -> Result<ControlServer, StartError> {
    serve(ControlSocket::bind(path)?, daemon)
}

/// Serves the control API of `daemon` on a socket that listens already, such as one that was made before its path went
/// out of sight.
///
/// # Errors
/// [`StartError`] when there can be no thread.
pub fn serve(socket: ControlSocket, daemon: Arc<dyn Daemon>) -> Result<ControlServer, StartError> {
    let path = socket.path().to_owned();
    let runtime = runtime::new(runtime::KEEP).map_err(|source| StartError::Thread { source })?;
    let listener = {
        let _entered = runtime.enter();
        socket.into_listener()?
    };
    let (stop, stopped) = oneshot::channel();
    let handle = runtime.handle().clone();
    let serve = move || {
        runtime.block_on(answer_all(listener, daemon, stopped));
        // A call into the daemon that hangs must not keep the daemon from stopping.
        runtime.shutdown_timeout(STOP_PATIENCE);
    };
    let thread = std::thread::Builder::new().name("vringd-control".into()).spawn(serve);
    let thread = thread.map_err(|source| StartError::Thread { source })?;
    Ok(ControlServer { path, runtime: handle, stop: Some(stop), thread: Some(thread) })
}

async fn answer_all(listener: Listener, daemon: Arc<dyn Daemon>, stopped: oneshot::Receiver<()>) {
    let (closing, closed) = oneshot::channel::<()>();
    let app = routes::router(daemon).into_make_service_with_connect_info::<listen::Peer>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        // An error means that the server was dropped: the same as being told to stop.
        let _ = stopped.await;
        drop(closing);
    });
    let overdue = async move {
        let _ = closed.await;
        tokio::time::sleep(STOP_PATIENCE).await;
    };
    tokio::select! {
        result = server => if let Err(error) = result {
            tracing::error!(%error, "the control server has ended");
        },
        () = overdue => tracing::warn!("the control server stopped with answers still in progress"),
    }
}

/// Whether a control server takes its turns.
#[derive(Debug, Clone)]
pub struct ControlPulse {
    runtime: tokio::runtime::Handle,
}

impl ControlPulse {
    /// True when the server did something we asked of it within `patience`. False when it hangs, and when it has ended.
    pub fn answers(&self, patience: Duration) -> bool {
        let (sender, answer) = std::sync::mpsc::channel();
        self.runtime.spawn(async move {
            let _ = sender.send(());
        });
        answer.recv_timeout(patience).is_ok()
    }
}

impl ControlServer {
    /// The socket it listens on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A way to see whether it is alive, for any thread and for longer than it is.
    pub fn pulse(&self) -> ControlPulse {
        ControlPulse { runtime: self.runtime.clone() }
    }

    /// Stops: answers in progress are finished for up to 2 s (then given up), and the socket is removed.
    ///
    /// Must not be called from a [`Daemon`] method: it would wait for itself.
    pub fn stop(mut self) {
        self.stop_and_join();
    }

    fn stop_and_join(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}
