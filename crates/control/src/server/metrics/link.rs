//! How things stand with disks on other machines.

use super::{Figure, Labels, Read};
use crate::model::{Disk, LinkInfo, LinkState};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

const LINK: &[Figure<LinkInfo>] = &[
    Figure(
        "disk_opening",
        "1 while the disk is being opened again and its requests wait, 0 otherwise",
        Read::NowCount(|link| u64::from(link.state == LinkState::Opening)),
    ),
    Figure(
        "disk_lost",
        "1 while the disk is lost to its guest, until somebody has it opened as it is, 0 otherwise",
        Read::NowCount(|link| u64::from(matches!(link.state, LinkState::Lost | LinkState::LostWaiting))),
    ),
];

/// Of those disks that are on other machines.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, disks: &[Disk]) -> fmt::Result {
    let labels = |disk: &Disk| -> Labels { vec![("disk", disk.name.clone())] };
    let links: Vec<_> = disks.iter().filter_map(|disk| Some((labels(disk), disk.storage.link.as_ref()?))).collect();
    LINK.iter().try_for_each(|figure| figure.encode(encoder, &links))
}
