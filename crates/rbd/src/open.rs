//! From a description to an open image.

use crate::error::RbdError;
use crate::ffi::{Cluster, Errno, Image, Library, Opening, Pool, Snapshot};
use crate::files::{self, Unreadable};
use crate::guard;
use crate::held::Held;
use crate::monitors;
use crate::options::RbdOptions;
use crate::spec::Spec;
use crate::was::Was;
use std::path::PathBuf;
use std::sync::Arc;
use storage::Kind as _;

/// How long a monitor may take to answer when an image is opened.
const PATIENCE_S: u32 = 10;

/// How long a client that is gone may be taken for one that watches an image, at most (`osd_client_watch_timeout` is 30 s).
const WATCH_LASTS_S: u32 = 60;

/// An option of librbd that an image or a pool may override.
const BLOCKLIST: &str = "rbd_blocklist_on_break_lock";
/// As above.
const BLOCKLIST_SECONDS: &str = "rbd_blocklist_expire_seconds";
/// As above.
const NON_BLOCKING: &str = "rbd_non_blocking_aio";

/// What holds whatever the configuration says.
const SETTINGS: [(&str, &str); 11] = [
    // What is answered is durable, and no cache needs flushing. An image or a pool may say otherwise, which is looked at below.
    ("rbd_cache", "false"),
    // A guest may change a page while it is being sent, whose checksum is wrong then, and the session would be reset for ever.
    ("rbd_disable_zero_copy_writes", "true"),
    // What a client that was killed had sent, and what has not arrived yet, is refused for as long as it may come.
    (BLOCKLIST, "true"),
    (BLOCKLIST_SECONDS, "0"),
    // A worker hands a request over and goes on, whatever the cluster does.
    (NON_BLOCKING, "true"),
    // Refusals are said by whoever reads them, in one line; the log is the daemon's.
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
    // A socket of its own that takes commands is not within a sandbox's reach, and nobody asks for it.
    ("admin_socket", ""),
    ("client_mount_timeout", "10"),
    // Their defaults: Ceph's library ends the program for what it does not understand here.
    ("ms_type", "async+posix"),
    ("rbd_op_threads", "1"),
];

/// An image that is open, and what was found of it.
pub(crate) struct OpenImage {
    pub(crate) image: Image,
    pub(crate) bytes: u64,
    pub(crate) object_bytes: u64,
    pub(crate) opening: Opening,
    /// Which no other image of the pool ever has; none of the first format.
    pub(crate) id: Option<String>,
    /// Of the snapshot that is served.
    pub(crate) snapshot_id: Option<u64>,
    /// Bytes that a discard must have to give space back.
    pub(crate) discard_bytes: u32,
    /// librbd has a cache of its own in front of the image, which is flushed behind a durable write.
    pub(crate) cached: bool,
    /// That it may be written.
    pub(crate) lock: Option<Held>,
}

/// What an image has to be.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// Whatever has its name.
    Anything,
    /// What it was, whoever has written it since.
    Same(Was),
    /// What it was, and nobody else has had it.
    Untouched(Was),
}

impl Expected {
    pub(crate) fn was(&self) -> Option<&Was> {
        match self {
            Self::Anything => None,
            Self::Same(was) | Self::Untouched(was) => Some(was),
        }
    }

    pub(crate) fn untouched(&self) -> Option<&Was> {
        match self {
            Self::Anything | Self::Same(_) => None,
            Self::Untouched(was) => Some(was),
        }
    }
}

/// A client with its configuration, not connected, and without threads. Looks whether the files that it needs are there.
pub(crate) fn client(library: &'static Library, options: &RbdOptions) -> Result<Cluster, RbdError> {
    let path = &options.conf;
    files::look(path).map_err(|why| RbdError::Conf { path: path.clone(), source: why.into() })?;
    let syntax = |errno: Errno| RbdError::Syntax { path: path.clone(), source: errno.words() };
    let name = path.to_str().ok_or_else(|| syntax(Errno(libc::EINVAL)))?;
    // Whoever reads the configuration reads the keyring at once, unless it is of no use to him.
    let glance = Cluster::new(library, &options.user).map_err(syntax)?;
    glance.set("auth_supported", "none").map_err(syntax)?;
    glance.read_file(name).map_err(syntax)?;
    check_keys(options, &glance)?;
    drop(glance);
    let cluster = Cluster::new(library, &options.user).map_err(syntax)?;
    cluster.read_file(name).map_err(syntax)?;
    for (option, value) in SETTINGS {
        cluster.set(option, value).map_err(syntax)?;
    }
    if cluster.setting("mon_host").map_err(syntax)?.trim().is_empty() {
        return Err(RbdError::NoMonitor { path: path.clone() });
    }
    Ok(cluster)
}

/// Whether the files can be read in which Ceph's library looks for the key: a keyring, even where it does not need one, and then a file
/// with nothing but the key.
fn check_keys(options: &RbdOptions, glance: &Cluster) -> Result<(), RbdError> {
    let path = &options.conf;
    let syntax = |errno: Errno| RbdError::Syntax { path: path.clone(), source: errno.words() };
    let setting = |option| glance.setting(option).map_err(syntax);
    let keyfile = Some(setting("keyfile")?).filter(|keyfile| !keyfile.is_empty());
    let has_key = !setting("key")?.is_empty();
    let needs_keyring = !has_key && keyfile.is_none() && setting("auth_client_required")?.contains("cephx");
    check_keyrings(options, &keyrings(glance).map_err(syntax)?, needs_keyring)?;
    let Some(keyfile) = keyfile.filter(|_| !has_key).map(PathBuf::from) else { return Ok(()) };
    let unreadable =
        |why: Unreadable| RbdError::Keyfile { keyfile: keyfile.clone(), source: why.into(), path: path.clone() };
    files::look(&keyfile).map_err(unreadable)
}

/// The files in which the key of the client is looked for.
pub(crate) fn keyrings(cluster: &Cluster) -> Result<Vec<PathBuf>, Errno> {
    Ok(listed(&cluster.setting("keyring")?))
}

/// As Ceph's library reads such a list: a blank belongs to the path.
fn listed(paths: &str) -> Vec<PathBuf> {
    paths.split([',', ';']).filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Refuses if none can be read: Ceph's library takes the first that it can.
fn check_keyrings(options: &RbdOptions, keyrings: &[PathBuf], is_needed: bool) -> Result<(), RbdError> {
    let mut refusals = Vec::new();
    for path in keyrings {
        match files::look(path) {
            Ok(()) => return Ok(()),
            Err(why @ Unreadable::Absent(_)) => refusals.push(format!("{}: {why}", path.display())),
            // It would be read.
            Err(why) => {
                let looked = format!("{}: {why}", path.display());
                return Err(RbdError::NoKeyring { user: options.user.clone(), looked, path: options.conf.clone() });
            }
        }
    }
    if !is_needed {
        return Ok(());
    }
    let looked = refusals.join(", ");
    Err(RbdError::NoKeyring { user: options.user.clone(), looked, path: options.conf.clone() })
}

/// Connects, and opens the image, with its lock if it is to be written. Waits for the cluster: nobody's lock is taken when that has lasted
/// so long that nobody wants the image any more.
pub(crate) fn open(
    options: &RbdOptions,
    client: Cluster,
    expected: &Expected,
    is_wanted: &dyn Fn() -> bool,
) -> Result<OpenImage, RbdError> {
    let spec = options.spec();
    let pool = pool(options, client)?;
    let read_only = options.read_only();
    let was = expected.was();
    if let Some(watcher) = expected.untouched().and_then(|was| was.watcher.as_deref())
        && let Err(errno) = pool.keep_out(watcher, WATCH_LASTS_S)
    {
        // Whoever may only read has no right to that.
        tracing::debug!(image = %spec, error = %errno.words(), "whoever changes the image waits for a watch of the program before this one to lapse");
    }
    let (image, opening) = image(&pool, options, was.and_then(|was| was.id.as_deref()))?;
    let lost = |why: &str| RbdError::Lost { spec: spec.to_string(), why: why.to_owned() };
    let id = image.id().ok();
    if was.is_some_and(|was| was.id != id) {
        return Err(lost("another image has its name"));
    }
    let known = was.and_then(|was| was.snapshot_id);
    let snapshot_id = options.snapshot.as_ref().map(|name| look_at(&image, name, known, &spec)).transpose()?;
    let setting = |name| image.setting(name).map_err(RbdError::failed(&spec, "read its configuration"));
    let is = |value: Option<String>, word: &str| value.is_some_and(|value| value == word);
    if !read_only && is(setting("rbd_disable_zero_copy_writes")?, "false") {
        return Err(RbdError::ZeroCopy { spec: spec.to_string() });
    }
    for (option, wanted) in
        SETTINGS.into_iter().filter(|(name, _)| [BLOCKLIST, BLOCKLIST_SECONDS, NON_BLOCKING].contains(name))
    {
        if let Some(value) = setting(option)?.filter(|value| value != wanted) {
            return Err(RbdError::Overridden { spec: spec.to_string(), option, value, wanted });
        }
    }
    // The second is a log on a local device, of Ceph's own, which may keep writes to itself until they are flushed.
    let logged = setting("rbd_persistent_cache_mode")?.is_some_and(|mode| mode != "disabled");
    let cached = logged || is(setting("rbd_cache")?, "true");
    if cached && options.migratable {
        let option = if logged { "rbd_persistent_cache_mode" } else { "rbd_cache" };
        return Err(RbdError::Cached { spec: spec.to_string(), option });
    }
    let discard_bytes = setting("rbd_discard_granularity_bytes")?.and_then(|bytes| bytes.parse().ok());
    if !is_wanted() {
        return Err(RbdError::failed(&spec, "be waited for so long")(Errno(libc::ETIMEDOUT)));
    }
    let take = || match expected.untouched() {
        None => guard::take(&image, &spec, &options.user),
        Some(was) => {
            let before = was.owner.as_deref().ok_or_else(|| lost("its lock was nobody's"))?;
            guard::take_over(&image, &spec, &options.user, before)
        }
    };
    let lock = (!read_only).then(take).transpose()?;
    match image.stat() {
        Ok(stat) if stat.bytes >= 512 => Ok(OpenImage {
            bytes: stat.bytes,
            object_bytes: stat.object_bytes,
            opening,
            id,
            snapshot_id,
            discard_bytes: discard_bytes.filter(|bytes: &u32| bytes.is_multiple_of(512) && *bytes > 0).unwrap_or(512),
            cached,
            lock,
            image,
        }),
        stat => {
            if let Some(held) = &lock {
                guard::give_up(&image, &spec, held);
            }
            // It is ours until the image is closed.
            drop(image);
            drop(lock);
            Err(match stat {
                Ok(stat) => RbdError::Empty { spec: spec.to_string(), bytes: stat.bytes },
                Err(errno) => RbdError::failed(&spec, "read its size")(errno),
            })
        }
    }
}

/// The image, with a watch where the user's rights allow one: who may read only may have none. One whose id is known may have another name by now.
fn image(pool: &Arc<Pool>, options: &RbdOptions, id: Option<&str>) -> Result<(Image, Opening), RbdError> {
    let open = |opening| {
        let image = match id {
            Some(id) => Image::open_by_id(pool, id, opening),
            None => Image::open(pool, &options.image, opening),
        };
        image.map(|image| (image, opening))
    };
    let opened = match open(Opening::Watched) {
        Err(Errno(libc::EPERM | libc::EACCES)) if options.read_only() => open(Opening::Unwatched),
        opened => opened,
    };
    opened.map_err(|errno| not_open(options, errno))
}

/// Looks at a snapshot from now on. Its id. One whose id is `known` may have another name by now.
fn look_at(image: &Image, name: &str, known: Option<u64>, spec: &Spec) -> Result<u64, RbdError> {
    let none = || RbdError::NoSnapshot(spec.to_string());
    // Before it is looked at: one of this name that comes in its place between the two is not taken for it.
    let snapshots = image.snapshots().map_err(RbdError::failed(spec, "list its snapshots"))?;
    let is_it = |snapshot: &&Snapshot| known.map_or(snapshot.name == name, |id| snapshot.id == id);
    let snapshot = snapshots.iter().find(is_it).ok_or_else(none)?;
    image.set_snapshot(&snapshot.name).map_err(|errno| match errno {
        Errno(libc::ENOENT) => none(),
        errno => RbdError::failed(spec, "open its snapshot")(errno),
    })?;
    Ok(snapshot.id)
}

fn pool(options: &RbdOptions, cluster: Cluster) -> Result<Arc<Pool>, RbdError> {
    cluster.connect().map_err(|errno| not_connected(options, &cluster, errno))?;
    let namespace = options.namespace.as_deref();
    let pool = cluster.pool(&options.pool, namespace).map_err(|(errno, _cluster)| match errno {
        Errno(libc::ENOENT) => RbdError::NoPool(options.pool.clone()),
        Errno(libc::EPERM | libc::EACCES) => forbidden(options),
        errno => RbdError::failed(&options.spec(), "open its pool")(errno),
    })?;
    if let Some(namespace) = namespace {
        match pool.has_namespace(namespace) {
            Ok(true) => {}
            // Whoever may use a namespace alone may not ask for all of them.
            Err(Errno(libc::EPERM | libc::EACCES)) => {}
            Ok(false) => {
                return Err(RbdError::NoNamespace { pool: options.pool.clone(), namespace: namespace.to_owned() });
            }
            Err(errno) => return Err(RbdError::failed(&options.spec(), "look for its namespace")(errno)),
        }
    }
    Ok(Arc::new(pool))
}

fn not_connected(options: &RbdOptions, cluster: &Cluster, errno: Errno) -> RbdError {
    let path = options.conf.clone();
    let mon_host = cluster.setting("mon_host").unwrap_or_default();
    if let (Errno(libc::EINVAL | libc::ENOENT), Some(monitor)) = (errno, monitors::without_address(&mon_host)) {
        return RbdError::Monitor { monitor: monitor.to_owned(), path };
    }
    match errno {
        Errno(libc::ESHUTDOWN) => RbdError::Blocklisted(options.spec().to_string()),
        Errno(libc::ETIMEDOUT) => RbdError::Silent { path, monitors: mon_host, seconds: PATIENCE_S },
        // The second where a keyring has no key of this user.
        Errno(libc::EPERM | libc::EACCES | libc::ENOENT | libc::EINVAL | libc::ENOTSUP) => {
            RbdError::Refused { user: options.user.clone(), source: errno.words() }
        }
        errno => RbdError::Connect { path, source: errno.words() },
    }
}

fn not_open(options: &RbdOptions, errno: Errno) -> RbdError {
    let spec = Spec { snapshot: None, ..options.spec() };
    match errno {
        Errno(libc::ENOENT) => RbdError::NoImage(spec.to_string()),
        Errno(libc::EPERM | libc::EACCES) => forbidden(options),
        Errno(libc::ENOSYS | libc::ENOTSUP | libc::ENXIO) => {
            RbdError::Features { spec: spec.to_string(), source: errno.words() }
        }
        errno => RbdError::failed(&spec, "open it")(errno),
    }
}

fn forbidden(options: &RbdOptions) -> RbdError {
    RbdError::Forbidden { user: options.user.clone(), spec: options.spec().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyring_may_have_blanks_in_its_path() {
        let paths = ["/a b/key ring", "/c", " /d"].map(PathBuf::from);
        assert_eq!(listed("/a b/key ring,/c;; /d"), paths);
    }
}
