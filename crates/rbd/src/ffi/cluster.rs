//! A connection to a cluster, and a pool there.

use super::library::{Library, RawCluster, RawPool};
use super::{Errno, answer, read, text};
use std::ffi::CStr;
use std::ptr;

/// Longest value of a setting that is asked for.
const SETTING_BYTES_MAX: usize = 4096;

/// A client of a cluster, connected or not. Dropped, it says good-bye to the cluster, and its threads end.
pub(crate) struct Cluster {
    pub(super) library: &'static Library,
    raw: RawCluster,
}

// SAFETY: librados locks what its handles share; a connection may be used and closed by any thread (rados/librados.h).
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// A client of this name (`admin` is `client.admin`). Starts no thread.
    pub(crate) fn new(library: &'static Library, user: &str) -> Result<Cluster, Errno> {
        let (user, mut raw) = (text(user)?, ptr::null_mut());
        // SAFETY: both live for the call, which leaves a handle.
        answer(unsafe { (library.rados_create)(&raw mut raw, user.as_ptr()) })?;
        Ok(Cluster { library, raw })
    }

    /// Reads a configuration file.
    pub(crate) fn read_file(&self, path: &str) -> Result<(), Errno> {
        let path = text(path)?;
        // SAFETY: the handle is open, and the text lives for the call.
        answer(unsafe { (self.library.rados_conf_read_file)(self.raw, path.as_ptr()) }).map(drop)
    }

    /// Sets an option, whatever the file says of it.
    pub(crate) fn set(&self, option: &str, value: &str) -> Result<(), Errno> {
        let (option, value) = (text(option)?, text(value)?);
        // SAFETY: as above.
        answer(unsafe { (self.library.rados_conf_set)(self.raw, option.as_ptr(), value.as_ptr()) }).map(drop)
    }

    /// The value of an option.
    pub(crate) fn setting(&self, option: &str) -> Result<String, Errno> {
        let option = text(option)?;
        let mut value = vec![0_u8; SETTING_BYTES_MAX];
        let into = value.as_mut_ptr().cast();
        // SAFETY: as above; the buffer has the length that is said.
        answer(unsafe { (self.library.rados_conf_get)(self.raw, option.as_ptr(), into, value.len()) })?;
        Ok(read(&value))
    }

    /// Connects: waits for a monitor.
    pub(crate) fn connect(&self) -> Result<(), Errno> {
        // SAFETY: the handle is open.
        answer(unsafe { (self.library.rados_connect)(self.raw) }).map(drop)
    }

    /// The address by which the cluster knows this client: `192.0.2.7:0/4711`.
    pub(super) fn address(&self) -> Result<String, Errno> {
        let mut raw = ptr::null_mut();
        // SAFETY: the handle is open, and there is room for what is filled.
        answer(unsafe { (self.library.rados_getaddrs)(self.raw, &raw mut raw) })?;
        // SAFETY: librados has filled it with a text.
        let addresses = unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned();
        // SAFETY: what librados has filled goes back to it, once.
        unsafe { (self.library.rados_buffer_free)(raw) };
        Ok(plain(&addresses).to_owned())
    }

    /// A pool, and a namespace in it.
    pub(crate) fn pool(self, name: &str, namespace: Option<&str>) -> Result<Pool, (Errno, Cluster)> {
        let opened = text(name).and_then(|name| {
            let namespace = namespace.map(text).transpose()?;
            let mut raw = ptr::null_mut();
            // SAFETY: the handle is open, and the rest lives for the call.
            answer(unsafe { (self.library.rados_ioctx_create)(self.raw, name.as_ptr(), &raw mut raw) })?;
            if let Some(namespace) = namespace {
                // SAFETY: the pool was opened just now.
                unsafe { (self.library.rados_ioctx_set_namespace)(raw, namespace.as_ptr()) };
            }
            Ok(raw)
        });
        match opened {
            Ok(raw) => Ok(Pool { raw, cluster: self }),
            Err(errno) => Err((errno, self)),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: nothing of this connection is open any more: pools own theirs.
        unsafe { (self.library.rados_shutdown)(self.raw) };
    }
}

/// An open pool with its connection.
pub(crate) struct Pool {
    pub(super) raw: RawPool,
    pub(super) cluster: Cluster,
}

// SAFETY: as for `Cluster`.
unsafe impl Send for Pool {}
// SAFETY: as for `Cluster`.
unsafe impl Sync for Pool {}

impl Pool {
    /// Has the cluster refuse the client at this address for a while, and forget what that has watched. Waits for a monitor.
    pub(crate) fn keep_out(&self, address: &str, seconds: u32) -> Result<(), Errno> {
        let (address, Cluster { library, raw }) = (text(address)?, &self.cluster);
        // SAFETY: the connection is open; the text lives for the call, which does not write it.
        answer(unsafe { (library.rados_blocklist_add)(*raw, address.as_ptr().cast_mut(), seconds) }).map(drop)
    }

    /// Whether the pool has this namespace.
    pub(crate) fn has_namespace(&self, name: &str) -> Result<bool, Errno> {
        let (name, mut exists) = (text(name)?, false);
        let library = self.cluster.library;
        // SAFETY: the pool is open, and the rest lives for the call.
        answer(unsafe { (library.rbd_namespace_exists)(self.raw, name.as_ptr(), &raw mut exists) })?;
        Ok(exists)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: no image of it is open any more: images share their pool. The connection is dropped behind it.
        unsafe { (self.cluster.library.rados_ioctx_destroy)(self.raw) };
    }
}

/// The first of some addresses, without the protocol that is spoken there (`entity_addrvec_t`): `[v2:192.0.2.7:0/1,v1:192.0.2.7:0/1]`.
fn plain(addresses: &str) -> &str {
    const PROTOCOLS: [&str; 3] = ["v1:", "v2:", "any:"];
    let is_list = |list: &&str| PROTOCOLS.iter().any(|protocol| list.starts_with(protocol));
    let list = addresses.strip_prefix('[').filter(is_list).and_then(|list| list.strip_suffix(']')).unwrap_or(addresses);
    let first = list.split(',').next().unwrap_or_default();
    PROTOCOLS.iter().find_map(|protocol| first.strip_prefix(protocol)).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_its_protocol() {
        for (addresses, address) in [
            ("192.0.2.7:0/1", "192.0.2.7:0/1"),
            ("v1:192.0.2.7:0/1", "192.0.2.7:0/1"),
            ("[v2:192.0.2.7:0/1,v1:192.0.2.7:0/1]", "192.0.2.7:0/1"),
            ("any:192.0.2.7:0/1", "192.0.2.7:0/1"),
            // Of the sixth version an address has brackets of its own.
            ("[2001:db8::7]:0/1", "[2001:db8::7]:0/1"),
            ("[v2:[2001:db8::7]:0/1,v1:[2001:db8::7]:0/1]", "[2001:db8::7]:0/1"),
        ] {
            assert_eq!(plain(addresses), address);
        }
    }
}
