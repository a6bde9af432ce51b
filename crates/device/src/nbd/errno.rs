//! Errors of the storage as errors of the protocol.

use super::spec::errno;

/// The protocol's error for a Linux one (positive), as section "Error values" has it; what it has no value for is `NBD_EIO`. Never 0.
///
/// `NBD_EOVERFLOW`, `NBD_ENOTSUP` and `NBD_ESHUTDOWN` mean more than Linux' errors of these names, the last that the client has to
/// go: none comes of an error of the storage. That it cannot do something is `NBD_EINVAL`.
pub const fn errno_of(linux: i32) -> u32 {
    match linux {
        // EPERM, EACCES, EROFS.
        1 | 13 | 30 => errno::EPERM,
        // ENOMEM.
        12 => errno::ENOMEM,
        // EINVAL, EOPNOTSUPP.
        22 | 95 => errno::EINVAL,
        // EFBIG, ENOSPC, EDQUOT.
        27 | 28 | 122 => errno::ENOSPC,
        _ => errno::EIO,
    }
}
