//! Options that the suite gives itself, and options of one kind of server that another does not have.

use super::expand::Wrong;
use super::problem::Problem;
use super::{Options, Server, ServerKind};

/// Options of `vringd disk` that `vringd dir` does not have.
const OF_DISKS: [&str; 22] = [
    "--storage",
    "--size",
    "--direct",
    "--no-direct",
    "--no-lock",
    "--threads",
    "--intent-log",
    "--log",
    "--sync",
    "--dirty-memory",
    "--memory-file",
    "--hugepages",
    "--serial",
    "--block-size",
    "--read-latency",
    "--write-latency",
    "--distribution",
    "--latency-spread",
    "--channels",
    "--flush-cost",
    "--error-rate",
    "--seed",
];

/// Options of `vringd dir` that `vringd disk` does not have.
const OF_DIRECTORIES: [&str; 17] = [
    "--cache",
    "--attr-timeout",
    "--entry-timeout",
    "--negative-timeout",
    "--writeback",
    "--allow-direct-io",
    "--allow-mmap",
    "--readdirplus",
    "--no-xattr",
    "--posix-acl",
    "--delay",
    "--tag",
    "--security-model",
    "--fmode",
    "--dmode",
    "--multidevs",
    "--msize",
];

/// What the suite says to every server: where it listens and what its data is.
const OF_THE_SUITE: [&str; 9] =
    ["--socket", "-s", "--socket-path", "--fd", "--listen", "--shared-dir", "--control", "--path", "--lun"];

/// What the suite says to fio. It says `time_based` as well, but a job may know better: one that must not go around twice.
const FIO_OF_THE_SUITE: [&str; 11] = [
    "filename",
    "directory",
    "size",
    "filesize",
    "nrfiles",
    "runtime",
    "ramp_time",
    "group_reporting",
    "output",
    "output-format",
    "name",
];

/// What the suite says to a frontend.
const FRONTEND_OF_THE_SUITE: [&str; 16] = [
    "socket",
    "server-pid",
    "server-cpus",
    "json",
    "time",
    "seconds",
    "ops",
    "ramp",
    "rounds",
    "dir",
    "shared-dir",
    "against",
    "ours",
    "protocol",
    "lun",
    "reserve",
];

/// Why data that is made up has no size of its own.
pub(super) const MADE_UP: &str = "what is made up is as large as --size in server.options says: leave this out";

/// The option without its value.
fn name(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// What an option says, if it is there.
fn value<'a>(server: &'a Server, name: &str) -> Option<&'a str> {
    let mut options = server.options.iter();
    while let Some(option) = options.next() {
        match option.split_once('=') {
            Some((before, value)) if before == name => return Some(value),
            None if option == name => return options.next().map(String::as_str),
            _ => {}
        }
    }
    None
}

fn storage(server: &Server) -> Option<&str> {
    value(server, "--storage")
}

/// Whether its options name a storage that needs no image.
pub(super) fn has_storage(server: &Server) -> bool {
    storage(server).is_some_and(|kind| kind != "file")
}

/// How large its options say that it is, in MiB, rounded up; `None` if they say nothing that can be understood.
pub(super) fn size_mib(server: &Server) -> Option<u64> {
    let size_bytes = bench::parse::size(value(server, "--size")?).ok()?;
    Some(size_bytes.div_ceil(1 << 20))
}

/// Whether its storage can have no image.
pub(super) fn is_made_up(server: &Server) -> bool {
    storage(server).is_some_and(|kind| kind == "sim" || kind == "null")
}

/// Whether it serves a volume, which `vringd volume` has to make.
pub(super) fn is_volume(server: &Server) -> bool {
    server.kind.is_disk_of_ours() && storage(server) == Some("volume")
}

/// Whether it holds written data in memory behind an intent log.
pub(super) fn has_log(server: &Server) -> bool {
    is_volume(server) || (server.kind.is_disk_of_ours() && value(server, "--intent-log").is_some())
}

/// Whether a server takes its options.
pub(super) fn of_server(server: &Server) -> Result<(), Wrong> {
    let refused = |option: &str, fix| {
        Err(("server.options".to_owned(), Problem::Option { option: name(option).to_owned(), fix }))
    };
    for option in &server.options {
        let name = name(option);
        if OF_THE_SUITE.contains(&name) {
            return refused(option, "the suite gives this: leave it out");
        }
        match server.kind {
            ServerKind::None => return refused(option, "nobody is there to take options: leave them out"),
            ServerKind::VringdDir | ServerKind::Vringd9p if name == "--protocol" => {
                return refused(option, "server.kind says it, vringd-dir or vringd-9p: leave it out");
            }
            ServerKind::VringdDir | ServerKind::Vringd9p | ServerKind::Virtiofsd if OF_DISKS.contains(&name) => {
                return refused(option, "only a disk has this: leave it out, or set server.kind to vringd-disk");
            }
            ServerKind::VringdDisk | ServerKind::VringdScsi if OF_DIRECTORIES.contains(&name) => {
                return refused(option, "only a directory has this: leave it out, or set server.kind to vringd-dir");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether options of a load are only those that an experiment may give. `tool` is `fio` or `frontend`.
pub(super) fn of_load(tool: &str, options: &Options) -> Result<(), Wrong> {
    let given: &[&str] = if tool == "fio" { &FIO_OF_THE_SUITE } else { &FRONTEND_OF_THE_SUITE };
    for (option, value) in options {
        let field = format!("{tool}.{option}");
        let is_word = option.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char));
        if option.is_empty() || option.starts_with('-') || !is_word {
            return Err((field, Problem::CannotBe("an option is named without dashes before it, as in depth = 16")));
        }
        if given.contains(&option.as_str()) {
            return Err((field, Problem::CannotBe("the suite gives this: leave it out")));
        }
        if value.chars().any(char::is_control) {
            return Err((field, Problem::CannotBe("the value is one line of text: write it without line breaks")));
        }
    }
    Ok(())
}
