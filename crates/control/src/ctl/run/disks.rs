//! `vringd ctl disk`.

use super::{CtlError, Session};
use crate::client::segment;
use crate::ctl::disks::{self, DiskCommand};
use crate::model::{Disk, Resize};
use hyper::Method;

impl Session<'_> {
    pub(super) fn disk(&mut self, command: &DiskCommand) -> Result<(), CtlError> {
        let target = |name: &str| format!("/v1/disks/{}", segment(name));
        match command {
            DiskCommand::List => self.show::<Vec<Disk>>("/v1/disks", |disks| disks::disks(disks)),
            DiskCommand::Show { name } => self.show::<Disk>(&target(name), disks::disk),
            DiskCommand::Add(add) => self.send(Method::POST, "/v1/disks", &add.disk()?, one),
            DiskCommand::Resize { name, size } => {
                let target = format!("{}/capacity", target(name));
                self.send(Method::PUT, &target, &Resize { capacity_bytes: *size }, one)
            }
            DiskCommand::Snapshot(new) => {
                self.send::<Vec<Disk>>(Method::POST, "/v1/snapshots", &new.snapshot()?, |disks| disks::disks(disks))
            }
            DiskCommand::Backup(backup) => self.backup(backup),
            DiskCommand::Mirror(mirror) => self.mirror(mirror),
            DiskCommand::Remove { name } => self.order(Method::DELETE, &target(name), &format!("removed disk {name}")),
        }
    }
}

fn one(disk: &Disk) -> String {
    disks::disks(std::slice::from_ref(disk))
}
