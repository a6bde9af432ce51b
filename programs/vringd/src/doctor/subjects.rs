//! What findings call the parts of a configuration.

use crate::config::Config;
use disk::StorageSpec;

/// The control socket.
pub(super) const CONTROL: &str = "control";

/// The storages of all disks, those of exports included, each with what it is called.
pub(super) fn storages(config: &Config) -> Vec<(String, &StorageSpec)> {
    let disks = config.disks.iter().map(|disk| (format!("disk {}", disk.name), &disk.storage));
    let exports = config.exports.iter().filter_map(|export| Some((named(&export.name), export.storage.as_ref()?)));
    disks.chain(exports).collect()
}

/// An export.
pub(super) fn named(export: &str) -> String {
    format!("export {export}")
}
