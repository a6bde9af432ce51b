//! What exports are said to serve.

use super::latency;
use control::ApiError;
use control::model::directory::Directory;
use control::model::{
    DaxInfo, DirectoryInfo, Execution, Export, LinkInfo, LinkState, NewExport, OnLost, P9Info, Protocol, StorageInfo,
    VolumeInfo,
};
use disk::{StorageSpec, VolumeOptions};

/// What the fake serves of a directory: a guest has looked around in it.
pub(super) fn directory_info(directory: &Directory, export: &str) -> DirectoryInfo {
    let over_9p = directory.protocol == Protocol::P9;
    DirectoryInfo {
        path: directory.path.display().to_string(),
        tag: directory.tag(export),
        protocol: Some(if over_9p { "9P2000.L" } else { "7.45" }.into()),
        cache: (!over_9p).then_some(directory.cache),
        security_model: directory.security_model,
        read_only: directory.read_only,
        migration_mode: (!over_9p).then_some(directory.migration_mode),
        migration_on_error: (!over_9p).then_some(directory.migration_on_error),
        migration_verify_handles: directory.migration_verify_handles,
        execution: directory.execution,
        execution_chosen: Execution::Inline,
        nodes: 1200,
        nodes_max: u64::from(directory.nodes_max()),
        descriptors: 300,
        descriptors_max: u64::from(directory.descriptors_max()),
        open_files: 12,
        locks_waiting: 1,
        dax: directory.dax.map(|dax| DaxInfo { window: dax.window, when: dax.when, mapped: 3 }),
        p9: over_9p.then(|| P9Info {
            msize: Some(512_000),
            msize_max: directory.msize_max(),
            multidevs: directory.multidevs.unwrap_or_default(),
            fids: 130,
            connections: 2,
        }),
    }
}

/// What the fake serves of a disk.
pub(super) fn storage_info(block_size_bytes: u32, storage: &StorageSpec) -> Result<StorageInfo, ApiError> {
    let (target, capacity_bytes) = match storage {
        StorageSpec::File(file) if file.path.ends_with("missing.img") => {
            let message = "cannot open /images/missing.img: No such file or directory".to_owned();
            return Err(ApiError::InvalidField { field: "storage.path".into(), message });
        }
        StorageSpec::File(file) => (file.path.display().to_string(), 10 << 30),
        StorageSpec::Volume(volume) => (volume.path.display().to_string(), 20 << 30),
        StorageSpec::Qcow2(image) => (image.path.display().to_string(), 20 << 30),
        StorageSpec::Rbd(image) => (image.spec().to_string(), 20 << 30),
        StorageSpec::Sg(device) => (device.path.display().to_string(), 20 << 30),
        StorageSpec::Memory(memory) => ("anonymous".into(), memory.size.unwrap_or_default().0),
        StorageSpec::Null(null) => ("nothing".into(), null.size.0),
        StorageSpec::Sim(sim) => ("model".into(), sim.size.0),
    };
    Ok(StorageInfo {
        kind: storage.kind().into(),
        target,
        capacity_bytes,
        block_size_bytes,
        read_only: storage.read_only(),
        direct: match storage {
            StorageSpec::File(file) => file.direct,
            StorageSpec::Volume(volume) => volume.direct,
            StorageSpec::Qcow2(image) => image.direct,
            StorageSpec::Rbd(_) | StorageSpec::Sg(_) => true,
            StorageSpec::Memory(_) | StorageSpec::Null(_) | StorageSpec::Sim(_) => false,
        },
        execution: Execution::Auto,
        execution_chosen: if storage.kind() == "file" { Execution::Uring } else { Execution::Inline },
        held: storage.migratable().map(|_| false),
        // One that is to wait has something to wait for.
        link: match storage {
            StorageSpec::Rbd(image) if image.on_lost == OnLost::Wait => Some(LinkInfo {
                state: LinkState::LostWaiting,
                for_ms: Some(12_000),
                reason: Some("its lock was taken away".into()),
            }),
            StorageSpec::Rbd(_) => Some(LinkInfo { state: LinkState::Open, for_ms: None, reason: None }),
            _ => None,
        },
        volume: match (storage, storage.intent_log()) {
            (StorageSpec::Volume(volume), _) => Some(volume_info(volume)),
            (_, Some(log)) => {
                let volume = VolumeOptions { sync: log.sync, dirty_memory: log.dirty_memory, ..VolumeOptions::new("") };
                Some(VolumeInfo { log_bytes: log.size.0, ..volume_info(&volume) })
            }
            _ => None,
        },
    })
}

/// A log that a guest has used.
pub(super) fn volume_info(volume: &VolumeOptions) -> VolumeInfo {
    VolumeInfo {
        sync: volume.sync,
        log: volume.log.as_ref().map(|log| log.display().to_string()),
        failure: None,
        log_bytes: 64 << 20,
        log_used_bytes: 16 << 20,
        dirty_bytes: 3 << 20,
        dirty_bytes_max: volume.dirty_memory.0,
        parked: 2,
        parked_writes: 70,
        parked_commits: 3,
        commits: 400,
        committed_requests: 3000,
        committed_blocks: 3200,
        committed_bytes: 14_745_600,
        flushes_for_nothing: 120,
        log_errors: 1,
        written_back_bytes: 1 << 30,
        sweeps: 12,
        write_back_errors: 5,
        company_wait: latency(&[(4, 50)]),
        commit_latency: latency(&[(6, 300), (7, 100)]),
        flush_latency: latency(&[(6, 200), (8, 2800)]),
    }
}

pub(super) fn volume_of<'a>(export: &'a mut Export, name: &str) -> Result<&'a mut VolumeInfo, ApiError> {
    let volume = export.storage.as_mut().and_then(|storage| storage.volume.as_mut());
    let message = "it has no intent log".to_owned();
    volume.ok_or_else(|| ApiError::Unsupported { export: name.into(), message })
}

/// A description, as a configuration file would have it.
pub(crate) fn describe(name: &str, storage: &str, queues: u16) -> NewExport {
    let text = format!("name = '{name}'\nsocket = '/run/{name}.sock'\nqueues = {queues}\nstorage = {{ {storage} }}");
    toml::from_str(&text).unwrap()
}
