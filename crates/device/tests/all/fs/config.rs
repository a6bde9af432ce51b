//! The device's configuration space.

use device::fs::{CONFIG_READ_MAX, Config, ConfigError};

#[test]
fn fields_stand_where_the_specification_puts_them() {
    let config = Config::new("files", 0x0102_0304).unwrap();
    let mut expected = [0; 44];
    expected[..5].copy_from_slice(b"files");
    expected[36..40].copy_from_slice(&[4, 3, 2, 1]);
    assert_eq!(config.bytes(), expected);
    assert_eq!(config.features(), 0);
}

#[test]
fn tags_are_checked() {
    let longest = "x".repeat(36);
    assert_eq!(Config::new(&longest, 1).unwrap().bytes()[..36], [b'x'; 36]);
    assert_eq!(Config::new("", 1), Err(ConfigError::TagLength(0)));
    assert_eq!(Config::new(&"x".repeat(37), 1), Err(ConfigError::TagLength(37)));
    assert_eq!(Config::new(&"é".repeat(18), 1).unwrap().bytes()[35], 0xa9, "36 bytes are counted, not characters");
    assert_eq!(Config::new("a\0b", 1), Err(ConfigError::TagNul));
    assert_eq!(Config::new("files", 0), Err(ConfigError::NoRequestQueue));
}

#[test]
fn any_part_can_be_read() {
    let config = Config::new("files", 3).unwrap();
    for offset in 0..=CONFIG_READ_MAX {
        for len in 0..=CONFIG_READ_MAX - offset {
            let mut out = vec![0xff; len];
            config.read(u32::try_from(offset).unwrap(), &mut out).unwrap();
            for (at, byte) in (offset..).zip(out) {
                assert_eq!(byte, config.bytes().get(at).copied().unwrap_or(0));
            }
        }
    }
    let mut out = [7; 2];
    for offset in [255, 256, u32::MAX] {
        assert_eq!(config.read(offset, &mut out), Err(ConfigError::OutOfBounds { offset, len: 2 }));
    }
    assert_eq!(out, [7; 2]);
}
