//! CDBs, put together as the tables of SPC-5 and SBC-4 say.

use super::units::{settings, unit, unit_with};
use device::scsi::reservations::{Action, LIST_BYTES_MAX, ReserveIn};
use device::scsi::{
    Access, Addressed, Command, Compare, LogPage, ModePages, Operations, PageControl, Query, Sense, Transfer, Unit,
    decode,
};

fn on(unit: &Unit, cdb: &[u8]) -> Result<Command, Sense> {
    let mut area = [0; 32];
    area[..cdb.len()].copy_from_slice(cdb);
    decode(&area, Addressed::Disk(unit))
}

fn of(cdb: &[u8]) -> Result<Command, Sense> {
    on(&unit(), cdb)
}

/// A CDB with a block and a number of blocks, and a byte 1.
fn blocks(code: u8, one: u8, block: u64, count: u32) -> Vec<u8> {
    let short = (block as u32).to_be_bytes();
    match code >> 5 {
        0 => vec![code, one | short[1], short[2], short[3], count as u8, 0],
        1 | 2 => [&[code, one][..], &short, &[0], &(count as u16).to_be_bytes(), &[0]].concat(),
        4 => [&[code, one][..], &block.to_be_bytes(), &count.to_be_bytes(), &[0, 0]].concat(),
        _ => [&[code, one][..], &short, &count.to_be_bytes(), &[0, 0]].concat(),
    }
}

const fn read(block: u64, count: u64, fua: bool) -> Command {
    Command::Read { offset: block * 512, len: count * 512, fua }
}

const fn write(block: u64, count: u64, fua: bool) -> Command {
    Command::Write { offset: block * 512, len: count * 512, fua }
}

#[test]
fn reads_and_writes_of_every_length() {
    assert_eq!(of(&blocks(0x08, 0, 500, 7)), Ok(read(500, 7, false)));
    assert_eq!(of(&blocks(0x0a, 0, 500, 7)), Ok(write(500, 7, false)));
    for code in [0x28, 0xa8, 0x88] {
        assert_eq!(of(&blocks(code, 0, 990, 10)), Ok(read(990, 10, false)));
        assert_eq!(of(&blocks(code, 0x18, 990, 10)), Ok(read(990, 10, true)));
        assert_eq!(of(&blocks(code, 0x10, 1000, 0)), Ok(read(1000, 0, false)));
    }
    for code in [0x2a, 0xaa, 0x8a] {
        assert_eq!(of(&blocks(code, 0, 990, 10)), Ok(write(990, 10, false)));
        assert_eq!(of(&blocks(code, 0x08, 990, 10)), Ok(write(990, 10, true)));
    }
    // 21 bits of address, and no blocks that are 256.
    let large = unit_with(|s| s.capacity_bytes = 1 << 40);
    assert_eq!(on(&large, &[0x08, 0x1f, 0xff, 0xff, 0, 0]), Ok(read(0x1f_ffff, 256, false)));
    let far = blocks(0x88, 0, (1 << 31) - 1, 1);
    assert_eq!(on(&large, &far), Ok(read((1 << 31) - 1, 1, false)));
}

#[test]
fn nothing_reaches_beyond_the_last_block() {
    let beyond = Err(Sense::LBA_OUT_OF_RANGE);
    for code in
        [0x08, 0x0a, 0x28, 0x2a, 0x2e, 0x2f, 0x35, 0x41, 0xa8, 0xaa, 0xae, 0xaf, 0x88, 0x8a, 0x8e, 0x8f, 0x91, 0x93]
    {
        assert_eq!(of(&blocks(code, 0, 1000, 1)), beyond, "{code:x}");
        assert_eq!(of(&blocks(code, 0, 900, 101)), beyond, "{code:x}");
        if code != 0x08 && code != 0x0a {
            let nothing = of(&blocks(code, 0, 1001, 0));
            // WRITE SAME of no blocks is refused before.
            assert!(nothing == beyond || code == 0x41 || code == 0x93, "{code:x} {nothing:?}");
        }
    }
    for code in [0x88, 0x8a, 0x8e, 0x8f, 0x91, 0x93] {
        assert_eq!(of(&blocks(code, 0, u64::MAX, 1)), beyond, "{code:x}");
        assert_eq!(of(&blocks(code, 0, u64::MAX / 512, 2)), beyond, "{code:x}");
    }
    assert_eq!(of(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 3, 0xe8, 0, 0, 0, 24, 0, 0]), beyond);
}

#[test]
fn transfers_keep_to_their_bound() {
    for (code, count_at) in [(0x28, 7), (0x2a, 7), (0x2e, 7), (0x2f, 7), (0xa8, 6), (0xaa, 6), (0x88, 10), (0x8a, 10)] {
        assert!(of(&blocks(code, 0, 0, 500)).is_ok());
        assert_eq!(of(&blocks(code, 0, 0, 501)), Err(Sense::cdb(count_at)));
    }
    let unbounded = unit_with(|s| s.limits.transfer_blocks_max = 0);
    assert_eq!(on(&unbounded, &blocks(0x28, 0, 0, 1000)), Ok(read(0, 1000, false)));
}

#[test]
fn nothing_is_written_to_a_read_only_unit() {
    let read_only = unit_with(|s| s.read_only = true);
    for code in [0x0a, 0x2a, 0x2e, 0x41, 0xaa, 0xae, 0x8a, 0x8e, 0x93] {
        assert_eq!(on(&read_only, &blocks(code, 0, 0, 1)), Err(Sense::WRITE_PROTECTED), "{code:x}");
    }
    assert_eq!(on(&read_only, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]), Err(Sense::WRITE_PROTECTED));
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    assert_eq!(on(&read_only, &compare), Err(Sense::WRITE_PROTECTED));
    for code in [0x28, 0x2f, 0x35, 0x88, 0x91] {
        assert!(on(&read_only, &blocks(code, 0, 0, 1)).is_ok(), "{code:x}");
    }
}

#[test]
fn verifications_compare_with_what_they_say() {
    let verify = |compare| Ok(Command::Verify { offset: 512, len: 1024, compare });
    for code in [0x2f, 0xaf, 0x8f] {
        assert_eq!(of(&blocks(code, 0, 1, 2)), verify(Compare::Nothing));
        assert_eq!(of(&blocks(code, 0x10, 1, 2)), verify(Compare::Nothing));
        assert_eq!(of(&blocks(code, 0x02, 1, 2)), verify(Compare::Data));
        assert_eq!(of(&blocks(code, 0x06, 1, 2)), verify(Compare::Block));
        assert_eq!(of(&blocks(code, 0x04, 1, 2)), Err(Sense::cdb_bit(1, 2)));
    }
    let write_verify = |compare| Ok(Command::WriteAndVerify { offset: 512, len: 1024, compare });
    for code in [0x2e, 0xae, 0x8e] {
        assert_eq!(of(&blocks(code, 0, 1, 2)), write_verify(false));
        assert_eq!(of(&blocks(code, 0x12, 1, 2)), write_verify(true));
        assert_eq!(of(&blocks(code, 0x04, 1, 2)), Err(Sense::cdb_bit(1, 2)));
        assert_eq!(of(&blocks(code, 0x06, 1, 2)), Err(Sense::cdb_bit(1, 2)));
    }
}

#[test]
fn a_flush_of_no_blocks_is_one_of_the_rest() {
    for code in [0x35, 0x91] {
        let flush = |offset, len, immediate| Ok(Command::Flush { offset, len, immediate });
        assert_eq!(of(&blocks(code, 0, 0, 0)), flush(0, 1000 * 512, false));
        assert_eq!(of(&blocks(code, 2, 900, 0)), flush(900 * 512, 100 * 512, true));
        assert_eq!(of(&blocks(code, 0, 900, 1)), flush(900 * 512, 512, false));
        assert_eq!(of(&blocks(code, 0, 1000, 0)), flush(1000 * 512, 0, false));
        assert_eq!(of(&blocks(code, 4, 0, 0)), Err(Sense::cdb_bit(1, 2)));
    }
}

#[test]
fn write_same_keeps_to_its_bounds() {
    let same = |unmap, data| Ok(Command::WriteSame { offset: 512, len: 1024, unmap, data });
    for (code, count_at) in [(0x41, 7), (0x93, 10)] {
        assert_eq!(of(&blocks(code, 0, 1, 2)), same(false, true));
        assert_eq!(of(&blocks(code, 8, 1, 2)), same(true, true));
        assert_eq!(of(&blocks(code, 0x18, 1, 2)), Err(Sense::cdb_bit(1, 4)), "ANCHOR");
        assert_eq!(of(&blocks(code, 0, 1, 0)), Err(Sense::cdb(count_at)), "WSNZ");
        assert!(of(&blocks(code, 0, 1, 300)).is_ok());
        assert_eq!(of(&blocks(code, 0, 1, 301)), Err(Sense::cdb(count_at)));
        let thick = unit_with(|s| s.limits.unmap = None);
        assert_eq!(on(&thick, &blocks(code, 0, 1, 2)), same(false, true));
        assert_eq!(on(&thick, &blocks(code, 8, 1, 2)), Err(Sense::cdb_bit(1, 3)));
        let without = unit_with(|s| s.limits.write_same_blocks_max = 0);
        assert_eq!(on(&without, &blocks(code, 0, 1, 2)), Err(Sense::INVALID_OPCODE));
    }
    assert_eq!(of(&blocks(0x93, 1, 1, 2)), same(false, false));
    assert_eq!(of(&blocks(0x93, 9, 1, 2)), same(true, false));
    assert_eq!(of(&blocks(0x41, 1, 1, 2)), Err(Sense::cdb_bit(1, 0)), "NDOB is of (16)");
}

#[test]
fn compare_and_write_keeps_to_its_bound() {
    let cdb = |one, count| vec![0x89, one, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, count, 0, 0];
    let expected = |len, fua| Ok(Command::CompareAndWrite { offset: 5 * 512, len, fua });
    assert_eq!(of(&cdb(0, 1)), expected(512, false));
    assert_eq!(of(&cdb(0x18, 8)), expected(8 * 512, true));
    assert_eq!(of(&cdb(0, 0)), expected(0, false));
    assert_eq!(of(&cdb(0, 9)), Err(Sense::cdb(13)));
    let without = unit_with(|s| s.limits.compare_and_write_blocks_max = 0);
    assert_eq!(on(&without, &cdb(0, 1)), Err(Sense::INVALID_OPCODE));
}

#[test]
fn unmap_and_its_status_are_of_what_is_offered() {
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 1, 2, 0];
    assert_eq!(of(&unmap), Ok(Command::Unmap { list_bytes: 0x102 }));
    assert_eq!(of(&[0x42, 1, 0, 0, 0, 0, 0, 1, 2, 0]), Err(Sense::cdb_bit(1, 0)), "ANCHOR");
    let thick = unit_with(|s| s.limits.unmap = None);
    assert_eq!(on(&thick, &unmap), Err(Sense::INVALID_OPCODE));
    let status = [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 1, 0, 0, 0];
    assert_eq!(of(&status), Ok(Command::LbaStatus { offset: 7 * 512, allocation: 256 }));
}

#[test]
fn queries_say_what_they_ask() {
    let query = |query, allocation| Ok(Command::Query { query, allocation });
    assert_eq!(of(&[0x12, 0, 0, 1, 2, 0]), query(Query::Inquiry { page: None }, 0x102));
    assert_eq!(of(&[0x12, 1, 0x83, 0, 255, 0]), query(Query::Inquiry { page: Some(0x83) }, 255));
    assert_eq!(of(&[0x12, 0, 0x83, 0, 255, 0]), Err(Sense::cdb(2)));
    assert_eq!(of(&[0x12, 2, 0, 0, 255, 0]), Err(Sense::cdb_bit(1, 1)), "CMDDT is obsolete");
    assert_eq!(of(&[0x03, 1, 0, 0, 252, 0]), query(Query::RequestSense { descriptor: true }, 252));
    assert_eq!(of(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]), query(Query::Capacity10, 8));
    assert_eq!(of(&[0x25, 0, 0, 0, 0, 1, 0, 0, 0, 0]), Err(Sense::cdb_bit(5, 0)));
    assert_eq!(of(&[0x25, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Err(Sense::cdb_bit(8, 0)), "PMI is obsolete");
    let capacity = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    assert_eq!(of(&capacity), query(Query::Capacity16, 32));
    for select in 0..=2 {
        let luns = [0xa0, 0, select, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(of(&luns), query(Query::ReportLuns { select }, 1 << 16));
    }
    assert_eq!(of(&[0xa0, 0, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0]), Err(Sense::cdb(2)));
    let ports = |one| [0xa3, one, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    assert_eq!(of(&ports(0x0a)), query(Query::PortGroups { extended: false }, 64));
    assert_eq!(of(&ports(0x2a)), query(Query::PortGroups { extended: true }, 64));
    assert_eq!(of(&ports(0x4a)), Err(Sense::cdb_bit(1, 7)));
    let tmfs = |two, allocation| [0xa3, 0x0d, two, 0, 0, 0, 0, 0, 0, allocation, 0, 0];
    assert_eq!(of(&tmfs(0, 4)), query(Query::TaskManagement { extended: false }, 4));
    assert_eq!(of(&tmfs(0x80, 16)), query(Query::TaskManagement { extended: true }, 16));
    assert_eq!(of(&tmfs(0, 3)), Err(Sense::cdb(6)));
    let log = LogPage { page: 0x0c, subpage: 0, first: 0x102 };
    assert_eq!(of(&[0x4d, 0, 0x4c, 0, 0, 1, 2, 2, 0, 0]), query(Query::LogSense(log), 512));
    assert_eq!(of(&[0x4d, 1, 0x4c, 0, 0, 0, 0, 2, 0, 0]), Err(Sense::cdb_bit(1, 0)), "SP");
}

#[test]
fn operations_are_asked_for_in_four_ways() {
    let cdb = |two| [0xa3, 0x0c, two, 0x9e, 0, 0x10, 0, 0, 2, 0, 0, 0];
    let expected =
        |which, timeouts| Ok(Command::Query { query: Query::Operations { which, timeouts }, allocation: 512 });
    assert_eq!(of(&cdb(0)), expected(Operations::All, false));
    assert_eq!(of(&cdb(0x81)), expected(Operations::Code(0x9e), true));
    assert_eq!(of(&cdb(2)), expected(Operations::Action(0x9e, 0x10), false));
    assert_eq!(of(&cdb(3)), expected(Operations::Either(0x9e, 0x10), false));
    assert_eq!(of(&cdb(4)), Err(Sense::cdb_bit(2, 2)));
}

#[test]
fn modes_are_sensed_and_selected() {
    let pages = ModePages {
        long: false,
        descriptor: true,
        long_lba: false,
        control: PageControl::Current,
        page: 0x3f,
        subpage: 0,
    };
    let sense = |pages, allocation| Ok(Command::Query { query: Query::ModeSense(pages), allocation });
    assert_eq!(of(&[0x1a, 0, 0x3f, 0, 192, 0]), sense(pages, 192));
    let changeable = ModePages { descriptor: false, control: PageControl::Changeable, page: 8, ..pages };
    assert_eq!(of(&[0x1a, 8, 0x48, 0, 192, 0]), sense(changeable, 192));
    assert_eq!(of(&[0x1a, 8, 0xc8, 0, 192, 0]), Err(Sense::SAVING_NOT_SUPPORTED));
    let long = ModePages { long: true, long_lba: true, control: PageControl::Default, subpage: 0xff, ..pages };
    assert_eq!(of(&[0x5a, 0x10, 0xbf, 0xff, 0, 0, 0, 2, 0, 0]), sense(long, 512));
    assert_eq!(of(&[0x15, 0x10, 0, 0, 24, 0]), Ok(Command::ModeSelect { list_bytes: 24, long: false }));
    assert_eq!(of(&[0x55, 0x10, 0, 0, 0, 0, 0, 1, 0, 0]), Ok(Command::ModeSelect { list_bytes: 256, long: true }));
    assert_eq!(of(&[0x15, 0, 0, 0, 24, 0]), Err(Sense::cdb_bit(1, 4)), "PF");
    assert_eq!(of(&[0x15, 0x11, 0, 0, 24, 0]), Err(Sense::cdb_bit(1, 0)), "SP");
}

#[test]
fn units_start_and_stop() {
    let command = |start, flush, immediate| Ok(Command::StartStop { start, flush, immediate });
    assert_eq!(of(&[0x1b, 0, 0, 0, 1, 0]), command(true, true, false));
    assert_eq!(of(&[0x1b, 1, 0, 0, 0, 0]), command(false, true, true));
    assert_eq!(of(&[0x1b, 0, 0, 0, 4, 0]), command(false, false, false));
    assert_eq!(of(&[0x1b, 0, 0, 0, 2, 0]), Err(Sense::cdb_bit(4, 1)), "LOEJ");
    assert_eq!(of(&[0x1b, 0, 0, 0, 0x31, 0]), Err(Sense::cdb_bit(4, 5)), "POWER CONDITION");

    let mut stopped = unit();
    stopped.set_stopped(true);
    for cdb in [&[0; 6][..], &blocks(0x28, 0, 0, 1), &blocks(0x91, 0, 0, 0), &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]] {
        assert_eq!(on(&stopped, cdb), Err(Sense::STOPPED));
    }
    for cdb in [&[0x12, 0, 0, 0, 36, 0][..], &[0x1b, 0, 0, 0, 1, 0], &[0x1a, 0, 8, 0, 255, 0], &[0x25; 1]] {
        assert!(on(&stopped, cdb).is_ok());
    }
}

#[test]
fn reservations_have_their_actions() {
    let into = |one| [0x5e, one, 0, 0, 0, 0, 0, 1, 2, 0];
    let actions = [ReserveIn::Keys, ReserveIn::Reservation, ReserveIn::Capabilities, ReserveIn::FullStatus];
    for (one, action) in (0..).zip(actions) {
        assert_eq!(of(&into(one)), Ok(Command::ReserveIn { action, allocation: 0x102 }));
    }
    assert_eq!(of(&into(4)), Err(Sense::cdb_bit(1, 4)));
    let out = |one, bytes: u32| [&[0x5f, one, 0x03, 0, 0][..], &bytes.to_be_bytes(), &[0]].concat();
    let actions = [
        Action::Register,
        Action::Reserve,
        Action::Release,
        Action::Clear,
        Action::Preempt,
        Action::PreemptAndAbort,
        Action::RegisterAndIgnore,
        Action::RegisterAndMove,
    ];
    for (one, action) in (0..).zip(actions) {
        let Ok(Command::ReserveOut(decoded)) = of(&out(one, 24)) else { panic!("{action:?}") };
        assert_eq!((decoded.action, decoded.list_bytes), (action, 24));
    }
    assert_eq!(of(&out(8, 24)), Err(Sense::cdb_bit(1, 4)));
    assert!(of(&out(0, LIST_BYTES_MAX)).is_ok());
    assert_eq!(of(&out(0, LIST_BYTES_MAX + 1)), Err(Sense::PARAMETER_LIST_LENGTH));
    for (code, command) in [(0x16, Command::Reserve), (0x17, Command::Release)] {
        assert_eq!(of(&[code, 0, 0, 0, 0, 0]), Ok(command));
        assert_eq!(of(&[code, 0x10, 0, 0, 0, 0]), Err(Sense::cdb_bit(1, 4)), "3RDPTY");
        let long = [code + 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(of(&long), Ok(command));
    }
}

#[test]
fn what_is_no_command_is_refused() {
    for code in [0x01, 0x04, 0x07, 0x2b, 0x34, 0x37, 0x3b, 0x3c, 0x7f, 0x83, 0x84, 0x9f, 0xa4, 0xb7, 0xff] {
        assert_eq!(of(&[code; 1]), Err(Sense::INVALID_OPCODE), "{code:x}");
    }
    assert_eq!(of(&[0xa3, 0x0b, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]), Err(Sense::cdb_bit(1, 4)), "no such action");
    assert_eq!(of(&[0x9e, 0x11, 0, 0]), Err(Sense::cdb_bit(1, 4)), "no such action");
    // The CDB's area is shorter than the command.
    let area = &blocks(0x88, 0, 0, 1);
    assert_eq!(decode(&area[..15], Addressed::Disk(&unit())), Err(Sense::INVALID_OPCODE));
    assert_eq!(decode(&[], Addressed::Disk(&unit())), Err(Sense::INVALID_OPCODE));
    assert_eq!(decode(area, Addressed::Disk(&unit())), Ok(read(0, 1, false)));
}

#[test]
fn bits_that_a_command_does_not_have_are_named() {
    assert_eq!(of(&[0, 0, 0, 0, 0, 4]), Err(Sense::cdb_bit(5, 2)), "NACA");
    assert_eq!(of(&[0, 0, 0xff, 0, 1, 0]), Err(Sense::cdb_bit(2, 7)));
    assert_eq!(of(&blocks(0x28, 0x20, 0, 1)), Err(Sense::cdb_bit(1, 5)), "RDPROTECT");
    assert_eq!(of(&blocks(0x2a, 0xe0, 0, 1)), Err(Sense::cdb_bit(1, 7)), "WRPROTECT");
    let mut group = blocks(0x8a, 0, 0, 1);
    group[14] = 0x01;
    assert_eq!(of(&group), Err(Sense::cdb_bit(14, 0)), "GROUP NUMBER");
    // What lies behind the CDB is not looked at.
    let mut area = [0xff; 32];
    area[..10].copy_from_slice(&blocks(0x28, 0, 0, 1));
    assert_eq!(decode(&area, Addressed::Disk(&unit())), Ok(read(0, 1, false)));
}

#[test]
fn where_there_is_no_disk_three_commands_are_known() {
    let inquiry = [0x12, 0, 0, 0, 36, 0];
    let sense = [0x03, 0, 0, 0, 18, 0];
    let luns = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    for addressed in [Addressed::Nothing, Addressed::ReportLuns] {
        for cdb in [&inquiry[..], &sense, &luns] {
            assert!(matches!(decode(cdb, addressed), Ok(Command::Query { .. })));
        }
    }
    let (ready, read) = ([0; 6], blocks(0x28, 0, 0, 0));
    assert_eq!(decode(&ready, Addressed::Nothing), Err(Sense::NO_UNIT));
    assert_eq!(decode(&read, Addressed::Nothing), Err(Sense::NO_UNIT));
    assert_eq!(decode(&[0xff; 16], Addressed::Nothing), Err(Sense::NO_UNIT));
    assert_eq!(decode(&ready, Addressed::ReportLuns), Ok(Command::TestUnitReady));
    assert_eq!(decode(&read, Addressed::ReportLuns), Err(Sense::INVALID_OPCODE));
}

#[test]
fn commands_move_their_data() {
    let unit = unit_with(|s| {
        s.block_bytes = 4096;
        s.capacity_bytes = 1000 * 4096;
    });
    let moves = |cdb: &[u8]| on(&unit, cdb).unwrap().transfer(4096);
    assert_eq!(moves(&[0; 6]), Transfer::None);
    assert_eq!(moves(&blocks(0x28, 0, 0, 3)), Transfer::In(3 * 4096));
    assert_eq!(moves(&blocks(0x2a, 0, 0, 3)), Transfer::Out(3 * 4096));
    assert_eq!(moves(&blocks(0x2e, 0, 0, 3)), Transfer::Out(3 * 4096));
    assert_eq!(moves(&blocks(0x2f, 0, 0, 3)), Transfer::None);
    assert_eq!(moves(&blocks(0x2f, 2, 0, 3)), Transfer::Out(3 * 4096));
    assert_eq!(moves(&blocks(0x2f, 6, 0, 3)), Transfer::Out(4096));
    assert_eq!(moves(&blocks(0x2f, 6, 0, 0)), Transfer::Out(0));
    assert_eq!(moves(&blocks(0x93, 0, 0, 3)), Transfer::Out(4096));
    assert_eq!(moves(&blocks(0x93, 1, 0, 3)), Transfer::None);
    assert_eq!(moves(&blocks(0x35, 0, 0, 3)), Transfer::None);
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0];
    assert_eq!(moves(&compare), Transfer::Out(4 * 4096));
    assert_eq!(moves(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]), Transfer::Out(24));
    assert_eq!(moves(&[0x15, 0x10, 0, 0, 24, 0]), Transfer::Out(24));
    assert_eq!(moves(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0]), Transfer::Out(24));
    assert_eq!(moves(&[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0]), Transfer::In(256));
    assert_eq!(moves(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Transfer::In(8));
    assert_eq!(moves(&[0x12, 0, 0, 0, 36, 0]), Transfer::In(36));
}

/// The tables "commands allowed in the presence of various persistent reservations" of SPC-5 and SBC-4.
#[test]
fn commands_have_their_access() {
    let unit = unit_with(|s| *s = settings());
    let access = |cdb: &[u8]| on(&unit, cdb).unwrap().access();
    let always: [&[u8]; 9] = [
        &[0x12, 0, 0, 0, 36, 0],
        &[0x03, 0, 0, 0, 18, 0],
        &[0xa0; 1],
        &[0x25; 1],
        &[0x9e, 0x10],
        &[0x1b, 0, 0, 0, 1, 0],
        &[0x1e; 1],
        &[0x5e, 0],
        &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0],
    ];
    for cdb in always {
        assert_eq!(access(cdb), Access::Always, "{cdb:x?}");
    }
    for cdb in [&[0; 6][..], &[0x4d; 1], &[0xa3, 0x0a]] {
        assert_eq!(access(cdb), Access::Status, "{cdb:x?}");
    }
    let reads: [&[u8]; 8] = [
        &blocks(0x08, 0, 0, 1),
        &blocks(0x28, 0, 0, 1),
        &blocks(0x2f, 0, 0, 1),
        &[0x9e, 0x12],
        &[0x1a, 0, 8, 0, 255, 0],
        &[0x5a, 0, 8, 0, 0, 0, 0, 0, 255, 0],
        &[0xa3, 0x0c],
        &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4],
    ];
    for cdb in reads {
        assert_eq!(access(cdb), Access::Read, "{cdb:x?}");
    }
    let writes: [&[u8]; 9] = [
        &blocks(0x0a, 0, 0, 1),
        &blocks(0x2a, 0, 0, 1),
        &blocks(0x2e, 0, 0, 1),
        &blocks(0x35, 0, 0, 1),
        &blocks(0x93, 0, 0, 1),
        &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
        &[0x89; 1],
        &[0x1b; 1],
        &[0x1e, 0, 0, 0, 1, 0],
    ];
    for cdb in writes {
        assert_eq!(access(cdb), Access::Write, "{cdb:x?}");
    }
    assert_eq!(access(&[0x15, 0x10, 0, 0, 24, 0]), Access::Write);
}
