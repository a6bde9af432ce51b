//! The two libraries, found when they are first needed.

use libloading::os::unix::{Library as Shared, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Names with the versions of their interfaces, which both have had since 2012.
const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

/// Handles, which are Ceph's own.
pub(super) type RawCluster = *mut c_void;
pub(super) type RawPool = *mut c_void;
pub(super) type RawImage = *mut c_void;
pub(super) type RawCompletion = *mut c_void;

/// `rbd_callback_t`
pub(super) type Ended = unsafe extern "C" fn(RawCompletion, *mut c_void);
/// `rbd_update_callback_t`
pub(super) type Updated = unsafe extern "C" fn(*mut c_void);

/// `rbd_image_info_t`, with RBD_MAX_BLOCK_NAME_SIZE and RBD_MAX_IMAGE_NAME_SIZE.
#[repr(C)]
pub(super) struct RawInfo {
    pub(super) size: u64,
    pub(super) object_size: u64,
    pub(super) objects: u64,
    pub(super) order: c_int,
    pub(super) block_name_prefix: [c_char; 24],
    /// Both are not used any more.
    pub(super) parent_pool: i64,
    pub(super) parent_name: [c_char; 96],
}

/// `rbd_config_option_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawSetting {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) source: c_int,
}

/// `rbd_image_watcher_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawWatcher {
    pub(super) address: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// `rbd_snap_info_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawSnapshot {
    pub(super) id: u64,
    pub(super) size: u64,
    pub(super) name: *const c_char,
}

/// `rbd_mirror_image_info_t`
#[repr(C)]
pub(super) struct RawMirror {
    pub(super) global_id: *mut c_char,
    pub(super) state: c_int,
    pub(super) primary: bool,
}

/// `RBD_MIRROR_IMAGE_ENABLED`
pub(super) const MIRRORED: c_int = 1;
/// `RBD_LOCK_MODE_EXCLUSIVE`
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`
pub(super) const ZEROES_KEEP_SPACE: c_int = 1;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;

/// Why Ceph's libraries cannot be used. The doc comment is the message.
#[derive(Clone, Debug, thiserror::Error, displaydoc::Display)]
pub(crate) enum MissingLibrary {
    /// storage `rbd` needs Ceph's library, which is not on this machine: `apt-get install librbd1` ({0})
    NotFound(String),
    /// storage `rbd` needs Ceph's library, which cannot be loaded here: {0}; look at the daemon's limits (`LimitNOFILE=`, `LimitAS=`), and whether it may run code from there
    Unloadable(String),
    /// storage `rbd` needs the library of Ceph 16 or newer, and this one has no `{0}`: `apt-get install librbd1` of a newer release
    TooOld(&'static str),
}

/// Declares the functions of both libraries once: as fields, and as names to look for.
macro_rules! functions {
    ($($from:ident { $($name:ident($($argument:ty),*) $(-> $returned:ty)?;)+ })+) => {
        /// All functions that are used.
        pub(crate) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $returned)?,)+)+
        }

        impl Library {
            fn find($($from: &Shared),+) -> Result<Library, MissingLibrary> {
                Ok(Library {
                    $($($name: {
                        let symbol = concat!(stringify!($name), "\0");
                        // SAFETY: the types are those of rados/librados.h and rbd/librbd.h, whose interfaces are stable; the library is
                        // never closed, so that the address stays good.
                        let found = unsafe { $from.get::<unsafe extern "C" fn($($argument),*) $(-> $returned)?>(symbol.as_bytes()) };
                        *found.map_err(|_| MissingLibrary::TooOld(stringify!($name)))?
                    },)+)+
                })
            }
        }
    };
}

functions! {
    rados {
        rados_create(*mut RawCluster, *const c_char) -> c_int;
        rados_conf_read_file(RawCluster, *const c_char) -> c_int;
        rados_conf_set(RawCluster, *const c_char, *const c_char) -> c_int;
        rados_conf_get(RawCluster, *const c_char, *mut c_char, usize) -> c_int;
        rados_connect(RawCluster) -> c_int;
        rados_shutdown(RawCluster);
        rados_getaddrs(RawCluster, *mut *mut c_char) -> c_int;
        rados_buffer_free(*mut c_char);
        rados_blocklist_add(RawCluster, *mut c_char, u32) -> c_int;
        rados_ioctx_create(RawCluster, *const c_char, *mut RawPool) -> c_int;
        rados_ioctx_set_namespace(RawPool, *const c_char);
        rados_ioctx_destroy(RawPool);
    }
    rbd {
        rbd_namespace_exists(RawPool, *const c_char, *mut bool) -> c_int;
        rbd_open(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_open_read_only(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_open_by_id(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_open_by_id_read_only(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_get_id(RawImage, *mut c_char, usize) -> c_int;
        rbd_close(RawImage) -> c_int;
        rbd_snap_list(RawImage, *mut RawSnapshot, *mut c_int) -> c_int;
        rbd_snap_list_end(*mut RawSnapshot);
        rbd_snap_set(RawImage, *const c_char) -> c_int;
        rbd_stat(RawImage, *mut RawInfo, usize) -> c_int;
        rbd_get_size(RawImage, *mut u64) -> c_int;
        rbd_get_features(RawImage, *mut u64) -> c_int;
        rbd_resize(RawImage, u64) -> c_int;
        rbd_config_image_list(RawImage, *mut RawSetting, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup(*mut RawSetting, c_int);
        rbd_lock_acquire(RawImage, c_int) -> c_int;
        rbd_lock_release(RawImage) -> c_int;
        rbd_lock_get_owners(RawImage, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
        rbd_lock_break(RawImage, c_int, *const c_char) -> c_int;
        rbd_watchers_list(RawImage, *mut RawWatcher, *mut usize) -> c_int;
        rbd_watchers_list_cleanup(*mut RawWatcher, usize);
        rbd_mirror_image_get_info(RawImage, *mut RawMirror, usize) -> c_int;
        rbd_mirror_image_get_info_cleanup(*mut RawMirror);
        rbd_metadata_get(RawImage, *const c_char, *mut c_char, *mut usize) -> c_int;
        rbd_metadata_set(RawImage, *const c_char, *const c_char) -> c_int;
        rbd_metadata_remove(RawImage, *const c_char) -> c_int;
        rbd_update_watch(RawImage, *mut u64, Updated, *mut c_void) -> c_int;
        rbd_update_unwatch(RawImage, u64) -> c_int;
        rbd_aio_create_completion(*mut c_void, Ended, *mut RawCompletion) -> c_int;
        rbd_aio_get_return_value(RawCompletion) -> isize;
        rbd_aio_release(RawCompletion);
        rbd_aio_readv(RawImage, *const libc::iovec, c_int, u64, RawCompletion) -> c_int;
        rbd_aio_writev(RawImage, *const libc::iovec, c_int, u64, RawCompletion) -> c_int;
        rbd_aio_flush(RawImage, RawCompletion) -> c_int;
        rbd_aio_discard(RawImage, u64, u64, RawCompletion) -> c_int;
        rbd_aio_write_zeroes(RawImage, u64, usize, RawCompletion, c_int, c_int) -> c_int;
    }
}

impl Library {
    /// The libraries, loaded by now. Where they are not there the next disk looks again: somebody may have installed them.
    ///
    /// # Errors
    /// They are missing or too old.
    pub(crate) fn get() -> Result<&'static Library, MissingLibrary> {
        static FOUND: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() {
            *found = Some(Library::load(RADOS, RBD)?);
        }
        found.ok_or_else(|| unreachable!("it was found just now"))
    }

    fn load(rados: &str, rbd: &str) -> Result<&'static Library, MissingLibrary> {
        let [rados, rbd] = [rados, rbd].map(|name| {
            // SAFETY: what the libraries do when they are loaded is making tables of their own. They come from where the dynamic linker
            // looks for any library of this program.
            let shared = unsafe { Shared::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
            shared.map_err(|error| missing(reason(&error)))
        });
        let (rados, rbd) = (rados?, rbd?);
        let library = Library::find(&rados, &rbd)?;
        // Threads of theirs run code in there for as long as the process lives.
        std::mem::forget((rados, rbd));
        Ok(Box::leak(Box::new(library)))
    }
}

/// Why it is not there, by what the dynamic linker says (ld.so has no numbers for that).
fn missing(reason: String) -> MissingLibrary {
    // The others are of a package that was installed in part.
    let is_absent = ["No such file", "file too short", "invalid ELF header"].iter().any(|words| reason.contains(words));
    if is_absent { MissingLibrary::NotFound(reason) } else { MissingLibrary::Unloadable(reason) }
}

/// What the dynamic linker says, which names the library.
fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_package() {
        let missing = Library::load("librados-of-nobody.so.2", RBD).err().unwrap().to_string();
        assert!(missing.contains("`apt-get install librbd1`"), "{missing}");
        assert!(missing.contains("librados-of-nobody.so.2") && !missing.contains('\n'), "{missing}");
        // What is there and cannot be loaded is not to be installed.
        let unloadable = Library::load("/", RBD).err().unwrap().to_string();
        assert!(unloadable.contains("cannot be loaded here: /: ") && !unloadable.contains("apt-get"), "{unloadable}");
        for words in [
            "librbd.so.1: failed to map segment from shared object",
            "librbd.so.1: cannot open shared object file: Too many open files",
        ] {
            assert!(matches!(super::missing(words.to_owned()), MissingLibrary::Unloadable(_)), "{words}");
        }
        // A library that has none of these functions.
        let old = Library::load("libc.so.6", "libc.so.6").err().unwrap().to_string();
        assert!(old.contains("rados_create"), "{old}");
    }
}
