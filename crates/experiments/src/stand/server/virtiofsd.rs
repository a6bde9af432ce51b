//! The Rust virtiofsd. It has one request queue, whatever the configuration says.

use std::ffi::OsString;
use std::path::Path;

use super::{Order, SANDBOX, data, give};
use crate::stand::site::require;
use crate::stand::{Site, Trouble};

pub(super) fn line(site: &Site, order: &Order<'_>, socket: &Path) -> Result<Vec<OsString>, Trouble> {
    let program = require(site.programs.virtiofsd.as_deref(), "virtiofsd", "--virtiofsd")?;
    let options = &order.server.options;
    let mut line: Vec<OsString> = vec![program.into()];
    line.extend(["--socket-path".into(), socket.into()]);
    line.extend(["--shared-dir".into(), data(order, "virtiofsd")?.directory().into()]);
    give(&mut line, options, "--tag", order.tag);
    give(&mut line, options, "--sandbox", SANDBOX);
    give(&mut line, options, "--seccomp", "none");
    line.extend(options.iter().map(OsString::from));
    Ok(line)
}
