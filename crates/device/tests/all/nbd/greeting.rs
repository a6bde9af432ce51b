//! The first bytes of each side.

use device::nbd::{ClientFlags, Malformed, decode_client_flags, greeting};

#[test]
fn the_server_greets_with_its_magic_numbers_and_both_flags() {
    assert_eq!(&greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn the_client_may_set_either_flag_and_no_other() {
    for flags in 0..4_u32 {
        let expected = ClientFlags { fixed_newstyle: flags & 1 != 0, no_zeroes: flags & 2 != 0 };
        assert_eq!(decode_client_flags(&flags.to_be_bytes()), Ok(expected));
        for other in 2..32 {
            let flags = flags | 1 << other;
            assert_eq!(decode_client_flags(&flags.to_be_bytes()), Err(Malformed::UnknownClientFlags));
        }
    }
}

#[test]
fn counters_find_every_kind_of_malformed_bytes() {
    for (index, malformed) in Malformed::ALL.into_iter().enumerate() {
        assert_eq!(malformed as usize, index);
        assert!(!malformed.to_string().is_empty());
    }
}
