//! What the guests ask for.

use super::state::{Found, Id};
use crate::rng::Rng;

/// Service actions of PERSISTENT RESERVE OUT.
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;
/// Flags of byte 20: APTPL, ALL_TG_PT, SPEC_I_PT.
const APTPL: u8 = 1;
const ALL_TG_PT: u8 = 4;
const SPEC_I_PT: u8 = 8;
/// Types.
const KINDS: [u8; 6] = [1, 3, 5, 6, 7, 8];
/// RESERVE (6) and RELEASE (6).
const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE_6: [u8; 6] = [0x17, 0, 0, 0, 0, 0];

/// What the two guests are called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// Their initiator ports.
    pub(super) ids: [Id; 2],
    /// The ports through which they come.
    pub(super) ports: [u16; 2],
}

/// What one of them asks, or the operator.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// A guest: its CDB and parameter list.
    Ask { guest: usize, cdb: Vec<u8>, list: Vec<u8> },
    /// `ctl disk break-reservations`.
    Break,
}

/// What guests are like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// One registration in so many is not to survive a loss of power.
    pub(super) forgets: u64,
    /// Whether they register for many others, too.
    pub(super) many: bool,
}

/// REGISTER, with the key that a guest has and the one that it wants.
pub(super) fn register(key: u64, new_key: u64) -> ([u8; 10], Vec<u8>) {
    let list = basic(key, new_key, 0);
    (cdb(REGISTER, 0, &list), list)
}

fn cdb(action: u8, kind: u8, list: &[u8]) -> [u8; 10] {
    let [a, b, c, d] = (list.len() as u32).to_be_bytes();
    [0x5f, action, kind, 0, 0, a, b, c, d, 0]
}

fn basic(key: u64, new_key: u64, flags: u8) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), new_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    list
}

/// TransportIDs of SAS, of initiator ports that nobody has seen.
fn strangers(rng: &mut Rng, count: u64) -> Vec<u8> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let mut id = Id::default();
        id[0] = 6;
        id[4..12].copy_from_slice(&(0x3000_0000_0000_0000 | rng.within(1..=999)).to_be_bytes());
        ids.extend_from_slice(&id);
    }
    [(ids.len() as u32).to_be_bytes().to_vec(), ids].concat()
}

/// Draws what comes next where this is found.
pub(super) fn draw(found: &Found, names: &Names, manner: Manner, rng: &mut Rng) -> Command {
    if rng.once_in(25) {
        return Command::Break;
    }
    let guest = rng.within(0..=1) as usize;
    let registrations = found.registrations();
    let key_of = |guest: usize| {
        let own = registrations.iter().find(|it| it.id == names.ids[guest] && it.port == names.ports[guest]);
        own.map(|it| it.key)
    };
    let ask = |cdb: &[u8], list: Vec<u8>| Command::Ask { guest, cdb: cdb.to_vec(), list };
    if rng.once_in(20) {
        // That of SCSI-2 is in vain beside registrations, and where it is not, it ends soon.
        return ask(if rng.once_in(3) { &RESERVE_6 } else { &RELEASE_6 }, Vec::new());
    }
    let survives = if rng.once_in(manner.forgets) { 0 } else { APTPL };
    let new_key = rng.within(1..=5);
    let Some(key) = key_of(guest) else {
        let all_ports = if rng.once_in(4) { ALL_TG_PT } else { 0 };
        if manner.many && rng.once_in(2) {
            let count = rng.pick(&[1, 2, 20, 80, 200]);
            let list = [basic(0, new_key, survives | SPEC_I_PT), strangers(rng, count)].concat();
            return ask(&cdb(REGISTER, 0, &list), list);
        }
        let list = basic(0, new_key, survives | all_ports);
        return ask(&cdb(rng.pick(&[REGISTER, REGISTER_AND_IGNORE]), 0, &list), list);
    };
    let kind = if rng.once_in(2) { rng.pick(&KINDS) } else { found.kind().unwrap_or(5) };
    let other_key = match rng.within(0..=3) {
        0 => 0,
        1 => rng.within(1..=5),
        _ => registrations[rng.within(0..=registrations.len() as u64 - 1) as usize].key,
    };
    let action = rng.pick(&[
        REGISTER,
        REGISTER,
        REGISTER,
        REGISTER_AND_IGNORE,
        RESERVE,
        RESERVE,
        RESERVE,
        RELEASE,
        CLEAR,
        PREEMPT,
        PREEMPT,
        PREEMPT_AND_ABORT,
        REGISTER_AND_MOVE,
        REGISTER_AND_MOVE,
    ]);
    let list = match action {
        REGISTER | REGISTER_AND_IGNORE => {
            let new_key = if rng.once_in(5) { 0 } else { new_key };
            basic(key, new_key, survives | if rng.once_in(4) { ALL_TG_PT } else { 0 })
        }
        REGISTER_AND_MOVE => {
            let mut list = basic(key, new_key, 0);
            list[17] = survives | if rng.once_in(2) { 2 } else { 0 };
            let other = 1 - guest;
            list[18..20].copy_from_slice(&names.ports[other].to_be_bytes());
            list[20..24].copy_from_slice(&24_u32.to_be_bytes());
            [list, names.ids[other].to_vec()].concat()
        }
        PREEMPT | PREEMPT_AND_ABORT => basic(key, other_key, 0),
        // Now and then with a key that it does not have.
        _ => basic(if rng.once_in(10) { key + 1 } else { key }, 0, 0),
    };
    ask(&cdb(action, kind, &list), list)
}
