//! From a state to what exports are made from.

use super::descriptors::Incoming;
use super::{envelope, state};
use crate::clients::Server;
use crate::prepared::{Begun, Contents, DiskContents, Prepared};
use control::model::Tls;
use engine::WorkerSpec;
use export::{Carried, FuseSession, SessionCounts, Socket, StreamListener};
use passthrough::Adopted;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use storage::{Handed, HandedRecord, RecordFile};
use tls::Certificates;
use vhost_user::{Endpoint, InflightState, LogState, RegionState, Resume, RingState, SessionState, SocketFile};
use zeroize::Zeroizing;

/// Tells how many rings of a session run again, or why it could not go on.
pub(super) type Resumed = Sender<Result<usize, String>>;

/// Where a worker was told to run.
pub(super) fn worker(worker: &state::Worker) -> WorkerSpec {
    WorkerSpec { cpus: worker.cpus.clone(), numa_node: worker.numa_node, cgroup: worker.cgroup.clone() }
}

/// Takes what belongs to an export. Descriptors that are left of it when that fails are closed in the end.
///
/// # Errors
/// A descriptor that is missing or of another kind.
pub(super) fn export(export: state::Export, incoming: &mut Incoming, resumed: Resumed) -> Result<Prepared, String> {
    let state::Export { description, socket, storage, sessions, session: begun, directory, tls, .. } = export;
    let file = socket.file.map(|file| SocketFile { path: file.path, device: file.device, inode: file.inode });
    let listens = incoming.take(socket.fd)?;
    let socket = if description.listen.is_some() {
        let listener = StreamListener::adopt(listens, file).map_err(|error| error.to_string())?;
        Socket::Stream(Server::here(None).admit_begun(&description, listener))
    } else {
        Socket::Bound(Endpoint::adopt(listens, file).map_err(|error| error.to_string())?)
    };
    let contents = storage.map(|kept| contents(&kept, incoming)).transpose()?.unwrap_or_default();
    let tls = match (&description.tls, incoming.take_if(tls)?) {
        (Some(about), Some(memory)) => Some(certificates(about, memory)?),
        (Some(_), None) => return Err("its certificates are not there".to_owned()),
        (None, _) => None,
    };
    let (fuse, tree) = directory.map(|directory| guest(directory, incoming)).transpose()?.unzip();
    let carried = Carried {
        placed: export.placed,
        attached: export.attached,
        homes: export.homes,
        sessions: SessionCounts {
            connects: sessions.connects,
            disconnects: sessions.disconnects,
            errors: sessions.errors,
        },
        last_error: export.last_error,
        write_back: export.write_back,
        // A number that is left out is 1.
        port: Some(export.port.unwrap_or(1)),
        shown: export.shown,
        fuse,
    };
    let begun = begun.map(|it| session(it, incoming)).transpose()?;
    let resume = begun.map(|session| Resume { session, resumed });
    let begun = Begun { tree, carried, resume };
    Ok(Prepared { socket: Some(socket), contents, tls, begun: Some(begun), ..Prepared::default() })
}

/// Goes on with the certificates that the program before had.
fn certificates(about: &Tls, memory: OwnedFd) -> Result<Arc<Certificates>, String> {
    let failed = |error| format!("its certificates: {error}");
    let wiped = File::from(memory.try_clone().map_err(failed)?);
    let handed = Zeroizing::new(envelope::read_bytes(memory).map_err(failed)?);
    wiped.write_all_at(&vec![0; handed.len()], 0).map_err(failed)?;
    Certificates::adopt(about, &handed).map(Arc::new).map_err(|error| error.to_string())
}

/// Takes what a storage keeps open.
///
/// # Errors
/// A descriptor that is missing.
fn contents(kept: &state::Storage, incoming: &mut Incoming) -> Result<Contents, String> {
    handed(kept, incoming).map(Contents::Handed)
}

/// A disk apart from exports.
pub(super) fn disk(kept: &state::Disk, incoming: &mut Incoming) -> Result<DiskContents, String> {
    let storage = contents(&kept.storage, incoming)?;
    let mut adopt = |kept_in: &state::Kept, path: &Path| -> Result<RecordFile, String> {
        let state::Kept { fd, number, record } = kept_in.clone();
        Ok(RecordFile::adopt(path, incoming.take(fd)?, HandedRecord { number, record }))
    };
    let described = kept.reservations.as_ref().zip(kept.description.reservations.as_deref());
    let reservations = described.map(|(kept_in, path)| adopt(kept_in, path)).transpose();
    Ok(DiskContents { storage, reservations: reservations? })
}

fn handed(kept: &state::Storage, incoming: &mut Incoming) -> Result<Handed, String> {
    Ok(Handed {
        capacity_bytes: kept.capacity_bytes,
        data: incoming.take_if(kept.data)?.map(Arc::new),
        lock: incoming.take_if(kept.lock)?.map(Arc::new),
        log: kept.log.as_deref().map(|log| handed(log, incoming).map(Box::new)).transpose()?,
        memory: incoming.take_if(kept.memory)?,
        seen: kept.seen.clone(),
        again: kept.again.clone(),
    })
}

/// A guest's session with a directory, and what it knows there.
fn guest(directory: state::Directory, incoming: &mut Incoming) -> Result<(FuseSession, Adopted), String> {
    let state::Directory { agreed, interrupted, tree: state::Tree { nodes, descriptors, .. } } = directory;
    let nodes = incoming.take_if(nodes)?.ok_or("the nodes of its guest are not there")?;
    let bytes = envelope::read_bytes(nodes).map_err(|error| format!("the nodes of its guest: {error}"))?;
    let descriptors = descriptors.into_iter().map(|number| incoming.take(number)).collect::<Result<_, _>>()?;
    Ok((FuseSession { agreed, interrupted }, Adopted { bytes, descriptors }))
}

fn session(session: state::Session, incoming: &mut Incoming) -> Result<SessionState, String> {
    let mut regions = |list: Vec<state::Region>| -> Result<Vec<RegionState>, String> {
        list.iter().map(|it| region(it, incoming)).collect()
    };
    let memory = session.memory.map(&mut regions).transpose()?;
    Ok(SessionState {
        socket: incoming.take(session.socket)?,
        features: session.features,
        protocol_features: session.protocol_features,
        memory,
        rings: session.rings.into_iter().map(|it| ring(&it, incoming)).collect::<Result<_, _>>()?,
        backend_channel: incoming.take_if(session.backend_channel)?,
        inflight: session.inflight.map(|it| inflight(&it, incoming)).transpose()?,
        log: session.log.map(|it| log(&it, incoming)).transpose()?,
    })
}

fn region(region: &state::Region, incoming: &mut Incoming) -> Result<RegionState, String> {
    let state::Region { fd, guest_addr, user_addr, len, file_offset } = *region;
    Ok(RegionState { guest_addr, user_addr, len, file_offset, file: incoming.take(fd)?.into() })
}

fn inflight(region: &state::Inflight, incoming: &mut Incoming) -> Result<InflightState, String> {
    let state::Inflight { fd, bytes, file_offset, queues, queue_size } = *region;
    Ok(InflightState { bytes, file_offset, queues, queue_size, file: incoming.take(fd)?.into() })
}

fn log(log: &state::DirtyLog, incoming: &mut Incoming) -> Result<LogState, String> {
    let state::DirtyLog { fd, bytes, file_offset } = *log;
    Ok(LogState { bytes, file_offset, file: incoming.take(fd)?.into() })
}

fn ring(ring: &state::Ring, incoming: &mut Incoming) -> Result<RingState, String> {
    Ok(RingState {
        index: ring.index,
        size: ring.size,
        areas: ring.areas,
        used_log: ring.used_log,
        position: ring.position,
        owed: ring.owed.clone(),
        kick: match ring.kick {
            state::Kick::Missing => vhost_user::Kick::Missing,
            state::Kick::Polled => vhost_user::Kick::Polled,
            state::Kick::Eventfd(number) => vhost_user::Kick::Eventfd(incoming.take(number)?),
        },
        call: incoming.take_if(ring.call)?,
        err: incoming.take_if(ring.err)?,
        enabled: ring.enabled,
        running: ring.running,
    })
}
