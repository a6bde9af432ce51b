//! The configuration space.

use device::scsi::{CONFIG_READ_MAX, Config, ConfigError, Settings, Sizes};
use proptest::prelude::*;

fn full() -> Settings {
    Settings {
        request_queues: 0x0102 - 2,
        seg_max: 0x1122_3344,
        max_sectors: 0x5566_7788,
        commands_per_lun: 0x0908_0706,
        target_max: 0xfe,
        lun_max: 0x3f02,
    }
}

#[test]
fn every_field_stands_where_the_specification_puts_it() {
    let bytes = Config::new(full()).unwrap().bytes();
    let expected: [u8; 36] = [
        0, 1, 0, 0, // num_queues
        0x44, 0x33, 0x22, 0x11, // seg_max
        0x88, 0x77, 0x66, 0x55, // max_sectors
        6, 7, 8, 9, // cmd_per_lun
        16, 0, 0, 0, // event_info_size
        96, 0, 0, 0, // sense_size
        32, 0, 0, 0, // cdb_size
        0, 0, // max_channel
        0xfe, 0, // max_target
        2, 0x3f, 0, 0, // max_lun
    ];
    assert_eq!(bytes, expected);
    // INOUT, HOTPLUG, CHANGE.
    assert_eq!(Config::new(full()).unwrap().features(), 0b111);
}

#[test]
fn reads_any_part_and_zeroes_behind_the_fields() {
    let config = Config::new(full()).unwrap();
    let mut whole = [0xff; CONFIG_READ_MAX];
    config.read(0, &mut whole).unwrap();
    assert_eq!(whole[..36], config.bytes());
    assert!(whole[36..].iter().all(|b| *b == 0));
    for offset in 0..64 {
        for len in 0..64 - offset {
            let mut part = vec![0xff; len];
            config.read(u32::try_from(offset).unwrap(), &mut part).unwrap();
            assert_eq!(part, whole[offset..offset + len]);
        }
    }
    let mut out = [7; 2];
    for offset in [255, 256, u32::MAX] {
        assert_eq!(config.read(offset, &mut out), Err(ConfigError::OutOfBounds { offset, len: 2 }));
    }
    assert_eq!(out, [7; 2]);
}

#[test]
fn sense_and_cdb_sizes_can_be_written_and_are_reset() {
    let mut config = Config::new(full()).unwrap();
    let before = config.clone();
    config.write(20, &252_u32.to_le_bytes()).unwrap();
    config.write(24, &16_u32.to_le_bytes()).unwrap();
    assert_eq!(config.sizes(), Sizes::new(252, 16).unwrap());
    assert_eq!(config.bytes()[20..28], [252, 0, 0, 0, 16, 0, 0, 0]);
    config.write(20, &[18, 0, 0, 0, 4, 1, 0, 0]).unwrap();
    assert_eq!((config.sizes().sense_bytes(), config.sizes().cdb_bytes()), (18, 260));
    config.reset();
    assert_eq!(config, before);
}

#[test]
fn nothing_else_can_be_written() {
    let mut config = Config::new(full()).unwrap();
    let before = config.clone();
    for offset in (0..60).filter(|offset| ![20, 24].contains(offset)) {
        assert_eq!(config.write(offset, &[32, 0, 0, 0]), Err(ConfigError::NotWritable));
    }
    for data in [&[][..], &[96], &[96, 0], &[0; 12]] {
        assert_eq!(config.write(20, data), Err(ConfigError::NotWritable));
    }
    assert_eq!(config.write(24, &[0; 8]), Err(ConfigError::NotWritable));
    assert_eq!(config.write(20, &253_u32.to_le_bytes()), Err(ConfigError::SenseSize(253)));
    for cdb in [0, 5, 261, u32::MAX] {
        assert_eq!(config.write(24, &cdb.to_le_bytes()), Err(ConfigError::CdbSize(cdb)));
    }
    assert_eq!(config, before);
}

#[test]
fn settings_out_of_range_are_named() {
    let cases: [(Settings, ConfigError); 6] = [
        (Settings { request_queues: 0, ..full() }, ConfigError::Queues(0)),
        (Settings { request_queues: 257, ..full() }, ConfigError::Queues(257)),
        (Settings { seg_max: 0, ..full() }, ConfigError::Zero),
        (Settings { max_sectors: 0, ..full() }, ConfigError::Zero),
        (Settings { commands_per_lun: 0, ..full() }, ConfigError::Zero),
        (Settings { lun_max: 16384, ..full() }, ConfigError::Lun(16384)),
    ];
    for (settings, expected) in cases {
        assert_eq!(Config::new(settings), Err(expected));
    }
    assert!(Config::new(Settings::default()).is_ok());
}

proptest! {
    #[test]
    fn sizes_stay_in_range(writes in proptest::collection::vec((0..40_u32, proptest::collection::vec(any::<u8>(), 0..9)), 0..20)) {
        let mut config = Config::new(full()).unwrap();
        for (offset, data) in writes {
            let before = config.clone();
            if config.write(offset, &data).is_err() {
                prop_assert_eq!(&config, &before);
            }
            let sizes = config.sizes();
            prop_assert!(sizes.sense_bytes() <= 252 && (6..=260).contains(&sizes.cdb_bytes()));
            prop_assert_eq!(&config.bytes()[..20], &before.bytes()[..20]);
        }
    }
}
