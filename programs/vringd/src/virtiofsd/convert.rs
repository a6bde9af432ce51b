//! From virtiofsd's options to an export, its isolation, and the life of the process.

use super::Options;
use crate::failure::Failure;
use crate::isolation::IsolationArgs;
use control::model::config::{ExportKind, NewExport};
use control::model::directory::Directory;
use control::model::{CachePolicy, MigrationMode, Negotiation, Readdirplus};
use control::model::{Execution, FileMode, Placement, Poll, Span};
use std::path::{Path, PathBuf};

/// The largest pool. virtiofsd takes more.
const THREADS_MAX: u16 = 256;

/// What the options ask for.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The directory.
    pub(crate) export: NewExport,
    /// What the process may do besides.
    pub(crate) isolation: IsolationArgs,
    /// Control socket.
    pub(crate) control: Option<PathBuf>,
    /// File that holds the process id, and a lock for as long as the process lives.
    pub(crate) pid_file: Option<PathBuf>,
    /// What to log.
    pub(crate) log_level: String,
    /// Log to syslog.
    pub(crate) syslog: bool,
    /// What is to be said about the options, for the log.
    pub(crate) remarks: Vec<String>,
}

/// Makes sense of the options.
///
/// # Errors
/// [`Failure::Usage`] with the flag at fault.
pub(crate) fn launch(options: Options) -> Result<Launch, Failure> {
    let mut remarks = deprecated(&options);
    if options.thread_pool_size > THREADS_MAX {
        remarks.push(format!("--thread-pool-size: {THREADS_MAX} threads are the most, which it has now"));
    }
    let options = options.with_compat().map_err(Failure::Usage)?;
    refuse_conflicts(&options).map_err(Failure::Usage)?;
    let directory = directory(&options).map_err(Failure::Usage)?;
    let socket = options.socket_path.or(options.socket);
    // As virtiofsd's umask leaves it.
    let mode = if options.socket_group.is_some() { 0o770 } else { 0o700 };
    let export = NewExport {
        name: "virtiofsd".to_owned(),
        kind: ExportKind::Dir,
        socket_mode: socket.is_some().then_some(FileMode(mode)),
        socket_owner: None,
        socket_group: options.socket_group,
        socket_fd: options.fd,
        listen: None,
        tls: None,
        storage: None,
        disk: None,
        luns: Vec::new(),
        directory: Some(directory),
        queues: Some(options.queues),
        queue_size: None,
        serial: None,
        block_size: None,
        write_cache: None,
        workers: Placement::Shared,
        poll: Some(Poll::default()),
        cpus: None,
        limits: control::model::Limits::default(),
        socket: socket.clone(),
    };
    Ok(Launch {
        export,
        isolation: IsolationArgs {
            sandbox: options.sandbox,
            uid_map: options.uid_map,
            gid_map: options.gid_map,
            seccomp: options.seccomp,
            modcaps: options.modcaps,
            rlimit_nofile: options.rlimit_nofile,
        },
        control: options.control,
        pid_file: socket.as_deref().map(pid_path),
        log_level: if options.compat_debug { "debug".to_owned() } else { options.log_level.to_ascii_lowercase() },
        syslog: options.syslog,
        remarks,
    })
}

fn directory(options: &Options) -> Result<Directory, String> {
    let path = options.shared_dir.clone().ok_or("--shared-dir: is missing: give the path of the directory")?;
    let never = |mode: Negotiation| mode == Negotiation::Never;
    let readdirplus = match options.cache {
        // Attributes that may not be believed are not worth their way.
        CachePolicy::Never => Readdirplus::Off,
        _ if options.no_readdirplus => Readdirplus::Off,
        _ => Readdirplus::Auto,
    };
    Ok(Directory {
        // Without --tag there is no configuration to read: some frontends stumble over it.
        tag: Some(options.tag.clone().unwrap_or_default()),
        cache: options.cache,
        attr_timeout: options.compat.timeout,
        entry_timeout: options.compat.timeout,
        // virtiofsd lets no guest remember what is not there.
        negative_timeout: Some(Span::default()),
        writeback: options.writeback,
        allow_direct_io: options.allow_direct_io,
        allow_mmap: options.allow_mmap,
        readdirplus,
        xattr: options.xattr
            || options.xattrmap.is_some()
            || !never(options.posix_acl)
            || !never(options.security_label),
        xattrmap: options.xattrmap.clone(),
        posix_acl: options.posix_acl,
        security_label: options.security_label,
        killpriv_v2: options.killpriv_v2,
        posix_lock: options.compat.posix_lock,
        flock: options.compat.flock,
        announce_submounts: !options.no_announce_submounts,
        inode_file_handles: options.inode_file_handles,
        preserve_noatime: options.preserve_noatime,
        read_only: options.readonly,
        translate_uid: options.translate_uid.clone(),
        translate_gid: options.translate_gid.clone(),
        migration_mode: options.migration_mode,
        migration_on_error: options.migration_on_error,
        migration_verify_handles: options.migration_verify_handles,
        execution: match options.thread_pool_size {
            0 => Execution::Inline,
            threads => Execution::Pool(threads.min(THREADS_MAX).into()),
        },
        ..Directory::new(path)
    })
}

/// What excludes each other, by name.
fn refuse_conflicts(options: &Options) -> Result<(), String> {
    let translated = [("--translate-uid", &options.translate_uid), ("--translate-gid", &options.translate_gid)];
    if options.posix_acl != Negotiation::Never
        && let Some((flag, _)) = translated.iter().find(|(_, rules)| !rules.is_empty())
    {
        return Err(format!("{flag}: excludes --posix-acl: access control lists carry ids that nobody translates"));
    }
    let of_paths = [
        ("--migration-verify-handles", options.migration_verify_handles),
        ("--migration-confirm-paths", options.migration_confirm_paths),
    ];
    if options.migration_mode == MigrationMode::FileHandles
        && let Some((flag, _)) = of_paths.iter().find(|(_, given)| *given)
    {
        return Err(format!("{flag}: excludes --migration-mode=file-handles: it is about paths"));
    }
    Ok(())
}

/// What was asked for in a way that has a better one.
fn deprecated(options: &Options) -> Vec<String> {
    let old = [
        (options.compat_foreground, "-f has no meaning: leave it out"),
        (options.compat_debug, "-d is deprecated: use --log-level debug"),
        (!options.compat_options.is_empty(), "-o is deprecated: use the option's own name, as in --cache auto"),
        (options.socket.is_some(), "--socket is deprecated: use --socket-path"),
    ];
    old.into_iter().filter(|(given, _)| *given).map(|(_, line)| line.to_owned()).collect()
}

/// `PATH.pid`, beside the socket.
fn pid_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".pid");
    path.into()
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
