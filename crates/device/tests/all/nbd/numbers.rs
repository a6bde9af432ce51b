//! Numbers that the other tests do not spell out, as section "Values" of the protocol has them.

use device::nbd::spec::*;

/// Whether these are the flags of these bits.
#[track_caller]
fn bits<F: Copy + Into<u64>, const N: usize>(flags: [F; N], bits: [u32; N]) {
    assert_eq!(flags.map(Into::into), bits.map(|bit| 1 << bit));
}

#[test]
fn flags_have_their_bits() {
    bits([handshake_flag::FIXED_NEWSTYLE, handshake_flag::NO_ZEROES], [0, 1]);
    bits([client_flag::FIXED_NEWSTYLE, client_flag::NO_ZEROES], [0, 1]);
    use transmission_flag as t;
    bits([t::HAS_FLAGS, t::READ_ONLY, t::SEND_FLUSH, t::SEND_FUA, t::ROTATIONAL, t::SEND_TRIM], [0, 1, 2, 3, 4, 5]);
    bits([t::SEND_WRITE_ZEROES, t::SEND_DF, t::CAN_MULTI_CONN, t::SEND_CACHE, t::SEND_FAST_ZERO], [6, 7, 8, 10, 11]);
    use command_flag as c;
    bits([c::FUA, c::NO_HOLE, c::DF, c::REQ_ONE, c::FAST_ZERO], [0, 1, 2, 3, 4]);
    bits([chunk_flag::DONE], [0]);
}

#[test]
fn replies_to_options_have_their_types() {
    use option_reply_type as r;
    assert_eq!([r::ACK, r::SERVER, r::INFO, r::META_CONTEXT], [1, 2, 3, 4]);
    let errors = [
        r::ERR_UNSUP,
        r::ERR_POLICY,
        r::ERR_INVALID,
        r::ERR_PLATFORM,
        r::ERR_TLS_REQD,
        r::ERR_UNKNOWN,
        r::ERR_SHUTDOWN,
        r::ERR_BLOCK_SIZE_REQD,
        r::ERR_TOO_BIG,
    ];
    assert!(errors.into_iter().eq(0x8000_0001..=0x8000_0009));
}

#[test]
fn kinds_have_their_numbers() {
    assert_eq!([info::EXPORT, info::NAME, info::DESCRIPTION, info::BLOCK_SIZE], [0, 1, 2, 3]);
    use chunk_type as c;
    assert_eq!([c::NONE, c::OFFSET_DATA, c::OFFSET_HOLE, c::BLOCK_STATUS], [0, 1, 2, 5]);
    assert_eq!([c::ERROR, c::ERROR_OFFSET], [0x8001, 0x8002]);
    assert_eq!([state::HOLE, state::ZERO], [1, 2]);
}

#[test]
fn errors_have_their_values() {
    use errno as e;
    assert_eq!([e::EPERM, e::EIO, e::ENOMEM, e::EINVAL], [1, 5, 12, 22]);
    assert_eq!([e::ENOSPC, e::EOVERFLOW, e::ENOTSUP, e::ESHUTDOWN], [28, 75, 95, 108]);
}
