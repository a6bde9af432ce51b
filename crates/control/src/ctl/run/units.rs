//! `vringd ctl lun`.

use super::{CtlError, Session, export_target};
use crate::client::segment;
use crate::ctl::units::{self, UnitCommand};
use crate::model::{Export, Unit};
use hyper::Method;

impl Session<'_> {
    pub(super) fn unit(&mut self, command: &UnitCommand) -> Result<(), CtlError> {
        match command {
            UnitCommand::List { export: Some(name) } => {
                let of = |units: &Vec<Unit>| units::units(units.iter().map(|unit| (&**name, unit)));
                self.show::<Vec<Unit>>(&target(name), of)
            }
            UnitCommand::List { export: None } => {
                let exports: Vec<Export> = self.client.get("/v1/exports")?;
                let all = exports.iter().flat_map(|export| export.luns.iter().map(|unit| (&*export.name, unit)));
                if self.json {
                    let by_export: std::collections::BTreeMap<_, _> =
                        exports.iter().filter(|it| !it.luns.is_empty()).map(|it| (&it.name, &it.luns)).collect();
                    return self.print_json(&by_export);
                }
                Ok(self.out.write_all(units::units(all).as_bytes())?)
            }
            UnitCommand::Add { export, lun, disk, serial } => {
                let new = units::new(*lun, disk, serial.as_ref());
                self.send::<Unit>(Method::POST, &target(export), &new, |unit| units::units([(&**export, unit)]))
            }
            UnitCommand::Remove { export, lun } => {
                let target = format!("{}/{}", target(export), segment(&lun.to_string()));
                self.order(Method::DELETE, &target, &format!("removed LUN {lun} of export {export}"))
            }
        }
    }
}

fn target(export: &str) -> String {
    format!("{}/luns", export_target(export))
}
