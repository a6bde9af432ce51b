//! Pulls: NBD clients read a disk as it was, while its guests go on.

use super::bitmaps::Since;
use super::job::Copier;
use crate::daemon::Daemon;
use crate::failure::field;
use crate::prepared::certificates;
use control::ApiError;
use control::model::{CopyDisk, NewJob, NewPull};
use engine::{Placement, Poll, WorkerSpec};
use export::{
    CONNECTIONS, Carried, DirtyBitmap, DiskOptions, Engine, Export, Hosting, NbdOptions, Socket, StreamListener,
};
use image::tools::Destination;
use job::{Copied, JobError, Pull};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use storage::Storage;
use tls::Certificates;
use vhost_user::SocketOptions;

/// Descriptors of a ring: a connection has none.
const QUEUE_SIZE_MAX: u16 = 256;
const SOCKET_MODE: u32 = 0o600;

/// What keeps one disk, and serves what it keeps.
pub(super) struct Pulling {
    pub(super) pull: Pull,
    /// Until it serves.
    server: Mutex<Option<Server>>,
}

struct Server {
    /// Of its workers. No other export can have it.
    name: String,
    disk: String,
    door: Door,
    bitmap: Option<DirtyBitmap>,
    engine: Engine,
}

/// Where the clients of one disk connect, and what TLS is made of there.
pub(super) struct Door {
    listener: StreamListener,
    tls: Option<Arc<Certificates>>,
}

impl Pulling {
    /// Serves the disk as it was until the pull is completed, then hangs up on all clients.
    pub(super) fn run(&self, ready: &mut dyn FnMut()) -> Result<Copied, JobError> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        let server = server.ok_or(JobError::Cancelled)?;
        let (failed, fails) = channel();
        let export = server.serve(self.pull.view(), failed).map_err(JobError::Serve)?;
        std::thread::scope(|scope| {
            // Until the export is gone, with the other end.
            let watch = move || fails.recv().into_iter().for_each(|()| self.pull.cancel());
            let started = std::thread::Builder::new().name("job-pull".to_owned()).spawn_scoped(scope, watch);
            started.map_err(|error| JobError::Serve(format!("cannot start a thread: {error} (check RLIMIT_NPROC)")))?;
            let ended = self.pull.run(ready);
            let failure = export.failure();
            drop(export);
            failure.map_or(ended, |why| Err(JobError::Serve(why)))
        })
    }
}

impl Server {
    fn serve(self, view: Arc<dyn Storage>, failed: Sender<()>) -> Result<Export, String> {
        let Server { name, disk, door: Door { listener, tls }, bitmap, engine } = self;
        let hosting = Hosting {
            name,
            socket: Socket::Stream(listener),
            queue_size_max: QUEUE_SIZE_MAX,
            // Rings of guests do not wait for what a backup program reads.
            placement: Placement::One,
            poll: Poll::default(),
            workers: WorkerSpec::default(),
            session_ended: None,
            failed: Some(failed),
            carried: Carried::default(),
            resume: None,
        };
        let options = DiskOptions {
            queues: CONNECTIONS,
            serial: String::new(),
            block_size_bytes: 512,
            write_back: true,
            write_back_changeable: false,
            nbd: NbdOptions { name: Some(disk), bitmap: bitmap.map(Arc::new), tls },
        };
        Export::disk(hosting, options, view, &engine).map_err(|error| error.to_string())
    }
}

/// What a pull does to one disk, and what guests use meanwhile. No request is in flight: its bitmap begins anew at this moment.
pub(super) fn copier(
    daemon: &Daemon,
    (id, disk): (u64, &str),
    (from, since): (&Arc<dyn Storage>, &mut Since),
    to: &Destination,
    door: Option<Door>,
) -> Result<(Arc<dyn Storage>, Copier), String> {
    let door = door.ok_or("nobody listens for it")?;
    let pull = Pull::new(from.clone(), to.storage().clone()).map_err(|error| error.to_string())?;
    let bitmap = since.frozen(from)?;
    let (name, disk, engine) = (format!("job {id}: {disk}"), disk.to_owned(), daemon.engine().clone());
    let server = Mutex::new(Some(Server { name, disk, door, bitmap, engine }));
    Ok((pull.filter(), Copier::Pull(Box::new(Pulling { pull, server }))))
}

/// What guests write over goes there.
pub(super) fn scratch(pull: &NewPull, size_bytes: u64) -> Result<Destination, ApiError> {
    Destination::scratch(&pull.scratch(), size_bytes).map_err(|error| field("scratch", error))
}

/// Where the clients of each disk connect, if the job has any: from now on they wait. The targets become addresses as they are.
pub(super) fn doors(new: &NewJob, copies: &mut [CopyDisk]) -> Result<Vec<Option<Door>>, ApiError> {
    let NewJob::Pull(pull) = new else { return Ok(copies.iter().map(|_| None).collect()) };
    let options = SocketOptions { mode: Some(SOCKET_MODE), ..SocketOptions::default() };
    let tls = pull.tls.as_ref().map(certificates).transpose()?;
    let door = |(index, (of, copy)): (usize, (&control::model::PullDisk, &mut CopyDisk))| {
        let listener = StreamListener::bind(&of.listen, &options);
        let listener = listener.map_err(|error| field(&new.target_field(index), error))?;
        crate::clients::warn_of_nbd(&of.disk, &listener, pull.tls.as_ref());
        copy.target = PathBuf::from(listener.address().to_string());
        Ok(Some(Door { listener, tls: tls.clone() }))
    };
    pull.disks.iter().zip(copies).enumerate().map(door).collect()
}

impl Daemon {
    /// Refuses a pull of one disk that cannot be, as far as that can be told before anything is made.
    pub(super) fn admit_pull(&self, new: &NewJob, index: usize, pull: &NewPull) -> Result<(), ApiError> {
        let scratch = pull.scratch();
        if !scratch.is_dir() {
            return Err(field("scratch", format_args!("{}: there is no such directory", scratch.display())));
        }
        self.held.admit_directory("scratch", &scratch)?;
        pull.tls.as_ref().map_or(Ok(()), |tls| self.held.admit_certificates(tls))?;
        let of = pull.disks.get(index);
        of.map_or(Ok(()), |of| self.held.admit_listen(&new.target_field(index), &of.listen))
    }
}
