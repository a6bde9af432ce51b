//! A thread without the process's files.

use std::io;
use std::os::fd::RawFd;
use std::thread::Builder;

/// Descriptors below this one are copied into a thread's own table and closed there, whatever is asked for: the kernel makes no smaller
/// table (`NR_OPEN_DEFAULT`, BITS_PER_LONG in include/linux/fdtable.h) and shortens one to multiples of that (`sane_fdtable_size` in
/// fs/file.c).
pub const COPIED_BELOW: RawFd = libc::c_long::BITS.cast_signed();

/// Runs `work` on a thread of this name that has none of the process's descriptors, the standard ones included, and so do the children
/// that it starts. A child of any other thread has copies of all, and closes them as it becomes another program: for some file systems
/// (FUSE, NFS) each close is work, and a child that waits for that cannot be killed and holds all that it has not closed yet.
///
/// Copies of descriptors below [`COPIED_BELOW`] are closed by the thread before `work` begins. `work` must own no descriptor of the
/// process, and say nothing on standard error. Where the kernel does not empty the table (Linux before 5.9, or a list of system calls
/// without close_range) `work` runs beside all that the process has.
///
/// # Errors
/// No such thread.
pub fn without_files(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        // SAFETY: the kernel gives the thread a table of its own first, so this closes nothing for others; whoever calls has seen to it
        // that nothing on this thread owns a descriptor.
        unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
        work();
    };
    Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, read_dir};
    use std::os::fd::AsFd;
    use std::sync::mpsc::channel;

    #[test]
    fn the_thread_has_no_files_and_the_process_has_its_own() {
        let file = File::open("/dev/null").unwrap();
        let before = rustix::fs::fstat(&file).unwrap();
        let (said, heard) = channel();
        let look = move || {
            // One is open as the directory is read.
            let numbers = read_dir("/proc/thread-self/fd").unwrap().map(|entry| entry.unwrap().file_name()).collect();
            said.send(numbers).unwrap();
        };
        without_files("apart", look).unwrap();
        let numbers: Vec<std::ffi::OsString> = heard.recv().unwrap();
        assert_eq!(numbers, ["0"]);
        let after = rustix::fs::fstat(file.as_fd()).unwrap();
        assert_eq!((after.st_dev, after.st_ino), (before.st_dev, before.st_ino));
    }
}
