//! A look at the place of a socket foresees what making it would say.

use socket::{Found, Options, bind, look};
use std::fs::File;
use std::os::unix::net::UnixListener;

#[test]
fn a_look_says_what_binding_would_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    File::create(at("file")).unwrap();
    for path in [at("none/socket"), at("file"), at("file/socket"), at(&"x".repeat(108)), "/".into()] {
        let foreseen = look(&path).unwrap_err().to_string();
        assert_eq!(foreseen, bind(&path, &Options::default(), 1).unwrap_err().to_string());
    }
    assert_eq!(look(&at("socket")).unwrap(), Found::Nothing);
    assert!(!at("socket").exists());
    let listening = UnixListener::bind(at("socket")).unwrap();
    listening.set_nonblocking(true).unwrap();
    assert_eq!(look(&at("socket")).unwrap(), Found::Socket);
    assert!(listening.accept().is_err(), "nobody connected");
}
