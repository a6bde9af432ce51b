//! A connection to a cluster, and a pool there.

use super::library::{Library, RawCluster, RawPool};
use super::{Errno, answer, read, text};
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
