//! Looks at the places of sockets. None is made, and nobody is connected to.

use super::Facts;
use crate::clients::Server;
use crate::config::Config;
use crate::doctor::finding::{About, Area, Finding, Level};
use crate::doctor::look::{Look, at_each};
use crate::doctor::process::{Listener, Process, listener, listeners};
use crate::doctor::subjects::{CONTROL, named};
use crate::prepared::certificates;
use crate::users;
use control::model::{Listen, MemoryFile, NewExport};
use control::{ApiError, ControlSocket};
use disk::StorageSpec;
use export::StreamListener;
use sandbox::State;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The place of a socket that is looked at.
#[derive(Clone, Debug)]
enum Place {
    Control(PathBuf),
    Export(Box<NewExport>),
}

/// Of all sockets of `config`, those of the service manager left out; and what did not answer. `becomes`: whom the daemon is to become.
pub(in crate::doctor) fn read(config: &Config, becomes: Option<u32>) -> (Vec<Facts>, Vec<Finding>) {
    let server = Server::here(becomes);
    let listeners = Arc::new(listeners());
    let control = config.control.iter().cloned().map(Place::Control);
    let whole = config.clone();
    let made = Arc::new(Look::begin("look-socket", move || made(&whole)).answer().unwrap_or_default());
    let places: Vec<_> =
        control.chain(config.exports.iter().cloned().map(|export| Place::Export(Box::new(export)))).collect();
    let names: Vec<_> = places.iter().map(Place::subject).collect();
    let looks = at_each("look-socket", places, move |place| look(&place, server, (&listeners, &made)));
    let (mut facts, mut missed) = (Vec::new(), Vec::new());
    for (looked, subject) in looks.into_iter().zip(names) {
        match looked {
            Ok(seen) => facts.extend(seen),
            Err(why) => {
                let about = About::new(Area::Sockets, &subject);
                missed.push(about.costs(
                    Level::Degraded,
                    "answers",
                    format_args!("its socket's directory {why}"),
                    "`vringd serve` would wait there as well",
                ));
            }
        }
    }
    (facts, missed)
}

/// Directories that are not there, and are made before the sockets of exports: the control socket's, and that of memory files.
fn made(config: &Config) -> Vec<PathBuf> {
    let of_control = |path: &&PathBuf| ControlSocket::check(path).is_ok_and(|makes| makes);
    let control = config.control.as_ref().filter(of_control).and_then(|path| path.parent()).map(Path::to_owned);
    let in_memory = |storage: &StorageSpec| match storage {
        StorageSpec::Volume(volume) => volume.memory_file == MemoryFile::Auto,
        storage => storage.log().is_some_and(|log| log.file.memory_file == MemoryFile::Auto),
    };
    let root = rustix::process::geteuid().is_root();
    let memory = (root && config.storages().any(in_memory)).then(|| PathBuf::from(volume::MEMORY_DIRECTORY));
    control.into_iter().chain(memory.filter(|directory| !directory.exists())).collect()
}

/// The daemon that serves this configuration already: a `vringd` that listens at its control socket.
pub(in crate::doctor) fn daemon(config: &Config) -> Option<u32> {
    let path = config.control.clone()?;
    let found = Look::begin("look-daemon", move || listener(&listeners(), &path).and_then(Listener::process));
    found
        .answer()
        .ok()
        .flatten()
        .filter(|process: &Process| process.name.starts_with("vringd"))
        .map(|process| process.pid)
}

impl Place {
    fn subject(&self) -> String {
        match self {
            Place::Control(_) => CONTROL.to_owned(),
            Place::Export(export) => named(&export.name),
        }
    }
}

fn look(place: &Place, server: Server, (listeners, made): (&[Listener], &[PathBuf])) -> Option<Facts> {
    let subject = place.subject();
    let export = match place {
        Place::Control(path) => {
            let refusal = ControlSocket::check(path).err().map(|error| error.to_string());
            return Some(file(Facts { subject, refusal, ..Facts::default() }, path, listeners));
        }
        Place::Export(export) => export,
    };
    let refused =
        server.check(export).and_then(|()| export.tls.as_ref().map_or(Ok(()), |tls| certificates(tls).map(drop)));
    let facts = Facts { subject, ..Facts::default() };
    let (facts, path) = match (export.socket_path(), &export.listen) {
        (Some(path), _) => {
            let is_made = path.parent().is_some_and(|directory| made.iter().any(|made| made == directory));
            let refusal = if is_made { None } else { StreamListener::check(&Listen::Unix(path.to_owned())).err() };
            let refusal = refusal.map(|error| error.to_string());
            (file(Facts { refusal, ..facts }, path, listeners), Some(path))
        }
        // What was made for us, and what is open already.
        (None, None | Some(Listen::Fd(_))) => (facts, None),
        (None, Some(address)) => {
            let place = address.to_string();
            let refusal = StreamListener::check(address).err().map(|error| error.to_string());
            (Facts { place, refusal, ..facts }, None)
        }
    };
    let refusal = refused.err().map(|error| error.to_string()).or(facts.refusal);
    let facts = Facts { refusal, ..facts };
    Some(match path {
        Some(_) => owned(facts, export),
        None if facts.place.is_empty() && facts.refusal.is_none() => return None,
        None => facts,
    })
}

/// A socket with a path.
fn file(facts: Facts, path: &Path, listeners: &[Listener]) -> Facts {
    let place = path.display().to_string();
    let there = std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    let taken = if there { listener(listeners, path).map(Listener::process) } else { None };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let about = std::fs::metadata(directory).ok().filter(std::fs::Metadata::is_dir);
    let others_write = about.as_ref().is_some_and(|about| about.mode() & 0o022 != 0);
    Facts {
        place,
        is_stale: there && taken.is_none(),
        taken,
        name: about.and_then(|about| Some((about.dev(), about.ino(), path.file_name()?.to_owned()))),
        others_write: others_write.then(|| directory.display().to_string()),
        ..facts
    }
}

/// To whom it is to belong, and whether that can be.
fn owned(facts: Facts, export: &NewExport) -> Facts {
    let own = rustix::process::geteuid().as_raw();
    let number = |name: &Option<String>, of: fn(&str) -> Result<u32, ApiError>| name.as_deref().map(of).transpose();
    let (owner, group) = (number(&export.socket_owner, users::user), number(&export.socket_group, users::group));
    let unknown = owner.as_ref().err().or(group.as_ref().err()).map(ToString::to_string);
    let gives = State::of_thread().is_ok_and(|state| state.capabilities.iter().any(|name| name == "cap_chown"));
    let (owner, group) = (owner.ok().flatten(), group.ok().flatten());
    let mode = export.socket_mode.map_or(0o600, |mode| mode.0);
    Facts {
        refusal: facts.refusal.or(unknown),
        forbidden_owner: owner
            .filter(|owner| *owner != own && !gives || !is_mapped("uid_map", *owner))
            .map(|owner| format!("user {owner}"))
            .or(group
                .filter(|group| !gives && !is_own_group(*group) || !is_mapped("gid_map", *group))
                .map(|group| format!("group {group}"))),
        admits_others: Some(owner.is_some_and(|owner| owner != own) || mode & 0o022 != 0),
        ..facts
    }
}

/// Files may be given to it without a right.
fn is_own_group(group: u32) -> bool {
    let more = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || more.iter().any(|own| own.as_raw() == group)
}

/// Whether this user namespace has that number (user_namespaces(7)): nothing can be given to others. `map`: its file in /proc/self.
fn is_mapped(map: &str, number: u32) -> bool {
    std::fs::read_to_string(Path::new("/proc/self").join(map)).map_or(true, |map| has(&map, number))
}

/// Lines of the first number inside, the first outside, and how many.
fn has(map: &str, number: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (first, count) = (words.next().flatten(), words.nth(1).flatten());
        first.zip(count).and_then(|(first, count)| Some(number.checked_sub(first)? < count)) == Some(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_space_has_the_numbers_of_its_map() {
        let all = "         0          0 4294967295\n";
        assert!(has(all, 0) && has(all, 4_294_967_294) && !has(all, u32::MAX));
        let two = "0 100000 10\n1000 1000 1\n";
        assert!(has(two, 9) && has(two, 1000) && !has(two, 10) && !has(two, 1001));
        assert!(!has("", 0), "nothing is mapped yet");
    }
}
