//! Which extended attribute of the host stands for which of the client: the rules of `--xattrmap`.

use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::CStr;
use std::str::FromStr;

/// Why a set of rules was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum XattrMapError {
    /// an xattrmap without a rule: write at least `:ok:all:::`
    Empty,
}

/// Translates names of extended attributes. The default changes nothing.
#[derive(Clone, Debug, Default)]
pub struct XattrMap {}

impl FromStr for XattrMap {
    type Err = XattrMapError;

    fn from_str(_text: &str) -> Result<XattrMap, XattrMapError> {
        Err(XattrMapError::Empty)
    }
}

impl XattrMap {
    /// True when every name stands for itself.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        true
    }

    /// The host's name for a name that the client used.
    ///
    /// # Errors
    /// `EPERM` for a `bad` name, `EOPNOTSUPP` for an `unsupported` one.
    pub fn to_host<'a>(&self, name: &'a CStr) -> Result<Cow<'a, CStr>, Errno> {
        Ok(Cow::Borrowed(name))
    }

    /// The client's name for a name in the host's list, or nothing when the client shall not see it.
    #[must_use]
    pub fn to_guest<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        Some(name)
    }
}
