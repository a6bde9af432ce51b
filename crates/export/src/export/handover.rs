//! An export that goes on in another program.
//!
//! Its endpoint and its session are the link's matter, its contents the storage's; here is the rest of what an export
//! remembers.

use super::{Export, Served};
use crate::{Carried, FuseSession};
use std::time::Instant;
use tls::Certificates;
use vhost_user::Pending;

impl Export {
    /// Asks what it would hand over now, without stopping a ring.
    pub fn look(&self) -> Pending {
        self.handover.look()
    }

    /// Asks its session to pause with every ring drained, which must be so at `drained_by`.
    pub fn pause(&self, drained_by: Instant) -> Pending {
        self.remember_homes();
        self.handover.pause(drained_by)
    }

    /// Rings go back to the workers that they come from, here or in another program.
    fn remember_homes(&self) {
        for (index, worker) in self.running() {
            self.shared.rings.lock().remember(index, worker);
        }
    }

    /// What it carries over, once it was asked to pause.
    pub fn carried(&self) -> Carried {
        let (state, rings) = (self.shared.lock(), self.shared.rings.lock());
        Carried {
            placed: state.own.placed().to_vec(),
            attached: rings.attached(),
            homes: rings.homes(),
            sessions: state.sessions,
            last_error: state.last_error.clone(),
            write_back: match &self.served {
                Served::Disk(disk) => disk.write_back(),
                Served::Scsi(scsi) => scsi.write_back(),
                Served::Directory(_) | Served::P9(_) => None,
            },
            shown: Some(self.socket.clone()),
            port: match &self.served {
                Served::Scsi(scsi) => Some(scsi.port()),
                Served::Disk(_) | Served::Directory(_) | Served::P9(_) => None,
            },
            fuse: None,
        }
    }

    /// What TLS is made of for NBD clients, if they have to begin it.
    pub fn certificates(&self) -> Option<&Certificates> {
        match &self.served {
            Served::Disk(disk) => disk.nbd.tls.as_deref(),
            Served::Directory(_) | Served::P9(_) | Served::Scsi(_) => None,
        }
    }

    /// What the guest of a directory knows and has open, while its session pauses. `None` for anything else.
    ///
    /// # Errors
    /// What would stay behind.
    pub fn hand_directory_over(
        &self,
    ) -> Result<Option<(FuseSession, passthrough::Handed)>, passthrough::NotHandedOver> {
        match &self.served {
            Served::Directory(directory) => directory.hand_over_session().map(Some),
            Served::Disk(_) | Served::P9(_) | Served::Scsi(_) => Ok(None),
        }
    }
}
