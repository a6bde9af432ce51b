//! The system calls of a daemon, grouped by who makes them.
//!
//! What is missing is meant to be: other processes are never looked at, mounts and namespaces never changed, modules never
//! loaded. Who serves one directory also never starts a program, and makes or connects no socket.
//!
//! By default a daemon dies of a call that is not here, so who adds one to a storage, the tree, the engine or a session adds
//! it here as well. Nothing but a guest on a server that runs under the list shows what was forgotten.

use crate::Role;
use libc::c_long;

/// The runtime: memory, threads, clocks, signals.
const RUNTIME: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_getgid,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_uname,
    libc::SYS_getcpu,
];

/// Workers and sessions: rings, doorbells, sockets that exist.
const ENGINE: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_memfd_create,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_mempolicy,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
];

/// Files: what storage does with images, and all do with sockets and settings.
const IMAGES: &[c_long] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    // fchmodat2, newer than some C libraries
    452,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// A daemon that is asked for new exports and may be replaced by a newer program while it runs: sockets, and a program of
/// which nobody knows yet what it is, which begins with its linker and gives up rights of its own.
const DAEMON: &[c_long] = &[
    libc::SYS_accept,
    libc::SYS_bind,
    libc::SYS_capget,
    libc::SYS_connect,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_getgroups,
    libc::SYS_getppid,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_kill,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_listen,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_seccomp,
    libc::SYS_sendmmsg,
    libc::SYS_set_tid_address,
    libc::SYS_setsid,
    libc::SYS_socket,
    libc::SYS_sysinfo,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_umask,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Files: what a tree does for its clients.
const FILES: &[c_long] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    // Newer than some C libraries, and of one number on every machine: fchmodat2, setxattrat, getxattrat, listxattrat,
    // removexattrat.
    452,
    463,
    464,
    465,
    466,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lseek,
    libc::SYS_lsetxattr,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_name_to_handle_at,
    libc::SYS_newfstatat,
    libc::SYS_open_by_handle_at,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_removexattr,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    // Through a pipe of somebody else's that must not be waited for.
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Being somebody else for one call, and waiting for locks.
const CREDENTIALS_AND_LOCKS: &[c_long] = &[
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getgroups,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_settime,
    libc::SYS_umask,
];

/// Calls that newer architectures no longer have, and C libraries still make.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_rmdir,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(target_arch = "aarch64")]
const LEGACY: &[c_long] = &[libc::SYS_renameat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEGACY: &[c_long] = &[];

/// What `vfork` is to programs on machines that have it.
#[cfg(target_arch = "x86_64")]
const STARTING: &[c_long] = &[libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const STARTING: &[c_long] = &[];

/// The calls that are allowed whatever their arguments.
pub(crate) fn allowed(role: Role) -> impl Iterator<Item = i64> {
    let groups: &[&[c_long]] = match role {
        Role::Directory => &[RUNTIME, ENGINE, FILES, CREDENTIALS_AND_LOCKS, LEGACY],
        Role::Disks => &[RUNTIME, ENGINE, IMAGES, DAEMON, LEGACY, STARTING],
        Role::Daemon => &[RUNTIME, ENGINE, IMAGES, FILES, CREDENTIALS_AND_LOCKS, DAEMON, LEGACY, STARTING],
    };
    // As wide as a register, which is narrower on some machines.
    #[allow(clippy::useless_conversion)]
    groups.iter().copied().flatten().map(|&number| i64::from(number))
}

/// `ioctl` requests. The call reaches every driver there is, so these alone are allowed: modes of descriptors, and whether
/// the log goes to a terminal.
const DESCRIPTORS: [u64; 6] = [
    // FIONBIO, FIOCLEX, FIONREAD
    0x5421,
    0x5451,
    0x541b,
    // TCGETS, TCGETS2, TIOCGWINSZ
    0x5401,
    0x802c_542a,
    0x5413,
];

/// Sizes and discards of block devices (`linux/fs.h`), and commands to SCSI devices that are passed through.
const DEVICES: [u64; 10] = [
    // BLKROGET, BLKSSZGET, BLKPBSZGET, BLKGETSIZE64
    0x125e,
    0x1268,
    0x127b,
    0x8008_1272,
    // BLKDISCARD, BLKZEROOUT
    0x1277,
    0x127f,
    // BLKSECTGET; SG_IO, SG_GET_VERSION_NUM, SG_GET_SG_TABLESIZE (`scsi/sg.h`)
    0x1267,
    0x2285,
    0x2282,
    0x227f,
];

/// Inode flags and project ids (`linux/fs.h`).
const INODES: [u64; 4] = [
    // FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR
    0x8008_6601,
    0x4008_6602,
    0x801c_581f,
    0x401c_5820,
];

/// The `ioctl` requests that are allowed.
pub(crate) fn ioctls(role: Role) -> impl Iterator<Item = u64> {
    let groups: &[&[u64]] = match role {
        Role::Directory => &[&DESCRIPTORS, &INODES],
        Role::Disks => &[&DESCRIPTORS, &DEVICES],
        Role::Daemon => &[&DESCRIPTORS, &DEVICES, &INODES],
    };
    groups.iter().copied().flatten().copied()
}

/// What `unshare` may take apart: a thread's umask and working directory, and no namespace.
pub(crate) const UNSHARED: u64 = libc::CLONE_FS.cast_unsigned() as u64;

/// Flags of `clone` that make namespaces.
pub(crate) const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned() as u64;

#[cfg(test)]
mod tests {
    use super::*;

    fn has(role: Role, call: c_long) -> bool {
        #[allow(clippy::useless_conversion)]
        let call = i64::from(call);
        allowed(role).any(|number| number == call)
    }

    #[test]
    fn what_is_missing_is_meant_to_be() {
        let nobodys = [
            libc::SYS_bpf,
            libc::SYS_chroot,
            libc::SYS_init_module,
            libc::SYS_kexec_load,
            libc::SYS_keyctl,
            libc::SYS_mount,
            libc::SYS_perf_event_open,
            libc::SYS_personality,
            libc::SYS_pidfd_getfd,
            libc::SYS_pivot_root,
            libc::SYS_process_vm_readv,
            libc::SYS_ptrace,
            libc::SYS_setns,
            libc::SYS_userfaultfd,
        ];
        for role in [Role::Directory, Role::Disks, Role::Daemon] {
            assert!(nobodys.iter().all(|call| !has(role, *call)), "{role:?}");
            assert!(has(role, libc::SYS_io_uring_enter) && has(role, libc::SYS_futex), "{role:?}");
        }
        let of_directories =
            [libc::SYS_setresuid, libc::SYS_capset, libc::SYS_mknodat, libc::SYS_open_by_handle_at, libc::SYS_setxattr];
        assert!(of_directories.iter().all(|call| !has(Role::Disks, *call) && has(Role::Daemon, *call)));
        // The connections of a stream are taken from a socket that listens already.
        let of_streams =
            [libc::SYS_accept4, libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_shutdown, libc::SYS_setsockopt];
        assert!(of_streams.iter().all(|call| has(Role::Directory, *call) && has(Role::Daemon, *call)));
        let of_daemons = [libc::SYS_execve, libc::SYS_socket, libc::SYS_bind, libc::SYS_listen, libc::SYS_connect];
        assert!(of_daemons.iter().all(|call| !has(Role::Directory, *call) && has(Role::Disks, *call)));
    }

    #[test]
    fn devices_are_for_disks_and_inodes_for_directories() {
        let of = |role| ioctls(role).collect::<Vec<_>>();
        assert!(
            DEVICES.iter().all(|request| of(Role::Disks).contains(request) && !of(Role::Directory).contains(request))
        );
        assert!(
            INODES.iter().all(|request| !of(Role::Disks).contains(request) && of(Role::Directory).contains(request))
        );
        assert_eq!(of(Role::Daemon).len(), DESCRIPTORS.len() + DEVICES.len() + INODES.len());
    }
}
