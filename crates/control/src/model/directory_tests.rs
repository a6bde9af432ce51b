use super::super::config::{ExportKind, NewExport};
use super::*;

const DIR: &str = "name = 'home'\nkind = 'dir'\nsocket = '/run/home.sock'\n";

fn with(directory: &str) -> String {
    format!("{DIR}[directory]\npath = '/srv/home'\n{directory}\n")
}

fn parse(text: &str) -> NewExport {
    toml::from_str(text).unwrap()
}

fn field_at_fault(text: &str) -> String {
    parse(text).check().expect_err(text).field
}

#[test]
fn a_path_is_enough() {
    let new = parse(&with(""));
    new.check().unwrap();
    assert_eq!(new.kind, ExportKind::Dir);
    let directory = new.directory().unwrap();
    assert_eq!(*directory, Directory::new("/srv/home"));
    assert_eq!(directory.tag(&new.name).as_deref(), Some("home"));
    assert_eq!((directory.cache, directory.xattr, directory.announce_submounts), (CachePolicy::Auto, true, true));
    assert_eq!(new.queues(), NewExport::REQUEST_QUEUES_MAX);
}

#[test]
fn timeouts_follow_the_policy_unless_they_are_given() {
    let seconds = |policy: &str| {
        let new = parse(&with(policy));
        let directory = new.directory().unwrap();
        [directory.attr_timeout(), directory.entry_timeout(), directory.negative_timeout()].map(|time| time.as_secs())
    };
    assert_eq!(seconds("cache = 'never'"), [0, 0, 0]);
    assert_eq!(seconds("cache = 'auto'"), [1, 1, 0]);
    assert_eq!(seconds("cache = 'metadata'"), [86_400, 86_400, 86_400]);
    assert_eq!(seconds("cache = 'always'"), [86_400, 86_400, 86_400]);
    let given = "cache = 'always'\nattr_timeout = '2s'\nentry_timeout = '3s'\nnegative_timeout = '0s'";
    assert_eq!(seconds(given), [2, 3, 0]);
}

#[test]
fn a_tag_is_cut_given_or_not_offered() {
    let tag = |tag: &str, name: &str| Directory { tag: Some(tag.into()), ..Directory::new("/") }.tag(name);
    assert_eq!(tag("data", "x").as_deref(), Some("data"));
    assert_eq!(tag("", "x"), None);
    let long = Directory::new("/").tag(&"n".repeat(64)).unwrap();
    assert_eq!(long.len(), Directory::TAG_BYTES_MAX);
}

#[test]
fn a_full_description_is_the_same_in_toml_and_json() {
    let new = parse(&with(
        "tag = 'data'\ncache = 'metadata'\nattr_timeout = '5s'\nentry_timeout = '6s'\nnegative_timeout = '7s'\n\
         writeback = true\nallow_direct_io = true\nallow_mmap = true\nreaddirplus = 'off'\nxattr = true\n\
         xattrmap = ':map::user.virtiofs.:'\nposix_acl = 'never'\nsecurity_label = 'auto'\nkillpriv_v2 = false\n\
         posix_lock = false\nflock = false\nannounce_submounts = false\ninode_file_handles = 'mandatory'\n\
         nodes_max = 300\ndescriptors_max = 100\nopen_files_max = 200\npreserve_noatime = true\nread_windows = false\nread_only = true\n\
         translate_uid = ['map:0:1000:1']\ntranslate_gid = ['guest:0:1000:1', 'host:1000:0:1']\n\
         migration_mode = 'find-paths'\nmigration_on_error = 'guest-error'\nmigration_verify_handles = true\n\
         execution = 'pool=4'\ndelay = '1ms'",
    ));
    new.check().unwrap();
    let json = serde_json::to_string(&new).unwrap();
    assert_eq!(serde_json::from_str::<NewExport>(&json).unwrap(), new);
    assert_eq!(toml::from_str::<NewExport>(&toml::to_string(&new).unwrap()).unwrap(), new);
}

/// An older program hands over a directory that has nothing of this, and goes on with one.
#[test]
fn how_it_is_migrated_is_neither_needed_nor_written() {
    let old = r#"{"path":"/srv","cache":"auto","xattr":true,"inode_file_handles":"prefer"}"#;
    assert_eq!(serde_json::from_str::<Directory>(old).unwrap(), Directory::new("/srv"));
    let json = serde_json::to_string(&Directory::new("/srv")).unwrap();
    assert!(!json.contains("migration"), "{json}");
}

#[test]
fn every_check_names_its_field() {
    assert_eq!(field_at_fault(&with("").replace("/srv/home", "")), "directory.path");
    assert_eq!(field_at_fault(&with("tag = '1234567890123456789012345678901234567'")), "directory.tag");
    assert_eq!(field_at_fault(&with("tag = \"a\\u0000\"")), "directory.tag");
    assert_eq!(field_at_fault(&with("xattr = false\nxattrmap = ':ok:all::.:'")), "directory.xattrmap");
    assert_eq!(field_at_fault(&with("xattr = false\nposix_acl = 'auto'")), "directory.posix_acl");
    assert_eq!(field_at_fault(&with("xattr = false\nsecurity_label = 'always'")), "directory.security_label");
    let translated = "posix_acl = 'always'\ntranslate_gid = ['map:0:0:1']";
    assert_eq!(field_at_fault(&with(translated)), "directory.translate_gid");
    assert_eq!(field_at_fault(&with("nodes_max = 15")), "directory.nodes_max");
    assert_eq!(field_at_fault(&with("descriptors_max = 15")), "directory.descriptors_max");
    assert_eq!(field_at_fault(&with("open_files_max = 16777217")), "directory.open_files_max");
    assert_eq!(field_at_fault(&with("delay = '11s'")), "directory.delay");
    for window in ["1M", "3M", "1G", "0"] {
        assert_eq!(field_at_fault(&with(&format!("dax = {{ window = '{window}' }}"))), "directory.dax.window");
    }
    for other in
        ["read_only = true", "writeback = true", "migration_mode = 'file-handles'", "migration_verify_handles = true"]
    {
        assert_eq!(field_at_fault(&with(&format!("dax = {{ window = '64M' }}\n{other}"))), "directory.dax", "{other}");
    }
}

#[test]
fn disks_and_directories_are_kept_apart() {
    assert_eq!(field_at_fault(DIR), "directory");
    let with_top = |line: &str| with("").replacen("[directory]", &format!("{line}\n[directory]"), 1);
    assert_eq!(field_at_fault(&with_top("storage = { kind = 'null', size = '1G' }")), "storage");
    assert_eq!(field_at_fault(&with_top("serial = 'x'")), "serial");
    assert_eq!(field_at_fault(&with_top("block_size = 512")), "block_size");
    assert_eq!(field_at_fault(&with_top("write_cache = 'on'")), "write_cache");
    assert_eq!(field_at_fault(&with_top("queues = 65")), "queues");
    parse(&with_top("queues = 64")).check().unwrap();
    assert_eq!(field_at_fault(&with("").replace("kind = 'dir'\n", "")), "directory");
    assert_eq!(field_at_fault("name = 'a'\nsocket = '/s'"), "storage");
}

#[test]
fn file_handles_go_along_without_paths() {
    let by_handles = "migration_mode = 'file-handles'\n";
    parse(&with(by_handles)).check().unwrap();
    for (line, field) in [
        ("migration_verify_handles = true", "directory.migration_verify_handles"),
        ("security_model = 'mapped-file'", "directory.migration_mode"),
    ] {
        parse(&with(line)).check().unwrap();
        assert_eq!(field_at_fault(&with(&format!("{by_handles}{line}"))), field);
    }
}

#[test]
fn unknown_words_are_refused() {
    for text in [
        "colour = 'red'",
        "cache = 'sometimes'",
        "readdirplus = 'maybe'",
        "posix_acl = true",
        "migration_mode = 'find_paths'",
        "migration_on_error = 'ignore'",
        "delay = '1'",
    ] {
        assert!(toml::from_str::<NewExport>(&with(text)).is_err(), "{text}");
    }
}

#[test]
fn a_window_is_written_as_it_was_read() {
    for (line, when) in
        [("dax = { window = '512M' }", DaxWhen::Inode), ("dax = { window = '2M', when = 'always' }", DaxWhen::Always)]
    {
        let new = parse(&with(line));
        new.check().unwrap();
        assert_eq!(new.directory.as_ref().unwrap().dax.unwrap().when, when);
        let json = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<NewExport>(&json).unwrap(), new);
        assert_eq!(toml::from_str::<NewExport>(&toml::to_string(&new).unwrap()).unwrap(), new);
    }
}
