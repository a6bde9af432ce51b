//! Records in extended attributes of the inode itself: `user.virtfs.*`, numbers in little-endian order.

use super::record::{Record, is_device};
use crate::error::Result;
use crate::xattr::Place;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{CStr, CString};

const UID: &CStr = c"user.virtfs.uid";
const GID: &CStr = c"user.virtfs.gid";
const MODE: &CStr = c"user.virtfs.mode";
const RDEV: &CStr = c"user.virtfs.rdev";

/// The host's names that the client may neither see nor use.
const PREFIX: &[u8] = b"user.virtfs.";
/// The client's names of access control lists.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// What is recorded of an inode. The device is looked at where there is one: three system calls, or four.
pub(crate) fn load(place: &Place<'_>) -> Result<Record> {
    let mode = mode(place)?;
    let uid = read(place, UID)?.map(u32::from_le_bytes);
    let gid = read(place, GID)?.map(u32::from_le_bytes);
    let rdev = match mode {
        Some(mode) if is_device(mode) => read(place, RDEV)?.map(u64::from_le_bytes),
        _ => None,
    };
    Ok(Record { uid, gid, mode, rdev })
}

/// The recorded type and permissions. One system call.
pub(crate) fn mode(place: &Place<'_>) -> Result<Option<u32>> {
    Ok(read(place, MODE)?.map(u32::from_le_bytes))
}

/// Records what `record` says, and leaves the rest. The mode goes first: it may take set-id bits away from an old owner,
/// and must not lend them to a new one if this ends half done.
pub(crate) fn store(place: &Place<'_>, record: &Record) -> Result<()> {
    let set = |name, value: &[u8]| place.set(name, value, XattrFlags::empty());
    if let Some(mode) = record.mode {
        set(MODE, &mode.to_le_bytes())?;
    }
    if let Some(uid) = record.uid {
        set(UID, &uid.to_le_bytes())?;
    }
    if let Some(gid) = record.gid {
        set(GID, &gid.to_le_bytes())?;
    }
    if let Some(rdev) = record.rdev {
        set(RDEV, &rdev.to_le_bytes())?;
    }
    Ok(())
}

/// A value of exactly this length. Something else is no record, and neither is what a daemon may not read: the host's word
/// counts then.
fn read<const LENGTH: usize>(place: &Place<'_>, name: &CStr) -> Result<Option<[u8; LENGTH]>> {
    let mut value = [0; LENGTH];
    match place.get(name, &mut value) {
        Ok(length) => Ok((length == LENGTH).then_some(value)),
        Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The host's name of an attribute that the client calls `name`. `acls` are kept beside the records.
///
/// # Errors
/// `hidden` for the names of records, `EOPNOTSUPP` for everything but `user.*` and access control lists.
pub(crate) fn to_host(name: Cow<'_, CStr>, acls: bool, hidden: Errno) -> Result<Cow<'_, CStr>> {
    let bytes = name.to_bytes();
    if bytes.starts_with(PREFIX) {
        return Err(hidden);
    }
    if bytes.starts_with(b"user.") {
        return Ok(name);
    }
    if !bytes.starts_with(ACL_PREFIX) {
        return Err(Errno::OPNOTSUPP);
    }
    if !acls {
        return Ok(name);
    }
    CString::new([PREFIX, bytes].concat()).map(Cow::Owned).map_err(|_| Errno::INVAL)
}

/// The client's name of an attribute in the host's list, or nothing when the client shall not see it.
pub(crate) fn to_client(name: &[u8], acls: bool) -> Option<&[u8]> {
    let inner = name.strip_prefix(PREFIX);
    match inner {
        Some(inner) => Some(inner).filter(|inner| acls && inner.starts_with(ACL_PREFIX)),
        None if name.starts_with(b"user.") => Some(name),
        None => Some(name).filter(|name| !acls && name.starts_with(ACL_PREFIX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_out_of_reach() {
        for acls in [true, false] {
            for name in [UID, RDEV, c"user.virtfs.", c"user.virtfs.system.posix_acl_access"] {
                assert_eq!(to_host(Cow::Borrowed(name), acls, Errno::ACCESS), Err(Errno::ACCESS));
            }
            assert_eq!(to_host(Cow::Borrowed(c"user.virtfsx"), acls, Errno::ACCESS).as_deref(), Ok(c"user.virtfsx"));
            assert_eq!(to_host(Cow::Borrowed(c"security.capability"), acls, Errno::ACCESS), Err(Errno::OPNOTSUPP));
            assert_eq!(to_client(b"user.virtfs.uid", acls), None);
            assert_eq!(to_client(b"trusted.a", acls), None);
            assert_eq!(to_client(b"user.a", acls), Some(&b"user.a"[..]));
        }
    }

    #[test]
    fn access_control_lists_are_where_the_model_keeps_them() {
        let (client, host) = (c"system.posix_acl_access", c"user.virtfs.system.posix_acl_access");
        assert_eq!(to_host(Cow::Borrowed(client), true, Errno::ACCESS).as_deref(), Ok(host));
        assert_eq!(to_client(host.to_bytes(), true), Some(client.to_bytes()));
        assert_eq!(to_client(client.to_bytes(), true), None);
        assert_eq!(to_host(Cow::Borrowed(client), false, Errno::ACCESS).as_deref(), Ok(client));
        assert_eq!(to_client(client.to_bytes(), false), Some(client.to_bytes()));
        assert_eq!(to_client(host.to_bytes(), false), None);
    }
}
