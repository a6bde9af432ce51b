//! A directory under each cache policy: everything that can be asked of a file system works.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest;
use tests::lab::Lab;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(120);

/// Serves a fresh directory with what `adapt` makes of it and has a guest do one of each thing.
fn every_operation(kernel: Kernel, shared_mappings: bool, adapt: impl FnOnce(Directory) -> Directory) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("from-the-host"), "hello guest")?;
    let mut server = DirectoryServer::start(&lab, &adapt(Directory::new(shared.path())))?;
    let mapping = if shared_mappings { "--shared-mapping" } else { "" };
    let body = format!(
        "test \"$(cat from-the-host)\" = 'hello guest'
         mkdir work
         $tool smoke {mapping} work
         echo 'hello host' >from-the-guest"
    );
    fs_guest::run(&lab, kernel, &server, &body, LIMIT)?;
    server.check_alive()?;
    ensure!(fs::read_to_string(shared.path().join("from-the-guest"))? == "hello host\n");
    server.stop()
}

#[test]
fn every_operation_works_with_cache_never() -> Result<()> {
    every_operation(Kernel::Debian, false, |directory| directory.cache(Cache::Never))
}

#[test]
fn every_operation_works_with_cache_metadata() -> Result<()> {
    every_operation(Kernel::Debian, false, |directory| directory.cache(Cache::Metadata))
}

#[test]
fn every_operation_works_with_cache_auto() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Auto))
}

#[test]
fn every_operation_works_with_cache_always() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Always))
}

#[test]
fn every_operation_works_with_writeback() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Always).option("--writeback"))
}

#[test]
fn files_without_cached_data_are_mapped_shared_if_that_is_allowed() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Never).option("--allow-mmap"))
}

#[test]
fn every_operation_works_with_two_processors_and_a_pool() -> Result<()> {
    every_operation(Kernel::Smp(2), true, |directory| Directory {
        queues: Some(2),
        workers: Some("per-queue"),
        execution: Some("pool=2"),
        ..directory
    })
}
