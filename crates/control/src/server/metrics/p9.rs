//! Figures of directories over 9p.

use super::{Figure, Labels, Read};
use crate::model::P9Info;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

const P9: &[Figure<P9Info>] = &[
    Figure(
        "p9_msize",
        "Longest message that was agreed on with the client who came last, in bytes; 0 before one has",
        Read::NowBytes(|p9| p9.msize.unwrap_or(0).into()),
    ),
    Figure(
        "p9_msize_max",
        "Longest message that any client is granted, in bytes",
        Read::NowBytes(|p9| p9.msize_max.into()),
    ),
    Figure("p9_fids", "Fids that clients hold", Read::NowCount(|p9| p9.fids)),
    Figure("p9_connections", "Clients that are connected", Read::NowCount(|p9| p9.connections)),
];

/// All of them, of these directories.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, directories: &[(Labels, &P9Info)]) -> fmt::Result {
    P9.iter().try_for_each(|figure| figure.encode(encoder, directories))
}
