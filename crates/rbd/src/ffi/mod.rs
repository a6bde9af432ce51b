//! librados and librbd, as much of them as is used: found at run time, and behind types that close what they open.
//!
//! | file | concern |
//! |---|---|
//! | `library` | the two libraries and their functions |
//! | `cluster` | a connection, and a pool of the cluster |
//! | `image` | an open image: what it is, its lock, its metadata |
//! | `submit` | requests: what is handed over, and how it ends |

mod cluster;
mod image;
mod library;
mod submit;

pub(crate) use cluster::{Cluster, Pool};
pub(crate) use image::{Image, Opening, Snapshot};
pub(crate) use library::{Library, MissingLibrary};
pub(crate) use submit::{Flight, Parked, Ready};

use std::ffi::{CStr, CString};

/// What Ceph answered: a number of the kernel's, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// In words.
    pub(crate) fn words(self) -> std::io::Error {
        std::io::Error::from_raw_os_error(self.0)
    }
}

/// Ends the process, and runs nobody's destructors.
pub(crate) fn end_process(status: u8) -> ! {
    // SAFETY: it returns to nobody.
    unsafe { libc::_exit(i32::from(status)) }
}

/// What a call has returned.
fn answer(returned: i32) -> Result<i32, Errno> {
    if returned < 0 { Err(Errno(returned.saturating_neg())) } else { Ok(returned) }
}

/// Text for Ceph. A zero byte ends it there, and names nothing that exists.
fn text(words: &str) -> Result<CString, Errno> {
    CString::new(words).map_err(|_| Errno(libc::EINVAL))
}

/// What Ceph has written into a buffer.
fn read(buffer: &[u8]) -> String {
    CStr::from_bytes_until_nul(buffer).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
