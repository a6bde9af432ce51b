use super::super::Program;
use super::*;
use clap::{CommandFactory, Parser};
use control::model::{FileHandles, MigrationMode, MigrationOnError};
use sandbox::{Mode, Seccomp};
use std::time::Duration;

const LEAST: &str = "--socket-path /run/fs.sock --shared-dir /srv";

fn parse(words: &str) -> Result<Program, clap::Error> {
    Program::try_parse_from(std::iter::once("virtiofsd").chain(words.split_whitespace()))
}

fn launched(words: &str) -> Launch {
    let launched = launch(parse(words).expect(words).options).expect(words);
    launched.export.check().expect(words);
    launched
}

/// What [`LEAST`] with these words makes of the directory.
fn served(words: &str) -> Directory {
    launched(&format!("{LEAST} {words}")).export.directory.unwrap()
}

/// Why these words are refused.
fn refused(words: &str) -> String {
    match parse(words) {
        Ok(program) => match launch(program.options) {
            Err(Failure::Usage(line)) => line,
            other => panic!("{words}: {other:?}"),
        },
        Err(error) => {
            assert_eq!(error.exit_code(), 2, "{words}");
            error.to_string()
        }
    }
}

#[test]
fn the_definitions_are_consistent() {
    Program::command().debug_assert();
}

#[test]
fn the_least_command_line_has_virtiofsds_defaults() {
    let launched = launched(LEAST);
    let expected = Directory {
        tag: Some(String::new()),
        negative_timeout: Some(Span::default()),
        readdirplus: Readdirplus::Auto,
        xattr: false,
        killpriv_v2: false,
        execution: Execution::Inline,
        ..Directory::new("/srv")
    };
    assert_eq!(launched.export.directory, Some(expected));
    assert_eq!(launched.export.socket.as_deref(), Some(Path::new("/run/fs.sock")));
    assert_eq!(launched.export.socket_mode, Some(FileMode(0o700)));
    assert_eq!(launched.export.queues, Some(8));
    assert_eq!(launched.pid_file.as_deref(), Some(Path::new("/run/fs.sock.pid")));
    assert_eq!(launched.isolation, IsolationArgs::default());
    assert_eq!(launched.isolation.sandbox, Mode::Namespace);
    assert_eq!(launched.isolation.seccomp, Seccomp::Kill);
    assert_eq!((launched.log_level.as_str(), launched.syslog, launched.control), ("info", false, None));
    assert!(launched.remarks.is_empty());
}

#[test]
fn every_option_reaches_its_field() {
    let base = served("");
    let cases: &[(&str, Directory)] = &[
        ("--tag data", Directory { tag: Some("data".into()), ..base.clone() }),
        ("--thread-pool-size=64", Directory { execution: Execution::Pool(64), ..base.clone() }),
        ("--thread-pool-size=0", base.clone()),
        ("--xattr", Directory { xattr: true, ..base.clone() }),
        ("--posix-acl", Directory { xattr: true, posix_acl: Negotiation::Always, ..base.clone() }),
        ("--posix-acl=auto", Directory { xattr: true, posix_acl: Negotiation::Auto, ..base.clone() }),
        ("--posix-acl=never", base.clone()),
        ("--security-label", Directory { xattr: true, security_label: Negotiation::Always, ..base.clone() }),
        ("--security-label=auto", Directory { xattr: true, security_label: Negotiation::Auto, ..base.clone() }),
        ("--xattrmap :ok:all:::", Directory { xattr: true, xattrmap: Some(":ok:all:::".into()), ..base.clone() }),
        ("--readonly", Directory { read_only: true, ..base.clone() }),
        ("--announce-submounts", base.clone()),
        ("--no-announce-submounts", Directory { announce_submounts: false, ..base.clone() }),
        ("--inode-file-handles=never", Directory { inode_file_handles: FileHandles::Never, ..base.clone() }),
        ("--inode-file-handles=fallback", base.clone()),
        ("--inode-file-handles=mandatory", Directory { inode_file_handles: FileHandles::Mandatory, ..base.clone() }),
        ("--killpriv-v2", Directory { killpriv_v2: true, ..base.clone() }),
        ("--no-killpriv-v2", base.clone()),
        ("--no-killpriv-v2 --killpriv-v2", Directory { killpriv_v2: true, ..base.clone() }),
        ("--preserve-noatime", Directory { preserve_noatime: true, ..base.clone() }),
        (
            "--translate-uid map:0:1:2 --translate-uid host:3:4:5 --translate-gid guest:6:7:8",
            Directory {
                translate_uid: vec!["map:0:1:2".into(), "host:3:4:5".into()],
                translate_gid: vec!["guest:6:7:8".into()],
                ..base.clone()
            },
        ),
        ("--migration-mode=find-paths --migration-on-error=abort", base.clone()),
        ("--migration-mode=file-handles", Directory { migration_mode: MigrationMode::FileHandles, ..base.clone() }),
        (
            "--migration-on-error guest-error",
            Directory { migration_on_error: MigrationOnError::GuestError, ..base.clone() },
        ),
        ("--migration-verify-handles", Directory { migration_verify_handles: true, ..base.clone() }),
        ("--migration-confirm-paths", base.clone()),
        ("--cache always", Directory { cache: CachePolicy::Always, ..base.clone() }),
        ("--cache=Metadata", Directory { cache: CachePolicy::Metadata, ..base.clone() }),
        ("--cache never", Directory { cache: CachePolicy::Never, readdirplus: Readdirplus::Off, ..base.clone() }),
        ("--allow-mmap", Directory { allow_mmap: true, ..base.clone() }),
        ("--no-readdirplus", Directory { readdirplus: Readdirplus::Off, ..base.clone() }),
        ("--writeback", Directory { writeback: true, ..base.clone() }),
        ("--allow-direct-io", Directory { allow_direct_io: true, ..base.clone() }),
    ];
    for (words, expected) in cases {
        let words = format!("{LEAST} {words}");
        assert_eq!(launched(words.trim_end()).export.directory.as_ref(), Some(expected), "{words}");
    }
}

#[test]
fn isolation_log_and_socket() {
    let all = launched(
        "--fd 5 --shared-dir=/srv --sandbox=chroot --seccomp=log --modcaps=+sys_admin:-chown --rlimit-nofile=0 \
         --uid-map :0:1000:1: --uid-map :1:100000:65536: --gid-map :0:1000:1: --log-level DEBUG --syslog \
         --control /run/c.sock --queues 3",
    );
    assert_eq!((all.export.socket_fd, all.export.socket, all.export.socket_mode), (Some(5), None, None));
    assert_eq!((all.pid_file, all.export.queues), (None, Some(3)));
    assert_eq!(
        all.isolation,
        IsolationArgs {
            sandbox: Mode::Chroot,
            uid_map: [":0:1000:1:", ":1:100000:65536:"].map(|map| map.parse().unwrap()).into(),
            gid_map: vec![":0:1000:1:".parse().unwrap()],
            seccomp: Seccomp::Log,
            modcaps: Some("+sys_admin:-chown".into()),
            rlimit_nofile: Some(0),
        }
    );
    assert_eq!((all.log_level.as_str(), all.syslog), ("debug", true));
    assert_eq!(all.control.as_deref(), Some(Path::new("/run/c.sock")));
    let group = launched(&format!("{LEAST} --socket-group kvm"));
    assert_eq!((group.export.socket_group.as_deref(), group.export.socket_mode), (Some("kvm"), Some(FileMode(0o770))));
    let twice = launched(&format!("{LEAST} --cache auto --cache always"));
    assert_eq!(twice.export.directory.unwrap().cache, CachePolicy::Always, "the last one counts, as in virtiofsd");
}

#[test]
fn what_libvirt_and_kata_write() {
    let libvirt = launched("--fd=23 -o source=/srv/data,cache=always,xattr,sandbox=chroot,flock,posix_lock");
    let directory = libvirt.export.directory.unwrap();
    assert_eq!((directory.path.as_path(), directory.cache), (Path::new("/srv/data"), CachePolicy::Always));
    assert!(directory.xattr && directory.flock && directory.posix_lock);
    assert_eq!(libvirt.isolation.sandbox, Mode::Chroot);
    assert_eq!(libvirt.remarks.len(), 1);
    let kata = launched(
        "--syslog --cache=auto --shared-dir=/run/kata/shared --fd=3 --thread-pool-size=1 -o announce_submounts",
    );
    assert!(kata.syslog);
    assert_eq!(kata.export.directory.unwrap().execution, Execution::Pool(1));
    launched("--socket-path=/run/fs.sock -o source=/srv -f -d");
}

#[test]
fn compatibility_options_reach_their_fields() {
    let base = served("");
    let cases: &[(&str, Directory)] = &[
        ("source=/data", Directory { path: "/data".into(), ..base.clone() }),
        ("cache=none", Directory { cache: CachePolicy::Never, readdirplus: Readdirplus::Off, ..base.clone() }),
        ("cache=auto", base.clone()),
        ("cache=metadata", Directory { cache: CachePolicy::Metadata, ..base.clone() }),
        ("xattr", Directory { xattr: true, ..base.clone() }),
        ("xattr,no_xattr", base.clone()),
        ("xattrmap=:ok:all:::", Directory { xattr: true, xattrmap: Some(":ok:all:::".into()), ..base.clone() }),
        ("no_readdirplus", Directory { readdirplus: Readdirplus::Off, ..base.clone() }),
        ("no_readdirplus,readdirplus", base.clone()),
        ("writeback", Directory { writeback: true, ..base.clone() }),
        ("writeback,no_writeback", base.clone()),
        ("allow_direct_io", Directory { allow_direct_io: true, ..base.clone() }),
        ("allow_direct_io,no_allow_direct_io", base.clone()),
        ("no_announce_submounts", Directory { announce_submounts: false, ..base.clone() }),
        ("announce_submounts", base.clone()),
        ("killpriv_v2", Directory { killpriv_v2: true, ..base.clone() }),
        ("killpriv_v2,no_killpriv_v2", base.clone()),
        ("posix_acl", Directory { xattr: true, posix_acl: Negotiation::Always, ..base.clone() }),
        ("posix_acl,no_posix_acl", base.clone()),
        ("security_label", Directory { xattr: true, security_label: Negotiation::Always, ..base.clone() }),
        ("security_label,no_security_label", base.clone()),
        ("no_posix_lock,no_flock", Directory { posix_lock: false, flock: false, ..base.clone() }),
        ("flock,posix_lock", base.clone()),
        (
            "timeout=2.5",
            Directory {
                attr_timeout: Some(Span(Duration::from_millis(2500))),
                entry_timeout: Some(Span(Duration::from_millis(2500))),
                ..base.clone()
            },
        ),
    ];
    for (option, expected) in cases {
        assert_eq!(served(&format!("-o {option}")), *expected, "{option}");
    }
    let rest = |option: &str| launched(&format!("{LEAST} -o {option}"));
    assert_eq!(rest("sandbox=namespace").isolation.sandbox, Mode::Namespace);
    assert_eq!(rest("modcaps=+sys_admin").isolation.modcaps.as_deref(), Some("+sys_admin"));
    for (option, level) in [("loglevel=err", "error"), ("log_level=warn", "warn"), ("debug", "debug")] {
        assert_eq!(rest(option).log_level, level, "{option}");
    }
    let several = served("-o xattr -o cache=always,writeback");
    assert!(several.xattr && several.writeback && several.cache == CachePolicy::Always);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for option in ["norace", "max_idle_threads=5", "sandbox=none", "cache=mostly", "loglevel=loud", "timeout=-1", ""] {
        let line = refused(&format!("{LEAST} -o xattr,{option}"));
        let name = option.split('=').next().unwrap();
        assert!(line.starts_with(&format!("-o {name}: ")) && !line.contains('\n'), "{line}");
    }
    for (words, named) in [
        ("--shared-dir /srv".to_owned(), "--socket-path"),
        ("--socket-path /run/fs.sock".to_owned(), "--shared-dir"),
        ("--socket-path /run/fs.sock -o xattr".to_owned(), "--shared-dir"),
        (format!("{LEAST} --fd 3"), "--fd"),
        ("--fd 3 --shared-dir /srv --socket-group kvm".to_owned(), "--socket-group"),
        (format!("{LEAST} --tag {}", "x".repeat(37)), "--tag"),
        (format!("{LEAST} --thread-pool-size 65536"), "--thread-pool-size"),
        (format!("{LEAST} --posix-acl --translate-uid map:0:0:1"), "--translate-uid"),
        (format!("{LEAST} --posix-acl=auto --translate-gid map:0:0:1"), "--translate-gid"),
        (format!("{LEAST} --inode-file-handles=always"), "--inode-file-handles"),
        (format!("{LEAST} --migration-mode=file_handles"), "--migration-mode"),
        (format!("{LEAST} --migration-on-error=ignore"), "--migration-on-error"),
        (format!("{LEAST} --migration-mode=file-handles --migration-verify-handles"), "--migration-verify-handles"),
        (format!("{LEAST} --migration-mode=file-handles --migration-confirm-paths"), "--migration-confirm-paths"),
        (format!("{LEAST} --cache=none"), "--cache"),
        (format!("{LEAST} --seccomp=maybe"), "--seccomp"),
        (format!("{LEAST} --uid-map 0:1000:1"), "--uid-map"),
        (format!("{LEAST} --sandbox=jail"), "--sandbox"),
        (format!("{LEAST} --block-size 4096"), "--block-size"),
    ] {
        let line = refused(&words);
        assert!(line.contains(named), "{words}: {line}");
    }
    let many = launch(parse(&format!("{LEAST} --queues 65")).unwrap().options).unwrap();
    assert_eq!(many.export.check().unwrap_err().field, "queues");
}

#[test]
fn capabilities_need_nothing_else() {
    assert!(parse("--print-capabilities").unwrap().options.print_capabilities);
    let version = parse("--version").unwrap_err().to_string();
    assert!(version.starts_with("virtiofsd 1.14.0 (vringd "), "{version}");
}
