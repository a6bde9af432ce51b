//! The logical units of a SCSI device: disks, each at its LUN.

use super::export::StorageInfo;
use super::name::check_name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use utoipa::ToSchema;
use values::{FieldError, Lun};

/// A logical unit of a SCSI device: an entry of its `luns`, and the body of `POST /v1/exports/{name}/luns`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewLogicalUnit)]
pub struct NewUnit {
    /// Where the guest finds it.
    pub lun: Lun,
    /// Name of the disk that it is, which is open by itself.
    pub disk: String,
    /// Serial number the guest sees, 1 to 36 printable ASCII characters without blanks; the disk's name, or its first 36 characters,
    /// when left out. Two units of one serial number are one disk to a guest, with two paths to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

impl NewUnit {
    /// Longest serial number in bytes.
    pub const SERIAL_BYTES_MAX: usize = 36;
    /// Logical units of one device, at most.
    pub const UNITS_MAX: usize = 1024;

    /// The serial number: as given, or the disk's name.
    pub fn serial(&self) -> String {
        self.serial.clone().unwrap_or_else(|| self.disk.chars().take(Self::SERIAL_BYTES_MAX).collect())
    }

    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_name("disk", &self.disk)?;
        let most = Self::SERIAL_BYTES_MAX;
        let legal = |text: &String| (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        match &self.serial {
            Some(serial) if !legal(serial) => Err(FieldError::new(
                "serial",
                format_args!("must be 1 to {most} printable ASCII characters without blanks"),
            )),
            _ => Ok(()),
        }
    }
}

/// Checks the units of one device.
pub(super) fn check_units(units: &[NewUnit]) -> Result<(), FieldError> {
    let most = NewUnit::UNITS_MAX;
    if units.len() > most {
        return Err(FieldError::new("luns", format_args!("must be {most} at most, not {}", units.len())));
    }
    let (mut luns, mut disks) = (BTreeSet::new(), BTreeSet::new());
    for (number, unit) in units.iter().enumerate() {
        unit.check().map_err(|error| FieldError { field: format!("luns[{number}].{}", error.field), ..error })?;
        if !luns.insert(unit.lun) {
            return Err(FieldError::new("luns", format_args!("LUN {} is used twice", unit.lun)));
        }
        if !disks.insert(&unit.disk) {
            return Err(FieldError::new("luns", format_args!("disk `{}` is used twice", unit.disk)));
        }
    }
    Ok(())
}

/// A logical unit that is served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LogicalUnit)]
pub struct Unit {
    /// Where the guest finds it.
    pub lun: Lun,
    /// Name of the disk that it is.
    pub disk: String,
    /// Serial number the guest sees.
    pub serial: String,
    /// What stands behind it, with capacity and block size as the guest sees them.
    pub storage: StorageInfo,
}
