//! A second model of reservations, from the standard's tables and lists: sets of nexuses, and each rule where the standard has it.

use std::collections::{BTreeMap, BTreeSet};

use device::scsi::reservations::{Gate, Kind};
use device::scsi::{Attention, InitiatorPort, Nexus};

use super::requests::PORTS;

/// What a command does.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Register { key: u64, new_key: u64, ignore: bool, all_ports: bool, aptpl: bool, listed: Option<Vec<InitiatorPort>> },
    Reserve { key: u64, kind: Kind },
    Release { key: u64, kind: Kind },
    Clear { key: u64 },
    Preempt { key: u64, victim: u64, kind: Kind, abort: bool },
    Move { key: u64, new_key: u64, unregister: bool, aptpl: bool, to: Nexus },
    OldReserve,
    OldRelease,
    Lost,
    Reset,
    PowerLoss,
}

/// How it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Good { attentions: BTreeSet<(Nexus, Attention)>, aborted: BTreeSet<Nexus> },
    Conflict,
    Check(u16),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) keys: BTreeMap<Nexus, u64>,
    /// The type, and every nexus that holds it.
    pub(super) held: Option<(Kind, BTreeSet<Nexus>)>,
    pub(super) generation: u32,
    pub(super) aptpl: bool,
    pub(super) old: Option<Nexus>,
}

fn all_registrants(kind: Kind) -> bool {
    kind.code() >= 7
}

fn registrants(kind: Kind) -> bool {
    kind.code() >= 5
}

fn write_exclusive(kind: Kind) -> bool {
    [1, 5, 7].contains(&kind.code())
}

const GOOD: End = End::Good { attentions: BTreeSet::new(), aborted: BTreeSet::new() };
const LIST: End = End::Check(0x2600);

impl Model {
    fn everybody_but(&self, nexus: Nexus, attention: Attention) -> BTreeSet<(Nexus, Attention)> {
        self.keys.keys().filter(|other| **other != nexus).map(|other| (*other, attention)).collect()
    }

    fn is_holder(&self, nexus: Nexus) -> bool {
        self.held.as_ref().is_some_and(|(_, holders)| holders.contains(&nexus))
    }

    /// Table "commands allowed in the presence of various persistent reservations", by its columns.
    pub(super) fn gate(&self, nexus: Nexus) -> Gate {
        if self.old.is_some_and(|old| old != nexus) {
            return Gate::CLOSED;
        }
        match &self.held {
            None => Gate::EVERYTHING,
            Some(_) if self.is_holder(nexus) => Gate::EVERYTHING,
            Some((kind, _)) if registrants(*kind) && self.keys.contains_key(&nexus) => Gate::EVERYTHING,
            Some((kind, _)) if write_exclusive(*kind) => Gate::READS,
            Some(_) => Gate::STATUS,
        }
    }

    pub(super) fn apply(&mut self, nexus: Nexus, op: &Op) -> End {
        let persistent = !matches!(op, Op::OldReserve | Op::OldRelease | Op::Lost | Op::Reset | Op::PowerLoss);
        if persistent && self.old.is_some() {
            return End::Conflict;
        }
        match op {
            Op::Register { .. } => self.register(nexus, op),
            Op::Reserve { key, kind } => {
                if self.keys.get(&nexus) != Some(key) {
                    return End::Conflict;
                }
                match &self.held {
                    Some((held, holders)) if held == kind && holders.contains(&nexus) => GOOD,
                    Some(_) => End::Conflict,
                    None => {
                        self.establish(nexus, *kind);
                        GOOD
                    }
                }
            }
            Op::Release { key, kind } => {
                if self.keys.get(&nexus) != Some(key) {
                    return End::Conflict;
                }
                match self.held.clone() {
                    Some((held, holders)) if holders.contains(&nexus) => {
                        if held != *kind {
                            return End::Check(0x2604);
                        }
                        self.held = None;
                        let mut attentions = BTreeSet::new();
                        if registrants(held) {
                            attentions = self.everybody_but(nexus, Attention::ReservationsReleased);
                        }
                        End::Good { attentions, aborted: BTreeSet::new() }
                    }
                    _ => GOOD,
                }
            }
            Op::Clear { key } => {
                if self.keys.get(&nexus) != Some(key) {
                    return End::Conflict;
                }
                let attentions = self.everybody_but(nexus, Attention::ReservationsPreempted);
                self.held = None;
                self.keys.clear();
                self.generation += 1;
                End::Good { attentions, aborted: BTreeSet::new() }
            }
            Op::Preempt { key, victim, kind, abort } => self.preempt(nexus, *key, *victim, *kind, *abort),
            Op::Move { .. } => self.move_to(nexus, op),
            Op::OldReserve | Op::OldRelease => self.old(nexus, matches!(op, Op::OldReserve)),
            Op::Lost => {
                self.old = self.old.filter(|old| *old != nexus);
                GOOD
            }
            Op::Reset => {
                self.old = None;
                GOOD
            }
            Op::PowerLoss => {
                if !self.aptpl {
                    *self = Model::default();
                }
                self.generation = 0;
                self.old = None;
                GOOD
            }
        }
    }

    fn establish(&mut self, nexus: Nexus, kind: Kind) {
        let holders = if all_registrants(kind) { self.keys.keys().copied().collect() } else { BTreeSet::from([nexus]) };
        self.held = Some((kind, holders));
    }

    /// A registration is made: of an all registrants reservation, that is one more holder.
    fn add(&mut self, nexus: Nexus, key: u64) {
        self.keys.insert(nexus, key);
        if let Some((kind, holders)) = &mut self.held
            && all_registrants(*kind)
        {
            holders.insert(nexus);
        }
    }

    /// A registration is removed, and the reservation with its last holder; whether it was, and of which type.
    fn remove(&mut self, nexus: Nexus) -> Option<Kind> {
        self.keys.remove(&nexus);
        let (kind, holders) = self.held.as_mut()?;
        if holders.remove(&nexus) && holders.is_empty() {
            let kind = *kind;
            self.held = None;
            return Some(kind);
        }
        None
    }

    /// Tables "register behaviors" of REGISTER and of REGISTER AND IGNORE EXISTING KEY.
    fn register(&mut self, nexus: Nexus, op: &Op) -> End {
        let Op::Register { key, new_key, ignore, all_ports, aptpl, listed } = op else { unreachable!() };
        if *ignore && listed.is_some() {
            return LIST;
        }
        let mine = self.keys.get(&nexus).copied();
        match mine {
            None if !ignore && *key != 0 => return End::Conflict,
            None if *new_key == 0 => return GOOD,
            Some(mine) if !ignore && *key != mine => return End::Conflict,
            Some(_) if listed.is_some() => return LIST,
            _ => {}
        }
        let ports = if *all_ports { PORTS.to_vec() } else { vec![nexus.port] };
        let mut released = None;
        for &port in &ports {
            let one = Nexus { port, ..nexus };
            let other_key = self.keys.get(&one).is_some_and(|key| Some(*key) != mine);
            if other_key && !ignore {
                continue;
            }
            if *new_key == 0 {
                released = released.or(self.remove(one));
            } else {
                self.add(one, *new_key);
            }
        }
        for &initiator in listed.iter().flatten() {
            for &port in &ports {
                let one = Nexus { initiator, port };
                if !self.keys.contains_key(&one) {
                    self.add(one, *new_key);
                }
            }
        }
        self.aptpl = *aptpl;
        self.generation += 1;
        let mut attentions = BTreeSet::new();
        if released.is_some_and(registrants) {
            attentions = self.everybody_but(nexus, Attention::ReservationsReleased);
        }
        End::Good { attentions, aborted: BTreeSet::new() }
    }

    /// Table "preempting actions".
    fn preempt(&mut self, nexus: Nexus, key: u64, victim: u64, kind: Kind, abort: bool) -> End {
        if self.keys.get(&nexus) != Some(&key) {
            return End::Conflict;
        }
        let with_key: BTreeSet<Nexus> =
            self.keys.iter().filter(|(_, key)| **key == victim).map(|(nexus, _)| *nexus).collect();
        let for_all = self.held.as_ref().is_some_and(|(kind, _)| all_registrants(*kind));
        let mut attentions = BTreeSet::new();
        let mut aborted = with_key.clone();
        let takes = match &self.held {
            Some(_) if for_all => victim == 0,
            Some((_, holders)) => victim != 0 && holders.iter().any(|holder| with_key.contains(holder)),
            None => false,
        };
        if victim == 0 && !for_all {
            return LIST;
        }
        if takes {
            let everybody: BTreeSet<Nexus> = self.keys.keys().copied().collect();
            let victims = if victim == 0 { everybody } else { with_key };
            aborted.clone_from(&victims);
            let old = self.held.as_ref().map(|(kind, _)| *kind);
            for other in victims.into_iter().filter(|other| *other != nexus) {
                self.keys.remove(&other);
                attentions.insert((other, Attention::RegistrationsPreempted));
            }
            self.establish(nexus, kind);
            if old != Some(kind) {
                attentions.extend(self.everybody_but(nexus, Attention::ReservationsReleased));
            }
        } else {
            if with_key.is_empty() {
                return End::Conflict;
            }
            for other in with_key {
                self.remove(other);
                if other != nexus {
                    attentions.insert((other, Attention::RegistrationsPreempted));
                }
            }
        }
        self.generation += 1;
        End::Good { attentions, aborted: if abort { aborted } else { BTreeSet::new() } }
    }

    fn move_to(&mut self, nexus: Nexus, op: &Op) -> End {
        let Op::Move { key, new_key, unregister, aptpl, to } = op else { unreachable!() };
        if self.keys.get(&nexus) != Some(key) {
            return End::Conflict;
        }
        match &self.held {
            Some((kind, holders)) if !all_registrants(*kind) && holders.contains(&nexus) => {
                if *new_key == 0 || !PORTS.contains(&to.port) || *to == nexus {
                    return LIST;
                }
                self.held = Some((*kind, BTreeSet::from([*to])));
                self.keys.insert(*to, *new_key);
                if *unregister {
                    self.keys.remove(&nexus);
                }
                self.aptpl = *aptpl;
                self.generation += 1;
                GOOD
            }
            _ => End::Conflict,
        }
    }

    /// SPC-2, and the exceptions to it with CRH.
    fn old(&mut self, nexus: Nexus, reserve: bool) -> End {
        if !self.keys.is_empty() {
            let exception = match &self.held {
                None => false,
                Some((kind, holders)) => {
                    holders.contains(&nexus) || (registrants(*kind) && self.keys.contains_key(&nexus))
                }
            };
            return if exception { GOOD } else { End::Conflict };
        }
        match (reserve, self.old) {
            (true, Some(old)) if old != nexus => End::Conflict,
            (true, _) => {
                self.old = Some(nexus);
                GOOD
            }
            (false, Some(old)) if old == nexus => {
                self.old = None;
                GOOD
            }
            (false, _) => GOOD,
        }
    }
}
