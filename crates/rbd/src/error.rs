//! What can be wrong with an image and its cluster, in words that name the fix.

use crate::ffi::{Errno, MissingLibrary};
use crate::spec::Spec;
use std::io;
use std::path::PathBuf;
use storage::OpenError;

/// Why an image cannot be served. The doc comments are the messages.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum RbdError {
    /// {0}
    Library(String),
    /// conf: {path} cannot be read: {source}; give the path of the cluster's ceph.conf
    Conf {
        /// The configuration.
        path: PathBuf,
        /// The kernel's answer, or what is wrong with it.
        source: io::Error,
    },
    /// conf: {path} is not understood by Ceph's library: {source}; look at it with `ceph-conf -c {path} --lookup mon_host`
    Syntax {
        /// The configuration.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// conf: {path} names no monitor: write `mon_host` into it
    NoMonitor {
        /// The configuration.
        path: PathBuf,
    },
    /// conf: a monitor of {path} is no address that is understood, and no name that is found (`{monitor}`): name monitors by address, as in `mon_host = 192.0.2.1`
    Monitor {
        /// What there is instead.
        monitor: String,
        /// The configuration.
        path: PathBuf,
    },
    /// user: the key of `keyfile` in {path} cannot be read ({keyfile}: {source}): give a file that has the key and nothing else, or a `keyring`
    Keyfile {
        /// The file.
        keyfile: PathBuf,
        /// The kernel's answer, or what is wrong with it.
        source: io::Error,
        /// The configuration.
        path: PathBuf,
    },
    /// user: client.{user} has no keyring that can be read: {looked}; name one by `keyring` in {path}, or give another user
    NoKeyring {
        /// Of whom.
        user: String,
        /// Where it was looked for, and what the kernel answered.
        looked: String,
        /// The configuration.
        path: PathBuf,
    },
    /// user: client.{user} is refused by the cluster: {source}; compare its keyring with `ceph auth get client.{user}`
    Refused {
        /// Who.
        user: String,
        /// The answer.
        source: io::Error,
    },
    /// conf: no monitor has answered within {seconds} s of those that {path} names ({monitors}): see whether they run, and are reached from here
    Silent {
        /// The configuration.
        path: PathBuf,
        /// Where they are to be.
        monitors: String,
        /// How long they were waited for.
        seconds: u32,
    },
    /// conf: the cluster of {path} cannot be connected: {source}
    Connect {
        /// The configuration.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// pool: there is no pool `{0}`: `ceph osd pool ls` names those that are there
    NoPool(String),
    /// namespace: pool `{pool}` has no namespace `{namespace}`: `rbd namespace ls {pool}` names those that are there
    NoNamespace {
        /// The pool.
        pool: String,
        /// The namespace.
        namespace: String,
    },
    /// image: {0} is not there: `rbd ls` names the images of a pool
    NoImage(String),
    /// snapshot: {0} is not there: `rbd snap ls` names the snapshots of an image
    NoSnapshot(String),
    /// user: client.{user} may not use {spec}: give it rights by `ceph auth caps client.{user} mon 'profile rbd' osd 'profile rbd'`
    Forbidden {
        /// Who.
        user: String,
        /// What.
        spec: String,
    },
    /// image: {spec} cannot be opened: {source}; an image with features that this machine's librbd lacks needs a newer package librbd1
    Features {
        /// The image.
        spec: String,
        /// What librbd says.
        source: io::Error,
    },
    /// image: {0} has no exclusive lock, without which two could write it at once: `rbd feature enable {0} exclusive-lock`, or use `read_only = true`
    NoLock(String),
    /// image: {0} is a mirror's copy that is not primary, which nobody but the mirror writes: `rbd mirror image promote {0}`, or use `read_only = true`
    Demoted(String),
    /// image: {0}: the cluster refuses this machine's clients: `ceph osd blocklist ls` names those it refuses, and `ceph osd blocklist rm` ends that
    Blocklisted(String),
    /// image: {spec} has {bytes} bytes, less than one 512-byte sector: `rbd resize` gives it another size
    Empty {
        /// The image.
        spec: String,
        /// Its size.
        bytes: u64,
    },
    /// image: {spec} is in use, locked by the client at {owner}: {about}
    Locked {
        /// The image.
        spec: String,
        /// Its address.
        owner: String,
        /// Who that is, as far as it is known, and what to do.
        about: String,
    },
    /// user: client.{user} may not break the lock of the daemon before this one: {source}; give the user rights by `ceph auth caps client.{user} mon 'profile rbd' osd 'profile rbd'`
    Break {
        /// Who.
        user: String,
        /// The answer.
        source: io::Error,
    },
    /// image: {spec} is set up for zero-copy writes (`rbd_disable_zero_copy_writes = false`), which a guest that changes a page in flight makes fail for ever: `rbd config image rm {spec} rbd_disable_zero_copy_writes`, or the same of its pool
    ZeroCopy {
        /// The image.
        spec: String,
    },
    /// image: {spec} has a cache of librbd's turned on by {option}, which a migratable image cannot have, as it would stay behind: turn it off for the image (`rbd config image rm {spec} {option}`), its pool, or in the cluster's configuration
    Cached {
        /// The image.
        spec: String,
        /// What turns it on.
        option: &'static str,
    },
    /// image: {spec} is set up with {option} = {value}, where {wanted} is needed for writes and workers to be safe: `rbd config image rm {spec} {option}`, or the same of its pool
    Overridden {
        /// The image.
        spec: String,
        /// The option of librbd.
        option: &'static str,
        /// What the image or its pool says.
        value: String,
        /// What it has to be.
        wanted: &'static str,
    },
    /// image: {spec}: what the program before this one has written down of it is not understood: {source}
    Foreign {
        /// The image.
        spec: String,
        /// What is wrong.
        source: io::Error,
    },
    /// image: {spec} is not what it was to its guest: {why}; `vringd ctl disk reopen` opens it as it is now
    Lost {
        /// The image.
        spec: String,
        /// What has become of it.
        why: String,
    },
    /// image: {spec}: the cluster has not answered within {seconds} s: look at `ceph health`, and whether `ceph auth get client.{user}` shows rights on OSDs
    Late {
        /// The image.
        spec: String,
        /// Of whom.
        user: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// image: {spec}: an opening of this image still waits for its cluster: look at `ceph health`, and try again
    Waiting {
        /// The image.
        spec: String,
    },
    /// image: {spec}: {count} openings of images still wait for their clusters, and no more are begun: look at `ceph health`, and try again
    ManyWait {
        /// The image.
        spec: String,
        /// How many.
        count: usize,
    },
    /// image: {spec}: there is no room for a connection: {why}
    NoRoom {
        /// The image.
        spec: String,
        /// What is missing, and what gives it.
        why: String,
    },
    /// image: {spec}: its opening has ended without an answer: the log says more of a thread `rbd-open`
    Vanished {
        /// The image.
        spec: String,
    },
    /// image: {spec}: there can be no thread to open it: {source}
    Thread {
        /// The image.
        spec: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// image: {spec}: cannot {what}: {source}
    Failed {
        /// The image.
        spec: String,
        /// What was tried.
        what: &'static str,
        /// The answer.
        source: io::Error,
    },
}

impl RbdError {
    /// Something was tried and failed.
    pub(crate) fn failed(spec: &Spec, what: &'static str) -> impl FnOnce(Errno) -> RbdError + use<> {
        let spec = spec.to_string();
        move |errno| match errno {
            Errno(libc::ESHUTDOWN) => RbdError::Blocklisted(spec),
            errno => RbdError::Failed { spec, what, source: errno.words() },
        }
    }
}

impl From<MissingLibrary> for RbdError {
    fn from(missing: MissingLibrary) -> RbdError {
        RbdError::Library(missing.to_string())
    }
}

impl From<RbdError> for OpenError {
    fn from(error: RbdError) -> OpenError {
        match error {
            RbdError::Silent { .. }
            | RbdError::Connect { .. }
            | RbdError::Late { .. }
            | RbdError::Waiting { .. }
            | RbdError::ManyWait { .. }
            | RbdError::NoRoom { .. }
            | RbdError::Vanished { .. }
            | RbdError::Blocklisted(_)
            | RbdError::Thread { .. } => OpenError::Away(Box::new(error)),
            error => OpenError::Other(Box::new(error)),
        }
    }
}
