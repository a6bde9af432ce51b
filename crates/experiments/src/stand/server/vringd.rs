//! Our own servers.

use std::ffi::OsString;
use std::path::Path;

use super::{Order, SANDBOX, control_socket, data, give, has};
use crate::experiment::{Medium, ServerKind};
use crate::stand::{Site, Trouble};

/// Name of the export, which is the default for a disk.
pub(super) const EXPORT: &str = "disk";

/// `vringd disk`, or `vringd scsi` with that disk.
pub(super) fn disk(site: &Site, order: &Order<'_>, socket: &Path) -> Result<Vec<OsString>, Trouble> {
    let options = &order.server.options;
    let is_scsi = order.server.kind.is_scsi();
    let device = if is_scsi { "scsi" } else { "disk" };
    let mut line: Vec<OsString> = vec![site.vringd.clone().into(), device.into(), "--socket".into(), socket.into()];
    give(&mut line, options, "--queues", order.queues.to_string());
    // All configurations of an experiment serve one image, and one of them is measured at a time.
    if storage(options) == "file" && !has(options, &["--no-lock"]) {
        line.push("--no-lock".into());
    }
    // A server that is killed leaves its memory, and nothing may stay behind here.
    if order.server.serves_volume() {
        give(&mut line, options, "--memory-file", "none");
    }
    if order.server.has_log() {
        line.extend(["--control".into(), control_socket(order.scratch).into()]);
    }
    let image = match order.medium {
        Medium::None => None,
        Medium::Disk | Medium::Memory => Some(data(order, &format!("vringd {device}"))?.image()),
    };
    if is_scsi {
        give(&mut line, options, "--name", EXPORT);
        let (of_disk, of_device) = of_disk(options);
        line.extend(of_device.into_iter().map(OsString::from));
        line.extend(["--lun".into(), lun(&of_disk, image.as_deref())]);
    } else {
        line.extend(options.iter().map(OsString::from));
        line.extend(image.map(OsString::from));
    }
    Ok(line)
}

/// The disk of a SCSI device, whose kind and size `vringd scsi` is told with its LUN.
fn lun(of_disk: &[String], image: Option<&Path>) -> OsString {
    let mut lun = OsString::from(format!("0={}:", storage(of_disk)));
    match image {
        Some(image) => lun.push(image),
        None => lun.push(value(of_disk, "--size").unwrap_or_default()),
    }
    lun
}

/// The options that say what a disk's storage is and how large, and all others.
fn of_disk(options: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut of_disk, mut others) = (Vec::new(), Vec::new());
    let mut is_value = false;
    for option in options {
        let is_of_disk = ["--storage", "--size"].contains(&option.split('=').next().unwrap_or_default());
        let list = if is_of_disk || is_value { &mut of_disk } else { &mut others };
        list.push(option.clone());
        is_value = is_of_disk && !option.contains('=');
    }
    (of_disk, others)
}

/// `vringd dir`, by the protocol that the kind of server says.
pub(super) fn directory(site: &Site, order: &Order<'_>, socket: &Path) -> Result<Vec<OsString>, Trouble> {
    let options = &order.server.options;
    let mut line: Vec<OsString> = vec![site.vringd.clone().into(), "dir".into(), "--socket".into(), socket.into()];
    line.extend(["--tag".into(), order.tag.into()]);
    if order.server.kind == ServerKind::Vringd9p {
        line.extend(["--protocol".into(), "9p".into()]);
    }
    give(&mut line, options, "--queues", order.queues.to_string());
    give(&mut line, options, "--sandbox", SANDBOX);
    give(&mut line, options, "--seccomp", "none");
    line.extend(options.iter().map(OsString::from));
    line.push(data(order, "vringd dir")?.directory().into());
    Ok(line)
}

/// What stands behind a disk.
fn storage(options: &[String]) -> &str {
    value(options, "--storage").unwrap_or("file")
}

/// What an option says: the last one given, as the command line has it.
fn value<'a>(options: &'a [String], name: &str) -> Option<&'a str> {
    let values = options.iter().zip(options.iter().skip(1).map(Some).chain([None])).filter_map(|(option, next)| {
        match option.strip_prefix(name) {
            Some("") => next.map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        }
    });
    values.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_a_file_unless_told() {
        let of = |words: &[&str]| {
            let options: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            storage(&options).to_owned()
        };
        assert_eq!(of(&[]), "file");
        assert_eq!(of(&["--direct", "--storage", "memory", "--workers", "2"]), "memory");
        assert_eq!(of(&["--storage=sim"]), "sim");
        assert_eq!(of(&["--storage"]), "file");
        assert_eq!(of(&["--storages", "x"]), "file");
    }

    #[test]
    fn the_disk_of_a_scsi_device_is_told_with_its_lun() {
        let of = |words: &str, image: Option<&str>| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            let (of_disk, others) = of_disk(&words);
            (lun(&of_disk, image.map(Path::new)).into_string().unwrap(), others.join(" "))
        };
        let (lun, others) = of("--direct --workers 2", Some("/i"));
        assert_eq!((&*lun, &*others), ("0=file:/i", "--direct --workers 2"));
        let (lun, others) = of("--storage memory --workers=one", Some("/dev/shm/i"));
        assert_eq!((&*lun, &*others), ("0=memory:/dev/shm/i", "--workers=one"));
        let (lun, others) = of("--storage=sim --channels 8 --size 512M --poll off", None);
        assert_eq!((&*lun, &*others), ("0=sim:512M", "--channels 8 --poll off"));
    }
}
