//! An open image: what it is, its size, its exclusive lock, its metadata.

use super::library::{
    FEATURE_EXCLUSIVE_LOCK, LOCK_EXCLUSIVE, Library, MIRRORED, RawImage, RawInfo, RawMirror, RawSetting, RawSnapshot,
    RawWatcher,
};
use super::{Errno, Pool, answer, read, text};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most settings that an image has; librbd tells if there are more.
const SETTINGS: usize = 256;
/// Most owners of a lock that are asked for; an exclusive one has one.
const OWNERS: usize = 16;
/// Most clients of an image that are asked for; librbd tells if there are more.
const WATCHERS: usize = 256;
/// Longest value of metadata that is asked for.
const METADATA_BYTES_MAX: usize = 4096;
/// Snapshots for which there is room at first; librbd tells if there are more.
const SNAPSHOTS: usize = 64;
/// Longest id of an image, with its end.
const ID_BYTES_MAX: usize = 256;

/// What an image is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    /// Its size, in bytes.
    pub(crate) bytes: u64,
    /// Size of the objects that it consists of, in bytes.
    pub(crate) object_bytes: u64,
}

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The cluster tells of changes, for which the user needs the right to write. Nothing is written, and no lock taken, unless it is asked for.
    Watched,
    /// Nobody tells of changes: what it was when it was opened is what librbd takes it for.
    Unwatched,
}

/// One of an image's snapshots.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// Which no other snapshot of the pool ever has.
    pub(crate) id: u64,
    /// Its name, which may change.
    pub(crate) name: String,
}

/// Whom librbd tells of changes.
struct Watch {
    handle: u64,
    told: *mut Told,
}

type Told = Box<dyn Fn() + Send + Sync>;

/// An open image with its pool. All calls but those of `submit` wait for the cluster. Dropped, it is closed, and waits for requests.
pub(crate) struct Image {
    /// Which no other one of this process ever has.
    pub(crate) number: u64,
    /// Requests that it has been handed, and that have not ended.
    pub(super) in_flight: Arc<AtomicUsize>,
    pub(super) library: &'static Library,
    pub(super) raw: RawImage,
    watch: Option<Watch>,
    /// Closed behind the last of its images.
    pool: Arc<Pool>,
}

// SAFETY: librbd locks what its handles share; an image may be used and closed by any thread.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image of the pool.
    pub(crate) fn open(pool: &Arc<Pool>, name: &str, opening: Opening) -> Result<Image, Errno> {
        let library = pool.cluster.library;
        let open = match opening {
            Opening::Watched => library.rbd_open,
            Opening::Unwatched => library.rbd_open_read_only,
        };
        let (name, mut raw) = (text(name)?, ptr::null_mut());
        // SAFETY: the pool is open, the rest lives for the call; without a snapshot it is the image as it is now.
        answer(unsafe { open(pool.raw, name.as_ptr(), &raw mut raw, ptr::null()) })?;
        Ok(Image::of(pool, raw))
    }

    fn of(pool: &Arc<Pool>, raw: RawImage) -> Image {
        let library = pool.cluster.library;
        let number = NEXT_NUMBER.fetch_add(1, Ordering::AcqRel);
        Image { number, in_flight: Arc::default(), library, raw, watch: None, pool: pool.clone() }
    }

    /// The number of the image that was opened last.
    pub(crate) fn newest_number() -> u64 {
        NEXT_NUMBER.load(Ordering::Acquire).saturating_sub(1)
    }

    /// Whether requests are under way.
    pub(crate) fn is_used(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    /// Opens the image of the pool with this id, whatever it is called.
    pub(crate) fn open_by_id(pool: &Arc<Pool>, id: &str, opening: Opening) -> Result<Image, Errno> {
        let library = pool.cluster.library;
        let open = match opening {
            Opening::Watched => library.rbd_open_by_id,
            Opening::Unwatched => library.rbd_open_by_id_read_only,
        };
        let (id, mut raw) = (text(id)?, ptr::null_mut());
        // SAFETY: as above.
        answer(unsafe { open(pool.raw, id.as_ptr(), &raw mut raw, ptr::null()) })?;
        Ok(Image::of(pool, raw))
    }

    /// Opens the same pool's image with this id once more, as it is now, without a watch.
    pub(crate) fn open_again(&self, id: &str) -> Result<Image, Errno> {
        Image::open_by_id(&self.pool, id, Opening::Unwatched)
    }

    /// The address by which the cluster knows whoever has it open here.
    pub(crate) fn client(&self) -> Result<String, Errno> {
        self.pool.cluster.address()
    }

    /// Its id, which no other image of the pool ever has.
    pub(crate) fn id(&self) -> Result<String, Errno> {
        let mut id = vec![0_u8; ID_BYTES_MAX];
        // SAFETY: the image is open, and the buffer has the length that is said.
        answer(unsafe { (self.library.rbd_get_id)(self.raw, id.as_mut_ptr().cast(), id.len()) })?;
        Ok(read(&id))
    }

    /// Its snapshots.
    pub(crate) fn snapshots(&self) -> Result<Vec<Snapshot>, Errno> {
        let mut room = SNAPSHOTS;
        loop {
            let mut raw = vec![RawSnapshot { id: 0, size: 0, name: ptr::null() }; room];
            let mut most = c_int::try_from(room).unwrap_or(c_int::MAX);
            // SAFETY: the image is open, and there is room for as many as are said.
            match answer(unsafe { (self.library.rbd_snap_list)(self.raw, raw.as_mut_ptr(), &raw mut most) }) {
                // It says how many there are now, and there may be more when it is asked again.
                Err(Errno(libc::ERANGE)) => room = usize::try_from(most).unwrap_or(room).max(room) + SNAPSHOTS,
                Err(errno) => return Err(errno),
                Ok(count) => {
                    let there = usize::try_from(count).unwrap_or(0).min(room);
                    let snapshots = raw[..there].iter().map(|raw| {
                        // SAFETY: librbd has filled this one with a text.
                        let name = unsafe { CStr::from_ptr(raw.name) }.to_string_lossy().into_owned();
                        Snapshot { id: raw.id, name }
                    });
                    let snapshots = snapshots.collect();
                    // SAFETY: what librbd has filled goes back to it, once; behind the last is one without a name.
                    unsafe { (self.library.rbd_snap_list_end)(raw.as_mut_ptr()) };
                    return Ok(snapshots);
                }
            }
        }
    }

    /// Looks at a snapshot from now on.
    pub(crate) fn set_snapshot(&self, name: &str) -> Result<(), Errno> {
        let name = text(name)?;
        // SAFETY: the image is open, and the text lives for the call.
        answer(unsafe { (self.library.rbd_snap_set)(self.raw, name.as_ptr()) }).map(drop)
    }

    /// What it is.
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        let mut info = MaybeUninit::<RawInfo>::zeroed();
        // SAFETY: the image is open, and there is room for what is filled.
        answer(unsafe { (self.library.rbd_stat)(self.raw, info.as_mut_ptr(), mem::size_of::<RawInfo>()) })?;
        // SAFETY: any bytes are such a value.
        let info = unsafe { info.assume_init() };
        Ok(Stat { bytes: info.size, object_bytes: info.object_size })
    }

    /// Its size now, in bytes.
    pub(crate) fn bytes(&self) -> Result<u64, Errno> {
        let mut bytes = 0;
        // SAFETY: the image is open.
        answer(unsafe { (self.library.rbd_get_size)(self.raw, &raw mut bytes) })?;
        Ok(bytes)
    }

    /// Whether it has a lock that librbd itself minds.
    pub(crate) fn has_lock(&self) -> Result<bool, Errno> {
        let mut features = 0;
        // SAFETY: the image is open.
        answer(unsafe { (self.library.rbd_get_features)(self.raw, &raw mut features) })?;
        Ok(features & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Changes its size.
    pub(crate) fn resize(&self, bytes: u64) -> Result<(), Errno> {
        // SAFETY: the image is open.
        answer(unsafe { (self.library.rbd_resize)(self.raw, bytes) }).map(drop)
    }

    /// The value that holds for this image: its own, its pool's or the client's.
    pub(crate) fn setting(&self, name: &str) -> Result<Option<String>, Errno> {
        let mut settings = vec![RawSetting { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 }; SETTINGS];
        let mut count = SETTINGS as c_int;
        // SAFETY: the image is open, and there is room for as many as are said.
        answer(unsafe { (self.library.rbd_config_image_list)(self.raw, settings.as_mut_ptr(), &raw mut count) })?;
        let there = usize::try_from(count).unwrap_or(0).min(SETTINGS);
        let value = settings[..there].iter().find_map(|setting| {
            // SAFETY: librbd has filled this one with two texts.
            let (named, value) = unsafe { (CStr::from_ptr(setting.name), CStr::from_ptr(setting.value)) };
            (named.to_bytes() == name.as_bytes()).then(|| value.to_string_lossy().into_owned())
        });
        // SAFETY: what librbd has filled goes back to it, once.
        unsafe { (self.library.rbd_config_image_list_cleanup)(settings.as_mut_ptr(), count) };
        Ok(value)
    }

    /// Takes the exclusive lock, and keeps it whoever asks for it.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        answer(unsafe { (self.library.rbd_lock_acquire)(self.raw, LOCK_EXCLUSIVE) }).map(drop)
    }

    /// Gives the exclusive lock up.
    pub(crate) fn unlock(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        answer(unsafe { (self.library.rbd_lock_release)(self.raw) }).map(drop)
    }

    /// Whether it is a mirror's copy that only the mirror writes; not where that cannot be told.
    pub(crate) fn is_demoted(&self) -> bool {
        let mut mirror = RawMirror { global_id: ptr::null_mut(), state: 0, primary: false };
        let info = self.library.rbd_mirror_image_get_info;
        // SAFETY: the image is open, and there is room for what is filled.
        if answer(unsafe { info(self.raw, &raw mut mirror, mem::size_of::<RawMirror>()) }).is_err() {
            return false;
        }
        // SAFETY: what librbd has filled goes back to it, once.
        unsafe { (self.library.rbd_mirror_image_get_info_cleanup)(&raw mut mirror) };
        mirror.state == MIRRORED && !mirror.primary
    }

    /// Who has the exclusive lock: the address of a client.
    pub(crate) fn owner(&self) -> Result<Option<String>, Errno> {
        let (mut mode, mut owners, mut count) = (0, [ptr::null_mut::<c_char>(); OWNERS], OWNERS);
        let list = self.library.rbd_lock_get_owners;
        // SAFETY: the image is open, and there is room for as many as are said.
        match answer(unsafe { list(self.raw, &raw mut mode, owners.as_mut_ptr(), &raw mut count) }) {
            Err(Errno(libc::ENOENT)) => return Ok(None),
            answered => answered?,
        };
        let there = count.min(OWNERS);
        let first = owners[..there].first();
        // SAFETY: librbd has filled this one with a text.
        let owner = first.map(|owner| unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned());
        // SAFETY: what librbd has filled goes back to it, once.
        unsafe { (self.library.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), there) };
        Ok(owner)
    }

    /// Whether the client at this address has the image open, as far as the cluster knows: of one that was killed it does for half a minute.
    pub(crate) fn is_open_at(&self, address: &str) -> Result<bool, Errno> {
        let mut watchers = vec![RawWatcher { address: ptr::null_mut(), id: 0, cookie: 0 }; WATCHERS];
        let mut count = watchers.len();
        // SAFETY: the image is open, and there is room for as many as are said.
        answer(unsafe { (self.library.rbd_watchers_list)(self.raw, watchers.as_mut_ptr(), &raw mut count) })?;
        let there = count.min(WATCHERS);
        let is_it = |watcher: &RawWatcher| {
            // SAFETY: librbd has filled this one with a text.
            unsafe { CStr::from_ptr(watcher.address) }.to_bytes() == address.as_bytes()
        };
        let is_open = watchers[..there].iter().any(is_it);
        // SAFETY: what librbd has filled goes back to it, once.
        unsafe { (self.library.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), there) };
        Ok(is_open)
    }

    /// Takes the lock away from its owner, and has the cluster refuse whatever that client still sends.
    pub(crate) fn break_lock(&self, owner: &str) -> Result<(), Errno> {
        let owner = text(owner)?;
        // SAFETY: the image is open, and the text lives for the call.
        answer(unsafe { (self.library.rbd_lock_break)(self.raw, LOCK_EXCLUSIVE, owner.as_ptr()) }).map(drop)
    }

    /// What is written down with the image by this name.
    pub(crate) fn metadata(&self, key: &str) -> Result<Option<String>, Errno> {
        let key = text(key)?;
        let mut value = vec![0_u8; METADATA_BYTES_MAX];
        let mut bytes = value.len();
        let get = self.library.rbd_metadata_get;
        // SAFETY: the image is open, and the buffer has the length that is said.
        match answer(unsafe { get(self.raw, key.as_ptr(), value.as_mut_ptr().cast(), &raw mut bytes) }) {
            Ok(_) => Ok(Some(read(&value))),
            Err(Errno(libc::ENOENT)) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Writes something down with the image.
    pub(crate) fn set_metadata(&self, key: &str, value: &str) -> Result<(), Errno> {
        let (key, value) = (text(key)?, text(value)?);
        // SAFETY: the image is open, and the texts live for the call.
        answer(unsafe { (self.library.rbd_metadata_set)(self.raw, key.as_ptr(), value.as_ptr()) }).map(drop)
    }

    /// Takes away what is written down with the image by this name.
    pub(crate) fn remove_metadata(&self, key: &str) -> Result<(), Errno> {
        let key = text(key)?;
        // SAFETY: the image is open, and the text lives for the call.
        answer(unsafe { (self.library.rbd_metadata_remove)(self.raw, key.as_ptr()) }).map(drop)
    }

    /// Has `told` called whenever somebody has changed the image. It must not call librbd, whose thread it is called on.
    pub(crate) fn watch(&mut self, told: impl Fn() + Send + Sync + 'static) -> Result<(), Errno> {
        let told: *mut Told = Box::into_raw(Box::new(Box::new(told)));
        let mut handle = 0;
        let watch = self.library.rbd_update_watch;
        // SAFETY: the image is open; what is told stays until the watch has ended.
        match answer(unsafe { watch(self.raw, &raw mut handle, updated, told.cast()) }) {
            Ok(_) => {
                self.watch = Some(Watch { handle, told });
                Ok(())
            }
            Err(errno) => {
                // SAFETY: librbd does not know of it, and it was made by `Box::into_raw`.
                drop(unsafe { Box::from_raw(told) });
                Err(errno)
            }
        }
    }

    /// Ends the watch, and waits for whoever is being told.
    pub(crate) fn end_watch(&mut self) {
        let Some(Watch { handle, told }) = self.watch.take() else { return };
        // SAFETY: the image is open, and the handle is its own.
        let ended = answer(unsafe { (self.library.rbd_update_unwatch)(self.raw, handle) });
        // Otherwise it may still be called, and stays.
        if ended.is_ok() {
            // SAFETY: nobody is told any more, and it was made by `Box::into_raw`.
            drop(unsafe { Box::from_raw(told) });
        }
    }
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

unsafe extern "C" fn updated(told: *mut c_void) {
    // SAFETY: it was made by `watch`, and is there until the watch has ended.
    let told = unsafe { &*told.cast::<Told>() };
    told();
}

impl Drop for Image {
    fn drop(&mut self) {
        self.end_watch();
        // SAFETY: no request is under way: whoever has one keeps the image. The pool goes behind it.
        let _ = unsafe { (self.library.rbd_close)(self.raw) };
    }
}
