//! From running exports to a state.

use super::descriptors::Outgoing;
use super::envelope;
use super::state::{self, State};
use crate::convert;
use control::model::config::ExportKind;
use control::model::{ByteSize, NewDisk, NewExport};
use disk::Disk;
use engine::WorkerStatus;
use export::{Export, ExportStatus, LogicalUnitName, LogicalUnits, UnitCondition};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use storage::{Handed, HandedRecord, RecordFile};
use vhost_user::{EndpointState, RegionState, RingState, SessionState};

/// How long reservations may take to be stored before nobody pauses for an upgrade.
const STORED_WITHIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_micros(100);

/// The description that makes an export as it is now, with its own disk. What was left out is said, so that no default can
/// change it.
fn present(mut new: NewExport, status: &ExportStatus, own: Option<&Disk>) -> NewExport {
    new.queues = Some(new.queues());
    new.workers = status.placement;
    new.poll = Some(status.poll);
    new.limits = crate::limit::shown(status.limits, status.group.clone());
    new.storage = own.map(Disk::spec);
    if let Some(directory) = &mut new.directory {
        directory.execution = convert::execution_set(&status.content);
    }
    new
}

/// A worker. Dead ones are left behind.
pub(super) fn worker(status: &WorkerStatus) -> Option<state::Worker> {
    status.alive.then(|| state::Worker {
        number: status.number,
        owner: status.owner.clone(),
        cpus: status.spec.cpus.clone(),
        numa_node: status.spec.numa_node,
        cgroup: status.spec.cgroup.clone(),
        poll: status.poll,
    })
}

/// What a storage keeps open.
fn storage(handed: Handed, name: &str, out: &mut Outgoing) -> state::Storage {
    state::Storage {
        capacity_bytes: handed.capacity_bytes,
        data: give(handed.data, || format!("contents of {name}"), out),
        lock: give(handed.lock, || format!("locks of {name}"), out),
        log: handed.log.map(|log| Box::new(storage(*log, &format!("the log of {name}"), out))),
        memory: give(handed.memory, || format!("memory of {name}"), out),
        seen: handed.seen,
        again: handed.again,
    }
}

/// A disk apart from exports.
///
/// # Errors
/// No more descriptors, or reservations of it that are being stored.
pub(super) fn disk(disk: &Disk, purpose: Purpose, out: &mut Outgoing) -> Result<state::Disk, String> {
    let handed = disk.storage().hand_over().map_err(|error| error.to_string())?;
    let kept = disk.reservations();
    let description = NewDisk {
        name: disk.name().to_owned(),
        storage: disk.spec(),
        shared: disk.is_shared(),
        reservations: kept.map(|file| file.path().to_owned()),
        space_threshold: disk.space_threshold_bytes().map(ByteSize),
    };
    let kept = kept.map(|file| kept_in(file, purpose)).transpose().map_err(|error| error.to_string())?;
    let reservations = kept.map(|(fd, HandedRecord { number, record })| {
        let fd = out.give(fd, format!("reservations of {}", disk.name()));
        state::Kept { fd, number, record }
    });
    Ok(state::Disk { description, storage: storage(handed, disk.name(), out), reservations })
}

/// What a file keeps of reservations. While guests run one of them may be storing some, again and again: that is waited for.
fn kept_in(file: &RecordFile, purpose: Purpose) -> io::Result<(OwnedFd, HandedRecord)> {
    let by = Instant::now() + STORED_WITHIN;
    loop {
        match file.hand_over() {
            Err(error)
                if purpose == Purpose::Check && error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < by =>
            {
                sleep(LOOK_AGAIN_AFTER);
            }
            handed => return handed,
        }
    }
}

/// What guests have reserved.
pub(super) fn reservations(of: &LogicalUnits) -> Vec<state::Reservations> {
    let all = of.reservations().into_iter();
    all.map(|(LogicalUnitName { disk, export }, bytes)| state::Reservations { disk, export, bytes }).collect()
}

/// What guests have made of logical units.
pub(super) fn units(of: &LogicalUnits) -> Vec<state::Unit> {
    let unit = |(LogicalUnitName { disk, export }, condition)| {
        let UnitCondition { write_cache, descriptor_sense, stopped, space_is_low, attentions } = condition;
        state::Unit { disk, export, write_cache, descriptor_sense, stopped, space_is_low, attentions }
    };
    of.conditions().into_iter().map(unit).collect()
}

/// A listening socket that is called `what`.
pub(super) fn socket(fd: OwnedFd, file: Option<state::SocketFile>, what: String, out: &mut Outgoing) -> state::Socket {
    state::Socket { fd: out.give(fd, what), file }
}

/// What a state is collected for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To be understood, while everything runs.
    Check,
    /// To be gone on with, while sessions pause.
    Handover,
}

/// What the guest of a directory knows and has open.
///
/// # Errors
/// What would stay behind.
fn directory(export: &Export, purpose: Purpose, out: &mut Outgoing) -> Result<Option<state::Directory>, String> {
    if purpose == Purpose::Check {
        // That it can be handed over has been asked already, and there may be much of it.
        let tree = state::Tree { form: passthrough::FORM, nodes: None, descriptors: Vec::new() };
        return Ok(Some(state::Directory { agreed: None, interrupted: Vec::new(), tree }));
    }
    let handed = export.hand_directory_over().map_err(|error| error.to_string())?;
    let Some((session, passthrough::Handed { bytes, descriptors })) = handed else {
        return Ok(None);
    };
    let nodes = envelope::write_bytes(bytes).map_err(|error| format!("cannot write its nodes down: {error}"))?;
    let nodes = out.give(nodes, format!("nodes of {}", export.name()));
    let descriptors = descriptors.into_iter().map(|fd| out.lend(fd)).collect();
    let tree = state::Tree { form: passthrough::FORM, nodes: Some(nodes), descriptors };
    Ok(Some(state::Directory { agreed: session.agreed, interrupted: session.interrupted, tree }))
}

/// An export whose endpoint is `endpoint`, and which has a disk of its `own`.
///
/// # Errors
/// No more descriptors, or something that would stay behind.
pub(super) fn export(
    new: NewExport,
    (export, own): (&Export, Option<&Disk>),
    endpoint: EndpointState,
    purpose: Purpose,
    out: &mut Outgoing,
) -> Result<state::Export, String> {
    let name = export.name();
    let carried = export.carried();
    let file = endpoint.file.map(|file| state::SocketFile { path: file.path, device: file.device, inode: file.inode });
    let handed = own.map(|disk| disk.storage().hand_over()).transpose().map_err(|error| error.to_string())?;
    let storage = handed.map(|handed| storage(handed, name, out));
    let tls = export.certificates().map(|certificates| {
        // It has the key, and is wiped when it was written.
        let memory = envelope::write_bytes(vec![certificates.hand_over()]);
        let memory = memory.map_err(|error| format!("cannot write its certificates down: {error}"))?;
        Ok::<_, String>(out.give(memory, format!("certificates of {name}")))
    });
    // Without a session there is nothing that anybody knows.
    let has_guest = endpoint.session.is_some() && new.kind == ExportKind::Dir;
    let directory = if has_guest { directory(export, purpose, out)? } else { None };
    Ok(state::Export {
        description: present(new, &export.status(), own),
        socket: socket(endpoint.socket, file, format!("socket of {name}"), out),
        port: carried.port.filter(|port| *port != 1),
        shown: carried.shown,
        storage,
        write_back: carried.write_back,
        placed: carried.placed,
        attached: carried.attached,
        homes: carried.homes,
        sessions: state::Sessions {
            connects: carried.sessions.connects,
            disconnects: carried.sessions.disconnects,
            errors: carried.sessions.errors,
        },
        last_error: carried.last_error,
        session: endpoint.session.map(|it| session(it, name, out)),
        directory,
        tls: tls.transpose()?,
    })
}

fn give(
    fd: Option<impl Into<Arc<OwnedFd>>>,
    what: impl FnOnce() -> String,
    out: &mut Outgoing,
) -> Option<state::Number> {
    fd.map(|fd| out.give(fd, what()))
}

fn session(session: SessionState, name: &str, out: &mut Outgoing) -> state::Session {
    let SessionState { socket, features, protocol_features, memory, rings, backend_channel, inflight, log } = session;
    let memory = memory.map(|regions| regions.into_iter().map(|it| region(it, name, out)).collect());
    state::Session {
        socket: out.give(socket, format!("session of {name}")),
        features,
        protocol_features,
        memory,
        backend_channel: give(backend_channel, || format!("backend channel of {name}"), out),
        inflight: inflight.map(|region| state::Inflight {
            fd: out.give(region.file, format!("inflight region of {name}")),
            bytes: region.bytes,
            file_offset: region.file_offset,
            queues: region.queues,
            queue_size: region.queue_size,
        }),
        log: log.map(|log| state::DirtyLog {
            fd: out.give(log.file, format!("dirty log of {name}")),
            bytes: log.bytes,
            file_offset: log.file_offset,
        }),
        rings: rings.into_iter().map(|it| ring(it, name, out)).collect(),
    }
}

fn region(region: RegionState, name: &str, out: &mut Outgoing) -> state::Region {
    let RegionState { guest_addr, user_addr, len, file_offset, file } = region;
    let fd = out.give(file, format!("guest memory of {name} at {guest_addr:#x}"));
    state::Region { fd, guest_addr, user_addr, len, file_offset }
}

fn ring(ring: RingState, name: &str, out: &mut Outgoing) -> state::Ring {
    let index = ring.index;
    state::Ring {
        index,
        size: ring.size,
        areas: ring.areas,
        used_log: ring.used_log,
        position: ring.position,
        owed: ring.owed,
        kick: match ring.kick {
            vhost_user::Kick::Missing => state::Kick::Missing,
            vhost_user::Kick::Polled => state::Kick::Polled,
            vhost_user::Kick::Eventfd(fd) => state::Kick::Eventfd(out.give(fd, format!("kick of {name}/{index}"))),
        },
        call: give(ring.call, || format!("call of {name}/{index}"), out),
        err: give(ring.err, || format!("err of {name}/{index}"), out),
        enabled: ring.enabled,
        running: ring.running,
    }
}

/// Sessions and rings in a state that go on.
pub(super) fn running(state: &State) -> (usize, usize) {
    let sessions = || state.exports.iter().filter_map(|export| export.session.as_ref());
    let rings = sessions().flat_map(|session| &session.rings).filter(|ring| ring.running).count();
    (sessions().count(), rings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_that_are_being_stored_are_waited_for_while_guests_run() {
        let place = tempfile::tempdir().unwrap();
        let file = Arc::new(RecordFile::open(&place.path().join("d.reservations")).unwrap());
        let storing = file.clone().storing().unwrap();
        // While guests pause nobody stores any but an operator, who does not hold them up.
        assert_eq!(kept_in(&file, Purpose::Handover).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        let stores = std::thread::spawn(move || {
            sleep(Duration::from_millis(50));
            storing.store(b"registered").unwrap();
        });
        assert_eq!(kept_in(&file, Purpose::Check).unwrap().1.record, b"registered");
        stores.join().unwrap();
    }
}
