//! Mode parameters (SPC-5, "Mode parameters"; SBC-4, "Mode parameters").

mod page;
mod select;
mod sense;

pub use select::select_mode;
pub(super) use sense::sense;

use super::unit::Unit;

/// The header of MODE SENSE (6) and MODE SELECT (6), and of (10), in bytes.
const HEADER_6_BYTES: usize = 4;
const HEADER_10_BYTES: usize = 8;
/// Block descriptors: the short and the long one, in bytes.
const SHORT_DESCRIPTOR_BYTES: usize = 8;
const LONG_DESCRIPTOR_BYTES: usize = 16;
/// LONGLBA of the header of (10): the block descriptor is a long one.
const LONG_LBA: u8 = 1;

/// Block descriptor of SBC-4, "Short LBA mode parameter block descriptor": all ones when the unit has more blocks.
fn short_descriptor(unit: &Unit) -> [u8; SHORT_DESCRIPTOR_BYTES] {
    let [a, b, c, d] = u32::try_from(unit.blocks()).unwrap_or(u32::MAX).to_be_bytes();
    let [_, e, f, g] = unit.block_bytes().to_be_bytes();
    [a, b, c, d, 0, e, f, g]
}

/// Block descriptor of SBC-4, "Long LBA mode parameter block descriptor".
fn long_descriptor(unit: &Unit) -> [u8; LONG_DESCRIPTOR_BYTES] {
    let mut out = [0; LONG_DESCRIPTOR_BYTES];
    crate::wire::put::<0, _, _>(&mut out, unit.blocks().to_be_bytes());
    crate::wire::put::<12, _, _>(&mut out, unit.block_bytes().to_be_bytes());
    out
}
