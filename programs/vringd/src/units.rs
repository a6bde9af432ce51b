//! The disks of SCSI devices: leased as an export's one disk is, and added and removed while it serves.

use crate::convert::{self, unit_out};
use crate::daemon::{Daemon, PATIENCE};
use crate::failure::field;
use control::ApiError;
use control::model::{self as api, FieldError, Lun, NewExport, NewUnit};
use disk::{Disk, Lease, Role, User};
use export::{Export, ExportError, LogicalUnits, ScsiOptions, UnitOptions, UnitWatch};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

/// The disks that a device has, by LUN.
pub(crate) type Leases = BTreeMap<Lun, Lease>;

/// What the device is told of a disk.
pub(crate) fn options(new: &NewUnit, lease: &Lease) -> UnitOptions {
    UnitOptions {
        lun: new.lun,
        disk: new.disk.clone(),
        is_shared: lease.disk().is_shared(),
        serial: new.serial().to_owned(),
        storage: lease.disk().storage(),
        kept: lease.disk().reservations().cloned(),
        threshold_bytes: lease.disk().space_threshold_bytes().unwrap_or(0),
    }
}

/// A device that is about to be made, with the disks that it has.
pub(crate) fn device_in(new: &NewExport, leases: &Leases, logical_units: LogicalUnits) -> ScsiOptions {
    let write_cache = new.write_cache.unwrap_or_default();
    let unit = |unit: &NewUnit| Some(options(unit, leases.get(&unit.lun)?));
    ScsiOptions {
        request_queues: new.queues(),
        block_size_bytes: new.block_size_bytes(),
        write_back: write_cache.is_on(),
        write_back_changeable: write_cache.is_changeable(),
        units: new.luns.iter().filter_map(unit).collect(),
        logical_units,
    }
}

/// Names the field of a unit by its place in the device.
pub(crate) fn of_unit(number: usize, error: FieldError) -> FieldError {
    // All others are the device's.
    if error.field == "serial" { FieldError { field: format!("luns[{number}].serial"), ..error } } else { error }
}

/// Keeps the capacities of these disks as they are until an export is found among their users. In the order of their names, for whoever
/// else wants several.
pub(crate) fn capacity_locks(disks: &[Arc<Disk>]) -> Result<Vec<MutexGuard<'_, ()>>, ApiError> {
    let mut sorted: Vec<_> = disks.iter().collect();
    sorted.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    let locked = sorted.into_iter().map(|disk| disk.capacity_lock_within(PATIENCE));
    locked.collect::<Result<_, _>>().map_err(convert::lease_error)
}

/// A device lets go of a disk, on which requests of its rings may still be under way.
pub(crate) fn end(lease: Lease, watch: Option<&UnitWatch>) {
    match watch.filter(|watch| watch.is_held()).cloned() {
        Some(watch) => lease.end_with_requests(Box::new(move || watch.is_held())),
        None => drop(lease),
    }
}

impl Daemon {
    /// Gives a SCSI device that is about to be made its disks.
    pub(crate) fn lease_units(&self, new: &NewExport) -> Result<Leases, ApiError> {
        let user = User::Export(new.name.clone());
        let lease = |(number, unit): (usize, &NewUnit)| {
            let refused = |error| convert::lease_error_of(&format!("luns[{number}].disk"), error);
            let lease = self.lease_by_name(&unit.disk, &user, Role::Unit).map_err(refused)?;
            self.check_alike(new, &lease).map_err(|error| of_unit(number, error))?;
            Ok((unit.lun, lease))
        };
        new.luns.iter().enumerate().map(lease).collect()
    }

    /// Adds a disk to a device that serves.
    pub(crate) fn add_unit(&self, name: &str, new: &NewUnit) -> Result<api::Unit, ApiError> {
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        let export = self.get(name)?;
        let units = export.units().map_err(|error| convert::export_error(error, name))?;
        if units.len() >= NewUnit::UNITS_MAX {
            return Err(field("lun", format_args!("the device has {} units, the most there can be", units.len())));
        }
        if let Some(taken) = units.iter().find(|unit| unit.lun == new.lun) {
            return Err(field("lun", format_args!("{} is disk `{}`: remove that first", new.lun, taken.disk)));
        }
        if let Some(taken) = units.iter().find(|unit| unit.disk == new.disk) {
            return Err(field("disk", format_args!("`{}` is LUN {} of this device already", new.disk, taken.lun)));
        }
        if let Some(taken) = units.iter().find(|unit| unit.serial == new.serial()) {
            return Err(field("serial", api::serial_is_taken(new.serial(), taken.lun)));
        }
        let user = User::Export(name.to_owned());
        let lease = self.lease_by_name(&new.disk, &user, Role::Unit).map_err(convert::lease_error)?;
        if let Some(mut device) = self.upgrade.description(name) {
            device.luns.push(new.clone());
            self.check_alike(&device, &lease)?;
        }
        let disk = lease.disk().clone();
        let _in_order = disk.capacity_lock_within(PATIENCE).map_err(convert::lease_error)?;
        let status = export.add_unit(options(new, &lease)).map_err(|error| convert::export_error(error, name))?;
        tracing::info!(export = name, lun = %new.lun, disk = new.disk, "a disk was added");
        self.upgrade.redescribe(name, |export| export.luns.push(new.clone()));
        self.with_units(name, |leases| leases.insert(new.lun, lease));
        Ok(unit_out(&status))
    }

    /// Checks that a shared disk is to the guest of a device what it is to those that have it.
    fn check_alike(&self, device: &NewExport, lease: &Lease) -> Result<(), FieldError> {
        let disk = lease.disk();
        if !disk.is_shared() {
            return Ok(());
        }
        let Ok((_, users)) = self.disks.get(disk.name()) else { return Ok(()) };
        let others = users.iter().filter(|User::Export(name)| *name != device.name);
        let mut others = others.filter_map(|User::Export(name)| self.upgrade.description(name));
        others.try_for_each(|other| api::check_alike(disk.name(), device, &other))
    }

    /// Takes a disk out of a device that serves.
    pub(crate) fn remove_unit(&self, name: &str, lun: Lun) -> Result<(), ApiError> {
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        let export = self.get(name)?;
        let units = export.units().map_err(|error| convert::export_error(error, name))?;
        let unit = units.iter().find(|unit| unit.lun == lun);
        let unit = unit.ok_or_else(|| ApiError::NoSuchUnit { export: name.to_owned(), lun })?;
        self.jobs.check_copied(&unit.disk)?;
        let watches = export.watch_units();
        let removed = export.remove_unit(lun);
        // One whose requests are still under way is out of the device as well: nobody has its disk until they have ended.
        if !matches!(removed, Ok(()) | Err(ExportError::UnitInFlight(_) | ExportError::Take(_))) {
            return removed.map_err(|error| convert::export_error(error, name));
        }
        tracing::info!(export = name, %lun, disk = unit.disk, "a disk was removed");
        self.upgrade.redescribe(name, |export| export.luns.retain(|unit| unit.lun != lun));
        // Its end may close nothing: the disk stays open.
        if let Some(lease) = self.with_units(name, |leases| leases.remove(&lun)) {
            end(lease, watches.get(&lun));
        }
        self.engine().sweep_files();
        removed.map_err(|error| convert::export_error(error, name))
    }

    /// The exports that use a disk.
    pub(crate) fn exports_of(&self, users: &[User]) -> Vec<Arc<Export>> {
        users.iter().filter_map(|User::Export(name)| self.get(name).ok()).collect()
    }
}
