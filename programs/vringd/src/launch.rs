//! From the arguments of a command that serves one export to what its daemon shall serve.

use crate::config::Config;
use crate::failure::Failure;
use crate::run::Alone;
use crate::service::Sockets;
use crate::virtiofsd::Launch;
use crate::{dir, disk, scsi, virtiofsd};
use control::model::Poll;

/// The daemon of `vringd disk`.
pub(crate) fn disk(args: disk::Args) -> Result<Config, Failure> {
    let control = args.control.clone();
    let poll = args.disk.poll.unwrap_or_default();
    let sandbox = args.confinement.clone();
    let (stuck_after, favour, policy) = (args.stuck_after, args.favour, args.policy);
    let export = args.into_export().map_err(Failure::Usage)?;
    let one = Config::of_one(export, control, poll, Sockets::inherited()?)?;
    Ok(Config { sandbox, stuck_after, favour, policy, one_disk: true, ..one })
}

/// The daemon of `vringd scsi`.
pub(crate) fn scsi(args: scsi::Args) -> Result<Config, Failure> {
    let control = args.control.clone();
    let poll = args.device.poll.unwrap_or_default();
    let sandbox = args.confinement.clone();
    let (stuck_after, favour, policy) = (args.stuck_after, args.favour, args.policy);
    let (export, disks) = args.into_export().map_err(Failure::Usage)?;
    let one = Config::of_one_with(export, disks, control, poll, Sockets::inherited()?)?;
    Ok(Config { sandbox, stuck_after, favour, policy, ..one })
}

/// The daemon of `vringd dir`.
pub(crate) fn dir(args: dir::Args) -> Result<(Config, Alone), Failure> {
    let control = args.control.clone();
    let poll = args.poll.unwrap_or_default();
    let isolation = args.isolation.clone();
    let (stuck_after, favour, policy) = (args.stuck_after, args.favour, args.policy);
    let config = Config::of_one(args.into_export(), control, poll, Sockets::inherited()?)?;
    let config = Config { stuck_after, favour, policy, ..config };
    Ok((config, Alone { isolation, pid_file: None, one_session: false, listens: None }))
}

/// The daemon of `vringd virtiofsd`.
pub(crate) fn virtiofsd(launch: Launch) -> Result<(Config, Alone), Failure> {
    let Launch { export, isolation, control, pid_file, .. } = launch;
    let config = Config::of_one(export, control, Poll::default(), Sockets::default())?;
    Ok((config, Alone { isolation, pid_file, one_session: true, listens: Some(virtiofsd::LISTENS) }))
}
