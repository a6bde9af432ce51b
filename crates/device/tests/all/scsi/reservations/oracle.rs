//! Random commands of random nexuses, on the state machine and on the second model.

use std::collections::BTreeSet;

use device::scsi::reservations::{Gate, Kind, Refused, Reservations, ReserveIn};
use device::scsi::{InitiatorPort, Nexus};
use proptest::prelude::*;

use super::model::{End, Model, Op};
use super::requests::{Out, nexus, read};

/// Three initiator ports, each through two target ports.
fn everybody() -> Vec<Nexus> {
    (1..4).flat_map(|initiator| (1..3).map(move |port| nexus(initiator, port))).collect()
}

fn any_nexus() -> impl Strategy<Value = Nexus> {
    (1..4_u64, 1..3_u16).prop_map(|(initiator, port)| nexus(initiator, port))
}

fn any_kind() -> impl Strategy<Value = Kind> {
    proptest::sample::select(&Kind::ALL[..])
}

/// Few keys, so that they are often right.
fn key() -> impl Strategy<Value = u64> {
    0..4_u64
}

fn register() -> impl Strategy<Value = Op> {
    let listed = proptest::option::weighted(0.2, proptest::collection::vec(1..4_u64, 0..3));
    (key(), key(), any::<bool>(), proptest::bool::weighted(0.4), any::<bool>(), listed).prop_map(
        |(key, new_key, ignore, all_ports, aptpl, listed)| {
            let port = |initiator| nexus(initiator, 1).initiator;
            let listed: Option<Vec<InitiatorPort>> = listed.map(|listed| listed.into_iter().map(port).collect());
            Op::Register { key, new_key, ignore, all_ports, aptpl, listed }
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => register(),
        4 => (key(), any_kind()).prop_map(|(key, kind)| Op::Reserve { key, kind }),
        2 => (key(), any_kind()).prop_map(|(key, kind)| Op::Release { key, kind }),
        1 => key().prop_map(|key| Op::Clear { key }),
        4 => (key(), key(), any_kind(), any::<bool>())
            .prop_map(|(key, victim, kind, abort)| Op::Preempt { key, victim, kind, abort }),
        2 => (key(), key(), any::<bool>(), any::<bool>(), 1..4_u64, 1..4_u16).prop_map(
            |(key, new_key, unregister, aptpl, initiator, port)| {
                Op::Move { key, new_key, unregister, aptpl, to: nexus(initiator, port) }
            }
        ),
        1 => Just(Op::OldReserve),
        1 => Just(Op::OldRelease),
        1 => Just(Op::Lost),
        1 => Just(Op::Reset),
        1 => Just(Op::PowerLoss),
    ]
}

/// The key that a nexus has, most of the time: random ones alone would be refused.
fn with_own_key(op: Op, own: u64) -> Op {
    match op {
        Op::Register { new_key, ignore, all_ports, aptpl, listed, .. } => {
            Op::Register { key: own, new_key, ignore, all_ports, aptpl, listed }
        }
        Op::Reserve { kind, .. } => Op::Reserve { key: own, kind },
        Op::Release { kind, .. } => Op::Release { key: own, kind },
        Op::Clear { .. } => Op::Clear { key: own },
        Op::Preempt { victim, kind, abort, .. } => Op::Preempt { key: own, victim, kind, abort },
        Op::Move { new_key, unregister, aptpl, to, .. } => Op::Move { key: own, new_key, unregister, aptpl, to },
        other => other,
    }
}

fn apply(to: &mut Reservations, from: Nexus, op: &Op) -> End {
    let flag = |when: bool, bit: u8| if when { bit } else { 0 };
    let out = match op {
        Op::Register { key, new_key, ignore, all_ports, aptpl, listed } => {
            let flags = flag(*all_ports, 4) | flag(*aptpl, 1);
            let mut out = match listed {
                Some(listed) => Out::listing(*key, *new_key, flags, listed),
                None => Out::new(0, 0, *key, *new_key, flags),
            };
            out.action = if *ignore { 6 } else { 0 };
            out
        }
        Op::Reserve { key, kind } => Out::new(1, kind.code(), *key, 0, 0),
        Op::Release { key, kind } => Out::new(2, kind.code(), *key, 0, 0),
        Op::Clear { key } => Out::new(3, 0, *key, 0, 0),
        Op::Preempt { key, victim, kind, abort } => Out::new(4 + flag(*abort, 1), kind.code(), *key, *victim, 0),
        Op::Move { key, new_key, unregister, aptpl, to } => {
            Out::moving(*key, *new_key, flag(*unregister, 2) | flag(*aptpl, 1), *to)
        }
        other => return apply_old(to, from, other),
    };
    match out.send(from, to) {
        Ok(change) => {
            let attentions: BTreeSet<_> = change.attentions.iter().copied().collect();
            assert_eq!(attentions.len(), change.attentions.len(), "told once");
            End::Good { attentions, aborted: change.aborted.into_iter().collect() }
        }
        Err(refused) => end(refused),
    }
}

fn apply_old(to: &mut Reservations, from: Nexus, op: &Op) -> End {
    let result = match op {
        Op::OldReserve => to.reserve(from),
        Op::OldRelease => to.release(from),
        Op::Lost => {
            to.nexus_lost(from);
            Ok(())
        }
        Op::Reset => {
            to.reset();
            Ok(())
        }
        _ => {
            *to = to.clone().after_power_loss();
            Ok(())
        }
    };
    result.map_or_else(end, |()| End::Good { attentions: BTreeSet::new(), aborted: BTreeSet::new() })
}

fn end(refused: Refused) -> End {
    match refused {
        Refused::Conflict => End::Conflict,
        Refused::Check(sense) => End::Check(sense.code),
    }
}

/// Everything that can be seen of the two is the same.
fn compare(real: &Reservations, model: &Model) -> Result<(), TestCaseError> {
    for nexus in everybody() {
        prop_assert_eq!(real.gate(nexus), model.gate(nexus), "{:?}", nexus);
        prop_assert_eq!(Gate::from_byte(real.gate(nexus).byte()), real.gate(nexus));
    }
    prop_assert!(real.registrations().eq(model.keys.iter().map(|(nexus, key)| (*nexus, *key))));
    prop_assert_eq!(real.reserved(), model.old);
    prop_assert_eq!(real.reservation().map(|held| held.kind), model.held.as_ref().map(|(kind, _)| *kind));
    let again = Reservations::from_bytes(&real.to_bytes());
    prop_assert_eq!(again.as_ref(), Ok(real));
    prop_assert_eq!(real.stored(), (model.aptpl && !model.keys.is_empty()).then(|| real.to_bytes()));
    if model.old.is_some() {
        let mut out = Vec::new();
        prop_assert_eq!(real.read(ReserveIn::Keys, 100, &mut out), Err(Refused::Conflict));
        return Ok(());
    }
    let keys = read(real, ReserveIn::Keys);
    prop_assert_eq!(&keys[..4], &model.generation.to_be_bytes());
    prop_assert_eq!(&keys[8..], &model.keys.values().flat_map(|key| key.to_be_bytes()).collect::<Vec<_>>()[..]);
    let status = read(real, ReserveIn::FullStatus);
    prop_assert_eq!(status.len(), 8 + model.keys.len() * 48);
    for ((nexus, key), descriptor) in model.keys.iter().zip(status[8..].chunks(48)) {
        let holder = model.held.as_ref().filter(|(_, holders)| holders.contains(nexus));
        prop_assert_eq!(&descriptor[..8], &key.to_be_bytes());
        prop_assert_eq!(descriptor[12], u8::from(holder.is_some()));
        prop_assert_eq!(descriptor[13], holder.map_or(0, |(kind, _)| kind.code()));
    }
    let reservation = read(real, ReserveIn::Reservation);
    match &model.held {
        None => prop_assert_eq!(&reservation[4..], &[0, 0, 0, 0]),
        Some((kind, holders)) => {
            let all = kind.code() >= 7;
            let key = if all { 0 } else { model.keys[holders.first().expect("somebody holds it")] };
            prop_assert_eq!(&reservation[8..16], &key.to_be_bytes());
            prop_assert_eq!(reservation[21], kind.code());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]
    #[test]
    fn both_models_agree(steps in proptest::collection::vec((any_nexus(), op(), proptest::bool::weighted(0.85)), 1..60)) {
        let mut real = Reservations::new();
        let mut model = Model::default();
        for (from, op, right) in steps {
            let own = model.keys.get(&from).copied().unwrap_or_default();
            let op = if right { with_own_key(op, own) } else { op };
            let before = real.clone();
            let ended = apply(&mut real, from, &op);
            prop_assert_eq!(&ended, &model.apply(from, &op), "{:?} of {:?} on {:?}", op, from, before);
            if !matches!(ended, End::Good { .. }) {
                prop_assert_eq!(&real, &before, "refused, and nothing has changed");
            }
            compare(&real, &model)?;
        }
    }
}
