//! Units and identities that the tests share, and settings out of range.

use device::scsi::{
    Identity, IdentityError, Limits, Mode, Naa, NaaError, Rotation, Unit, UnitError, UnitSettings, UnmapLimits,
};

/// 1000 blocks of 512 bytes that offer everything, with small bounds.
pub(super) fn settings() -> UnitSettings {
    UnitSettings {
        capacity_bytes: 1000 * 512,
        block_bytes: 512,
        physical_block_exp: 3,
        optimal_bytes: 64 << 10,
        read_only: false,
        rotation: Rotation::Still,
        limits: Limits {
            transfer_blocks_max: 500,
            write_same_blocks_max: 300,
            compare_and_write_blocks_max: 8,
            unmap: Some(UnmapLimits { blocks_max: 200, descriptors_max: 3, granularity_blocks: 8, zeroes: true }),
        },
        mode: Mode::default(),
        write_cache_changeable: true,
        counting: None,
    }
}

pub(super) fn unit() -> Unit {
    Unit::new(settings()).unwrap()
}

/// A unit with some settings changed.
pub(super) fn unit_with(edit: impl FnOnce(&mut UnitSettings)) -> Unit {
    let mut settings = settings();
    edit(&mut settings);
    Unit::new(settings).unwrap()
}

pub(super) fn identity() -> Identity {
    Identity::new("volume", "0.1", "disk-7", Naa::from_u64(0x3123_4567_89ab_cdef).unwrap()).unwrap()
}

#[test]
fn settings_out_of_range_are_named() {
    type Edit = fn(&mut UnitSettings);
    let cases: [(Edit, UnitError); 8] = [
        (|s| s.block_bytes = 256, UnitError::BlockSize(256)),
        (|s| s.block_bytes = 8192, UnitError::BlockSize(8192)),
        (|s| s.block_bytes = 1536, UnitError::BlockSize(1536)),
        (|s| s.capacity_bytes = 513, UnitError::Capacity(513, 512)),
        (|s| s.physical_block_exp = 16, UnitError::PhysicalBlock(16)),
        (|s| s.optimal_bytes = 100, UnitError::Optimal(100, 512)),
        (|s| s.rotation = Rotation::PerMinute(1024), UnitError::Rotation(1024)),
        (|s| s.rotation = Rotation::PerMinute(0xffff), UnitError::Rotation(0xffff)),
    ];
    for (edit, expected) in cases {
        let mut wrong = settings();
        edit(&mut wrong);
        assert_eq!(Unit::new(wrong), Err(expected));
    }
    let unmaps: [fn(&mut UnmapLimits); 4] =
        [|u| u.blocks_max = 0, |u| u.descriptors_max = 0, |u| u.descriptors_max = 256, |u| u.granularity_blocks = 0];
    for edit in unmaps {
        let mut wrong = settings();
        edit(wrong.limits.unmap.as_mut().unwrap());
        assert_eq!(Unit::new(wrong), Err(UnitError::Unmap));
    }
}

#[test]
fn a_reset_takes_back_mode_and_state() {
    let mut unit = unit();
    unit.set_mode(Mode { write_cache: false, descriptor_sense: true });
    unit.set_stopped(true);
    assert_ne!(unit, self::unit());
    unit.reset();
    assert_eq!(unit, self::unit());
}

#[test]
fn the_capacity_can_change() {
    let mut unit = unit();
    unit.set_capacity_bytes(2000 * 512).unwrap();
    assert_eq!(unit.blocks(), 2000);
    assert_eq!(unit.set_capacity_bytes(1), Err(UnitError::Capacity(1, 512)));
    assert_eq!(unit.blocks(), 2000);
}

#[test]
fn identities_are_printable_and_fit() {
    let naa = Naa::local(7);
    let new = |product: &str, revision: &str, serial: &str| Identity::new(product, revision, serial, naa).map(|_| ());
    assert_eq!(new("0123456789abcdef", "1234", &"s".repeat(64)), Ok(()));
    assert_eq!(new("p", "", "s"), Ok(()));
    assert_eq!(new("0123456789abcdefg", "", "s"), Err(IdentityError::Long("product", 16)));
    assert_eq!(new("p", "12345", "s"), Err(IdentityError::Long("revision", 4)));
    assert_eq!(new("p", "", &"s".repeat(65)), Err(IdentityError::Long("serial number", 64)));
    assert_eq!(new("", "", "s"), Err(IdentityError::Empty("product")));
    assert_eq!(new("p", "", ""), Err(IdentityError::Empty("serial number")));
    assert_eq!(new("p", "", "ü"), Err(IdentityError::Character("serial number")));
    assert_eq!(new("p\n", "", "s"), Err(IdentityError::Character("product")));
}

#[test]
fn names_have_a_format_that_their_length_allows() {
    for format in 0..16_u64 {
        let short = Naa::from_u64(format << 60 | 5);
        let long = Naa::from_u128(u128::from(format) << 124 | 5);
        match format {
            2 | 3 | 5 => assert_eq!(short.unwrap().bytes(), (format << 60 | 5).to_be_bytes()),
            _ => assert_eq!(short, Err(NaaError::Short(format as u8))),
        }
        match format {
            6 => assert_eq!(long.unwrap().bytes(), (6_u128 << 124 | 5).to_be_bytes()),
            _ => assert_eq!(long, Err(NaaError::Long(format as u8))),
        }
    }
    assert_eq!(Naa::local(u64::MAX).bytes(), (u64::MAX >> 4 | 3 << 60).to_be_bytes());
}
