use super::super::config::NewExport;
use super::super::directory::Directory;
use super::*;

const P9: &str =
    "name = 'home'\nkind = 'dir'\nsocket = '/run/home.sock'\n[directory]\npath = '/srv'\nprotocol = '9p'\n";
const STREAM: &str = "name = 'home'\nkind = 'dir'\nlisten = 'tcp:5640'\n[directory]\npath = '/srv'\nprotocol = '9p'\n";

fn parse(text: &str) -> NewExport {
    toml::from_str(text).unwrap()
}

fn fault(text: &str) -> String {
    let error = parse(text).check().expect_err(text);
    assert!(!error.to_string().contains('\n'), "{error}");
    error.field
}

fn top(text: &str, line: &str) -> String {
    text.replacen("[directory]", &format!("{line}\n[directory]"), 1)
}

#[test]
fn a_protocol_is_enough() {
    let new = parse(P9);
    new.check().unwrap();
    let directory = new.directory().unwrap();
    assert_eq!(*directory, Directory { protocol: Protocol::P9, ..Directory::new("/srv") });
    assert_eq!(directory.msize_max(), 1 << 20);
    assert_eq!(directory.tag(&new.name).as_deref(), Some("home"));
    assert_eq!(new.queues(), NewExport::REQUEST_QUEUES_MAX);
    let stream = parse(STREAM);
    stream.check().unwrap();
    assert_eq!(stream.queues(), 64);
}

#[test]
fn a_full_description_is_the_same_in_toml_and_json() {
    let all = "security_model = 'mapped-xattr'\nfmode = '0640'\ndmode = '0750'\nmultidevs = 'forbid'\nmsize = '512K'\n\
               read_only = true\nexecution = 'pool=4'\n";
    for text in [format!("{P9}{all}tag = 'data'\n"), format!("{}{all}", top(STREAM, "queues = 1024"))] {
        let new = parse(&text);
        new.check().unwrap();
        let json = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<NewExport>(&json).unwrap(), new);
        assert_eq!(toml::from_str::<NewExport>(&toml::to_string(&new).unwrap()).unwrap(), new);
    }
}

/// An older program goes on with a directory that has nothing of this.
#[test]
fn what_is_left_out_is_not_written() {
    let json = serde_json::to_string(&Directory::new("/srv")).unwrap();
    for word in ["protocol", "security_model", "fmode", "dmode", "multidevs", "msize"] {
        assert!(!json.contains(word), "{word}: {json}");
    }
}

#[test]
fn what_means_nothing_for_9p_is_refused_by_name() {
    for (line, field) in [
        ("cache = 'always'", "cache"),
        ("attr_timeout = '1s'", "attr_timeout"),
        ("entry_timeout = '1s'", "entry_timeout"),
        ("negative_timeout = '1s'", "negative_timeout"),
        ("writeback = true", "writeback"),
        ("allow_direct_io = true", "allow_direct_io"),
        ("allow_mmap = true", "allow_mmap"),
        ("readdirplus = 'off'", "readdirplus"),
        ("posix_acl = 'auto'", "posix_acl"),
        ("security_label = 'auto'", "security_label"),
        ("killpriv_v2 = false", "killpriv_v2"),
        ("posix_lock = false", "posix_lock"),
        ("flock = false", "flock"),
        ("announce_submounts = false", "announce_submounts"),
        ("dax = { window = '64M' }", "dax"),
        ("migration_mode = 'file-handles'", "migration_mode"),
        ("migration_on_error = 'guest-error'", "migration_on_error"),
        ("migration_verify_handles = true", "migration_verify_handles"),
    ] {
        assert_eq!(fault(&format!("{P9}{line}\n")), format!("directory.{field}"));
    }
}

#[test]
fn what_only_9p_has_is_refused_for_virtiofs() {
    let virtiofs = P9.replace("9p", "virtiofs");
    parse(&virtiofs).check().unwrap();
    assert_eq!(fault(&format!("{virtiofs}multidevs = 'remap'\n")), "directory.multidevs");
    assert_eq!(fault(&format!("{virtiofs}msize = '64K'\n")), "directory.msize");
    assert_eq!(fault(&STREAM.replace("9p", "virtiofs")), "listen");
    // Owners and modes can be kept elsewhere whatever the protocol.
    let mapped = format!("{virtiofs}security_model = 'mapped-file'\nfmode = '0600'\n");
    parse(&mapped).check().unwrap();
    assert_eq!(fault(&format!("{mapped}posix_acl = 'auto'\n")), "directory.posix_acl");
}

#[test]
fn every_check_names_its_field() {
    for msize in ["4095", "'1025K'", "0"] {
        assert_eq!(fault(&format!("{P9}msize = {msize}\n")), "directory.msize");
    }
    for model in ["passthrough", "none"] {
        let model = format!("{P9}security_model = '{model}'\n");
        parse(&model).check().unwrap();
        assert_eq!(fault(&format!("{model}fmode = '0600'\n")), "directory.fmode");
        assert_eq!(fault(&format!("{model}dmode = '0700'\n")), "directory.dmode");
    }
    for line in
        ["multidevs = 'allow'", "security_model = 'mapped'", "protocol = '9p2000'", "fmode = '0999'", "fmode = 600"]
    {
        let text =
            if line.starts_with("protocol") { P9.replace("protocol = '9p'", line) } else { format!("{P9}{line}\n") };
        assert!(toml::from_str::<NewExport>(&text).is_err(), "{line}");
    }
}

#[test]
fn a_stream_has_an_address_and_no_device() {
    assert_eq!(fault(&top(STREAM, "socket = '/run/home.sock'")), "listen");
    assert_eq!(fault(&top(STREAM, "socket_fd = 3")), "listen");
    assert_eq!(fault(&top(STREAM, "queue_size = 128")), "queue_size");
    assert_eq!(fault(&top(STREAM, "queues = 0")), "queues");
    assert_eq!(fault(&top(STREAM, "queues = 1025")), "queues");
    assert_eq!(fault(&format!("{STREAM}tag = 'home'\n")), "directory.tag");
    assert_eq!(fault(&format!("{STREAM}allow_direct_io = true\n")), "directory.allow_direct_io");
    for field in ["socket_mode = '0660'", "socket_owner = 'root'", "socket_group = 'root'"] {
        let name = field.split(' ').next().unwrap();
        assert_eq!(fault(&top(STREAM, field)), name);
        parse(&top(&STREAM.replace("tcp:5640", "unix:/run/p9.sock"), field)).check().unwrap();
    }
    assert_eq!(fault(&STREAM.replace("tcp:5640", "fd:2")), "listen");
    parse(&STREAM.replace("tcp:5640", "fd:3")).check().unwrap();
    assert!(toml::from_str::<NewExport>(&STREAM.replace("tcp:5640", "tcp")).is_err());
}

#[test]
fn clients_are_named_where_there_are_any() {
    let within = |text: &str, line: &str| format!("{text}{line}\n");
    let (word, cids) = ("clients_may_be_root = true", "client_cids = [3, 5]");
    let vsock = STREAM.replace("tcp:5640", "vsock:564");
    for text in [within(STREAM, word), within(&vsock, cids), within(&STREAM.replace("tcp:5640", "fd:3"), cids)] {
        let new: NewExport = toml::from_str(&text).unwrap();
        new.check().unwrap();
    }
    // Only a vsock has context ids, and a frontend speaks for its guest.
    assert_eq!(fault(&within(STREAM, cids)), "directory.client_cids");
    let device = STREAM.replace("listen = 'tcp:5640'", "socket = '/run/home.sock'");
    assert_eq!(fault(&within(&device, word)), "directory.clients_may_be_root");
    assert_eq!(fault(&within(&device, cids)), "directory.client_cids");
    let virtiofs = device.replace("9p", "virtiofs");
    assert_eq!(fault(&within(&virtiofs, word)), "directory.clients_may_be_root");
    // What files may not be given is for both protocols.
    for text in [STREAM, &device, &virtiofs] {
        let new: NewExport = toml::from_str(&within(text, "nosuid = true\nnodev = true")).unwrap();
        new.check().unwrap();
        let about = new.directory.unwrap();
        assert!(about.nosuid && about.nodev);
    }
}
