use super::*;
use values::SyncMode;

fn parse(text: &str) -> NewExport {
    toml::from_str(text).unwrap()
}

fn field_at_fault(text: &str) -> String {
    parse(text).check().expect_err(text).field
}

const NULL: &str = "name = 'a'\nsocket = '/run/a.sock'\nstorage = { kind = 'null', size = '1G' }\n";

#[test]
fn the_least_description_has_sensible_defaults() {
    let new = parse(NULL);
    new.check().unwrap();
    assert_eq!(new.kind, ExportKind::Disk);
    assert_eq!((new.queue_size(), new.block_size_bytes(), new.serial().as_str()), (1024, 512, "a"));
    assert_eq!(new.queues(), NewExport::QUEUES_MAX);
    assert_eq!(new.workers, Placement::Shared);
}

#[test]
fn a_full_description_is_the_same_in_toml_and_json() {
    let new = parse(
        r#"
        name = "root-disk"
        kind = "disk"
        socket = "/run/vringd/root.sock"
        socket_mode = "0660"
        socket_owner = "qemu"
        socket_group = "kvm"
        queues = 4
        queue_size = 256
        serial = "ROOT"
        block_size = 4096
        workers = 2
        poll = "adaptive=100"
        cpus = "0-1"
        storage = { kind = "sim", size = "1T", read_latency = "80us", write_latency = "20us", distribution = "normal",
                    latency_spread = 0.2, channels = 8, flush_cost = "1ms", seek = "8ms", error_rate = 0.001, seed = 7,
                    execution = "pool=4" }
        "#,
    );
    new.check().unwrap();
    let json = serde_json::to_string(&new).unwrap();
    assert_eq!(serde_json::from_str::<NewExport>(&json).unwrap(), new);
    assert_eq!(toml::from_str::<NewExport>(&toml::to_string(&new).unwrap()).unwrap(), new);
}

#[test]
fn logs_and_volumes_are_the_same_in_toml_and_json() {
    let with = |storage: &str| parse(&format!("name = 'a'\nsocket = '/a'\nstorage = {{ {storage} }}\n"));
    for storage in [
        "kind = 'volume', path = '/v', log = '/dev/log', sync = 'disabled', dirty_memory = '1G', direct = false, \
         execution = 'pool=8', lock = false",
        "kind = 'volume', path = '/v'",
        "kind = 'sim', size = '1G', flush_cost = '5ms', intent_log = { size = '64M', sync = 'always' }",
        "kind = 'null', size = '1G', intent_log = { size = '1M', dirty_memory = '2M' }",
        "kind = 'memory', size = '1G', intent_log = { size = 1048576 }",
    ] {
        let mut new = with(storage);
        new.check().unwrap();
        let json = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<NewExport>(&json).unwrap(), new);
        assert_eq!(toml::from_str::<NewExport>(&toml::to_string(&new).unwrap()).unwrap(), new);
        let storage = new.storage.as_mut().unwrap();
        storage.set_sync(SyncMode::Always);
        let sync = match storage {
            StorageSpec::Volume(volume) => volume.sync,
            other => other.intent_log().unwrap().sync,
        };
        assert_eq!(sync, SyncMode::Always);
    }
    let mut paths = with("kind = 'volume', path = '/v', log = '/l'").storage.unwrap();
    let fields: Vec<_> = paths.paths().into_iter().map(|(field, path)| (field, path.clone())).collect();
    assert_eq!(fields, [("storage.path", "/v".into()), ("storage.log", "/l".into())]);
    let fault = |storage: &str| with(storage).check().unwrap_err().field;
    assert_eq!(fault("kind = 'volume', path = ''"), "storage.path");
    assert_eq!(fault("kind = 'memory', path = '/x', intent_log = { size = '1M' }"), "storage.intent_log");
    assert_eq!(
        fault("kind = 'memory', size = '1M', read_only = true, intent_log = { size = '1M' }"),
        "storage.intent_log"
    );
    assert_eq!(fault("kind = 'null', size = '1M', intent_log = { size = '1K' }"), "storage.intent_log.size");
}

#[test]
fn unknown_fields_are_refused_at_every_depth() {
    for text in [format!("{NULL}colour = 'red'"), NULL.replace("size =", "colour = 'red', size =")] {
        let error = toml::from_str::<NewExport>(&text).unwrap_err().to_string();
        assert!(error.contains("unknown field `colour`"), "{error}");
    }
    let error = toml::from_str::<NewExport>(&NULL.replace("'null'", "'floppy'")).unwrap_err().to_string();
    assert!(
        error.contains("invalid field `kind`: \"floppy\" is none of file, volume, qcow2, rbd, sg, memory, null, sim"),
        "{error}"
    );
    let error = toml::from_str::<NewExport>(&NULL.replace("'1G'", "'huge'")).unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("invalid field `size`: `huge` is not a size"), "{error}");
}

#[test]
fn every_check_names_its_field() {
    let with = |line: &str| format!("{NULL}{line}");
    for name in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(65)] {
        assert_eq!(field_at_fault(&NULL.replace("'a'", &format!("'{name}'"))), "name");
    }
    assert_eq!(field_at_fault(&NULL.replace("socket = '/run/a.sock'", "")), "socket");
    assert_eq!(field_at_fault(&NULL.replace("/run/a.sock", &"x".repeat(108))), "socket");
    assert_eq!(field_at_fault(&with("socket_fd = 3")), "socket_fd");
    assert_eq!(field_at_fault(&NULL.replace("socket = '/run/a.sock'", "socket_fd = 2")), "socket_fd");
    assert_eq!(field_at_fault(&NULL.replace("socket =", "socket_fd = 3\nsocket_group =")), "socket_group");
    assert_eq!(field_at_fault(&with("queues = 0")), "queues");
    assert_eq!(field_at_fault(&with("queues = 257")), "queues");
    assert_eq!(field_at_fault(&with("queue_size = 100")), "queue_size");
    assert_eq!(field_at_fault(&with("queue_size = 1")), "queue_size");
    assert_eq!(field_at_fault(&with("block_size = 1024")), "block_size");
    assert_eq!(field_at_fault(&with("serial = '123456789012345678901'")), "serial");
    assert_eq!(field_at_fault(&with("serial = 'ü'")), "serial");
    let error = toml::from_str::<NewExport>(&with("write_cache = 'maybe'")).unwrap_err().to_string();
    assert!(error.contains("write_cache"), "{error}");
    assert_eq!(field_at_fault(&with("cpus = '0'")), "cpus");
}

#[test]
fn every_storage_check_names_its_field() {
    let with = |table: &str| format!("name = 'a'\nsocket = 's'\nstorage = {{ {table} }}");
    for size in ["0", "1000", "'8388608T'"] {
        assert_eq!(field_at_fault(&with(&format!("kind = 'null', size = {size}"))), "storage.size");
    }
    assert_eq!(field_at_fault(&with("kind = 'file', path = ''")), "storage.path");
    let memory = "kind = 'memory', size = '1M', path = '/x', hugepages = true";
    assert_eq!(field_at_fault(&with(memory)), "storage.hugepages");
    assert_eq!(field_at_fault(&with("kind = 'memory'")), "storage.size");
    parse(&with("kind = 'memory', path = '/dev/shm/x'")).check().unwrap();
    assert_eq!(field_at_fault(&with("kind = 'sim', size = '1M', channels = 0")), "storage.channels");
    assert_eq!(field_at_fault(&with("kind = 'sim', size = '1M', error_rate = -0.1")), "storage.error_rate");
    assert_eq!(field_at_fault(&with("kind = 'sim', size = '1M', latency_spread = 1.5")), "storage.latency_spread");
}

#[test]
fn an_export_has_a_storage_or_a_disk() {
    let with = |line: &str| format!("name = 'a'\nsocket = '/a'\n{line}");
    let new = parse(&with("disk = 'base'\nblock_size = 4096"));
    new.check().unwrap();
    assert_eq!(new.backing(), Ok(Backing::Disk("base")));
    let json = serde_json::to_string(&new).unwrap();
    assert_eq!(serde_json::from_str::<NewExport>(&json).unwrap(), new);
    assert_eq!(toml::from_str::<NewExport>(&toml::to_string(&new).unwrap()).unwrap(), new);
    assert_eq!(field_at_fault(&with("disk = 'a b'")), "disk");
    assert_eq!(field_at_fault(&with("disk = 'base'\nstorage = { kind = 'null', size = '1M' }")), "disk");
    assert_eq!(field_at_fault(&with("")), "storage");
    assert_eq!(field_at_fault(&with("kind = 'dir'\ndisk = 'base'\ndirectory = { path = '/srv' }")), "disk");
    // What has not been written before the disks is not written now.
    let own = serde_json::to_value(parse(&with("storage = { kind = 'null', size = '1M' }"))).unwrap();
    assert!(own.get("disk").is_none(), "{own}");
}

#[test]
fn a_disk_may_have_clients_of_its_own() {
    let disk = |more: &str| {
        let text = format!("name = 'a'\nlisten = 'tcp:10809'\n{more}\nstorage = {{ kind = 'null', size = '1M' }}");
        toml::from_str::<NewExport>(&text).unwrap()
    };
    let fault = |more: &str| disk(more).check().unwrap_err().field;
    disk("").check().unwrap();
    assert_eq!(disk("").queues(), NewExport::DISK_CONNECTIONS_DEFAULT);
    disk("queues = 1024").check().unwrap();
    for (more, field) in [
        ("queues = 1025", "queues"),
        ("queue_size = 128", "queue_size"),
        ("serial = 's'", "serial"),
        ("socket = '/run/a.sock'", "listen"),
        ("socket_mode = '0660'", "socket_mode"),
    ] {
        assert_eq!(fault(more), field);
    }
    let text = "name = 'a'\nlisten = 'tcp:10809'\nstorage = { kind = 'file', path = '/a.img', migratable = true }";
    let error = toml::from_str::<NewExport>(text).unwrap().check().unwrap_err();
    assert!(error.field == "listen" && error.to_string().contains("`migratable`"), "{error}");
}
