//! Each action by itself, and the bytes of PERSISTENT RESERVE IN.

use device::scsi::reservations::{Change, Gate, Kind, REGISTRATIONS_MAX, Refused, Reservations, ReserveIn};
use device::scsi::{Access, Attention, InitiatorPort, Sense};

use super::requests::{Out, clear, nexus, preempt, read, register, release, reserve, transport_id};

/// Two that are registered with the keys 0xa and 0xb.
fn two() -> Reservations {
    let mut all = Reservations::new();
    register(0, 0xa).send(nexus(1, 1), &mut all).unwrap();
    register(0, 0xb).send(nexus(2, 1), &mut all).unwrap();
    all
}

#[test]
fn gates_let_through_what_the_table_does() {
    let accesses = [Access::Always, Access::Status, Access::Read, Access::Write];
    let gates = [Gate::CLOSED, Gate::STATUS, Gate::READS, Gate::EVERYTHING];
    for (index, gate) in gates.into_iter().enumerate() {
        assert_eq!(accesses.map(|access| gate.allows(access)), [0, 1, 2, 3].map(|access| access <= index));
        assert_eq!((gate.byte(), Gate::from_byte(gate.byte())), (index as u8, gate));
    }
    assert_eq!(Gate::from_byte(4), Gate::CLOSED);
    // Of the holder, of another that is registered, of a stranger.
    let cases = [
        (Kind::WriteExclusive, [Gate::EVERYTHING, Gate::READS, Gate::READS]),
        (Kind::ExclusiveAccess, [Gate::EVERYTHING, Gate::STATUS, Gate::STATUS]),
        (Kind::WriteExclusiveRegistrantsOnly, [Gate::EVERYTHING, Gate::EVERYTHING, Gate::READS]),
        (Kind::ExclusiveAccessRegistrantsOnly, [Gate::EVERYTHING, Gate::EVERYTHING, Gate::STATUS]),
        (Kind::WriteExclusiveAllRegistrants, [Gate::EVERYTHING, Gate::EVERYTHING, Gate::READS]),
        (Kind::ExclusiveAccessAllRegistrants, [Gate::EVERYTHING, Gate::EVERYTHING, Gate::STATUS]),
    ];
    for (kind, expected) in cases {
        let mut all = two();
        reserve(0xa, kind).send(nexus(1, 1), &mut all).unwrap();
        assert_eq!([1, 2, 3].map(|initiator| all.gate(nexus(initiator, 1))), expected, "{kind:?}");
        // The same initiator through another port is another nexus.
        assert_eq!(all.gate(nexus(1, 2)), expected[2]);
    }
}

#[test]
fn a_released_reservation_of_registrants_is_told() {
    for kind in Kind::ALL {
        let mut all = two();
        reserve(0xa, kind).send(nexus(1, 1), &mut all).unwrap();
        let wrong = Kind::ALL.into_iter().find(|other| *other != kind).unwrap();
        let refused = release(0xa, wrong).send(nexus(1, 1), &mut all);
        assert_eq!(refused, Err(Refused::Check(Sense::INVALID_RELEASE)));
        let change = release(0xa, kind).send(nexus(1, 1), &mut all).unwrap();
        let told = if kind.code() < 5 { vec![] } else { vec![(nexus(2, 1), Attention::ReservationsReleased)] };
        assert_eq!(change.attentions, told);
        assert_eq!(all.reservation(), None);
    }
}

#[test]
fn a_reservation_is_taken_with_its_holders_key() {
    let mut all = two();
    register(0, 0xc).send(nexus(3, 1), &mut all).unwrap();
    reserve(0xa, Kind::WriteExclusive).send(nexus(1, 1), &mut all).unwrap();
    let out = Out { action: 5, ..preempt(0xb, 0xa, Kind::ExclusiveAccess) };
    let change = out.send(nexus(2, 1), &mut all).unwrap();
    let attentions = vec![
        (nexus(1, 1), Attention::RegistrationsPreempted),
        (nexus(3, 1), Attention::ReservationsReleased), // the type is another
    ];
    assert_eq!(change, Change { attentions, aborted: vec![nexus(1, 1)] });
    assert!(all.holds(nexus(2, 1)));
    assert_eq!(preempt(0xb, 0xa, Kind::ExclusiveAccess).send(nexus(2, 1), &mut all), Err(Refused::Conflict));
    assert_eq!(preempt(0xb, 0, Kind::ExclusiveAccess).send(nexus(2, 1), &mut all), Err(Refused::Check(Sense::list(8))));
}

#[test]
fn a_reservation_moves() {
    let mut all = two();
    reserve(0xa, Kind::ExclusiveAccess).send(nexus(1, 1), &mut all).unwrap();
    let moved = Out::moving(0xa, 0xd, 3, nexus(4, 2)).send(nexus(1, 1), &mut all);
    assert_eq!(moved, Ok(Change::default()));
    assert!(all.holds(nexus(4, 2)));
    assert!(all.registrations().eq([(nexus(2, 1), 0xb), (nexus(4, 2), 0xd)]));
    assert!(all.stored().is_some());
    let refused = |list: Out, sense| {
        let mut all = two();
        reserve(0xa, Kind::ExclusiveAccess).send(nexus(1, 1), &mut all).unwrap();
        assert_eq!(list.send(nexus(1, 1), &mut all), Err(Refused::Check(sense)));
    };
    refused(Out::moving(0xa, 0, 0, nexus(4, 2)), Sense::list(8));
    refused(Out::moving(0xa, 0xd, 0, nexus(4, 3)), Sense::list(18));
    refused(Out::moving(0xa, 0xd, 0, nexus(1, 1)), Sense::list(24));
    let mut iscsi = Out::moving(0xa, 0xd, 0, nexus(4, 2));
    iscsi.list[24] = 5;
    refused(iscsi.clone(), Sense::list(24));
    iscsi.list[23] = 28;
    refused(iscsi.clone(), Sense::list(20));
    iscsi.list.push(0);
    refused(iscsi, Sense::PARAMETER_LIST_LENGTH);
}

#[test]
fn parameter_lists_have_their_length() {
    let mut all = Reservations::new();
    let mut send = |list: Vec<u8>| Out { action: 0, kind: 0, list }.send(nexus(1, 1), &mut all);
    let list = register(0, 1).list;
    for len in (0..24).chain(25..30) {
        let mut list = list.clone();
        list.resize(len, 0);
        assert_eq!(send(list), Err(Refused::Check(Sense::PARAMETER_LIST_LENGTH)));
    }
    let listing = Out::listing(0, 1, 0, &[InitiatorPort(7)]).list;
    for len in 24..listing.len() {
        assert_eq!(send(listing[..len].to_vec()), Err(Refused::Check(Sense::PARAMETER_LIST_LENGTH)));
    }
    let mut other = listing;
    other[28] = 0x45;
    assert_eq!(send(other), Err(Refused::Check(Sense::list(28))));
    assert_eq!(all, Reservations::new());
}

#[test]
fn scopes_and_types_are_known() {
    let mut all = two();
    let mut send = |kind| Out::new(1, kind, 0xa, 0, 0).send(nexus(1, 1), &mut all);
    for kind in [0, 2, 4, 9, 15] {
        assert_eq!(send(kind), Err(Refused::Check(Sense::cdb_bit(2, 3))));
    }
    assert_eq!(send(0x13), Err(Refused::Check(Sense::cdb_bit(2, 7))));
    assert!(send(3).is_ok());
}

#[test]
fn initiator_ports_are_registered_by_another() {
    let mut all = Reservations::new();
    let others = [nexus(2, 1).initiator, nexus(3, 1).initiator];
    Out::listing(0, 5, 4, &others).send(nexus(1, 2), &mut all).unwrap();
    let expected = [1, 2, 3].map(|initiator| [1, 2].map(|port| (nexus(initiator, port), 5)));
    assert!(all.registrations().eq(expected.into_iter().flatten()));
    let again = Out::listing(5, 5, 0, &others).send(nexus(1, 2), &mut all);
    assert_eq!(again, Err(Refused::Check(Sense::list_bit(20, 3))));
    let elsewhere = Out::new(1, 1, 5, 0, 8).send(nexus(1, 2), &mut all);
    assert_eq!(elsewhere, Err(Refused::Check(Sense::list_bit(20, 3))));
}

#[test]
fn unregistering_through_all_ports_ends_what_one_of_them_holds() {
    let mut all = two();
    Out::new(0, 0, 0xa, 0xa, 4).send(nexus(1, 1), &mut all).unwrap();
    let kind = Kind::WriteExclusiveRegistrantsOnly;
    reserve(0xa, kind).send(nexus(1, 2), &mut all).unwrap();
    // Each by itself is another's registration, and the reservation is not its own.
    let mut one = all.clone();
    assert_eq!(register(0xa, 0).send(nexus(1, 1), &mut one), Ok(Change::default()));
    assert!(one.holds(nexus(1, 2)));
    let change = Out::new(0, 0, 0xa, 0, 4).send(nexus(1, 1), &mut all).unwrap();
    assert_eq!(change.attentions, [(nexus(2, 1), Attention::ReservationsReleased)]);
    assert_eq!((all.reservation(), all.registrations().count()), (None, 1));
}

#[test]
fn registrations_have_a_bound() {
    let mut all = Reservations::new();
    for initiator in 0..REGISTRATIONS_MAX as u64 {
        register(0, 1).send(nexus(initiator, 1), &mut all).unwrap();
    }
    let full = all.clone();
    let more = [
        register(0, 1).send(nexus(1000, 1), &mut all),
        Out::new(0, 0, 1, 2, 4).send(nexus(0, 1), &mut all),
        Out::listing(0, 1, 0, &[InitiatorPort(1)]).send(nexus(1000, 1), &mut all),
    ];
    assert_eq!(more, [Err(Refused::Check(Sense::NO_REGISTRATIONS)), more[0].clone(), more[0].clone()]);
    assert_eq!(all, full);
    // The last one that is registered may go, and another come.
    register(1, 0).send(nexus(0, 1), &mut all).unwrap();
    assert!(register(0, 1).send(nexus(1000, 1), &mut all).is_ok());
}

#[test]
fn clearing_is_told() {
    let mut all = two();
    assert_eq!(clear(0xb).send(nexus(1, 1), &mut all), Err(Refused::Conflict));
    let change = clear(0xa).send(nexus(1, 1), &mut all).unwrap();
    assert_eq!(change.attentions, [(nexus(2, 1), Attention::ReservationsPreempted)]);
    assert_eq!(all.registrations().count(), 0);
}

#[test]
fn reservations_of_scsi_2_stand_apart() {
    let mut all = Reservations::new();
    all.reserve(nexus(1, 1)).unwrap();
    assert_eq!((all.gate(nexus(1, 1)), all.gate(nexus(2, 1))), (Gate::EVERYTHING, Gate::CLOSED));
    assert_eq!(all.reserve(nexus(2, 1)), Err(Refused::Conflict));
    assert_eq!(register(0, 1).send(nexus(1, 1), &mut all), Err(Refused::Conflict));
    assert_eq!(all.release(nexus(2, 1)), Ok(()), "in vain");
    assert_eq!(all.reserved(), Some(nexus(1, 1)));
    all.release(nexus(1, 1)).unwrap();
    assert_eq!(all, Reservations::new());
    // Beside registrations.
    let mut all = two();
    assert_eq!(all.reserve(nexus(1, 1)), Err(Refused::Conflict));
    reserve(0xa, Kind::WriteExclusive).send(nexus(1, 1), &mut all).unwrap();
    assert_eq!((all.reserve(nexus(1, 1)), all.release(nexus(1, 1))), (Ok(()), Ok(())));
    assert_eq!(all.reserve(nexus(2, 1)), Err(Refused::Conflict));
    assert_eq!(all.reserved(), None);
}

#[test]
fn what_is_read_has_its_bytes() {
    let mut all = two();
    assert_eq!(read(&all, ReserveIn::Keys)[..8], [0, 0, 0, 2, 0, 0, 0, 16]);
    assert_eq!(read(&all, ReserveIn::Keys)[8..], [0, 0, 0, 0, 0, 0, 0, 0xa, 0, 0, 0, 0, 0, 0, 0, 0xb]);
    assert_eq!(read(&all, ReserveIn::Reservation), [0, 0, 0, 2, 0, 0, 0, 0]);
    assert_eq!(read(&all, ReserveIn::Capabilities), [0, 8, 0x1d, 0x80, 0xea, 1, 0, 0]);
    Out::new(6, 0, 0, 0xa, 1).send(nexus(1, 1), &mut all).unwrap();
    assert_eq!(read(&all, ReserveIn::Capabilities), [0, 8, 0x1d, 0x81, 0xea, 1, 0, 0]);
    reserve(0xa, Kind::WriteExclusiveRegistrantsOnly).send(nexus(1, 1), &mut all).unwrap();
    let expected = [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0xa, 0, 0, 0, 0, 0, 5, 0, 0];
    assert_eq!(read(&all, ReserveIn::Reservation), expected);
    let status = read(&all, ReserveIn::FullStatus);
    let first = [
        &[0, 0, 0, 0, 0, 0, 0, 0xa, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 24][..],
        &transport_id(nexus(1, 1).initiator),
    ];
    assert_eq!((status.len(), &status[..8]), (104, &[0, 0, 0, 3, 0, 0, 0, 96][..]));
    assert_eq!(status[8..56], first.concat());
    assert_eq!(status[56..76], [0, 0, 0, 0, 0, 0, 0, 0xb, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    // Cut at the allocation, behind what was there.
    let mut out = vec![7];
    all.read(ReserveIn::FullStatus, 10, &mut out).unwrap();
    assert_eq!(out, [&[7], &status[..10]].concat());
}
