//! Which requests may be carried out, and the errors of the others.

use device::nbd::spec::errno::{EINVAL, ENOSPC, EOVERFLOW, EPERM};
use device::nbd::{Command, Reason, Request, Terms, Work};

const FUA: u16 = 1 << 0;
const NO_HOLE: u16 = 1 << 1;
const DF: u16 = 1 << 2;
const REQ_ONE: u16 = 1 << 3;

/// An export with everything.
const TERMS: Terms = Terms {
    size_bytes: 1 << 20,
    block_bytes: 512,
    read_only: false,
    trim: true,
    write_zeroes: true,
    block_status: true,
    payload_max: 1 << 16,
};

/// The commands that have a range and are offered.
const RANGED: [Command; 5] = [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes, Command::BlockStatus];

fn request(flags: u16, command: Command, offset: u64, len: u32) -> Request {
    Request { flags, command, cookie: 1, offset, len }
}

#[track_caller]
fn refused(request: Request, terms: &Terms, errno: u32, reason: Reason) {
    let refusal = request.check(terms).expect_err("refused");
    assert_eq!((refusal.errno, refusal.reason), (errno, reason), "{request:?}");
    assert_eq!(refusal.to_string(), reason.to_string());
}

#[test]
fn requests_become_work() {
    let (offset, len) = (1024, 512);
    let check = |flags, command| request(flags, command, offset, len).check(&TERMS).unwrap();
    assert_eq!(check(0, Command::Read), Work::Read { offset, len });
    assert_eq!(check(DF | FUA, Command::Read), Work::Read { offset, len });
    for (flags, fua) in [(0, false), (FUA, true)] {
        assert_eq!(check(flags, Command::Write), Work::Write { offset, len, fua });
        assert_eq!(check(flags, Command::Trim), Work::Trim { offset, len, fua });
        let zeroes = |unmap| Work::WriteZeroes { offset, len, unmap, fua };
        assert_eq!(check(flags, Command::WriteZeroes), zeroes(true));
        assert_eq!(check(flags | NO_HOLE, Command::WriteZeroes), zeroes(false));
        assert_eq!(request(flags, Command::Flush, 0, 0).check(&TERMS), Ok(Work::Flush));
    }
    assert_eq!(check(0, Command::BlockStatus), Work::BlockStatus { offset, len, one: false });
    assert_eq!(check(REQ_ONE | FUA, Command::BlockStatus), Work::BlockStatus { offset, len, one: true });
    assert_eq!(request(0, Command::Disconnect, 0, 0).check(&TERMS), Ok(Work::Disconnect));
    assert_eq!(request(u16::MAX, Command::Disconnect, 1, 1).check(&TERMS), Ok(Work::Disconnect));
}

#[test]
fn a_command_has_its_flags_and_no_others() {
    let own = |command| match command {
        Command::Read => DF,
        Command::WriteZeroes => NO_HOLE,
        Command::BlockStatus => REQ_ONE,
        _ => 0,
    };
    for command in RANGED.into_iter().chain([Command::Flush]) {
        for flag in (0..16).map(|bit| 1 << bit) {
            let len = if command == Command::Flush { 0 } else { 512 };
            let request = request(flag, command, 0, len);
            if flag & (own(command) | FUA) == 0 {
                refused(request, &TERMS, EINVAL, Reason::UnknownFlags);
            } else {
                assert!(request.check(&TERMS).is_ok(), "{request:?}");
            }
        }
    }
}

#[test]
fn commands_that_are_not_offered_are_refused() {
    let none = Terms { trim: false, write_zeroes: false, block_status: false, ..TERMS };
    for command in [Command::Trim, Command::WriteZeroes, Command::BlockStatus, Command::Cache] {
        refused(request(0, command, 0, 512), &none, EINVAL, Reason::NotOffered);
    }
    refused(request(0, Command::Cache, 0, 512), &TERMS, EINVAL, Reason::NotOffered);
    for raw in [8, 9, u16::MAX] {
        refused(request(0, Command::Unknown(raw), 0, 512), &TERMS, EINVAL, Reason::UnknownCommand);
    }
}

#[test]
fn nothing_is_written_to_a_read_only_export() {
    for offered in [true, false] {
        let terms = Terms { read_only: true, trim: offered, write_zeroes: offered, ..TERMS };
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            refused(request(0, command, 0, 512), &terms, EPERM, Reason::ReadOnly);
        }
        assert!(request(0, Command::Read, 0, 512).check(&terms).is_ok());
        assert_eq!(request(0, Command::Flush, 0, 0).check(&terms), Ok(Work::Flush));
    }
}

#[test]
fn ranges_end_inside_the_export() {
    let size = TERMS.size_bytes;
    for command in RANGED {
        let (errno, reason) = match command {
            Command::Write | Command::WriteZeroes => (ENOSPC, Reason::NoSpace),
            _ => (EINVAL, Reason::BeyondEnd),
        };
        assert!(request(0, command, size - 512, 512).check(&TERMS).is_ok());
        let last_block = u64::MAX - 511;
        for (offset, len) in [(size - 512, 1024), (size, 512), (size + 512, 0), (last_block, 512), (last_block, 1024)] {
            refused(request(0, command, offset, len), &TERMS, errno, reason);
        }
        let empty = Terms { size_bytes: 0, ..TERMS };
        refused(request(0, command, 0, 512), &empty, errno, reason);
        // A part of a block at the end is out of reach.
        let odd = Terms { size_bytes: 1000, ..TERMS };
        refused(request(0, command, 512, 512), &odd, errno, reason);
    }
}

#[test]
fn ranges_are_whole_blocks() {
    for block_bytes in [512, 4096] {
        let terms = Terms { block_bytes, ..TERMS };
        for command in RANGED {
            let block = u64::from(block_bytes);
            assert!(request(0, command, block, block_bytes).check(&terms).is_ok());
            for (offset, len) in
                [(1, block_bytes), (block - 1, block_bytes), (block / 2, block_bytes), (0, 1), (0, block_bytes + 1)]
            {
                refused(request(0, command, offset, len), &terms, EINVAL, Reason::Unaligned);
            }
        }
    }
}

#[test]
fn ranges_of_nothing_are_carried_out() {
    for command in [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes] {
        for offset in [0, 512, TERMS.size_bytes] {
            assert!(request(0, command, offset, 0).check(&TERMS).is_ok());
        }
    }
    refused(request(0, Command::BlockStatus, 0, 0), &TERMS, EINVAL, Reason::NoRange);
}

#[test]
fn only_payloads_are_limited() {
    let max = TERMS.payload_max;
    for command in RANGED {
        assert!(request(0, command, 0, max).check(&TERMS).is_ok());
        let longer = request(0, command, 0, max + 512);
        match command {
            Command::Read => refused(longer, &TERMS, EOVERFLOW, Reason::LongRead),
            Command::Write => refused(longer, &TERMS, EINVAL, Reason::LongWrite),
            _ => assert!(longer.check(&TERMS).is_ok()),
        }
    }
}

#[test]
fn a_flush_has_no_range() {
    for (offset, len) in [(512, 0), (0, 512)] {
        refused(request(0, Command::Flush, offset, len), &TERMS, EINVAL, Reason::FlushRange);
    }
}

#[test]
fn counters_find_every_reason() {
    for (index, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, index);
    }
}
