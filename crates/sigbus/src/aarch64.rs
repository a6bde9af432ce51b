//! The routines for 64-bit ARM.

pub(crate) const SUPPORTED: bool = true;

// No stack is used, so that any instruction may be left for `gone`.
std::arch::global_asm!(
    ".pushsection .text.vringd_fault,\"ax\",@progbits",
    ".balign 16",
    ".hidden vringd_fault_begin",
    ".hidden vringd_fault_end",
    ".hidden vringd_fault_gone",
    ".hidden vringd_fault_copy",
    ".hidden vringd_fault_byte",
    ".globl vringd_fault_begin",
    ".globl vringd_fault_end",
    ".globl vringd_fault_gone",
    ".globl vringd_fault_copy",
    ".globl vringd_fault_byte",
    ".type vringd_fault_copy,@function",
    ".type vringd_fault_byte,@function",
    ".cfi_startproc",
    "vringd_fault_begin:",
    "vringd_fault_copy:",
    ".Lvringd_fault_large:",
    "subs x2, x2, #64",
    "b.lo .Lvringd_fault_rest",
    "ldp x3, x4, [x1]",
    "ldp x5, x6, [x1, #16]",
    "ldp x7, x8, [x1, #32]",
    "ldp x9, x10, [x1, #48]",
    "add x1, x1, #64",
    "stp x3, x4, [x0]",
    "stp x5, x6, [x0, #16]",
    "stp x7, x8, [x0, #32]",
    "stp x9, x10, [x0, #48]",
    "add x0, x0, #64",
    "b .Lvringd_fault_large",
    ".Lvringd_fault_rest:",
    "adds x2, x2, #64",
    "b.eq .Lvringd_fault_copied",
    ".Lvringd_fault_small:",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne .Lvringd_fault_small",
    ".Lvringd_fault_copied:",
    "mov w0, #0",
    "ret",
    "vringd_fault_byte:",
    "dmb ishld",
    "ldarb w0, [x0]",
    "ret",
    "vringd_fault_end:",
    "vringd_fault_gone:",
    "mov w0, #-1",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    static vringd_fault_begin: u8;
    static vringd_fault_end: u8;
    static vringd_fault_gone: u8;

    /// Copies; 0, or -1 when a page is gone.
    #[link_name = "vringd_fault_copy"]
    pub(crate) fn copy(dst: *mut u8, src: *const u8, len: usize) -> i32;

    /// Reads after everything that was read before, and before everything that is read later; the byte, or -1 when the page is gone.
    #[link_name = "vringd_fault_byte"]
    pub(crate) fn byte(at: *const u8) -> i32;
}

/// Lets an interrupted routine return -1. False when it was none of them that was interrupted.
///
/// # Safety
/// `context` is what the kernel has given to a signal handler that is running.
pub(crate) unsafe fn recover(context: *mut libc::c_void) -> bool {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the third argument of a handler with SA_SIGINFO is a `ucontext_t` that is the handler's to change.
    let at = unsafe { &mut (*context).uc_mcontext.pc };
    let (begin, end) = ((&raw const vringd_fault_begin) as usize, (&raw const vringd_fault_end) as usize);
    let interrupted = (begin..end).contains(&(*at as usize));
    if interrupted {
        *at = (&raw const vringd_fault_gone) as usize as u64;
    }
    interrupted
}
