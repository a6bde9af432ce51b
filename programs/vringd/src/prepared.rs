//! What is made for an export before it serves: its socket, and what stands behind a disk. They have paths, which go out of
//! sight with a sandbox.

use crate::clients::Server;
use crate::failure::field;
use crate::service::{is_open, take_descriptor};
use crate::volume;
use control::ApiError;
use control::model::config::NewExport;
use control::model::{Listen, NewDisk, Tls};
use disk::StorageSpec;
use engine::WorkerSpec;
use export::{Carried, Hosting, Socket, StreamListener};
use passthrough::{Adopted, Source};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use storage::{Handed, OpenError, Opened, RecordFile, Storage};
use tls::Certificates;
use vhost_user::Resume;

/// What a storage is started from.
#[derive(Debug, Default)]
pub(crate) enum Contents {
    /// Its paths, which are opened then.
    #[default]
    Paths,
    /// What was opened before paths went out of sight.
    Opened(Opened),
    /// What another program has had open.
    Handed(Handed),
}

impl Contents {
    /// Opens what has a path. `name` is the disk's.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] for `storage`.
    pub(crate) fn open(name: &str, storage: &StorageSpec) -> Result<Contents, ApiError> {
        open(name, storage).map(Contents::Opened)
    }

    /// The same, unlocked or connected: that takes seconds, by design or where a cluster does not answer, and nobody else is to wait for it.
    ///
    /// # Errors
    /// As of [`start`](Self::start).
    pub(crate) fn unlocked(self, name: &str, storage: &StorageSpec) -> Result<Contents, ApiError> {
        let takes_long = storage.luks().is_some() || matches!(storage, StorageSpec::Rbd(_) | StorageSpec::Sg(_));
        if !takes_long || matches!(self, Contents::Handed(_)) {
            return Ok(self);
        }
        let started = self.start(name, storage)?;
        Ok(Contents::Opened(Opened::new(storage, move || Ok(started))))
    }

    /// Starts the storage.
    pub(crate) fn start(self, name: &str, storage: &StorageSpec) -> Result<Arc<dyn Storage>, ApiError> {
        let started = match self {
            Contents::Paths => open(name, storage)?.start(),
            Contents::Opened(opened) => opened.start(),
            Contents::Handed(handed) => storage.adopt(handed),
        };
        started.map_err(refused)
    }
}

/// Whose fault it is that a storage does not open.
fn refused(error: OpenError) -> ApiError {
    match error {
        OpenError::Away(why) => ApiError::Failed { message: format!("storage: {why}") },
        error => field("storage", error),
    }
}

fn open(name: &str, storage: &StorageSpec) -> Result<Opened, ApiError> {
    let opened = storage.open().map_err(refused)?;
    if let StorageSpec::File(file) = storage {
        volume::warn_of_volume(name, &file.path);
    }
    Ok(opened)
}

/// What a disk is made of.
#[derive(Debug, Default)]
pub(crate) struct DiskContents {
    pub(crate) storage: Contents,
    /// What keeps its reservations, if that is open already.
    pub(crate) reservations: Option<RecordFile>,
}

impl DiskContents {
    /// Opens what has a path, for who is going to serve it.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] for `storage` or `reservations`.
    pub(crate) fn open(new: &NewDisk, becomes: Option<(u32, u32)>) -> Result<DiskContents, ApiError> {
        let storage = Contents::open(&new.name, &new.storage)?;
        let reservations = new.reservations.as_deref().map(open_reservations).transpose()?;
        if let (Some(file), Some((user, group))) = (&reservations, becomes) {
            file.give_to(user, group).map_err(|error| field(NewDisk::RESERVATIONS, error))?;
        }
        Ok(DiskContents { storage, reservations })
    }
}

/// Opens the file that keeps a disk's reservations, or makes it.
///
/// # Errors
/// [`ApiError::InvalidField`].
pub(crate) fn open_reservations(path: &Path) -> Result<RecordFile, ApiError> {
    let file = RecordFile::open(path).map_err(|error| field(NewDisk::RESERVATIONS, error))?;
    export::check_reservations(&file).map_err(|error| field(NewDisk::RESERVATIONS, error))?;
    Ok(file)
}

/// An export that another program has begun.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// What the guest of a directory knows and has open.
    pub(crate) tree: Option<Adopted>,
    /// What it remembers.
    pub(crate) carried: Carried,
    /// Its session.
    pub(crate) resume: Option<Resume>,
}

/// What was made for an export before its path went out of sight, and who is to hear of its sessions.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// Its socket; made now when there is none.
    pub(crate) socket: Option<Socket>,
    /// Where that socket was made.
    pub(crate) bound_at: Option<String>,
    /// What stands behind a disk of its own.
    pub(crate) contents: Contents,
    /// What its NBD clients have to begin TLS with; read now when there is nothing and it has some.
    pub(crate) tls: Option<Arc<Certificates>>,
    /// Its directory; opened by its path when there is none.
    pub(crate) tree: Option<Source>,
    /// Told at the end of every session.
    pub(crate) session_ended: Option<Sender<()>>,
    /// What is logged once it listens, beside the usual.
    pub(crate) listens: Option<&'static str>,
    /// Told when it cannot serve any more.
    pub(crate) failed: Option<Sender<()>>,
    /// What the program before this one has begun.
    pub(crate) begun: Option<Begun>,
}

impl Prepared {
    /// Makes the socket of an export, and opens the storage of a disk. `server` is who is going to serve it.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the field at fault.
    pub(crate) fn open(new: &NewExport, server: Server) -> Result<Prepared, ApiError> {
        let tls = new.tls.as_ref().map(certificates).transpose()?;
        let socket = socket_in(new, server)?;
        let contents = match &new.storage {
            Some(storage) => Contents::open(&new.name, storage)?,
            None => Contents::default(),
        };
        let socket = match socket {
            Socket::Path { path, options } => {
                Socket::Bound(vhost_user::Endpoint::bind(&path, &options).map_err(|error| field("socket", error))?)
            }
            other => other,
        };
        Ok(Prepared { socket: Some(socket), contents, tls, ..Prepared::default() })
    }

    /// Makes the socket of the one export that is to be served. What is returned removes its file at the end, if it can
    /// be seen then.
    pub(crate) fn bind(&mut self, exports: &[NewExport]) -> Result<Option<vhost_user::Endpoint>, ApiError> {
        let server = Server::here(None);
        match exports.first().map(|new| socket_in(new, server)).transpose()? {
            Some(Socket::Path { path, options }) => {
                let endpoint = vhost_user::Endpoint::bind(&path, &options).map_err(|error| field("socket", error))?;
                let socket = endpoint.as_fd().try_clone_to_owned();
                let failed = |error| ApiError::Failed { message: format!("cannot duplicate a descriptor: {error}") };
                self.socket = Some(Socket::Fd(socket.map_err(failed)?));
                self.bound_at = Some(path.display().to_string());
                Ok(Some(endpoint))
            }
            inherited => {
                self.socket = inherited;
                Ok(None)
            }
        }
    }
}

/// Reads the certificates and the key of TLS.
///
/// # Errors
/// [`ApiError::InvalidField`] with the file at fault.
pub(crate) fn certificates(tls: &Tls) -> Result<Arc<Certificates>, ApiError> {
    Certificates::read(tls).map(Arc::new).map_err(|error| field(Tls::CERTIFICATES, error))
}

/// Sees to it that a socket is there that this process is said to have inherited, before anything is opened that would get its number.
///
/// # Errors
/// [`ApiError::InvalidField`] when it is not.
pub(crate) fn check_inherited(new: &NewExport) -> Result<(), ApiError> {
    let listens = || match new.listen {
        Some(Listen::Fd(number)) => Some(("listen", number)),
        _ => None,
    };
    let named = new.socket_fd.map(|number| ("socket_fd", number)).or_else(listens);
    match named.filter(|(_, number)| !is_open(*number)) {
        Some((name, number)) => Err(field(name, format_args!("descriptor {number} is not open"))),
        None => Ok(()),
    }
}

/// Where an export is to be reached. A stream listens by now; a vhost-user socket that has a path is still to be made.
pub(crate) fn socket_in(new: &NewExport, server: Server) -> Result<Socket, ApiError> {
    server.check(new)?;
    let inherited = |name: &str, number| {
        take_descriptor(number).ok_or_else(|| field(name, format_args!("descriptor {number} is not open")))
    };
    if let Some(number) = new.socket_fd {
        return inherited("socket_fd", number).map(Socket::Fd);
    }
    let owner = new.socket_owner.as_deref().map(crate::users::user).transpose()?;
    let group = new.socket_group.as_deref().map(crate::users::group).transpose()?;
    let mode = Some(new.socket_mode.map_or(0o600, |mode| mode.0));
    let options = vhost_user::SocketOptions { mode, owner, group };
    if let Some(listen) = &new.listen {
        let listener = match listen {
            Listen::Fd(number) => StreamListener::from_fd(inherited("listen", *number)?),
            address => StreamListener::bind(address, &options),
        };
        let listener = listener.map_err(|error| field("listen", error))?;
        return server.admit(new, listener).map(Socket::Stream);
    }
    let path = new.socket.clone().ok_or_else(|| field("socket", "is missing"))?;
    Ok(Socket::Path { path, options })
}

/// How an export is served, for all that its description says of that.
///
/// # Errors
/// Its socket cannot be made.
pub(crate) fn hosting_in(new: &NewExport, socket: Option<Socket>) -> Result<Hosting, ApiError> {
    Ok(Hosting {
        name: new.name.clone(),
        socket: socket.map_or_else(|| socket_in(new, Server::here(None)), Ok)?,
        queue_size_max: new.queue_size(),
        placement: new.workers,
        poll: new.poll.unwrap_or_default(),
        workers: WorkerSpec { cpus: new.cpus.clone(), ..WorkerSpec::default() },
        session_ended: None,
        failed: None,
        carried: Carried::default(),
        resume: None,
    })
}
