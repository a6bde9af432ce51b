//! States for tests: one of everything, and any.

use super::state::{
    Directory, DirtyLog, Disk, Export, Inflight, Kept, Kick, Region, Reservations, Ring, Session, Sessions, Socket,
    SocketFile, State, Storage, Tree, Unit, Worker,
};
use crate::confine::Held;
use engine::Execution;
use proptest::prelude::*;
use std::collections::BTreeMap;
use storage::Description;
use values::Lun;
use vhost_user::RingPosition;

fn ring() -> Ring {
    Ring {
        index: 3,
        size: Some(256),
        areas: Some([0x7f00_0000_0000, u64::MAX - 4096, 0x7f00_0000_2000]),
        used_log: Some(1 << 40),
        position: RingPosition::split(u16::MAX),
        owed: vec![7, 0],
        kick: Kick::Eventfd(20),
        call: Some(21),
        err: None,
        enabled: Some(true),
        running: true,
    }
}

fn session() -> Session {
    Session {
        socket: 15,
        features: u64::MAX,
        protocol_features: 0x8a09,
        memory: Some(vec![Region {
            fd: 16,
            guest_addr: 1 << 32,
            user_addr: u64::MAX - 0xffff,
            len: 0x1_0000,
            file_offset: 4096,
        }]),
        backend_channel: Some(17),
        inflight: Some(Inflight { fd: 18, bytes: 8192, file_offset: 0, queues: 4, queue_size: 256 }),
        log: Some(DirtyLog { fd: 19, bytes: 1 << 21, file_offset: 0 }),
        rings: vec![ring(), Ring { index: 4, kick: Kick::Missing, running: false, ..ring() }],
    }
}

fn seen() -> Description {
    Description {
        kind: "qcow2",
        target: "/images/vm1.qcow2".to_owned(),
        read_only: false,
        direct: true,
        block_size_bytes: 512,
        physical_block_bytes: 4096,
        optimal_io_bytes: 0,
        discard: true,
        discard_granularity_bytes: 1 << 16,
        write_zeroes: true,
        execution: Execution::Pool(4),
        execution_chosen: Execution::Pool(4),
    }
}

fn storage() -> Storage {
    let empty =
        Storage { capacity_bytes: 1 << 30, data: None, lock: None, log: None, memory: None, seen: None, again: None };
    let log = Storage { data: Some(22), lock: Some(23), ..empty.clone() };
    let log = Some(Box::new(log));
    Storage { capacity_bytes: 1 << 40, data: Some(13), lock: Some(14), log, memory: Some(24), ..empty }
}

fn disk() -> Disk {
    let text = "name = 'base'\nstorage = { kind = 'file', path = '/base.img', read_only = true }\nshared = true\n";
    let seen = Some(seen());
    let again = Some("{\"owner\":null}".to_owned());
    let storage = Storage { data: Some(28), lock: Some(29), log: None, memory: None, seen, again, ..storage() };
    Disk {
        description: toml::from_str(text).unwrap(),
        storage,
        reservations: Some(Kept { fd: 31, number: 7, record: vec![1, 255] }),
    }
}

fn export() -> Export {
    let text = "name = 'disk'\nsocket = '/run/disk.sock'\nqueues = 4\nstorage = { kind = 'file', path = '/a.img' }\n";
    Export {
        description: toml::from_str(text).unwrap(),
        socket: Socket { fd: 12, file: Some(SocketFile { path: "/run/disk.sock".into(), device: 7, inode: u64::MAX }) },
        port: Some(2),
        shown: Some("/run/disk.sock".into()),
        storage: Some(storage()),
        write_back: Some(false),
        placed: vec![Some(2), None],
        attached: vec![(1, 0)],
        homes: vec![(0, 2), (1, 0)],
        sessions: Sessions { connects: 3, disconnects: 1, errors: 1 },
        last_error: Some("the frontend broke the vhost-user protocol".into()),
        session: Some(session()),
        directory: Some(Directory {
            agreed: Some((38, u64::MAX)),
            interrupted: vec![u64::MAX],
            tree: Tree { form: passthrough::FORM, nodes: Some(25), descriptors: vec![26, 27] },
        }),
        tls: None,
    }
}

/// One of everything.
pub(super) fn state() -> State {
    State {
        program: "0.1.0".into(),
        upgrades: 2,
        started_ns: 5,
        paused_ns: 1 << 60,
        descriptors: BTreeMap::from([(12, "socket of disk".into())]),
        workers_max: 64,
        workers: vec![Worker {
            number: 2,
            owner: "disk".into(),
            cpus: Some("0-3,5".parse().unwrap()),
            numa_node: Some(1),
            cgroup: Some("/sys/fs/cgroup/a".into()),
            poll: "fixed=20".parse().unwrap(),
        }],
        favour: control::model::Favour::Efficiency,
        policy: control::model::PolicyMode::Fixed,
        control: None,
        stuck_after: "30s".parse().unwrap(),
        one: true,
        alone: false,
        held: Held::default(),
        groups: vec![toml::from_str("name = 'gold'\niops = 500").unwrap()],
        disks: vec![disk()],
        reservations: vec![Reservations { disk: "quorum".into(), export: None, bytes: vec![1, 255] }],
        units: vec![Unit {
            disk: "quorum".into(),
            export: None,
            write_cache: true,
            descriptor_sense: false,
            stopped: true,
            space_is_low: false,
            attentions: vec![(2, Lun { target: 1, number: 7 }, 9)],
        }],
        exports: vec![export(), Export { session: None, storage: None, directory: None, ..export() }],
    }
}

fn any_ring() -> impl Strategy<Value = Ring> {
    let kick = prop_oneof![Just(Kick::Missing), Just(Kick::Polled), (3..9999).prop_map(Kick::Eventfd)];
    let areas = (any::<Option<[u64; 3]>>(), any::<Option<u64>>());
    let said = (any::<Option<u16>>(), areas, any::<Option<bool>>(), any::<bool>());
    let stands = (any::<u16>().prop_map(RingPosition::split), any::<Vec<u16>>());
    (any::<u16>(), stands, kick, any::<Option<i32>>(), any::<Option<i32>>(), said).prop_map(
        |(index, (position, owed), kick, call, err, (size, (areas, used_log), enabled, running))| Ring {
            index,
            size,
            areas,
            used_log,
            position,
            owed,
            kick,
            call,
            err,
            enabled,
            running,
        },
    )
}

fn any_region() -> impl Strategy<Value = Region> {
    (3..9999, any::<[u64; 4]>()).prop_map(|(fd, [guest_addr, user_addr, len, file_offset])| Region {
        fd,
        guest_addr,
        user_addr,
        len,
        file_offset,
    })
}

prop_compose! {
    fn any_session()(
        (socket, backend_channel) in (3..9999, any::<Option<i32>>()),
        (features, protocol_features) in any::<(u64, u64)>(),
        memory in prop::option::of(prop::collection::vec(any_region(), 0..5)),
        rings in prop::collection::vec(any_ring(), 0..5),
    ) -> Session {
        let (inflight, log) = (memory.as_ref().and(session().inflight), memory.as_ref().and(session().log));
        Session { socket, features, protocol_features, memory, backend_channel, inflight, log, rings }
    }
}

prop_compose! {
    fn any_directory()(
        (agreed, interrupted) in any::<(Option<(u32, u64)>, Vec<u64>)>(),
        (form, nodes, descriptors) in any::<(u32, Option<i32>, Vec<i32>)>(),
    ) -> Directory {
        Directory { agreed, interrupted, tree: Tree { form, nodes, descriptors } }
    }
}

prop_compose! {
    fn any_export()(
        session in prop::option::of(any_session()),
        write_back in any::<Option<bool>>(),
        placed in any::<Vec<Option<u32>>>(),
        homes in any::<Vec<(u16, u32)>>(),
        (capacity_bytes, data, memory) in any::<(u64, Option<i32>, Option<i32>)>(),
        last_error in any::<Option<String>>(),
        directory in prop::option::of(any_directory()),
        tls in any::<Option<i32>>(),
    ) -> Export {
        let storage = Some(Storage { capacity_bytes, data, lock: None, memory, ..storage() });
        Export { session, write_back, placed, homes, storage, last_error, directory, tls, ..export() }
    }
}

prop_compose! {
    /// Any state whose numbers are numbers and whose texts are texts.
    pub(super) fn any_state()(
        (upgrades, started_ns, paused_ns) in any::<(u64, u64, u64)>(),
        descriptors in any::<BTreeMap<i32, String>>(),
        exports in prop::collection::vec(any_export(), 0..4),
        disks in prop::collection::vec((any::<u64>(), any::<Option<i32>>()), 0..3),
    ) -> State {
        let any_disk = |(capacity_bytes, data)| Disk { storage: Storage { capacity_bytes, data, ..disk().storage }, ..disk() };
        let disks = disks.into_iter().map(any_disk).collect();
        State { upgrades, started_ns, paused_ns, descriptors, disks, exports, ..state() }
    }
}
