use super::*;

const ROOT: Server = Server { uid: 0, is_root: true };
/// A user who may read and write anybody's files.
const MIGHTY: Server = Server { uid: 1000, is_root: true };
const USER: Server = Server { uid: 1000, is_root: false };

fn export(listen: &str, more: &str, directory: &str) -> NewExport {
    let directory = format!("directory = {{ path = '/srv', protocol = '9p', {directory} }}");
    let new: NewExport =
        toml::from_str(&format!("name = 'home'\nkind = 'dir'\nlisten = '{listen}'\n{more}\n{directory}")).unwrap();
    new.check().unwrap();
    new
}

fn refused(server: Server, new: &NewExport) -> (String, String) {
    match server.check(new) {
        Err(ApiError::InvalidField { field, message }) => (field, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn roots_daemon_lends_root_to_nobody_unasked() {
    for address in ["tcp:5640", "tcp:0.0.0.0:5640", "tcp:[::]:1", "vsock:564", "vsock:2:564"] {
        for model in ["passthrough", "none"] {
            let new = export(address, "", &format!("security_model = '{model}'"));
            for server in [ROOT, MIGHTY] {
                let (field, message) = refused(server, &new);
                assert_eq!(field, "listen");
                for word in ["root", "mapped-xattr", "user", "unix socket", "clients_may_be_root"] {
                    assert!(message.contains(word), "{message}");
                }
                assert!(!message.contains('\n'));
            }
            USER.check(&new).unwrap();
            let said = export(address, "", &format!("security_model = '{model}', clients_may_be_root = true"));
            ROOT.check(&said).unwrap();
        }
        for model in ["mapped-xattr", "mapped-file"] {
            ROOT.check(&export(address, "", &format!("security_model = '{model}'"))).unwrap();
        }
    }
}

#[test]
fn a_socket_file_for_others_needs_the_word_as_well() {
    let unix = |more: &str, directory: &str| export("unix:/run/9p.sock", more, directory);
    ROOT.check(&unix("", "")).unwrap();
    ROOT.check(&unix("socket_owner = '0'\nsocket_mode = '0700'", "")).unwrap();
    MIGHTY.check(&unix("socket_owner = '1000'", "")).unwrap();
    for mode in ["0660", "0602", "0666"] {
        assert_eq!(refused(ROOT, &unix(&format!("socket_mode = '{mode}'"), "")).0, "socket_mode");
    }
    let other = "socket_owner = '1001'\nsocket_mode = '0600'";
    assert_eq!(refused(ROOT, &unix(other, "")).0, "socket_owner");
    assert_eq!(refused(MIGHTY, &unix(other, "")).0, "socket_owner");
    ROOT.check(&unix(other, "clients_may_be_root = true")).unwrap();
    ROOT.check(&unix(other, "security_model = 'mapped-xattr'")).unwrap();
    USER.check(&unix(other, "")).unwrap();
}

#[test]
fn an_inherited_socket_is_looked_at() {
    let new = |directory: &str| export("fd:3", "", directory);
    let tcp = || StreamListener::bind(&"tcp:0".parse().unwrap(), &vhost_user::SocketOptions::default()).unwrap();
    ROOT.check(&new("")).unwrap();
    assert!(matches!(ROOT.admit(&new(""), tcp()), Err(ApiError::InvalidField { field, .. }) if field == "listen"));
    ROOT.admit(&new("clients_may_be_root = true"), tcp()).unwrap();
    USER.admit(&new(""), tcp()).unwrap();
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    ROOT.admit(&new(""), StreamListener::from_fd(unix.into()).unwrap()).unwrap();
}

/// An older program asked for no word, and its clients are connected already.
#[test]
fn what_was_begun_goes_on() {
    let tcp = || StreamListener::bind(&"tcp:0".parse().unwrap(), &vhost_user::SocketOptions::default()).unwrap();
    let unix = || StreamListener::from_fd(std::os::unix::net::UnixStream::pair().unwrap().0.into()).unwrap();
    let user = |server: Server, new: &NewExport, listener| server.admit_begun(new, listener).admission().user;
    assert_eq!(user(ROOT, &export("tcp:1", "", ""), tcp()), None);
    assert_eq!(user(ROOT, &export("unix:/run/9p.sock", "socket_mode = '0666'", ""), unix()), None);
    // What this version has begun stays as strict as it was.
    assert_eq!(user(ROOT, &export("unix:/run/9p.sock", "", ""), unix()), Some(0));
    assert_eq!(user(MIGHTY, &export("fd:3", "", ""), unix()), Some(1000));
    assert_eq!(user(ROOT, &export("unix:/run/9p.sock", "", "clients_may_be_root = true"), unix()), None);
    assert_eq!(user(ROOT, &export("tcp:1", "", "security_model = 'mapped-file'"), tcp()), None);
    assert_eq!(user(USER, &export("tcp:1", "", ""), tcp()), None);
    let some = ROOT.admit_begun(&export("vsock:1", "", "client_cids = [3]"), tcp());
    assert_eq!(some.admission().cids, [3]);
}

#[test]
fn this_process_is_who_it_is() {
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(Server::here(None).uid, own);
    assert!(own != 0 || Server::here(None).is_root);
    assert_eq!(Server::here(Some(own ^ 4242)), Server { uid: own ^ 4242, is_root: own ^ 4242 == 0 });
}
