//! The bytes around a state: enough to tell what it is, which version, and that all of it is there.

use super::state::{State, VERSION, VERSION_MIN};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The first bytes.
const MAGIC: [u8; 8] = *b"VRINGUPG";
/// Magic, version (u32, little endian), length of what follows in bytes (u64, little endian).
const HEAD_BYTES: usize = 20;
/// Longest state that is read, in bytes: thousands of exports with hundreds of memory regions each.
const BODY_BYTES_MAX: u64 = 1 << 30;
/// Most bytes of what a guest knows: 16 Mi nodes with the longest handles, or with ordinary ones and what is recorded of them.
const NODES_BYTES_MAX: u64 = 4 << 30;

/// Why bytes are no state that this program can go on with. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub(crate) enum ReadError {
    /// descriptor {number} cannot be read: {error}
    Descriptor {
        /// The descriptor.
        number: i32,
        /// How the system answered.
        error: io::Error,
    },
    /// this is no upgrade state: it begins with something else
    Foreign,
    /// the state has version {version} and this program reads versions {oldest} to {newest}: upgrade to another program
    Version {
        /// The version it has.
        version: u32,
        /// The oldest version that can be read.
        oldest: u32,
        /// The newest version that can be read.
        newest: u32,
    },
    /// the state is damaged: it claims {claimed} bytes and has {present}
    Length {
        /// What its head says.
        claimed: u64,
        /// What there is.
        present: u64,
    },
    /// the state of the directory of export {export} has form {form} and this program reads form {known}: upgrade to another program
    Tree {
        /// The export.
        export: String,
        /// The form it has.
        form: u32,
        /// The form that can be read.
        known: u32,
    },
    /// the state cannot be understood: {0}
    Body(String),
}

/// The state as bytes.
///
/// # Errors
/// A path that is not UTF-8.
pub(super) fn encode(state: &State) -> Result<Vec<u8>, String> {
    let body = serde_json::to_vec(state).map_err(|error| error.to_string())?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The state that these bytes are, and the version they have.
pub(super) fn decode(bytes: &[u8]) -> Result<(State, u32), ReadError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(ReadError::Foreign)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(ReadError::Foreign)?;
    let (length, body) = rest.split_first_chunk::<8>().ok_or(ReadError::Foreign)?;
    let version = u32::from_le_bytes(*version);
    if !(VERSION_MIN..=VERSION).contains(&version) {
        return Err(ReadError::Version { version, oldest: VERSION_MIN, newest: VERSION });
    }
    let claimed = u64::from_le_bytes(*length);
    if claimed != body.len() as u64 {
        return Err(ReadError::Length { claimed, present: body.len() as u64 });
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let state = serde_path_to_error::deserialize(&mut json).map_err(|error| ReadError::Body(error.to_string()))?;
    json.end().map_err(|error| ReadError::Body(error.to_string()))?;
    understood(&state)?;
    Ok((state, version))
}

/// What a state refers to has forms of its own.
fn understood(state: &State) -> Result<(), ReadError> {
    let trees = state.exports.iter().filter_map(|export| Some((export, export.directory.as_ref()?)));
    match trees
        .map(|(export, directory)| (export, directory.tree.form))
        .find(|(_, form)| !(1..=passthrough::FORM).contains(form))
    {
        Some((export, form)) => {
            Err(ReadError::Tree { export: export.description.name.clone(), form, known: passthrough::FORM })
        }
        None => Ok(()),
    }
}

/// Bytes that the state refers to by the descriptor of their memory, in pieces, whose memory goes as they are written.
///
/// # Errors
/// No more descriptors, no more memory, or more than is read.
pub(super) fn write_bytes(pieces: Vec<impl AsRef<[u8]>>) -> io::Result<OwnedFd> {
    write_up_to(pieces, NODES_BYTES_MAX)
}

fn write_up_to(pieces: Vec<impl AsRef<[u8]>>, max: u64) -> io::Result<OwnedFd> {
    let bytes = pieces.iter().map(|piece| piece.as_ref().len() as u64).sum();
    may_be_read(bytes, max)?;
    let memory = rustix::fs::memfd_create("vringd-upgrade", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    for piece in pieces {
        file.write_all(piece.as_ref())?;
    }
    Ok(file.into())
}

/// What would be refused by the program that comes must be refused by the one that goes, which can still go on.
fn may_be_read(bytes: u64, max: u64) -> io::Result<()> {
    if bytes <= max {
        return Ok(());
    }
    let why = format!("they take {bytes} bytes, and {max} are read at most");
    Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
}

/// Reads what [`write_bytes`] has written.
///
/// # Errors
/// The kernel's, or more than a state can have.
pub(super) fn read_bytes(memory: OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(memory);
    let length = file.metadata()?.len();
    may_be_read(length, NODES_BYTES_MAX)?;
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Puts a state into memory that another program can be given.
///
/// # Errors
/// A path that is not UTF-8, or no more descriptors.
pub(super) fn write(state: &State) -> Result<OwnedFd, String> {
    write_encoded(&encode(state)?)
}

/// As above, of what [`encode`] has answered.
///
/// # Errors
/// No more descriptors, no more memory, or more than is read.
pub(super) fn write_encoded(state: &[u8]) -> Result<OwnedFd, String> {
    let failed = |error: io::Error| format!("cannot write the state down: {error}");
    write_up_to(vec![state], HEAD_BYTES as u64 + BODY_BYTES_MAX).map_err(failed)
}

/// Reads a state and its version from the start of `memory`, wherever its position is.
pub(super) fn read(memory: impl AsFd, number: i32) -> Result<(State, u32), ReadError> {
    let failed = |error| ReadError::Descriptor { number, error };
    let file = File::from(memory.as_fd().try_clone_to_owned().map_err(failed)?);
    let length = file.metadata().map_err(failed)?.len();
    if length > HEAD_BYTES as u64 + BODY_BYTES_MAX {
        return Err(ReadError::Foreign);
    }
    // A pipe or a terminal has no length, and is no state.
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    decode(&bytes)
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let state = samples::state();
        let memory = write(&state).unwrap();
        assert_eq!(read(&memory, 7).unwrap(), (state.clone(), VERSION));
        // The position is where the writer left it: at the end.
        assert_eq!(read(&memory, 7).unwrap().0, state);
    }

    /// As a program of version 2 has written it.
    #[test]
    fn a_state_of_an_earlier_version_is_read() {
        let body = include_bytes!("state-2.json");
        let with = |version: u32| {
            let bytes = [&MAGIC[..], &version.to_le_bytes(), &(body.len() as u64).to_le_bytes(), body].concat();
            decode(&bytes)
        };
        let mut known = State {
            disks: Vec::new(),
            reservations: Vec::new(),
            units: Vec::new(),
            favour: control::model::Favour::default(),
            policy: control::model::PolicyMode::default(),
            ..samples::state()
        };
        for session in known.exports.iter_mut().filter_map(|export| export.session.as_mut()) {
            session.log = None;
            session.rings.iter_mut().for_each(|ring| ring.used_log = None);
        }
        known.exports.iter_mut().for_each(|export| export.port = None);
        known.exports.iter_mut().filter_map(|export| export.directory.as_mut()).for_each(|it| it.tree.form = 2);
        assert_eq!(with(2).unwrap(), (known, 2));
        // What is the usual is not written.
        let usual = encode(&State {
            favour: control::model::Favour::default(),
            policy: control::model::PolicyMode::default(),
            ..samples::state()
        })
        .unwrap();
        let text = String::from_utf8_lossy(&usual);
        assert!(!text.contains("favour") && !text.contains("policy"), "{text}");
        for version in [0, 1, VERSION + 1] {
            let line = with(version).unwrap_err().to_string();
            assert!(line.contains(&format!("has version {version} and this program reads versions 2 to 4")), "{line}");
        }
    }

    #[test]
    fn what_is_no_state_is_refused_in_one_line() {
        let good = encode(&samples::state()).unwrap();
        let mut newer = good.clone();
        newer[8] += 1;
        let longer = [good.as_slice(), b" "].concat();
        let renamed = String::from_utf8(good[HEAD_BYTES..].to_vec()).unwrap().replacen("\"program\"", "\"brogram\"", 1);
        let unknown = [&good[..HEAD_BYTES], renamed.as_bytes()].concat();
        let moved = String::from_utf8(good[HEAD_BYTES..].to_vec()).unwrap().replacen(
            r#""next_avail":65535"#,
            r#""next_avail":65536"#,
            1,
        );
        let nowhere = [&good[..HEAD_BYTES], moved.as_bytes()].concat();
        let cases: [(&[u8], &str); 8] = [
            (b"", "no upgrade state"),
            (b"#!/bin/sh\nexit 0\n", "no upgrade state"),
            (&good[..10], "no upgrade state"),
            (&newer, "has version 5"),
            (&good[..good.len() - 1], "is damaged"),
            (&longer, "is damaged"),
            (&unknown, "brogram"),
            (&nowhere, "no ring can go on at 65536"),
        ];
        for (bytes, words) in cases {
            let line = decode(bytes).unwrap_err().to_string();
            assert!(line.contains(words) && !line.contains('\n'), "{words}: {line}");
        }
    }

    #[test]
    fn a_tree_in_another_form_is_refused() {
        let mut state = samples::state();
        state.exports[0].directory.as_mut().unwrap().tree.form += 1;
        let line = decode(&encode(&state).unwrap()).unwrap_err().to_string();
        let (other, known) = (passthrough::FORM + 1, passthrough::FORM);
        assert!(line.contains(&format!("export disk has form {other} and this program reads form {known}")), "{line}");
    }

    #[test]
    fn a_tree_in_an_earlier_form_is_read() {
        let mut state = samples::state();
        for (form, read) in [(0, false), (1, true), (passthrough::FORM, true)] {
            state.exports[0].directory.as_mut().unwrap().tree.form = form;
            assert_eq!(decode(&encode(&state).unwrap()).is_ok(), read, "{form}");
        }
    }

    #[test]
    fn bytes_are_read_as_they_were_written() {
        for bytes in [vec![], vec![7; 100_000]] {
            let (first, rest) = bytes.split_at(bytes.len() / 3);
            let pieces = vec![first.to_vec(), rest.to_vec()];
            assert_eq!(read_bytes(write_bytes(pieces).unwrap()).unwrap(), bytes);
        }
    }

    #[test]
    fn more_than_is_read_is_not_written() {
        let pieces = |last| vec![vec![0; 3], vec![0; last]];
        assert!(write_up_to(pieces(4), 7).is_ok());
        let line = write_up_to(pieces(5), 7).unwrap_err().to_string();
        assert_eq!(line, "they take 8 bytes, and 7 are read at most");
    }

    #[test]
    fn a_descriptor_that_is_no_memory_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(read(&reader, 9).is_err());
        assert!(read(File::open("/dev/zero").unwrap(), 9).is_err());
    }

    proptest! {
        #[test]
        fn any_state_survives(mut state in samples::any_state()) {
            state.exports.iter_mut().filter_map(|export| export.directory.as_mut()).for_each(|it| it.tree.form = passthrough::FORM);
            prop_assert_eq!(decode(&encode(&state).unwrap()).unwrap(), (state, VERSION));
        }

        #[test]
        fn any_bytes_are_refused_and_nothing_worse(mut bytes in prop::collection::vec(any::<u8>(), 0..200), with_head: bool) {
            if with_head {
                let head = encode(&samples::state()).unwrap();
                bytes = [&head[..HEAD_BYTES - 8], &(bytes.len() as u64).to_le_bytes(), &bytes].concat();
            }
            prop_assert!(decode(&bytes).is_err());
        }
    }
}
