//! Our own servers.

use std::ffi::OsString;
use std::path::Path;

use super::{Order, SANDBOX, control_socket, data, give, has};
use crate::experiment::{Medium, ServerKind};
use crate::stand::{Site, Trouble};

/// Name of the disk, which is the default.
pub(super) const EXPORT: &str = "disk";

/// `vringd disk`.
pub(super) fn disk(site: &Site, order: &Order<'_>, socket: &Path) -> Result<Vec<OsString>, Trouble> {
    let options = &order.server.options;
    let mut line: Vec<OsString> = vec![site.vringd.clone().into(), "disk".into(), "--socket".into(), socket.into()];
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
    line.extend(options.iter().map(OsString::from));
    if order.medium != Medium::None {
        line.push(data(order, "vringd disk")?.image().into());
    }
    Ok(line)
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

/// What stands behind a disk: the last one given, as the command line has it.
fn storage(options: &[String]) -> &str {
    let values = options.iter().zip(options.iter().skip(1).map(Some).chain([None])).filter_map(|(option, next)| {
        match option.strip_prefix("--storage") {
            Some("") => next.map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        }
    });
    values.last().unwrap_or("file")
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
}
