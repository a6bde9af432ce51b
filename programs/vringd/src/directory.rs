//! From a directory as the API describes it to its tree and its policy, and back to what the API shows.

use crate::failure::field;
use control::ApiError;
use control::model as api;
use control::model::{CachePolicy, Directory, Negotiation, Readdirplus};
use export::{DaxOptions, DirectoryOptions, DirectoryStatus, Policy};
use passthrough::{Adopted, IdMap, Migration, Options, Security, Source, Tree, XattrMap};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Opens the tree; from `source` when its path is out of sight.
///
/// # Errors
/// [`ApiError::InvalidField`] with the field at fault.
pub(crate) fn open(directory: &Directory, source: Option<Source>) -> Result<Arc<Tree>, ApiError> {
    let source = source.unwrap_or_else(|| Source::Path(directory.path.clone()));
    let tree = Tree::new(source, options_in(directory)?).map_err(|error| field("directory.path", error))?;
    Ok(Arc::new(tree))
}

/// Whether a tree could be opened with what is said about it, as far as that can be known without the tree.
///
/// # Errors
/// [`ApiError::InvalidField`] with the field at fault.
pub(crate) fn check(directory: &Directory) -> Result<(), ApiError> {
    options_in(directory).map(drop)
}

/// Goes on with the tree that another program has handed over.
///
/// # Errors
/// [`ApiError::InvalidField`] with the reason.
pub(crate) fn adopt(directory: &Directory, adopted: Adopted) -> Result<Arc<Tree>, ApiError> {
    let tree = Tree::handed_over(options_in(directory)?, adopted);
    tree.map(Arc::new).map_err(|error| field("directory.path", error))
}

/// What a tree allows and holds.
fn options_in(directory: &Directory) -> Result<Options, ApiError> {
    Ok(Options {
        read_only: directory.read_only,
        nosuid: directory.nosuid,
        nodev: directory.nodev,
        security: security_in(directory),
        file_handles: directory.inode_file_handles,
        nodes_max: directory.nodes_max() as usize,
        descriptors_max: directory.descriptors_max() as usize,
        open_files_max: directory.open_files_max() as usize,
        xattr: directory.xattr,
        xattr_map: directory
            .xattrmap
            .as_deref()
            .map_or_else(|| Ok(XattrMap::default()), |text| read("xattrmap", text))?,
        posix_acl: match directory.protocol {
            api::Protocol::Virtiofs => directory.posix_acl != Negotiation::Never,
            // Attributes like others, unless they carry ids that nobody translates.
            api::Protocol::P9 => {
                directory.xattr && directory.translate_uid.is_empty() && directory.translate_gid.is_empty()
            }
        },
        announce_submounts: directory.announce_submounts,
        uid_map: id_map("translate_uid", &directory.translate_uid)?,
        gid_map: id_map("translate_gid", &directory.translate_gid)?,
        writeback: directory.writeback,
        allow_direct_io: directory.allow_direct_io,
        preserve_noatime: directory.preserve_noatime,
        read_windows: directory.read_windows,
        migration: Migration {
            mode: directory.migration_mode,
            on_error: directory.migration_on_error,
            verify_handles: directory.migration_verify_handles,
        },
        delay: directory.delay.map_or(Duration::ZERO, |span| span.0),
    })
}

fn security_in(directory: &Directory) -> Security {
    let fmode = directory.fmode.unwrap_or(Directory::FMODE_DEFAULT).0;
    let dmode = directory.dmode.unwrap_or(Directory::DMODE_DEFAULT).0;
    match directory.security_model {
        api::SecurityModel::Passthrough => Security::Passthrough,
        api::SecurityModel::None => Security::None,
        api::SecurityModel::MappedXattr => Security::MappedXattr { fmode, dmode },
        api::SecurityModel::MappedFile => Security::MappedFile { fmode, dmode },
    }
}

fn security_out(security: Security) -> api::SecurityModel {
    match security {
        Security::Passthrough => api::SecurityModel::Passthrough,
        Security::None => api::SecurityModel::None,
        Security::MappedXattr { .. } => api::SecurityModel::MappedXattr,
        Security::MappedFile { .. } => api::SecurityModel::MappedFile,
    }
}

fn read<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|error| field(&format!("directory.{name}"), error))
}

fn id_map(name: &str, rules: &[String]) -> Result<IdMap, ApiError> {
    let rules: Vec<_> = rules.iter().map(|rule| read(name, rule)).collect::<Result<_, _>>()?;
    IdMap::new(&rules).map_err(|error| field(&format!("directory.{name}"), error))
}

/// What the device needs to know.
pub(crate) fn device_in(directory: &Directory, export: &str, request_queues: u16) -> DirectoryOptions {
    DirectoryOptions {
        tag: directory.tag(export),
        request_queues,
        policy: policy_in(directory),
        execution: directory.execution,
    }
}

fn policy_in(directory: &Directory) -> Policy {
    Policy {
        attr_timeout: directory.attr_timeout(),
        entry_timeout: directory.entry_timeout(),
        negative_timeout: directory.negative_timeout(),
        writeback: directory.writeback,
        allow_mmap: directory.allow_mmap,
        readdirplus: match directory.readdirplus {
            // Attributes that may not be believed are not worth their way.
            Readdirplus::Auto if directory.entry_timeout().is_zero() => Readdirplus::Off,
            chosen => chosen,
        },
        xattr: directory.xattr,
        killpriv_v2: directory.killpriv_v2,
        posix_acl: directory.posix_acl,
        security_label: directory.security_label,
        posix_lock: directory.posix_lock,
        flock: directory.flock,
        announce_submounts: directory.announce_submounts,
        // Nobody writes and nobody else changes anything: there is nothing that opening a file would bring about.
        no_open: directory.read_only && directory.cache == CachePolicy::Always,
        dax: directory.dax.map(|dax| DaxOptions { window_bytes: dax.window.0, when: dax.when }),
        ..Policy::new(directory.cache)
    }
}

/// A directory as the API shows it.
pub(crate) fn shown(status: &DirectoryStatus) -> api::DirectoryInfo {
    let migrates = status.policy.dax.is_none();
    api::DirectoryInfo {
        tag: status.tag.clone(),
        // The major version has been 7 since virtio-fs began.
        protocol: status.protocol_minor.map(|minor| format!("7.{minor}")),
        cache: Some(status.policy.cache),
        migration_mode: migrates.then_some(status.tree.options.migration.mode),
        migration_on_error: migrates.then_some(status.tree.options.migration.on_error),
        execution: status.execution,
        execution_chosen: status.execution,
        locks_waiting: status.locks_waiting as u64,
        dax: status.policy.dax.map(|dax| api::DaxInfo {
            window: api::ByteSize(dax.window_bytes),
            when: dax.when,
            mapped: status.dax_mapped as u64,
        }),
        ..of_tree(&status.tree)
    }
}

/// What the tree says, whatever the protocol.
pub(crate) fn of_tree(tree: &passthrough::Description) -> api::DirectoryInfo {
    api::DirectoryInfo {
        path: tree.path.display().to_string(),
        tag: None,
        protocol: None,
        cache: None,
        security_model: security_out(tree.options.security),
        read_only: tree.options.read_only,
        migration_mode: None,
        migration_on_error: None,
        migration_verify_handles: tree.options.migration.verify_handles,
        execution: api::Execution::default(),
        execution_chosen: api::Execution::default(),
        nodes: tree.nodes as u64,
        nodes_max: tree.options.nodes_max as u64,
        descriptors: tree.descriptors as u64,
        descriptors_max: tree.options.descriptors_max as u64,
        open_files: tree.handles as u64,
        locks_waiting: 0,
        dax: None,
        p9: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(directory: &Directory) -> String {
        match options_in(directory) {
            Err(ApiError::InvalidField { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rules_are_read_or_named() {
        let least = Directory::new("/srv");
        let uid = |rule: &str| Directory { translate_uid: vec![rule.into()], ..least.clone() };
        assert_eq!(options_in(&uid("map:0:1000:1")).unwrap().uid_map.to_host(0), Ok(1000));
        assert!(options_in(&least).unwrap().uid_map.is_identity());
        assert_eq!(refused(&uid("swap:0:1000:1")), "directory.translate_uid");
        assert_eq!(
            refused(&Directory { translate_gid: vec![String::new()], ..least.clone() }),
            "directory.translate_gid"
        );
        let map = |rules: &str| Directory { xattrmap: Some(rules.into()), ..least.clone() };
        assert!(!options_in(&map(":map::user.virtiofs.:")).unwrap().xattr_map.is_identity());
        assert_eq!(refused(&map(":map:")), "directory.xattrmap");
    }

    #[test]
    fn attributes_come_with_listings_where_they_may_be_kept() {
        let auto = |cache| policy_in(&Directory { cache, ..Directory::new("/srv") }).readdirplus;
        assert_eq!(auto(CachePolicy::Never), Readdirplus::Off);
        assert_eq!(auto(CachePolicy::Auto), Readdirplus::Auto);
    }

    #[test]
    fn models_are_passed_on_with_their_modes() {
        let of = |security_model, fmode: Option<&str>| Directory {
            security_model,
            fmode: fmode.map(|mode| mode.parse().unwrap()),
            ..Directory::new("/srv")
        };
        let passed = |directory: Directory| options_in(&directory).unwrap().security;
        let mapped = passed(of(api::SecurityModel::MappedXattr, Some("0640")));
        assert_eq!(mapped, Security::MappedXattr { fmode: 0o640, dmode: 0o700 });
        let mapped = passed(of(api::SecurityModel::MappedFile, None));
        assert_eq!(mapped, Security::MappedFile { fmode: 0o600, dmode: 0o700 });
        assert_eq!(passed(of(api::SecurityModel::None, None)), Security::None);
        assert_eq!(passed(of(api::SecurityModel::Passthrough, None)), Options::default().security);
    }

    #[test]
    fn how_it_is_migrated_is_passed_on() {
        let passed = |directory: Directory| options_in(&directory).unwrap().migration;
        let least = Directory::new("/srv");
        assert_eq!(passed(least.clone()), Migration::default());
        let mode = api::MigrationMode::FileHandles;
        let expected = Migration { mode, ..Migration::default() };
        assert_eq!(passed(Directory { migration_mode: mode, ..least.clone() }), expected);
        let on_error = api::MigrationOnError::GuestError;
        let expected = Migration { on_error, ..Migration::default() };
        assert_eq!(passed(Directory { migration_on_error: on_error, ..least.clone() }), expected);
        let expected = Migration { verify_handles: true, ..Migration::default() };
        assert_eq!(passed(Directory { migration_verify_handles: true, ..least }), expected);
    }

    #[test]
    fn lists_are_attributes_like_others_over_9p() {
        let over_9p = Directory { protocol: api::Protocol::P9, ..Directory::new("/srv") };
        assert!(options_in(&over_9p).unwrap().posix_acl);
        assert!(!options_in(&Directory { xattr: false, ..over_9p.clone() }).unwrap().posix_acl);
        let translated = Directory { translate_uid: vec!["map:0:1000:1".into()], ..over_9p };
        assert!(!options_in(&translated).unwrap().posix_acl);
        assert!(!options_in(&Directory::new("/srv")).unwrap().posix_acl);
    }

    #[test]
    fn a_tree_is_opened_or_its_field_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let about = Directory::new(directory.path());
        assert_eq!(open(&about, None).unwrap().describe().path, directory.path());
        let refused = |about: Directory| match open(&about, None) {
            Err(ApiError::InvalidField { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Directory::new(directory.path().join("none"))), "directory.path");
    }

    #[test]
    fn what_the_guest_may_cache_is_passed_on() {
        let directory = Directory {
            cache: CachePolicy::Metadata,
            attr_timeout: Some("2s".parse().unwrap()),
            posix_acl: Negotiation::Auto,
            flock: false,
            readdirplus: Readdirplus::Off,
            writeback: true,
            ..Directory::new("/srv")
        };
        let device = device_in(&directory, "home", 4);
        assert_eq!((device.tag.as_deref(), device.request_queues), (Some("home"), 4));
        let expected = Policy {
            attr_timeout: Duration::from_secs(2),
            posix_acl: Negotiation::Auto,
            flock: false,
            readdirplus: Readdirplus::Off,
            writeback: true,
            ..Policy::new(CachePolicy::Metadata)
        };
        assert_eq!(device.policy, expected);
    }

    /// The control room states the defaults of its own, because it knows no other room.
    #[test]
    fn the_apis_defaults_are_those_of_the_rooms() {
        for cache in [CachePolicy::Never, CachePolicy::Metadata, CachePolicy::Auto, CachePolicy::Always] {
            let directory = Directory { cache, readdirplus: Readdirplus::On, ..Directory::new("/srv") };
            assert_eq!(policy_in(&directory), Policy { readdirplus: Readdirplus::On, ..Policy::new(cache) });
        }
        let options = options_in(&Directory::new("/srv")).unwrap();
        assert_eq!(options.nodes_max, Options::default().nodes_max);
        assert_eq!(options.descriptors_max, Options::default().descriptors_max);
        assert_eq!(options.open_files_max, Options::default().open_files_max);
    }
}
