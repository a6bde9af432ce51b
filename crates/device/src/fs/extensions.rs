//! What requests that make files carry behind their names: security labels and supplementary groups.
//!
//! Each extension starts with its own length and its type (`fuse_ext_header`) and ends at a multiple of 8 bytes. Security
//! contexts came first (7.36), as the only one: their header is `fuse_secctx_header`, whose number of contexts later became the
//! type, 0 to 31.

use super::dialect::Dialect;
use super::malformed::Reason;
use super::spec::{GROUPS_MAX, RECORD_ALIGN, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, extension, flags};
use super::wire::{Args, le32};
use std::ffi::CStr;

/// Bytes of `fuse_ext_header`, and of `fuse_secctx_header`.
const HEADER_BYTES: usize = 8;

/// What came behind the names; empty when the guest sent nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// Labels of the new file. Linux sends at most one.
    pub security: SecurityContexts<'a>,
    /// Supplementary groups that the file may be made with. Linux sends at most one: the directory's, when the caller is in it.
    pub groups: Groups<'a>,
}

/// Security contexts, at most 31, as they stand in the request; checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecurityContexts<'a> {
    raw: &'a [u8],
    count: u32,
}

/// A security label: an extended attribute that the new file must have from its first moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// The attribute's full name, such as `security.selinux`.
    pub name: &'a CStr,
    /// The attribute's value.
    pub value: &'a [u8],
}

/// Supplementary groups, at most 32, as they stand in the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups<'a> {
    raw: &'a [u8],
}

impl<'a> SecurityContexts<'a> {
    /// Number of labels.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each label.
    pub fn iter(&self) -> impl Iterator<Item = SecurityContext<'a>> + use<'a> {
        let mut args = Args::new(self.raw);
        // They were read once already, from the same bytes; an error cannot come any more and would only end the list.
        (0..self.count).map_while(move |_| take_context(&mut args).ok())
    }
}

impl<'a> Groups<'a> {
    /// Number of groups.
    pub fn len(&self) -> usize {
        self.raw.len() / 4
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Each group.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        let (groups, _) = self.raw.as_chunks::<4>();
        groups.iter().map(|group| u32::from_le_bytes(*group))
    }
}

/// Reads the extensions out of what stands behind the last name. `total_extlen` is the header's, in units of 8 bytes.
pub(super) fn decode(behind: &[u8], total_extlen: u16, dialect: Dialect) -> Result<Extensions<'_>, Reason> {
    let told = usize::from(total_extlen) * RECORD_ALIGN;
    let raw = match told {
        // Linux 5.17 to 6.2 sends labels without saying how long they are: they are all that is left.
        0 if dialect.has(flags::SECURITY_CTX) => behind,
        0 => return Ok(Extensions::default()),
        _ if !dialect.extends() => return Err(Reason::BadExtension),
        _ => behind.len().checked_sub(told).and_then(|at| behind.get(at..)).ok_or(Reason::BadExtension)?,
    };
    let mut found = Extensions::default();
    let (mut labelled, mut grouped) = (false, false);
    let mut rest = raw;
    while let Some((header, _)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let size = le32::<0, _>(header) as usize;
        let Some(body) = rest.get(HEADER_BYTES..size) else {
            return Err(Reason::BadExtension);
        };
        match le32::<4, _>(header) {
            count @ 0..=extension::SECURITY_CONTEXTS_MAX if dialect.has(flags::SECURITY_CTX) && !labelled => {
                labelled = true;
                found.security = contexts(body, count)?;
            }
            extension::GROUPS if dialect.has(flags::CREATE_SUPP_GROUP) && !grouped => {
                grouped = true;
                found.groups = groups(body)?;
            }
            _ => return Err(Reason::BadExtension),
        }
        // The last one need not be padded.
        rest = rest.get(size.next_multiple_of(RECORD_ALIGN)..).unwrap_or_default();
    }
    if rest.is_empty() { Ok(found) } else { Err(Reason::BadExtension) }
}

/// Checks that there are so many contexts.
fn contexts(raw: &[u8], count: u32) -> Result<SecurityContexts<'_>, Reason> {
    let mut args = Args::new(raw);
    for _ in 0..count {
        take_context(&mut args)?;
    }
    Ok(SecurityContexts { raw, count })
}

/// Takes one `fuse_secctx` with name, value and padding.
fn take_context<'a>(args: &mut Args<'a>) -> Result<SecurityContext<'a>, Reason> {
    let before = args.rest().len();
    let fixed: &[u8; 8] = args.take().map_err(|_| Reason::BadExtension)?;
    let size = le32::<0, _>(fixed) as usize;
    if size > XATTR_VALUE_BYTES_MAX {
        return Err(Reason::XattrValueTooLong);
    }
    let name = args.take_string(XATTR_NAME_BYTES_MAX, Reason::XattrNameTooLong)?;
    let value = args.take_bytes(size).map_err(|_| Reason::BadExtension)?;
    let taken = before - args.rest().len();
    let padding = taken.next_multiple_of(RECORD_ALIGN) - taken;
    // As above, the last one need not be padded.
    let _ = args.take_bytes(padding.min(args.rest().len()))?;
    Ok(SecurityContext { name, value })
}

/// `fuse_supp_groups`.
fn groups(body: &[u8]) -> Result<Groups<'_>, Reason> {
    let mut args = Args::new(body);
    let fixed: &[u8; 4] = args.take().map_err(|_| Reason::BadExtension)?;
    let count = le32::<0, _>(fixed) as usize;
    if count > GROUPS_MAX {
        return Err(Reason::TooManyGroups);
    }
    let raw = args.take_bytes(count * 4).map_err(|_| Reason::BadExtension)?;
    Ok(Groups { raw })
}
