//! Machines without guarded copies. Nobody gets a guard there, so that none of these is ever called.

pub(crate) const SUPPORTED: bool = false;

pub(crate) unsafe fn copy(_dst: *mut u8, _src: *const u8, _len: usize) -> i32 {
    -1
}

pub(crate) unsafe fn byte(_at: *const u8) -> i32 {
    -1
}

pub(crate) unsafe fn recover(_context: *mut libc::c_void) -> bool {
    false
}
