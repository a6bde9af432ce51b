//! `vringd ctl lun`: the disks of SCSI devices.

use super::cells::{NOTHING, or_nothing, size, table};
use crate::model::{Export, Lun, NewUnit, Unit};
use clap::Subcommand;

/// Logical units of SCSI devices.
#[derive(Debug, Clone, Subcommand)]
pub enum UnitCommand {
    /// List the logical units of one SCSI device, or of all.
    List {
        /// Name of the export.
        export: Option<String>,
    },

    /// Add a disk, which is open by itself (`vringd ctl disk add`), while the device serves; its guest is told.
    Add {
        /// Name of the export.
        export: String,

        /// Where the guest finds it: a number, 0 to 16383, or TARGET:NUMBER.
        lun: Lun,

        /// Name of the disk.
        disk: String,

        /// Serial number the guest sees, 1 to 36 characters [default: the disk's name]
        #[arg(long, value_name = "TEXT")]
        serial: Option<String>,
    },

    /// Take a disk out while the device serves; its guest is told. The disk stays open.
    Remove {
        /// Name of the export.
        export: String,

        /// Where the guest finds it.
        lun: Lun,
    },
}

/// What `add` describes.
pub(super) fn new(lun: Lun, disk: &str, serial: Option<&String>) -> NewUnit {
    NewUnit { lun, disk: disk.to_owned(), serial: serial.cloned() }
}

/// The units of these exports.
pub(super) fn units<'a>(exports: impl IntoIterator<Item = (&'a str, &'a Unit)>) -> String {
    let headers = ["EXPORT", ">LUN", "DISK", "KIND", ">SIZE", "ACCESS", "SERIAL", "RESERVATION", "TARGET"];
    let row = |(export, unit): (&str, &Unit)| {
        vec![
            export.to_owned(),
            unit.lun.to_string(),
            unit.disk.clone(),
            unit.storage.kind.clone(),
            size(unit.storage.capacity_bytes),
            super::disks::access(&unit.storage).to_owned(),
            unit.serial.clone(),
            or_nothing(unit.reservation.as_ref()),
            unit.storage.target.clone(),
        ]
    };
    let rows: Vec<_> = exports.into_iter().map(row).collect();
    if rows.is_empty() { "no logical units\n".to_owned() } else { table(&headers, rows) }
}

/// What a table of facts says of them.
pub(super) fn facts(export: &Export) -> Vec<(&'static str, String)> {
    let reserved = |unit: &Unit| {
        let reservation = unit.reservation.as_ref();
        reservation.map(|it| format!(", {it}, registered: {}", it.registered.join(", "))).unwrap_or_default()
    };
    let shown = |unit: &Unit| {
        let size = size(unit.storage.capacity_bytes);
        ("lun", format!("{}: {} ({size}){}", unit.lun, unit.disk, reserved(unit)))
    };
    match export.luns.as_slice() {
        [] => vec![("lun", NOTHING.to_owned())],
        luns => luns.iter().map(shown).collect(),
    }
}
