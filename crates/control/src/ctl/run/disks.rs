//! `vringd ctl disk`.

use super::{CtlError, Session};
use crate::client::segment;
use crate::ctl::bitmaps::{self, BitmapCommand};
use crate::ctl::disks::{self, DiskCommand};
use crate::model::{Bitmap, Disk, Resize};
use hyper::Method;

impl Session<'_> {
    pub(super) fn disk(&mut self, command: &DiskCommand) -> Result<(), CtlError> {
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
            DiskCommand::Stream(chain) => self.stream(chain),
            DiskCommand::Commit(chain) => self.commit(chain),
            DiskCommand::Pull(pull) => self.pull(pull),
            DiskCommand::Bitmap(command) => self.bitmap(command),
            DiskCommand::BreakReservations { name } => {
                let target = format!("{}/reservations", target(name));
                self.order(Method::DELETE, &target, &format!("nobody has reserved disk {name} any more"))
            }
            DiskCommand::Reopen { name } => {
                let target = format!("{}/reopen", target(name));
                self.send(Method::POST, &target, &(), one)
            }
            DiskCommand::Remove { name } => self.order(Method::DELETE, &target(name), &format!("removed disk {name}")),
        }
    }

    fn bitmap(&mut self, command: &BitmapCommand) -> Result<(), CtlError> {
        let target = |disk: &str| format!("{}/bitmaps", target(disk));
        match command {
            BitmapCommand::List { disk } => {
                self.show::<Vec<Bitmap>>(&target(disk), |bitmaps| bitmaps::bitmaps(bitmaps))
            }
            BitmapCommand::Add(add) => self.send(Method::POST, &target(&add.disk), &add.bitmap()?, bitmaps::one),
            BitmapCommand::Remove { disk, bitmap } => {
                let target = format!("{}/{}", target(disk), segment(bitmap));
                self.order(Method::DELETE, &target, &format!("removed bitmap {bitmap} of disk {disk}"))
            }
        }
    }
}

fn target(name: &str) -> String {
    format!("/v1/disks/{}", segment(name))
}

fn one(disk: &Disk) -> String {
    disks::disks(std::slice::from_ref(disk))
}
