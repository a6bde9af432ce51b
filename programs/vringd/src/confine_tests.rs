use super::*;
use control::model::{ByteSize, MemoryFile};
use disk::{FileOptions, NullOptions, StorageSpec, VolumeOptions};

fn read(text: &str) -> Result<Confinement, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
}

#[test]
fn a_file_says_what_the_command_line_says() {
    let text = "allow = ['/srv']\nallow_port = [5640]\nallow_rbd = true\nlandlock = 'on'\nseccomp = 'log'\ncapabilities = 'none'\nuser = 'nobody'";
    let all = Confinement {
        allow: vec!["/srv".into()],
        allow_port: vec![5640],
        allow_rbd: true,
        landlock: Some(When::On),
        seccomp: Some(Seccomp::Log),
        capabilities: Some(Keep::None),
        user: Some("nobody".to_owned()),
    };
    assert_eq!(read(text).unwrap(), all);
    assert_eq!(read("").unwrap(), Confinement::default());
    assert!(read("seccomp = 'maim'").unwrap_err().contains("use none, kill, log or trap"));
    assert!(read("landlock = 'maybe'").unwrap_err().contains("`auto`, `on`, `off`"));
    assert!(read("capabilities = 'some'").unwrap_err().contains("`auto`, `none`, `all`"));
    assert!(read("sudo = true").is_err());
    assert!(read("allow_port = [65536]").is_err());

    let line = Confinement { allow: vec!["/mnt".into()], seccomp: Some(Seccomp::None), ..Confinement::default() };
    let both = Confinement { allow: vec!["/srv".into(), "/mnt".into()], seccomp: Some(Seccomp::None), ..all.clone() };
    assert_eq!(line.over(all), both);
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (text, word) in [("allow = ['/srv']\nlandlock = 'off'", "allow"), ("user = 'a'\ncapabilities = 'all'", "`all`")]
    {
        let line = read(text).unwrap().check().unwrap_err();
        assert!(line.starts_with("sandbox.") && line.contains(word), "{line}");
    }
}

fn held(paths: Paths) -> Held {
    Held { seccomp: SeccompState::Kill, landlock: Some(paths), ..Held::default() }
}

fn disk(socket: &Path, image: Option<&Path>, read_only: bool) -> NewExport {
    let storage = match image {
        Some(path) => StorageSpec::File(FileOptions { read_only, ..FileOptions::new(path) }),
        None => StorageSpec::Null(NullOptions { size: ByteSize(4096), ..NullOptions::default() }),
    };
    let text = format!("name = 'a'\nsocket = '{}'\nstorage = {{ kind = 'null', size = '1M' }}", socket.display());
    NewExport { storage: Some(storage), ..toml::from_str(&text).unwrap() }
}

#[test]
fn paths_out_of_reach_are_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().canonicalize().unwrap().join(name);
    for name in ["sockets", "allowed", "other"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::os::unix::fs::symlink(at("allowed"), at("link")).unwrap();
    let held = held(Paths {
        images: BTreeSet::from([(at("named.img"), true), (at("read.img"), false)]),
        sockets: BTreeSet::from([at("sockets")]),
        trees: BTreeSet::from([at("allowed")]),
        ..Paths::default()
    });
    let socket = at("sockets/a.sock");
    let admits = |mut new: NewExport| held.admit(&mut new);
    admits(disk(&socket, None, false)).unwrap();
    admits(disk(&at("allowed/a.sock"), Some(&at("allowed/any.img")), false)).unwrap();
    admits(disk(&at("link/a.sock"), Some(&at("link/any.img")), false)).unwrap();
    admits(disk(&socket, Some(&at("named.img")), false)).unwrap();
    admits(disk(&socket, Some(&at("read.img")), true)).unwrap();
    for (new, name) in [
        (disk(&at("other/a.sock"), None, false), "socket"),
        (disk(&socket, Some(&at("other/any.img")), false), "storage.path"),
        (disk(&socket, Some(&at("read.img")), false), "storage.path"),
        (disk(&socket, Some(&at("allowed/../other/any.img")), false), "storage.path"),
    ] {
        let error = admits(new).unwrap_err();
        assert_eq!(error.field(), Some(name));
        assert!(error.to_string().contains("--allow /"), "{error}");
    }
    // What does not exist is for the one who opens it to say.
    admits(disk(&socket, Some(&at("missing/any.img")), false)).unwrap();
    // A volume is written, and its log as well.
    let volume = |path: &str, log: Option<&str>| {
        let memory_file = MemoryFile::Path(at("allowed/memory"));
        let storage = VolumeOptions { log: log.map(at), memory_file, ..VolumeOptions::new(at(path)) };
        NewExport { storage: Some(StorageSpec::Volume(storage)), ..disk(&socket, None, false) }
    };
    admits(volume("named.img", Some("allowed/log"))).unwrap();
    for (new, name) in [
        (volume("other/v", None), "storage.path"),
        (volume("read.img", None), "storage.path"),
        (volume("named.img", Some("other/log")), "storage.log"),
    ] {
        assert_eq!(admits(new).unwrap_err().field(), Some(name));
    }
    for (memory_file, admitted) in
        [(MemoryFile::None, true), (MemoryFile::Auto, false), (MemoryFile::Path(at("other/memory")), false)]
    {
        let storage = VolumeOptions { memory_file, ..VolumeOptions::new(at("named.img")) };
        let new = NewExport { storage: Some(StorageSpec::Volume(storage)), ..disk(&socket, None, false) };
        let refused = held.admit_made(new.storage.as_ref().unwrap()).err();
        assert_eq!(refused.as_ref().and_then(ApiError::field), (!admitted).then_some("storage.memory_file"));
    }
}

#[test]
fn directories_are_served_without_handles_or_not_at_all() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let paths = Paths { trees: BTreeSet::from([root.clone()]), ..Paths::default() };
    let export = |handles: &str| -> NewExport {
        let root = root.display();
        let directory = format!("{{ path = '{root}', inode_file_handles = '{handles}' }}");
        toml::from_str(&format!("name = 'a'\nkind = 'dir'\nsocket = '{root}/a'\ndirectory = {directory}")).unwrap()
    };
    let mut new = export("prefer");
    held(paths.clone()).admit(&mut new).unwrap();
    assert_eq!(new.directory.unwrap().inode_file_handles, FileHandles::Never);
    let error = held(paths.clone()).admit(&mut export("mandatory")).unwrap_err();
    assert_eq!(error.field(), Some("directory.inode_file_handles"));
    // Nor can it be migrated by them.
    let mut new = export("never");
    new.directory.as_mut().unwrap().migration_mode = MigrationMode::FileHandles;
    let error = held(paths.clone()).admit(&mut new).unwrap_err();
    assert_eq!(error.field(), Some("directory.migration_mode"));
    let mut new = export("prefer");
    Held { seccomp: SeccompState::Kill, ..Held::default() }.admit(&mut new).unwrap();
    assert_eq!(new.directory.unwrap().inode_file_handles, FileHandles::Prefer);
    let disks = Held { disks_alone: true, ..held(paths) };
    assert!(matches!(disks.admit(&mut export("never")), Err(ApiError::Unsupported { .. })));
}

#[test]
fn addresses_out_of_reach_are_refused_with_the_fix() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let paths =
        Paths { sockets: BTreeSet::from([root.clone()]), trees: BTreeSet::from([root.clone()]), ..Paths::default() };
    let export = |address: &str| -> NewExport {
        let directory = format!("directory = {{ path = '{}', protocol = '9p' }}", root.display());
        toml::from_str(&format!("name = 'a'\nkind = 'dir'\nlisten = '{address}'\n{directory}")).unwrap()
    };
    let ports = |held: Held| Held { ports: BTreeSet::from([5640]), ..held };
    let landlock = || Held { landlock: Some(paths.clone()), ..Held::default() };
    let calls = || Held { seccomp: SeccompState::Kill, ..Held::default() };
    for (held, address, option) in [
        (calls(), "tcp:5640", Some("--allow-port 5640")),
        (landlock(), "tcp:5640", Some("--allow-port 5640")),
        (ports(calls()), "tcp:5641", Some("--allow-port 5641")),
        (ports(calls()), "tcp:5640", None),
        (Held::default(), "tcp:5640", None),
        (ports(calls()), "vsock:any:5640", Some("--seccomp none")),
        (landlock(), "vsock:any:5640", None),
        (calls(), "unix:/elsewhere/p9.sock", None),
    ] {
        match (held.admit_address(&export(address)), option) {
            (Err(error), Some(option)) => {
                assert_eq!(error.field(), Some("listen"));
                assert!(error.to_string().contains(option), "{error}");
            }
            (Ok(()), None) => {}
            (other, _) => panic!("{address}: {other:?}"),
        }
    }
    // A path is within reach or it is not, whoever listens there.
    let within = format!("unix:{}/p9.sock", root.display());
    landlock().admit(&mut export(&within)).unwrap();
    let error = landlock().admit(&mut export("unix:/tmp/p9.sock")).unwrap_err();
    assert_eq!(error.field(), Some("listen"));
    assert!(error.to_string().contains("--allow /tmp"), "{error}");
}

#[test]
fn programs_are_run_from_where_programs_are() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("c.toml");
    std::fs::write(&file, "").unwrap();
    let config = Config::read(&file).unwrap();
    let held = held(Paths::of(&config, &[]).unwrap());
    held.runs(&std::env::current_exe().unwrap()).unwrap();
    held.runs(Path::new("/usr/bin/env")).unwrap();
    held.runs(Path::new("/nonexistent/directory/vringd")).unwrap();
    let line = held.runs(&place.path().join("vringd")).unwrap_err();
    assert!(line.contains("--allow /") && !line.contains('\n'), "{line}");
    Held::default().runs(&place.path().join("vringd")).unwrap();
}

#[test]
fn what_holds_goes_from_one_program_to_the_next() {
    let paths = Paths { abi: 6, images: BTreeSet::from([("/a".into(), true)]), ..Paths::default() };
    let held = held(paths);
    let text = serde_json::to_string(&held).unwrap();
    assert_eq!(serde_json::from_str::<Held>(&text).unwrap(), held);
}

#[test]
fn what_a_job_is_to_make_out_of_reach_is_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().canonicalize().unwrap().join(name);
    for name in ["sockets", "allowed", "other"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let paths =
        Paths { sockets: BTreeSet::from([at("sockets")]), trees: BTreeSet::from([at("allowed")]), ..Paths::default() };
    let held = Held { ports: BTreeSet::from([10809]), ..held(paths) };
    let said = |result: Result<(), ApiError>| result.map_err(|error| error.to_string());
    assert_eq!(said(held.admit_directory("scratch", &at("allowed"))), Ok(()));
    for name in ["sockets", "other"] {
        let line = said(held.admit_directory("scratch", &at(name))).unwrap_err();
        assert!(line.starts_with("scratch: ") && line.ends_with(&format!("--allow {}", at(name).display())), "{line}");
    }
    let listen = |address: String| said(held.admit_listen("listen", &address.parse().unwrap()));
    for address in [
        format!("unix:{}", at("sockets/a").display()),
        format!("unix:{}", at("allowed/a").display()),
        "tcp:10809".to_owned(),
    ] {
        assert_eq!(listen(address), Ok(()));
    }
    for (address, fix) in [
        (format!("unix:{}", at("other/a").display()), format!("--allow {}", at("other").display())),
        ("tcp:10810".to_owned(), "--allow-port 10810".to_owned()),
        ("vsock:7".to_owned(), "--seccomp none".to_owned()),
    ] {
        let line = listen(address).unwrap_err();
        assert!(line.starts_with("listen: ") && line.ends_with(&fix), "{line}");
    }
}
