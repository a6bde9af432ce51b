//! What passes from one program to the next, and its bytes: postcard's, numbers as varints. Another field or another meaning
//! is another [`FORM`](super::FORM).

use crate::stat::MountKey;
use serde::{Deserialize, Serialize};

/// A descriptor, by its place in the list of all.
pub(crate) type Place = u32;

/// Everything, as it lies in the bytes. There may be so many nodes that they are written and read one by one (`bytes`): tests hold
/// both to this.
#[cfg(test)]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Form {
    /// What the tree is called when speaking to people.
    pub(crate) label: std::path::PathBuf,
    pub(crate) mounts: Vec<MountForm>,
    /// The root among them.
    pub(crate) nodes: Vec<NodeForm>,
    /// The next node's number.
    pub(crate) next_node: u64,
    pub(crate) files: Vec<FileForm>,
    /// The next open file's number.
    pub(crate) next_handle: u64,
    pub(crate) owners: Vec<OwnerForm>,
    /// What is known of records beside names.
    pub(crate) records: Vec<RecordForm>,
    /// Directories of names in `records` that the client has forgotten.
    pub(crate) strays: Vec<NodeForm>,
    /// Open files with a `flock`, and whether it is exclusive. They stand behind the handles of owners.
    #[serde(skip)]
    pub(crate) flocks: Vec<(u64, bool)>,
}

/// Least bytes of a node: one for each field.
pub(super) const NODE_BYTES_MIN: usize = 10;

/// A mount, by its place named by nodes and files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountForm {
    pub(crate) id: u64,
    pub(crate) device: (u32, u32),
    /// What was found out about it, if anybody had to.
    pub(crate) facts: Option<FactsForm>,
}

impl MountForm {
    pub(crate) fn key(&self) -> MountKey {
        MountKey { id: self.id, device: self.device }
    }
}

/// What was found out about a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FactsForm {
    /// Something on it that is open for reading, or the error of opening it.
    pub(crate) file: Result<Place, i32>,
    pub(crate) handles: bool,
    pub(crate) reports_at_close: bool,
    pub(crate) windows: Option<bool>,
}

/// A node that the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeForm {
    pub(crate) node: u64,
    pub(crate) ino: u64,
    pub(crate) mount: u32,
    /// `S_IFMT` bits.
    pub(crate) kind: u32,
    /// Type and bytes of its file handle.
    pub(crate) handle: Option<(i32, Vec<u8>)>,
    pub(crate) references: u64,
    pub(crate) verified: bool,
    /// It is the one that is found by its inode number, not one that had the number before.
    pub(crate) current: bool,
    /// Its `O_PATH` descriptor.
    pub(crate) path: Option<Place>,
    /// Opened for reading, with these flags of the host, for a client that reads without opening.
    pub(crate) read: Option<(Place, u32)>,
}

/// A file or directory that the client has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileForm {
    pub(crate) handle: u64,
    pub(crate) node: u64,
    pub(crate) mount: u32,
    /// Flags of the host.
    pub(crate) flags: u32,
    pub(crate) place: Place,
    /// Where a directory is read from.
    pub(crate) listing: Option<Listing>,
}

/// How far a directory was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listing {
    /// Entries that were read and not given out, as the kernel wrote them.
    pub(crate) rest: Vec<u8>,
    /// The offset of the first of them.
    pub(crate) offset: u64,
    pub(crate) expects_unknown: bool,
}

/// An owner of POSIX locks on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnerForm {
    pub(crate) node: u64,
    pub(crate) owner: u64,
    /// The process that took the latest lock.
    pub(crate) pid: u32,
    /// The open file by which it came; 0 when form 1 did not say. All of these stand behind the rest.
    #[serde(skip)]
    pub(crate) handle: u64,
    /// What holds the locks.
    pub(crate) place: Place,
    /// First byte, last byte, and whether it excludes readers.
    pub(crate) held: Vec<(u64, u64, bool)>,
}

/// What is recorded of a node beside its names ([`crate::Security::MappedFile`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordForm {
    pub(crate) node: u64,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// Type and permissions.
    pub(crate) mode: Option<u32>,
    /// Device as `makedev(3)` encodes it.
    pub(crate) rdev: Option<u64>,
    /// The latest last.
    pub(crate) names: Vec<NameForm>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameForm {
    /// The directory, by its number, in `nodes` or in `strays`.
    pub(crate) dir: u64,
    pub(crate) name: Vec<u8>,
}

/// What stands behind the rest: by which open file each owner's latest lock came.
pub(super) fn handles_of(owners: &[OwnerForm]) -> Vec<u64> {
    owners.iter().map(|owner| owner.handle).collect()
}

/// Tells owners what stood behind the rest.
pub(super) fn give_handles(owners: &mut [OwnerForm], handles: &[u64]) -> Result<(), postcard::Error> {
    if handles.len() != owners.len() {
        return Err(postcard::Error::DeserializeBadEncoding);
    }
    owners.iter_mut().zip(handles).for_each(|(owner, handle)| owner.handle = *handle);
    Ok(())
}

#[cfg(test)]
impl Form {
    pub(super) fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(&(handles_of(&self.owners), &self.flocks), postcard::to_stdvec(self)?)
    }

    /// Form 1 ends before the handles, form 2 before the `flock`s.
    pub(super) fn decode(bytes: &[u8]) -> Result<Form, postcard::Error> {
        let (mut form, rest): (Form, _) = postcard::take_from_bytes(bytes)?;
        if rest.is_empty() {
            return Ok(form);
        }
        let (handles, rest): (Vec<u64>, _) = postcard::take_from_bytes(rest)?;
        give_handles(&mut form.owners, &handles)?;
        if rest.is_empty() {
            return Ok(form);
        }
        let (flocks, rest) = postcard::take_from_bytes(rest)?;
        form.flocks = flocks;
        if rest.is_empty() { Ok(form) } else { Err(postcard::Error::DeserializeBadEncoding) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_before_this_one_are_read_without_what_they_had_not() {
        let owner = OwnerForm { node: 2, owner: 3, pid: 4, handle: 5, place: 6, held: vec![(0, 9, true)] };
        let owners = vec![owner.clone(), OwnerForm { handle: 7, ..owner }];
        let form = Form { owners, flocks: vec![(7, true)], ..Form::default() };
        let bytes = form.encode().unwrap();
        assert_eq!(Form::decode(&bytes).unwrap(), form);
        // The lists of two small numbers each, behind their lengths.
        let second = Form::decode(&bytes[..bytes.len() - 3]).unwrap();
        assert!(second.owners == form.owners && second.flocks.is_empty());
        let first = Form::decode(&bytes[..bytes.len() - 6]).unwrap();
        assert!(first.owners.iter().all(|owner| owner.handle == 0 && owner.held == [(0, 9, true)]));
        for other in [
            &bytes[..bytes.len() - 1],
            &[bytes.as_slice(), &[0]].concat(),
            &[&bytes[..bytes.len() - 6], &[1, 5]].concat(),
        ] {
            assert!(Form::decode(other).is_err(), "{other:?}");
        }
    }
}
