//! qemu-storage-daemon, its vhost-user-blk export.
//!
//! Options of an experiment that begin with a dash are the daemon's; others (`aio=native`, `cache.direct=on`) are
//! properties of its file, as `--blockdev driver=file` takes them.

use std::ffi::OsString;
use std::path::Path;

use super::{Order, data};
use crate::stand::site::require;
use crate::stand::{Site, Trouble};

pub(super) fn line(site: &Site, order: &Order<'_>, socket: &Path) -> Result<Vec<OsString>, Trouble> {
    let program = require(site.programs.storage_daemon.as_deref(), "qemu-storage-daemon", "--qemu-storage-daemon")?;
    let image = data(order, "qemu-storage-daemon")?.image();
    let (of_daemon, of_file) = split(&order.server.options);
    let mut file = format!("driver=file,node-name=file,filename={}", escaped(&image));
    // All configurations of an experiment serve one image, and one of them is measured at a time.
    for (name, value) in [("aio", "io_uring"), ("locking", "off")] {
        if !of_file.iter().any(|option| option.split('=').next() == Some(name)) {
            file += &format!(",{name}={value}");
        }
    }
    for option in of_file {
        file += &format!(",{option}");
    }
    let export = format!(
        "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},writable=on,num-queues={}",
        escaped(socket),
        order.queues
    );
    let mut line: Vec<OsString> = vec![program.into()];
    line.extend(of_daemon.into_iter().map(OsString::from));
    line.extend(["--blockdev".into(), file.into()]);
    line.extend(["--blockdev".into(), "driver=raw,node-name=disk,file=file".into()]);
    line.extend(["--export".into(), export.into()]);
    Ok(line)
}

/// Options of the daemon with their values, and properties of the file.
fn split(options: &[String]) -> (Vec<&str>, Vec<&str>) {
    let (mut of_daemon, mut of_file) = (Vec::new(), Vec::new());
    let mut is_value = false;
    for option in options {
        let is_option = option.starts_with('-');
        if is_option || is_value {
            of_daemon.push(option.as_str());
        } else {
            of_file.push(option.as_str());
        }
        is_value = is_option && !option.contains('=');
    }
    (of_daemon, of_file)
}

/// A comma ends a value for QEMU, two are one.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_daemon_keep_their_values() {
        let options =
            ["--object", "iothread,id=a", "aio=native", "-V", "--trace=x", "cache.direct=on"].map(String::from);
        // The daemon has no option without a value that an experiment would use: what follows one is its value.
        let (of_daemon, of_file) = split(&options[..3]);
        assert_eq!((of_daemon, of_file), (vec!["--object", "iothread,id=a"], vec!["aio=native"]));
        let (of_daemon, of_file) = split(&options[4..]);
        assert_eq!((of_daemon, of_file), (vec!["--trace=x"], vec!["cache.direct=on"]));
    }

    #[test]
    fn a_comma_in_a_path_is_doubled() {
        assert_eq!(escaped(Path::new("/a,b")), "/a,,b");
    }
}
