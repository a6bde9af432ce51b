//! qemu-storage-daemon, its vhost-user-blk export.
//!
//! Options of an experiment that begin with a dash are the daemon's; those that begin with `export.` (`export.writethrough=on`)
//! are properties of its export; others (`aio=native`, `cache.direct=on`) are properties of its file, as
//! `--blockdev driver=file` takes them.

use std::ffi::OsString;
use std::path::Path;

use super::{Order, data};
use crate::stand::site::require;
use crate::stand::{Site, Trouble};

pub(super) fn line(site: &Site, order: &Order<'_>, socket: &Path) -> Result<Vec<OsString>, Trouble> {
    let program = require(site.programs.storage_daemon.as_deref(), "qemu-storage-daemon", "--qemu-storage-daemon")?;
    let image = data(order, "qemu-storage-daemon")?.image();
    let Properties { of_daemon, of_export, of_file } = split(&order.server.options);
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
    let mut export = format!(
        "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},writable=on,num-queues={}",
        escaped(socket),
        order.queues
    );
    for option in of_export {
        export += &format!(",{option}");
    }
    let mut line: Vec<OsString> = vec![program.into()];
    line.extend(of_daemon.into_iter().map(OsString::from));
    line.extend(["--blockdev".into(), file.into()]);
    line.extend(["--blockdev".into(), "driver=raw,node-name=disk,file=file".into()]);
    line.extend(["--export".into(), export.into()]);
    Ok(line)
}

/// Whose property an option is.
#[derive(Debug, Default, PartialEq)]
struct Properties<'a> {
    /// The daemon's own options, with their values.
    of_daemon: Vec<&'a str>,
    of_export: Vec<&'a str>,
    of_file: Vec<&'a str>,
}

fn split(options: &[String]) -> Properties<'_> {
    let mut properties = Properties::default();
    let mut is_value = false;
    for option in options {
        let is_option = option.starts_with('-');
        if is_option || is_value {
            properties.of_daemon.push(option);
        } else if let Some(property) = option.strip_prefix("export.") {
            properties.of_export.push(property);
        } else {
            properties.of_file.push(option);
        }
        is_value = is_option && !option.contains('=');
    }
    properties
}

/// A comma ends a value for QEMU, two are one.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_somebodys() {
        // The daemon has no option without a value that an experiment would use: what follows one is its value.
        let options = ["--object", "iothread,id=a", "aio=native", "export.writethrough=on"].map(String::from);
        let Properties { of_daemon, of_export, of_file } = split(&options);
        assert_eq!(of_daemon, ["--object", "iothread,id=a"]);
        assert_eq!((of_export, of_file), (vec!["writethrough=on"], vec!["aio=native"]));
        let options = ["-V", "--trace=x", "cache.direct=on"].map(String::from);
        let Properties { of_daemon, of_file, .. } = split(&options);
        assert_eq!((of_daemon, of_file), (vec!["-V", "--trace=x"], vec!["cache.direct=on"]));
    }

    #[test]
    fn a_comma_in_a_path_is_doubled() {
        assert_eq!(escaped(Path::new("/a,b")), "/a,,b");
    }
}
