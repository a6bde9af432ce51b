//! Extended attributes: a fid to read, or one to write whose clunk sets the value.

use super::fids::{NewBytes, NewValue, Use, Value};
use super::place::{Name, Place, lock};
use super::session::Session;
use crate::calls::{Answer, Outcome};
use device::p9::{XattrCreate, xattr_flag};
use passthrough::Node;
use rustix::io::Errno;
use std::sync::Mutex;

/// The most bytes of a value, and of a list of names: `XATTR_SIZE_MAX` and `XATTR_LIST_MAX` of `linux/limits.h`.
const BYTES_MAX: usize = 65_536;

/// The names under which POSIX ACLs are read and written.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

impl Session {
    pub(super) fn xattr_walk(&self, fid: u32, newfid: u32, name: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let from = self.fids.get(fid)?;
        self.fids.check_new(newfid)?;
        let counted = self.values.room()?;
        let bytes = self.value(from.place()?.node(), name)?;
        let size = bytes.len() as u64;
        self.fids.insert(newfid, from.with(Use::Value(Box::new(Value { bytes, _counted: counted }))))?;
        device::p9::xattrwalk_out(reply, size);
        Ok(Answer::Reply)
    }

    /// The value of an attribute, or without a name the list of all names.
    fn value(&self, node: Node, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let list = name.is_empty();
        let name = Name::new(name)?;
        let read = |bytes: &mut Vec<u8>, size| {
            if list {
                self.tree().list_xattr(node, bytes, size)
            } else {
                self.tree().get_xattr(node, name.as_c_str(), bytes, size)
            }
        };
        let mut bytes = Vec::new();
        // Most questions are for attributes that are not there: their length costs no memory.
        let size = read(&mut bytes, 0)?;
        if size > 0 {
            match read(&mut bytes, size) {
                // Longer meanwhile.
                Err(Errno::RANGE) => read(&mut bytes, BYTES_MAX)?,
                answer => answer?,
            };
            bytes.shrink_to_fit();
        }
        Ok(bytes)
    }

    pub(super) fn xattr_create(&self, new: &XattrCreate<'_>) -> Result<(), Errno> {
        let size = new.size as usize;
        if size > BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        let old = self.fids.get(new.fid)?;
        old.unopened()?;
        let value = NewValue {
            name: new.name.into(),
            flags: new.flags,
            bytes: Mutex::new(NewBytes::new(size)),
            _counted: self.values.room()?,
        };
        self.fids.replace(new.fid, &old, old.with(Use::NewValue(Box::new(value))))
    }

    /// Sets an attribute whose fid is clunked. Linux removes one by a value of no bytes that shall replace the present one
    /// (`XATTR_REPLACE`), and an access list by a value of no bytes.
    pub(super) fn set_value(&self, place: &Place, new: &NewValue) -> Result<(), Errno> {
        let value = lock(&new.bytes);
        if !value.is_whole() {
            return Err(Errno::INVAL);
        }
        let name = Name::new(&new.name)?;
        let is_acl = new.name.starts_with(ACL_PREFIX);
        if value.bytes.is_empty() && (is_acl || new.flags == xattr_flag::REPLACE) {
            return match self.tree().remove_xattr(place.node(), name.as_c_str()) {
                Err(Errno::NODATA) if is_acl => Ok(()),
                removed => removed,
            };
        }
        self.tree().set_xattr(place.node(), name.as_c_str(), &value.bytes, new.flags, false)
    }
}
