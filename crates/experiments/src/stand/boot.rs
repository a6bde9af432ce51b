//! Guests of a configuration.

use std::path::Path;

use guest::{Device, Host, Machine, Shell, Ssh};

use super::{Data, Site, Trouble};
use crate::experiment::{Configuration, Place, ServerKind};

/// As passthrough, but that files need not get the owner that the guest wants: nobody asks for one here.
const SECURITY_MODEL_OF_QEMU: &str = "none";

/// The host itself.
pub(super) fn host() -> Box<dyn Shell> {
    Box::new(Host::new())
}

/// The guest that the person named.
pub(super) fn ssh(site: &Site) -> Result<Box<dyn Shell>, Trouble> {
    let Some(ssh) = &site.ssh else {
        return Err(Trouble::Unsupported("no guest was named to reach by ssh: give --ssh TARGET".into()));
    };
    let shell = Ssh::connect(&ssh.target).map_err(|error| Trouble::failed(&error))?;
    Ok(Box::new(shell))
}

/// A guest of our own.
pub(super) fn boot(
    site: &Site,
    configuration: &Configuration,
    socket: Option<&Path>,
    data: Option<&Data>,
    tag: &str,
) -> Result<Box<dyn Shell>, Trouble> {
    let devices = [device(configuration, socket, data, tag)?];
    let machine = Machine {
        processors: configuration.guest.processors.max(1),
        memory_mib: configuration.guest.memory_mib,
        one_node: configuration.guest.one_node,
        instruction_clock: configuration.guest.instruction_clock,
    };
    // What a guest is made of is there or it is not: another try would end the same way.
    let missing = |error: anyhow::Error| Trouble::Unsupported(super::one_line(&format!("{error:#}")));
    let kit = &site.kit;
    kit.root().map_err(missing)?;
    let booted = match configuration.place {
        Place::Uml => {
            kit.uml().map_err(missing)?;
            guest::uml::boot(kit, &machine, &devices)
        }
        Place::Qemu => {
            kit.qemu().map_err(missing)?;
            kit.kernel().map_err(missing)?;
            guest::qemu::boot(kit, &machine, &devices)
        }
        Place::Host | Place::Frontend | Place::Ssh => {
            return Err(Trouble::Unsupported("this place has no guest of ours".into()));
        }
    };
    let guest = booted.map_err(|error| Trouble::failed(&error))?;
    Ok(Box::new(guest))
}

fn device(
    configuration: &Configuration,
    socket: Option<&Path>,
    data: Option<&Data>,
    tag: &str,
) -> Result<Device, Trouble> {
    let queues = configuration.guest.queues.max(1);
    let options = &configuration.server.options;
    let no_data = || Trouble::Unsupported("this server needs data to serve; medium `none` has none".into());
    let no_socket = || Trouble::Failed("its server has no socket".into());
    Ok(match configuration.server.kind {
        ServerKind::QemuVirtioBlk => Device::QemuDisk {
            image: data.ok_or_else(no_data)?.image(),
            queues,
            direct: options.iter().any(|option| option == "cache.direct=on"),
        },
        ServerKind::Qemu9p => Device::Qemu9p {
            directory: data.ok_or_else(no_data)?.directory(),
            tag: tag.to_owned(),
            security_model: SECURITY_MODEL_OF_QEMU.to_owned(),
        },
        ServerKind::Vringd9p => {
            Device::Directory9p { socket: socket.ok_or_else(no_socket)?.to_owned(), tag: tag.to_owned() }
        }
        ServerKind::VringdDisk | ServerKind::QemuStorageDaemon => {
            Device::Disk { socket: socket.ok_or_else(no_socket)?.to_owned(), queues }
        }
        ServerKind::VringdScsi => Device::Scsi { socket: socket.ok_or_else(no_socket)?.to_owned(), queues },
        ServerKind::VringdDir => {
            Device::Directory { socket: socket.ok_or_else(no_socket)?.to_owned(), tag: tag.to_owned(), queues }
        }
        // It has one, and ends a guest's attempt to start more.
        ServerKind::Virtiofsd => {
            Device::Directory { socket: socket.ok_or_else(no_socket)?.to_owned(), tag: tag.to_owned(), queues: 1 }
        }
        ServerKind::None => return Err(no_socket()),
    })
}
