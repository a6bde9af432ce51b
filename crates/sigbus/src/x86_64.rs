//! The routines for x86-64.

pub(crate) const SUPPORTED: bool = true;

// Strings of eight bytes are fast on every processor that has fast strings at all, and those of one byte on newer ones only.
// A fault leaves the counters of an interrupted string instruction as they are; nobody needs them. No stack is used, so
// that any instruction may be left for `gone`.
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
    "mov rcx, rdx",
    "shr rcx, 3",
    "rep movsq",
    "and edx, 7",
    "jz .Lvringd_fault_copied",
    "mov ecx, edx",
    "rep movsb",
    ".Lvringd_fault_copied:",
    "xor eax, eax",
    "ret",
    ".balign 16",
    "vringd_fault_byte:",
    "movzx eax, byte ptr [rdi]",
    "ret",
    "vringd_fault_end:",
    "vringd_fault_gone:",
    "mov eax, -1",
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

    /// Reads; the byte, or -1 when the page is gone. The processor orders reads as the program does.
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
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let Some(at) = registers.get_mut(libc::REG_RIP as usize) else {
        return false;
    };
    let (begin, end) = ((&raw const vringd_fault_begin) as usize, (&raw const vringd_fault_end) as usize);
    let interrupted = (begin..end).contains(&(*at as usize));
    if interrupted {
        *at = (&raw const vringd_fault_gone) as usize as i64;
    }
    interrupted
}
