//! The logical units of a SCSI device: disks, each at its LUN.

use super::config::NewExport;
use super::export::StorageInfo;
use super::name::check_name;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use utoipa::ToSchema;
use values::{FieldError, Lun};

/// A logical unit of a SCSI device: an entry of its `luns`, and the body of `POST /v1/exports/{name}/luns`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewLogicalUnit)]
pub struct NewUnit {
    /// Where the guest finds it.
    pub lun: Lun,
    /// Name of the disk that it is, which is open by itself. Other devices may have it as well if it is read-only or `shared`; a shared
    /// one has the same serial number, block size and write cache wherever it is.
    pub disk: String,
    /// Serial number the guest sees, 1 to 36 printable ASCII characters without blanks; the disk's name when left out, which must not be
    /// longer then. Two units of one serial number are one disk to a guest, with two paths to it: no two of a device have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

impl NewUnit {
    /// Longest serial number in bytes.
    pub const SERIAL_BYTES_MAX: usize = 36;
    /// Logical units of one device, at most.
    pub const UNITS_MAX: usize = 1024;

    /// The serial number: as given, or the disk's name.
    pub fn serial(&self) -> &str {
        self.serial.as_ref().unwrap_or(&self.disk)
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
            None if self.disk.len() > most => Err(FieldError::new(
                "serial",
                format_args!("must be given: the disk's name is longer than the {most} characters of a serial number"),
            )),
            _ => Ok(()),
        }
    }
}

/// Why a unit cannot have a serial number that another one of its device has.
pub fn serial_is_taken(serial: &str, other: Lun) -> String {
    format!("is `{serial}`, as that of LUN {other}: a guest would take them for one disk")
}

/// Checks that a disk that two SCSI devices have at once is the same to the guests of both: whoever tells disks by their serial numbers,
/// such as a multipath driver or a cluster manager, takes it for one, and what one has written the other reads in the same blocks.
///
/// # Errors
/// The first field of `one`, or of its unit, that differs.
pub fn check_alike(disk: &str, one: &NewExport, other: &NewExport) -> Result<(), FieldError> {
    let serial = |export: &NewExport| {
        let unit = export.luns.iter().find(|unit| unit.disk == disk);
        unit.map(|unit| unit.serial().to_owned())
    };
    let differs = |field: &str, here: &dyn fmt::Display, there: &dyn fmt::Display| {
        let other = &other.name;
        let message = format_args!(
            "is {here}, and {there} in export `{other}`, which has the shared disk `{disk}` as well: give both the same"
        );
        Err(FieldError::new(field, message))
    };
    if let (Some(here), Some(there)) = (serial(one), serial(other))
        && here != there
    {
        return differs("serial", &format_args!("`{here}`"), &format_args!("`{there}`"));
    }
    let (here, there) = (one.block_size_bytes(), other.block_size_bytes());
    if here != there {
        return differs("block_size", &here, &there);
    }
    let cache = |export: &NewExport| export.write_cache.unwrap_or_default();
    let (here, there) = (cache(one), cache(other));
    if here == there {
        return Ok(());
    }
    differs("write_cache", &format_args!("`{here}`"), &format_args!("`{there}`"))
}

/// Checks the units of one device.
pub(super) fn check_units(units: &[NewUnit]) -> Result<(), FieldError> {
    let most = NewUnit::UNITS_MAX;
    if units.len() > most {
        return Err(FieldError::new("luns", format_args!("must be {most} at most, not {}", units.len())));
    }
    let (mut luns, mut disks, mut serials) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    for (number, unit) in units.iter().enumerate() {
        unit.check().map_err(|error| FieldError { field: format!("luns[{number}].{}", error.field), ..error })?;
        if !luns.insert(unit.lun) {
            return Err(FieldError::new("luns", format_args!("LUN {} is used twice", unit.lun)));
        }
        if !disks.insert(&unit.disk) {
            return Err(FieldError::new("luns", format_args!("disk `{}` is used twice", unit.disk)));
        }
        if let Some(other) = serials.insert(unit.serial(), unit.lun) {
            return Err(FieldError::new(format!("luns[{number}].serial"), serial_is_taken(unit.serial(), other)));
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
    /// Who has reserved it; absent if no guest has, or is registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<UnitReservation>,
}

/// Reservations of a logical unit. Guests are named by their exports; one whose export has the disk no more is an initiator port, 16
/// hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LogicalUnitReservation)]
pub struct UnitReservation {
    /// Type of the reservation: `write-exclusive`, `exclusive-access`, each also with `-registrants-only` and `-all-registrants`, or
    /// `reserve` for one by RESERVE (6) or (10); absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Who holds it; absent if there is none, or all who are registered hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Who is registered.
    pub registered: Vec<String>,
}

impl fmt::Display for UnitReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.holder) {
            (Some(kind), Some(holder)) => write!(f, "{kind} by {holder}"),
            (Some(kind), None) => f.write_str(kind),
            (None, _) => f.write_str("registrations alone"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(units: &[(&str, &str, Option<&str>)]) -> Option<String> {
        let unit = |(lun, disk, serial): &(&str, &str, Option<&str>)| NewUnit {
            lun: lun.parse().unwrap(),
            disk: (*disk).to_owned(),
            serial: serial.map(str::to_owned),
        };
        let units: Vec<_> = units.iter().map(unit).collect();
        check_units(&units).err().map(|error| format!("{}: {}", error.field, error.message))
    }

    #[test]
    fn units_differ_in_all_that_a_guest_tells_them_by() {
        assert_eq!(refusal(&[("0", "a", None), ("1", "b", Some("a2")), ("1:0", "c", Some("c"))]), None);
        let long = "a-name-of-more-than-thirty-six-letters";
        assert_eq!(refusal(&[("0", long, Some("short"))]), None);
        for (units, why) in [
            (&[("0", "a", None), ("0", "b", None)][..], "luns: LUN 0 is used twice"),
            (&[("0", "a", None), ("1", "a", Some("b"))], "luns: disk `a` is used twice"),
            (&[("0", "a", None), ("1", "b", Some("a"))], "luns[1].serial: is `a`, as that of LUN 0"),
            (&[("0", "a", Some("S")), ("1:0", "b", Some("S"))], "luns[1].serial: is `S`, as that of LUN 0"),
            (&[("0", long, None)], "luns[0].serial: must be given"),
            (&[("0", "a", Some("a b"))], "luns[0].serial: must be 1 to 36 printable"),
        ] {
            let refusal = refusal(units).unwrap();
            assert!(refusal.starts_with(why), "{refusal}");
        }
    }
    #[test]
    fn a_shared_disk_is_the_same_to_all_its_guests() {
        let export = |name: &str, more: &str, serial: &str| -> NewExport {
            let text = format!(
                "name = '{name}'\nkind = 'scsi'\nsocket = '/{name}'\n{more}\nluns = [{{ lun = 0, disk = 'd'{serial} }}]"
            );
            toml::from_str(&text).unwrap()
        };
        let usual = export("a", "", "");
        let refusal = |more, serial| {
            let refused = check_alike("d", &export("b", more, serial), &usual).err();
            refused.map(|error| format!("{}: {}", error.field, error.message))
        };
        for (more, serial) in [("", ""), ("", ", serial = 'd'"), ("block_size = 512\nwrite_cache = 'on'", "")] {
            assert_eq!(refusal(more, serial), None);
        }
        let also = "in export `a`, which has the shared disk `d` as well: give both the same";
        for (more, serial, line) in [
            ("", ", serial = 'x'", "serial: is `x`, and `d`"),
            ("block_size = 4096", "", "block_size: is 4096, and 512"),
            ("write_cache = 'guest'", "", "write_cache: is `guest`, and `on`"),
        ] {
            assert_eq!(refusal(more, serial), Some(format!("{line} {also}")));
        }
    }
}
