//! MODE SENSE and MODE SELECT.

use super::units::{unit, unit_with};
use device::scsi::{
    Addressed, Command, Counting, Facts, Inventory, Mode, Naa, Ports, Sense, TargetPort, Unit, answer, decode,
    select_mode,
};
use proptest::prelude::*;

fn ask(unit: &Unit, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    let Command::Query { query, allocation } = decode(cdb, Addressed::Disk(unit))? else { panic!("no query") };
    let facts = Facts {
        addressed: Addressed::Disk(unit),
        identity: None,
        inventory: Inventory::Target(&[]),
        ports: Ports { own: TargetPort(1), name: &Naa::local(1), all: &[] },
        sense: None,
        usage: None,
    };
    let mut out = Vec::new();
    answer(query, allocation, &facts, &mut out).map(|()| out)
}

const CACHING: [u8; 20] = [8, 18, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CONTROL: [u8; 12] = [0x0a, 10, 0x22, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];
const RECOVERY: [u8; 12] = [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const EXCEPTIONS: [u8; 12] = [0x1c, 10, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const SHORT: [u8; 8] = [0, 0, 3, 0xe8, 0, 0, 2, 0];
const LONG: [u8; 16] = [0, 0, 0, 0, 0, 0, 3, 0xe8, 0, 0, 0, 0, 0, 0, 2, 0];

#[test]
fn pages_are_sensed() {
    let all = [&RECOVERY[..], &CACHING, &CONTROL, &EXCEPTIONS].concat();
    let expected = [&[67, 0, 0x10, 8][..], &SHORT, &all].concat();
    assert_eq!(ask(&unit(), &[0x1a, 0, 0x3f, 0, 255, 0]).unwrap(), expected);
    assert_eq!(ask(&unit(), &[0x1a, 0, 0x3f, 0xff, 255, 0]).unwrap(), expected);
    let caching = [&[23, 0, 0x10, 0][..], &CACHING].concat();
    assert_eq!(ask(&unit(), &[0x1a, 8, 8, 0, 255, 0]).unwrap(), caching);
    assert_eq!(ask(&unit(), &[0x1a, 8, 8, 0, 10, 0]).unwrap(), caching[..10]);
    let long = [&[0, 34, 0, 0x10, 1, 0, 0, 16][..], &LONG, &CONTROL].concat();
    assert_eq!(ask(&unit(), &[0x5a, 0x10, 0x0a, 0, 0, 0, 0, 0, 255, 0]).unwrap(), long);
    let short = [&[0, 26, 0, 0x10, 0, 0, 0, 8][..], &SHORT, &CONTROL].concat();
    assert_eq!(ask(&unit(), &[0x5a, 0, 0x0a, 0, 0, 0, 0, 0, 255, 0]).unwrap(), short);
}

#[test]
fn pages_that_are_not_there_are_refused() {
    assert_eq!(ask(&unit(), &[0x1a, 0, 0x02, 0, 255, 0]), Err(Sense::cdb_bit(2, 5)));
    assert_eq!(ask(&unit(), &[0x1a, 0, 0x00, 0, 255, 0]), Err(Sense::cdb_bit(2, 5)));
    assert_eq!(ask(&unit(), &[0x1a, 0, 0x0a, 1, 255, 0]), Err(Sense::cdb(3)));
}

/// SBC-4, "Logical Block Provisioning mode page": with one descriptor of a soft threshold of what is available.
#[test]
fn a_unit_whose_space_is_counted_has_a_threshold() {
    let with = |threshold_bytes| unit_with(|s| s.counting = Some(Counting { threshold_bytes }));
    let page = |enabled: u8, sets: u8| {
        let threshold = [enabled, 1, 0, 0, 0, 0, 0, sets];
        [&[0x5c, 2, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &threshold].concat()
    };
    let ask_page = |unit: &Unit, cdb: &[u8]| ask(unit, cdb).map(|bytes| bytes[4..].to_vec());
    let unit = with((7 << 20) + 1);
    assert_eq!(ask_page(&unit, &[0x1a, 8, 0x1c, 2, 255, 0]).unwrap(), page(0x80, 8));
    assert_eq!(ask_page(&unit, &[0x1a, 8, 0x1c, 0, 255, 0]).unwrap(), EXCEPTIONS);
    assert_eq!(ask_page(&unit, &[0x1a, 8, 0x1c, 0xff, 255, 0]).unwrap(), [&EXCEPTIONS[..], &page(0x80, 8)].concat());
    assert_eq!(ask_page(&with(0), &[0x1a, 8, 0x1c, 2, 255, 0]).unwrap(), page(0, 0));
    // LBPERE says whether any is told.
    let recovery = |unit: &Unit| ask_page(unit, &[0x1a, 8, 1, 0, 255, 0]).unwrap()[7];
    assert_eq!((recovery(&unit), recovery(&with(0))), (0x80, 0));
    let nothing = ask_page(&unit, &[0x1a, 8, 0x5c, 2, 255, 0]).unwrap();
    assert_eq!(nothing, [&[0x5c, 2, 0, 20][..], &[0; 20]].concat(), "nothing of it can be changed");
    assert_eq!(ask(&unit, &[0x1a, 8, 0x3f, 2, 255, 0]), Err(Sense::cdb(3)));
    assert_eq!(ask(&super::units::unit(), &[0x1a, 8, 0x1c, 2, 255, 0]), Err(Sense::cdb(3)));

    let select = |unit: &Unit, page: &[u8]| select_mode(&[&[0; 4][..], page].concat(), false, unit).map(drop);
    assert_eq!(select(&unit, &page(0x80, 8)), Ok(()));
    assert_eq!(select(&unit, &page(0x80, 9)), Err(Sense::list_bit(4 + 23, 0)));
    assert_eq!(select(&unit, &page(0, 8)), Err(Sense::list_bit(4 + 16, 7)));
    let changed = |at: usize, byte: u8| {
        let mut page = page(0x80, 8);
        page[at] = byte;
        page
    };
    assert_eq!(select(&unit, &changed(1, 3)), Err(Sense::list(5)), "no such subpage");
    assert_eq!(select(&unit, &changed(3, 19)), Err(Sense::list(6)), "another length");
    assert_eq!(select(&unit, &page(0x80, 8)[..3]), Err(Sense::PARAMETER_LIST_LENGTH));
    assert_eq!(select(&super::units::unit(), &page(0x80, 8)), Err(Sense::list(4)));
}

#[test]
fn values_are_current_changeable_or_default() {
    let mut unit = unit_with(|s| s.read_only = true);
    unit.set_mode(Mode { write_cache: false, descriptor_sense: true });
    let page = |unit: &Unit, control: u8, page: u8| ask(unit, &[0x1a, 8, control << 6 | page, 0, 255, 0]).unwrap();
    assert_eq!(page(&unit, 0, 8)[..7], [23, 0, 0x90, 0, 8, 18, 0], "write protected, no cache");
    assert_eq!(page(&unit, 1, 8)[4..7], [8, 18, 4]);
    assert_eq!(page(&unit, 2, 8)[4..7], [8, 18, 4]);
    assert_eq!(page(&unit, 0, 10)[4..10], [10, 10, 0x26, 0x10, 0, 0x40]);
    assert_eq!(page(&unit, 1, 10)[4..10], [10, 10, 4, 0, 0, 0]);
    assert_eq!(page(&unit, 2, 10)[4..10], [10, 10, 0x22, 0x10, 0, 0x40]);
    let fixed = unit_with(|s| s.write_cache_changeable = false);
    assert_eq!(page(&fixed, 1, 8)[4..7], [8, 18, 0]);
}

#[test]
fn more_blocks_than_a_short_descriptor_has() {
    let large = unit_with(|s| s.capacity_bytes = 512 << 33);
    assert_eq!(ask(&large, &[0x1a, 0, 8, 0, 255, 0]).unwrap()[4..12], [255, 255, 255, 255, 0, 0, 2, 0]);
    let long = ask(&large, &[0x5a, 0x10, 8, 0, 0, 0, 0, 0, 255, 0]).unwrap();
    assert_eq!(long[8..16], [0, 0, 0, 2, 0, 0, 0, 0]);
}

fn caching(write_cache: bool) -> [u8; 20] {
    let mut page = CACHING;
    page[2] = if write_cache { 4 } else { 0 };
    page
}

fn control(descriptor_sense: bool) -> [u8; 12] {
    let mut page = CONTROL;
    page[2] |= if descriptor_sense { 4 } else { 0 };
    page
}

#[test]
fn modes_are_selected() {
    let mode = |write_cache, descriptor_sense| Ok(Mode { write_cache, descriptor_sense });
    let select = |list: &[u8], long| select_mode(list, long, &unit());
    assert_eq!(select(&[&[0; 4][..], &caching(false)].concat(), false), mode(false, false));
    assert_eq!(select(&[&[0; 8][..], &control(true)].concat(), true), mode(true, true));
    let both = [&[0, 0, 0x80, 8][..], &SHORT, &control(true), &caching(false)].concat();
    assert_eq!(select(&both, false), mode(false, true));
    let long = [&[0, 0, 0, 0, 1, 0, 0, 16][..], &LONG, &caching(false)].concat();
    assert_eq!(select(&long, true), mode(false, false));
    // What is as it was is no change.
    for page in [&RECOVERY[..], &CACHING, &CONTROL, &EXCEPTIONS, &[]] {
        assert_eq!(select(&[&[0; 4][..], page].concat(), false), mode(true, false));
    }
    assert_eq!(select(&[], false), mode(true, false));
    // All of what MODE SENSE says, without its length.
    let mut sensed = ask(&unit(), &[0x1a, 0, 0x3f, 0, 255, 0]).unwrap();
    sensed[0] = 0;
    assert_eq!(select(&sensed, false), mode(true, false));
}

#[test]
fn blocks_may_be_left_out_of_a_descriptor() {
    for blocks in [[0; 4], [0xff; 4], [0, 0, 3, 0xe8]] {
        let list = [&[0, 0, 0, 8][..], &blocks, &[0, 0, 2, 0], &caching(false)].concat();
        assert!(select_mode(&list, false, &unit()).is_ok());
    }
    let list = |blocks: [u8; 4], size: [u8; 4]| [&[0, 0, 0, 8][..], &blocks, &size].concat();
    assert_eq!(select_mode(&list([0, 0, 0, 1], [0, 0, 2, 0]), false, &unit()), Err(Sense::list(4)));
    assert_eq!(select_mode(&list([0; 4], [0, 0, 16, 0]), false, &unit()), Err(Sense::list(8)));
    // A descriptor of another length.
    assert_eq!(select_mode(&[0, 0, 0, 4, 0, 0, 0, 0], false, &unit()), Err(Sense::list(3)));
    assert_eq!(select_mode(&[&[0, 0, 0, 0, 1, 0, 0, 8][..], &SHORT].concat(), true, &unit()), Err(Sense::list(7)));
}

#[test]
fn what_cannot_be_changed_is_named() {
    let select = |page: &[u8]| select_mode(&[&[0; 4][..], page].concat(), false, &unit());
    let changed = |page: &[u8], at: usize, byte: u8| {
        let mut page = page.to_vec();
        page[at] = byte;
        page
    };
    assert_eq!(select(&changed(&CACHING, 2, 5)), Err(Sense::list_bit(6, 0)), "RCD");
    assert_eq!(select(&changed(&CACHING, 12, 0x20)), Err(Sense::list_bit(16, 5)), "DRA");
    assert_eq!(select(&changed(&CONTROL, 4, 8)), Err(Sense::list_bit(8, 3)), "SWP");
    assert_eq!(select(&changed(&RECOVERY, 2, 0x80)), Err(Sense::list_bit(6, 7)), "AWRE");
    assert_eq!(select(&changed(&CACHING, 0, 0x88)), Err(Sense::list(4)), "PS");
    assert_eq!(select(&changed(&CACHING, 0, 0x48)), Err(Sense::list(4)), "SPF");
    assert_eq!(select(&changed(&CACHING, 0, 2)), Err(Sense::list(4)), "no such page");
    assert_eq!(select(&changed(&CACHING, 1, 10)), Err(Sense::list(5)), "another length");
    let fixed = unit_with(|s| s.write_cache_changeable = false);
    let list = [&[0; 4][..], &caching(false)].concat();
    assert_eq!(select_mode(&list, false, &fixed), Err(Sense::list_bit(6, 2)));
}

#[test]
fn lists_end_where_something_ends() {
    let list = [&[0, 0, 0, 8][..], &SHORT, &CACHING].concat();
    for len in 1..list.len() {
        let whole = len == 12;
        let result = select_mode(&list[..len], false, &unit());
        assert_eq!(result.is_ok(), whole, "{len}");
        if !whole {
            assert_eq!(result, Err(Sense::PARAMETER_LIST_LENGTH), "{len}");
        }
    }
    for (at, long, bytes) in [(0, false, 4), (1, false, 4), (0, true, 8), (1, true, 8), (2, true, 8), (4, true, 8)] {
        let mut header = vec![0; bytes];
        header[at as usize] = 2;
        assert_eq!(select_mode(&header, long, &unit()), Err(Sense::list(at)));
    }
}

proptest! {
    #[test]
    fn any_list_is_a_mode_or_refused(list in proptest::collection::vec(any::<u8>(), 0..80), long: bool) {
        let _ = select_mode(&list, long, &unit());
    }

    #[test]
    fn what_was_selected_is_sensed(write_cache: bool, descriptor_sense: bool) {
        let mut unit = unit();
        let list = [&[0; 4][..], &caching(write_cache), &control(descriptor_sense)].concat();
        unit.set_mode(select_mode(&list, false, &unit).unwrap());
        prop_assert_eq!(unit.mode(), Mode { write_cache, descriptor_sense });
        let sensed = ask(&unit, &[0x1a, 8, 0x3f, 0, 255, 0]).unwrap();
        let pages = [&RECOVERY[..], &caching(write_cache), &control(descriptor_sense), &EXCEPTIONS].concat();
        prop_assert_eq!(&sensed[4..], &pages[..]);
    }
}
