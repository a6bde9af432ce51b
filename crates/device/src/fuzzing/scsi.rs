//! Any bytes as what a SCSI driver sends.

use crate::scsi::reservations::{LIST_BYTES_MAX, Refused, Reservations, ReserveIn};
use crate::scsi::{
    Addressed, Command, Compare, Config, Counting, Extent, Facts, Identity, InitiatorPort, Inventory, Limits, Lun, Naa,
    Nexus, Ports, Request, Response, ResponseBytes, Rotation, Sense, Settings, Sizes, TargetPort, Transfer, Unit,
    UnitSettings, UnmapLimits, Unmaps, Usage, answer, decode, decode_control, decode_request, lba_status_out,
    select_mode,
};

/// Bytes before a chain's own: flags, sizes, lengths, blocks.
const FIXED_BYTES: usize = 12;

/// Cuts a chain made of any bytes apart, decodes its CDB, answers it as far as no storage is needed, and checks that what is
/// accepted lies inside the unit and what is answered inside its allocation.
///
/// Layout of `data`: flags (1), sense and CDB size (1 each), readable bytes of data (2, little-endian), writable bytes of data (2),
/// blocks (2), bounds (2), an offset into the configuration (1), the chain's readable bytes (rest). Flags: bit 0 read-only, bit 1
/// no UNMAP, bit 2 no WRITE SAME, bit 3 no COMPARE AND WRITE, bit 4 blocks of 4096 bytes, bit 5 stopped, bit 6 nothing behind the
/// address instead of a disk (with bit 5: the well known logical unit), bit 7 data is as long as the CDB wants it.
pub fn scsi_request(data: &[u8]) {
    let Some((fixed, chain)) = data.split_first_chunk::<FIXED_BYTES>() else {
        return;
    };
    let word = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
    let bit = |bit: u8| fixed[0] >> bit & 1 != 0;
    let Ok(sizes) = Sizes::new(u32::from(fixed[1]), u32::from(fixed[2])) else {
        return;
    };
    configuration(u32::from(fixed[11]), chain);
    let _ = decode_control(chain, u64::from(fixed[1]));
    let head = chain.get(..sizes.head_bytes()).unwrap_or(chain);
    let readable = sizes.head_bytes() as u64 + u64::from(word(3));
    let writable = sizes.response_bytes() as u64 + u64::from(word(5));
    let Ok(request) = decode_request(head, readable, writable, sizes) else {
        return;
    };
    if let Ok(address) = request.address {
        assert_eq!(crate::scsi::Address::decode(&address.bytes()), Ok(address));
    }
    let mut unit = unit(&bit, word(7), word(9));
    unit.set_stopped(bit(5));
    let addressed = match (bit(6), bit(5)) {
        (false, _) => Addressed::Disk(&unit),
        (true, false) => Addressed::Nothing,
        (true, true) => Addressed::ReportLuns,
    };
    let list = chain.get(sizes.head_bytes()..).unwrap_or_default();
    match decode(request.cdb, addressed) {
        Ok(command) => assert_command(&command, &request, addressed, list, bit(7)),
        Err(sense) => assert_refused(&request, sense, sizes),
    }
}

fn configuration(offset: u32, bytes: &[u8]) {
    let Ok(mut config) = Config::new(Settings::default()) else {
        return;
    };
    let mut out = [0; 64];
    let _ = config.read(offset * 4, &mut out);
    let _ = config.write(offset, bytes.get(..8).unwrap_or(bytes));
    assert!(config.sizes().head_bytes() <= crate::scsi::HEAD_BYTES_MAX);
}

fn unit(bit: &impl Fn(u8) -> bool, blocks: u16, bounds: u16) -> Unit {
    let block_bytes = if bit(4) { 4096 } else { 512 };
    let [low, high] = bounds.to_le_bytes();
    let unmap = UnmapLimits {
        blocks_max: u32::from(high) + 1,
        descriptors_max: u32::from(low).max(1),
        granularity_blocks: 1,
        zeroes: low & 1 != 0,
    };
    Unit::new(UnitSettings {
        capacity_bytes: u64::from(blocks) * u64::from(block_bytes),
        block_bytes,
        read_only: bit(0),
        rotation: Rotation::Still,
        limits: Limits {
            transfer_blocks_max: u32::from(low),
            write_same_blocks_max: if bit(2) { 0 } else { u32::from(bounds) },
            compare_and_write_blocks_max: if bit(3) { 0 } else { high },
            unmap: (!bit(1)).then_some(unmap),
        },
        counting: (!bit(1)).then_some(Counting { threshold_bytes: u64::from(bounds) << 20 }),
        ..UnitSettings::default()
    })
    .expect("settings in range")
}

/// A refusal has sense data that a driver can be shown.
fn assert_refused(request: &Request<'_>, sense: Sense, sizes: Sizes) {
    assert!(sense.key != 0 && sense.code != 0);
    let response = Response::check(&request.buffers, sense, 0);
    let mut bytes = ResponseBytes::default();
    for descriptor in [false, true] {
        let bytes = response.encode(sizes, descriptor, &mut bytes);
        assert_eq!(bytes.len(), sizes.response_bytes());
        assert!(bytes[0] <= sizes.sense_bytes().min(252) as u8);
    }
}

fn assert_command(
    command: &Command,
    request: &Request<'_>,
    addressed: Addressed<'_>,
    list: &[u8],
    as_long_as_wanted: bool,
) {
    let (transfer, disk) = match addressed {
        Addressed::Disk(unit) => (command.transfer(unit.block_bytes()), Some(unit)),
        Addressed::Nothing | Addressed::ReportLuns => (command.transfer(512), None),
    };
    let admitted = request.buffers.admit(transfer, true).is_ok();
    match transfer {
        Transfer::None => assert!(admitted),
        Transfer::Out(bytes) => assert_eq!(admitted, bytes <= request.buffers.out_bytes),
        Transfer::In(bytes) => assert_eq!(admitted, bytes <= request.buffers.in_bytes),
    }
    if admitted || as_long_as_wanted {
        if let Some(unit) = disk {
            assert_inside(command, unit);
            assert_list(command, unit, list);
        }
        assert_answer(command, addressed);
    }
}

fn assert_inside(command: &Command, unit: &Unit) {
    let block = u64::from(unit.block_bytes());
    let limits = unit.limits();
    let inside = |offset: u64, len: u64, blocks_max: u64| {
        assert!(offset.is_multiple_of(block) && len.is_multiple_of(block) && len / block <= blocks_max);
        let end = offset.checked_add(len).expect("no overflow");
        assert!(end <= unit.settings().capacity_bytes);
    };
    let most = match limits.transfer_blocks_max {
        0 => u64::MAX,
        max => u64::from(max),
    };
    let writes = |is: bool| assert!(!is || !unit.settings().read_only);
    match *command {
        Command::Read { offset, len, .. } => inside(offset, len, most),
        Command::Verify { offset, len, compare } => {
            inside(offset, len, most);
            assert!(compare != Compare::Block || command.transfer(unit.block_bytes()) != Transfer::None);
        }
        Command::Write { offset, len, .. } | Command::WriteAndVerify { offset, len, .. } => {
            writes(true);
            inside(offset, len, most);
        }
        Command::CompareAndWrite { offset, len, .. } => {
            writes(true);
            inside(offset, len, u64::from(limits.compare_and_write_blocks_max));
        }
        Command::WriteSame { offset, len, unmap, .. } => {
            writes(true);
            assert!(len > 0 && (!unmap || limits.unmap.is_some()));
            inside(offset, len, u64::from(limits.write_same_blocks_max));
        }
        Command::Flush { offset, len, .. } => inside(offset, len, u64::MAX),
        Command::LbaStatus { offset, .. } => inside(offset, block, 1),
        Command::Unmap { .. } => {
            writes(true);
            assert!(limits.unmap.is_some());
        }
        _ => {}
    }
}

/// Parameter lists of any bytes.
fn assert_list(command: &Command, unit: &Unit, list: &[u8]) {
    match *command {
        Command::Unmap { list_bytes } => {
            let list = list.get(..usize::from(list_bytes)).unwrap_or(list);
            if let (Ok(unmaps), Some(limits)) = (Unmaps::decode(list, list_bytes, unit), unit.limits().unmap) {
                assert!(unmaps.iter().count() <= limits.descriptors_max as usize);
                let mut blocks = 0;
                for range in unmaps.iter() {
                    assert!(range.len > 0 && range.offset + range.len <= unit.settings().capacity_bytes);
                    blocks += range.len / u64::from(unit.block_bytes());
                }
                assert!(blocks <= u64::from(limits.blocks_max));
            }
        }
        Command::ModeSelect { list_bytes, long } => {
            let list = list.get(..usize::from(list_bytes)).unwrap_or(list);
            let _ = select_mode(list, long, unit);
        }
        Command::ReserveOut(out) => {
            assert!(out.list_bytes <= LIST_BYTES_MAX);
            let mut reservations = Reservations::new();
            let _ = reservations.change(&out, list, nexus(0), &[TargetPort(1)]);
            assert_reservations(&reservations);
        }
        _ => {}
    }
}

fn assert_answer(command: &Command, addressed: Addressed<'_>) {
    let mut out = vec![0xaa];
    let allocation = match *command {
        Command::Query { query, allocation } => {
            let disk = matches!(addressed, Addressed::Disk(_));
            let identity = Identity::new("fuzz", "", "1", Naa::local(1)).ok().filter(|_| disk);
            let facts = Facts {
                addressed,
                identity: identity.as_ref(),
                inventory: Inventory::Target(&[Lun::ZERO]),
                ports: Ports { own: TargetPort(1), name: &Naa::local(2), all: &[TargetPort(1)] },
                sense: None,
                usage: Some(Usage { used_bytes: 1, available_bytes: Some(1), shared: true }),
            };
            let answered = answer(query, allocation, &facts, &mut out);
            assert!(answered.is_ok() || out.len() == 1);
            allocation
        }
        Command::LbaStatus { offset, allocation } => {
            let Addressed::Disk(unit) = addressed else { return };
            let extents = [Extent { len: 700, mapped: true }, Extent { len: u64::MAX, mapped: false }];
            lba_status_out(unit, offset, extents, allocation, &mut out);
            allocation
        }
        _ => return,
    };
    assert!(out[0] == 0xaa && out.len() - 1 <= allocation as usize);
}

/// Nexus 0 to 7.
fn nexus(number: u8) -> Nexus {
    Nexus {
        initiator: InitiatorPort(3 << 60 | u64::from(number & 3)),
        port: TargetPort(u16::from(number >> 2 & 1) + 1),
    }
}

/// Plays commands on reservations made of any bytes, and reads reservations of any bytes.
///
/// Layout of `data`: flags (1), then, with bit 0 of the flags, a file of reservations, whose checksum is made right with bit 1; or
/// else commands: nexus (1; bits 3 to 5: 1 RESERVE, 2 RELEASE, 3 a lost nexus, 4 a loss of power, or else PERSISTENT RESERVE OUT),
/// service action (1), scope and type (1), bytes of the parameter list (1), the parameter list.
pub fn scsi_reservations(data: &[u8]) {
    let Some((flags, mut rest)) = data.split_first() else {
        return;
    };
    if flags & 1 != 0 {
        let mut file = rest.to_vec();
        if flags & 2 != 0 {
            crate::scsi::reservations::seal(&mut file);
        }
        if let Ok(reservations) = Reservations::from_bytes(&file) {
            assert_reservations(&reservations);
            assert_reservations(&reservations.after_power_loss());
        }
        return;
    }
    let mut reservations = Reservations::new();
    while let Some(([who, action, kind, list_bytes], behind)) = rest.split_first_chunk() {
        let (list, behind) = behind.split_at_checked(usize::from(*list_bytes)).unwrap_or((behind, &[]));
        rest = behind;
        let nexus = nexus(*who);
        match who >> 3 & 7 {
            1 => assert!(reservations.reserve(nexus) != Ok(()) || reservations.gate(nexus).byte() == 3),
            2 => drop(reservations.release(nexus)),
            3 => reservations.nexus_lost(nexus),
            4 => reservations = reservations.after_power_loss(),
            _ => reserve_out(&mut reservations, nexus, *action, *kind, list),
        }
        assert_reservations(&reservations);
    }
}

fn reserve_out(reservations: &mut Reservations, nexus: Nexus, action: u8, kind: u8, list: &[u8]) {
    let [a, b, c, d] = (list.len() as u32).to_be_bytes();
    let cdb = [0x5f, action & 0x1f, kind, 0, 0, a, b, c, d, 0];
    let unit = Unit::new(UnitSettings::default()).expect("settings in range");
    let Ok(Command::ReserveOut(out)) = decode(&cdb, Addressed::Disk(&unit)) else {
        return;
    };
    let before = reservations.clone();
    match reservations.change(&out, list, nexus, &[TargetPort(1), TargetPort(2)]) {
        Ok(change) => assert!(change.attentions.iter().all(|(told, _)| *told != nexus)),
        Err(Refused::Conflict | Refused::Check(_)) => assert_eq!(*reservations, before),
    }
}

fn assert_reservations(reservations: &Reservations) {
    let registered: Vec<Nexus> = reservations.registrations().map(|(nexus, _)| nexus).collect();
    assert!(registered.len() <= crate::scsi::reservations::REGISTRATIONS_MAX);
    assert!(reservations.reserved().is_none() || registered.is_empty());
    if let Some(held) = reservations.reservation() {
        assert!(held.holder.map_or(!registered.is_empty(), |holder| registered.contains(&holder)));
        // Somebody can always write.
        assert!(registered.iter().any(|nexus| reservations.gate(*nexus).byte() == 3));
    }
    assert_eq!(Reservations::from_bytes(&reservations.to_bytes()).as_ref(), Ok(reservations));
    let mut out = Vec::new();
    let _ = reservations.read(ReserveIn::FullStatus, 1000, &mut out);
    assert!(out.len() <= 1000);
}
