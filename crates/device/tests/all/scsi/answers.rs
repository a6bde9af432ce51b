//! Answers, byte by byte.

use super::units::{identity, unit, unit_with};
use device::scsi::{
    Addressed, Counting, Facts, Identity, Inventory, LogPage, Lun, Naa, Operations, Ports, Query, Rotation, Sense,
    TargetPort, Unit, Usage, answer,
};

const PORTS: [TargetPort; 2] = [TargetPort(1), TargetPort(0x0203)];
const LUNS: [u16; 3] = [0, 255, 300];

/// What the facts are made of.
struct World {
    unit: Unit,
    identity: Identity,
    port_name: Naa,
    luns: Vec<Lun>,
    ports: Vec<TargetPort>,
    usage: Option<Usage>,
    sense: Option<Sense>,
}

impl World {
    fn new(unit: Unit) -> World {
        World {
            unit,
            identity: identity(),
            port_name: Naa::from_u64(0x3000_0000_0000_0009).unwrap(),
            luns: LUNS.map(|lun| Lun::new(lun).unwrap()).to_vec(),
            ports: PORTS[..1].to_vec(),
            usage: None,
            sense: None,
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            addressed: Addressed::Disk(&self.unit),
            identity: Some(&self.identity),
            inventory: Inventory::Target(&self.luns),
            ports: Ports { own: self.ports[self.ports.len() - 1], name: &self.port_name, all: &self.ports },
            sense: self.sense,
            usage: self.usage,
        }
    }

    fn ask(&self, query: Query) -> Result<Vec<u8>, Sense> {
        ask(query, &self.facts())
    }
}

fn ask(query: Query, facts: &Facts<'_>) -> Result<Vec<u8>, Sense> {
    let mut out = b"before".to_vec();
    let result = answer(query, u32::MAX, facts, &mut out);
    assert!(out.starts_with(b"before"));
    result.map(|()| out.split_off(6)).inspect_err(|_| assert_eq!(out, b"before"))
}

fn page(world: &World, page: u8) -> Vec<u8> {
    let bytes = world.ask(Query::Inquiry { page: Some(page) }).unwrap();
    assert_eq!(bytes[..2], [0, page]);
    assert_eq!(usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), bytes.len() - 4);
    bytes[4..].to_vec()
}

#[test]
fn standard_inquiry_data() {
    let mut world = World::new(unit());
    let bytes = world.ask(Query::Inquiry { page: None }).unwrap();
    assert_eq!(bytes[..8], [0, 0, 7, 0x12, 69, 0, 0, 2]);
    assert_eq!(&bytes[8..36], b"VRINGD  volume          0.1 ");
    assert_eq!(bytes[36..58], [0; 22]);
    assert_eq!(bytes[58..64], [0, 0xa0, 5, 0xc0, 6, 0]);
    assert_eq!((bytes.len(), &bytes[64..]), (74, &[0; 10][..]));
    // Several ports: TPGS 01b, MULTIP.
    world.ports = PORTS.to_vec();
    assert_eq!(world.ask(Query::Inquiry { page: None }).unwrap()[4..8], [69, 0x10, 0x10, 2]);
}

#[test]
fn where_there_is_no_disk_inquiry_says_so() {
    let world = World::new(unit());
    let nothing = Facts { addressed: Addressed::Nothing, identity: None, ..world.facts() };
    let bytes = ask(Query::Inquiry { page: None }, &nothing).unwrap();
    assert_eq!((bytes[0], &bytes[8..36]), (0x7f, &b"VRINGD  VIRTIO-SCSI         "[..]));
    assert_eq!(ask(Query::Inquiry { page: Some(0) }, &nothing).unwrap(), [0x7f, 0, 0, 1, 0]);
    assert_eq!(ask(Query::Inquiry { page: Some(0x83) }, &nothing), Err(Sense::cdb(2)));
    let sense = ask(Query::RequestSense { descriptor: false }, &nothing).unwrap();
    assert_eq!(sense, [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0]);

    let well_known = Facts { addressed: Addressed::ReportLuns, ..nothing };
    assert_eq!(ask(Query::Inquiry { page: None }, &well_known).unwrap()[0], 0x1e);
    assert_eq!(ask(Query::Inquiry { page: Some(0) }, &well_known).unwrap(), [0x1e, 0, 0, 2, 0, 0x83]);
    // Designators of the port alone.
    assert_eq!(ask(Query::Inquiry { page: Some(0x83) }, &well_known).unwrap()[4..8], [1, 0x13, 0, 8]);
}

#[test]
fn vital_product_data() {
    let world = World::new(unit());
    assert_eq!(page(&world, 0x00), [0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2]);
    assert_eq!(page(&world, 0x80), b"disk-7");
    for unknown in [0x01, 0x81, 0x86, 0x8f, 0xb3, 0xff] {
        assert_eq!(world.ask(Query::Inquiry { page: Some(unknown) }), Err(Sense::cdb(2)));
    }
}

#[test]
fn identification() {
    let mut world = World::new(unit());
    world.ports = PORTS.to_vec();
    let expected = [
        &[1, 3, 0, 8, 0x31, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef][..], // NAA of the unit
        &[2, 1, 0, 14],
        b"VRINGD  disk-7",                           // T10 vendor of the unit
        &[1, 0x13, 0, 8, 0x30, 0, 0, 0, 0, 0, 0, 9], // NAA of the port
        &[1, 0x14, 0, 4, 0, 0, 2, 3],                // relative port
        &[1, 0x15, 0, 4, 0, 0, 0, 1],                // port group
    ];
    assert_eq!(page(&world, 0x83), expected.concat());
    world.identity = Identity::new("p", "", &"s".repeat(64), Naa::from_u128(6 << 124 | 1).unwrap()).unwrap();
    let long = page(&world, 0x83);
    assert_eq!(long[..5], [1, 3, 0, 16, 0x60]);
    assert_eq!(long[20..24], [2, 1, 0, 72]);
}

#[test]
fn block_limits() {
    let mut expected = vec![
        1, 8, 0, 8, // WSNZ, COMPARE AND WRITE, granularity
        0, 0, 1, 0xf4, 0, 0, 0, 128, 0, 0, 0, 0, // most, best, prefetch
        0, 0, 0, 200, 0, 0, 0, 3, 0, 0, 0, 8, 0x80, 0, 0, 0, // UNMAP
        0, 0, 0, 0, 0, 0, 1, 0x2c, // WRITE SAME
    ];
    expected.resize(60, 0);
    assert_eq!(page(&World::new(unit()), 0xb0), expected);
    let thick = unit_with(|s| {
        s.limits.unmap = None;
        s.physical_block_exp = 0;
    });
    let bytes = page(&World::new(thick), 0xb0);
    assert_eq!((&bytes[2..4], &bytes[16..32]), (&[0, 0][..], &[0; 16][..]));
}

#[test]
fn characteristics() {
    for (rotation, expected) in
        [(Rotation::Unknown, [0, 0]), (Rotation::Still, [0, 1]), (Rotation::PerMinute(7200), [0x1c, 0x20])]
    {
        let bytes = page(&World::new(unit_with(|s| s.rotation = rotation)), 0xb1);
        assert_eq!((bytes.len(), &bytes[..2], &bytes[2..]), (60, &expected[..], &[0; 58][..]));
    }
}

#[test]
fn provisioning() {
    assert_eq!(page(&World::new(unit()), 0xb2), [0, 0xe4, 2, 0]);
    let counted = unit_with(|s| s.counting = Some(Counting::default()));
    assert_eq!(page(&World::new(counted), 0xb2), [11, 0xe4, 2, 0], "sets of 2048 blocks");
    let no_zeroes = unit_with(|s| {
        s.limits.unmap.as_mut().unwrap().zeroes = false;
        s.limits.write_same_blocks_max = 0;
    });
    assert_eq!(page(&World::new(no_zeroes), 0xb2), [0, 0x80, 2, 0]);
    assert_eq!(page(&World::new(unit_with(|s| s.limits.unmap = None)), 0xb2), [0, 0, 0, 0]);
}

#[test]
fn capacities() {
    let ask10 = |unit| World::new(unit).ask(Query::Capacity10);
    let ask16 = |unit| World::new(unit).ask(Query::Capacity16).map(|bytes| (bytes.len(), bytes[..16].to_vec()));
    assert_eq!(ask10(unit()).unwrap(), [0, 0, 3, 0xe7, 0, 0, 2, 0]);
    let expected = vec![0, 0, 0, 0, 0, 0, 3, 0xe7, 0, 0, 2, 0, 0, 3, 0xc0, 0];
    assert_eq!(ask16(unit()), Ok((32, expected)));
    let thick = unit_with(|s| s.limits.unmap = None);
    assert_eq!(ask16(thick).unwrap().1[12..], [0, 3, 0, 0]);
    // 2^32 blocks: the last one is all the field can say, and so is every one behind it.
    for blocks in [1_u64 << 32, (1 << 32) + 1, 1 << 40] {
        let large = unit_with(|s| s.capacity_bytes = blocks * 512);
        assert_eq!(ask10(large).unwrap()[..4], [0xff; 4]);
        assert_eq!(ask16(large).unwrap().1[..8], (blocks - 1).to_be_bytes());
    }
    let empty = unit_with(|s| s.capacity_bytes = 0);
    assert_eq!((ask10(empty), ask16(empty).map(|_| ())), (Err(Sense::NO_BLOCKS), Err(Sense::NO_BLOCKS)));
}

#[test]
fn logical_units_are_listed() {
    let world = World::new(unit());
    let ask = |select| world.ask(Query::ReportLuns { select }).unwrap();
    let luns = [[0, 0, 0, 0, 0, 0, 0, 0], [0, 255, 0, 0, 0, 0, 0, 0], [0x41, 0x2c, 0, 0, 0, 0, 0, 0]];
    assert_eq!(ask(0), [&[0, 0, 0, 24, 0, 0, 0, 0], &luns.concat()[..]].concat());
    assert_eq!(ask(1), [0, 0, 0, 8, 0, 0, 0, 0, 0xc1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ask(2)[..16], [0, 0, 0, 32, 0, 0, 0, 0, 0xc1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ask(2)[16..], luns.concat());
    let units = [(3, Lun::ZERO), (7, Lun::new(300).unwrap())];
    let device = Facts { inventory: Inventory::Device(&units), ..world.facts() };
    let listed = self::ask(Query::ReportLuns { select: 0 }, &device).unwrap();
    assert_eq!(listed, [0, 0, 0, 16, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 1, 7, 0x41, 0x2c, 0, 0, 0, 0]);
}

#[test]
fn sense_is_what_is_pending() {
    let mut world = World::new(unit());
    let ask = |world: &World, descriptor| world.ask(Query::RequestSense { descriptor }).unwrap();
    assert_eq!(ask(&world, false), [0x70, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ask(&world, true), [0x72, 0, 0, 0, 0, 0, 0, 0]);
    world.sense = Some(device::scsi::Attention::CapacityChanged.sense());
    assert_eq!(ask(&world, true), [0x72, 6, 0x2a, 9, 0, 0, 0, 0]);
}

#[test]
fn answers_end_at_their_allocation() {
    let world = World::new(unit());
    for query in [Query::Inquiry { page: None }, Query::Inquiry { page: Some(0x83) }, Query::ReportLuns { select: 2 }] {
        let whole = world.ask(query).unwrap();
        for allocation in 0..whole.len() + 2 {
            let mut out = vec![9];
            answer(query, allocation as u32, &world.facts(), &mut out).unwrap();
            assert_eq!(out[1..], whole[..allocation.min(whole.len())]);
        }
    }
}

#[test]
fn port_groups() {
    let mut world = World::new(unit());
    world.ports = PORTS.to_vec();
    let group = [0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 2, 3];
    let ask = |extended| world.ask(Query::PortGroups { extended }).unwrap();
    assert_eq!(ask(false), [&[0, 0, 0, 16], &group[..]].concat());
    assert_eq!(ask(true), [&[0, 0, 0, 20, 0x10, 0, 0, 0], &group[..]].concat());
}

#[test]
fn task_management_functions() {
    let world = World::new(unit());
    let ask = |extended| world.ask(Query::TaskManagement { extended }).unwrap();
    assert_eq!(ask(false), [0xdc, 3, 0, 0]);
    assert_eq!(ask(true), [&[0xdc, 3, 0, 12][..], &[0; 12]].concat());
}

#[test]
fn log_pages() {
    let mut world = World::new(unit());
    let ask = |world: &World, page, subpage, first| world.ask(Query::LogSense(LogPage { page, subpage, first }));
    assert_eq!(ask(&world, 0, 0, 0).unwrap(), [0, 0, 0, 1, 0]);
    assert_eq!(ask(&world, 0, 0xff, 0).unwrap(), [0x40, 0xff, 0, 4, 0, 0, 0, 0xff]);
    assert_eq!(ask(&world, 0x0c, 0, 0), Err(Sense::cdb_bit(2, 5)));
    assert_eq!(ask(&world, 0x0d, 0, 0), Err(Sense::cdb_bit(2, 5)));
    assert_eq!(ask(&world, 0, 1, 0), Err(Sense::cdb(3)));
    assert_eq!(ask(&world, 0, 0, 1), Err(Sense::cdb(5)));

    world.unit = unit_with(|s| s.counting = Some(Counting::default()));
    world.usage = Some(Usage { used_bytes: (5 << 20) + 1, available_bytes: Some((9 << 20) + 1), shared: true });
    assert_eq!(ask(&world, 0, 0, 0).unwrap(), [0, 0, 0, 2, 0, 0x0c]);
    assert_eq!(ask(&world, 0, 0xff, 0).unwrap(), [0x40, 0xff, 0, 6, 0, 0, 0, 0xff, 0x0c, 0]);
    let (free, used) = ([0, 1, 3, 8, 0, 0, 0, 9, 2, 0, 0, 0], [0, 2, 3, 8, 0, 0, 0, 6, 1, 0, 0, 0]);
    assert_eq!(ask(&world, 0x0c, 0, 0).unwrap(), [&[0x0c, 0, 0, 24], &free[..], &used].concat());
    assert_eq!(ask(&world, 0x0c, 0, 2).unwrap(), [&[0x0c, 0, 0, 12], &used[..]].concat());
    assert_eq!(ask(&world, 0x0c, 0, 3), Err(Sense::cdb(5)));
    assert_eq!(ask(&world, 0x0c, 1, 0), Err(Sense::cdb(3)));
    world.usage = Some(Usage { used_bytes: u64::MAX, available_bytes: None, shared: false });
    assert_eq!(ask(&world, 0x0c, 0, 0).unwrap()[8..12], [0xff; 4], "more than the field has");
}

#[test]
fn one_operation() {
    let world = World::new(unit());
    let ask = |which, timeouts| world.ask(Query::Operations { which, timeouts });
    let read = [0, 3, 0, 10, 0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];
    assert_eq!(ask(Operations::Code(0x28), false).unwrap(), read);
    assert_eq!(ask(Operations::Either(0x28, 0), false).unwrap(), read);
    assert_eq!(ask(Operations::Either(0x28, 1), false).unwrap(), [0, 1, 0, 0]);
    let timed = ask(Operations::Code(0x28), true).unwrap();
    assert_eq!((&timed[..4], &timed[4..14]), (&[0, 0x83, 0, 10][..], &read[4..]));
    assert_eq!(timed[14..], [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // The service action stands in the usage data.
    let ports = [0, 3, 0, 12, 0xa3, 0xea, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
    assert_eq!(ask(Operations::Action(0xa3, 0x0a), false).unwrap(), ports);
    assert_eq!(ask(Operations::Either(0xa3, 0x0a), false).unwrap(), ports);
    assert_eq!(ask(Operations::Action(0xa3, 0x0b), false).unwrap(), [0, 1, 0, 0]);
    assert_eq!(ask(Operations::Either(0xa3, 0x10a), false).unwrap(), [0, 1, 0, 0]);
    assert_eq!(ask(Operations::Code(0xa3), false), Err(Sense::cdb_bit(2, 2)));
    assert_eq!(ask(Operations::Action(0x28, 0), false), Err(Sense::cdb_bit(2, 2)));
    for unknown in [Operations::Code(0x04), Operations::Action(0x04, 0), Operations::Either(0x04, 0)] {
        assert_eq!(ask(unknown, false).unwrap(), [0, 1, 0, 0]);
    }
    // What a unit does not offer it does not have.
    let thick = World::new(unit_with(|s| s.limits.unmap = None));
    let unmap = Query::Operations { which: Operations::Code(0x42), timeouts: false };
    assert_eq!(thick.ask(unmap).unwrap(), [0, 1, 0, 0]);
}

#[test]
fn all_operations() {
    let world = World::new(unit());
    let ask = |timeouts| world.ask(Query::Operations { which: Operations::All, timeouts }).unwrap();
    let all = ask(false);
    assert_eq!(all[..4], (all.len() as u32 - 4).to_be_bytes());
    let rows: Vec<_> = all[4..].chunks(8).collect();
    assert_eq!(rows[0], [0, 0, 0, 0, 0, 0, 0, 6]);
    assert!(rows.contains(&&[0x28, 0, 0, 0, 0, 0, 0, 10][..]));
    assert!(rows.contains(&&[0x9e, 0, 0, 0x12, 0, 1, 0, 16][..]));
    assert!(rows.is_sorted());
    let timed = ask(true);
    assert_eq!(timed.len() - 4, rows.len() * 20);
    assert_eq!(timed[4..24], [0, 0, 0, 0, 0, 2, 0, 6, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}
