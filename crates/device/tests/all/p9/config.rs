//! The device's configuration space.

use device::p9::{CONFIG_READ_MAX, Config, ConfigError};

#[test]
fn fields_stand_where_the_header_file_puts_them() {
    let config = Config::new("files").unwrap();
    let mut expected = [0; 38];
    expected[..7].copy_from_slice(b"\x05\0files");
    assert_eq!(config.bytes(), expected);
    assert_eq!(config.features(), 1);
}

#[test]
fn tags_are_checked() {
    let longest = "x".repeat(36);
    assert_eq!(Config::new(&longest).unwrap().bytes()[..], [&[36, 0][..], &[b'x'; 36]].concat());
    assert_eq!(Config::new(""), Err(ConfigError::TagLength(0)));
    assert_eq!(Config::new(&"x".repeat(37)), Err(ConfigError::TagLength(37)));
    assert_eq!(Config::new(&"é".repeat(18)).unwrap().bytes()[0], 36, "bytes are counted, not characters");
    assert_eq!(Config::new("a\0b"), Err(ConfigError::TagNul));
}

#[test]
fn any_part_can_be_read() {
    let config = Config::new("files").unwrap();
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
