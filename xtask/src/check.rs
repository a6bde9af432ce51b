//! `cargo xtask check`: what a reader should never have to complain about.

use std::process::Command;

use anyhow::Result;

use crate::step::{self, cargo};
use crate::{book, links};

const TASK: &str = "check";
const ELSEWHERE: &str = "aarch64-unknown-linux-gnu";

/// Looks at formatting, links, lints and documentation; the first failure ends it.
pub(crate) fn run() -> Result<()> {
    step::run(TASK, &mut cargo(&["fmt", "--all", "--check"]))?;
    links::check(TASK)?;
    book::check(TASK)?;
    step::run(TASK, &mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    step::run(TASK, cargo(&["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    // A workspace of its own, which nothing else builds before a night.
    step::run(
        TASK,
        &mut cargo(&["check", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target/fuzz"]),
    )?;
    elsewhere()?;
    oldest()?;
    if step::has("cargo", &["deny", "--version"]) {
        return step::run(TASK, &mut cargo(&["deny", "--locked", "check", "licenses", "bans", "sources"]));
    }
    println!("{TASK}: cargo-deny is not installed: licences and sources of crates go unchecked");
    Ok(())
}

/// The daemon on the other processor that servers have; the types are checked, and nothing is run.
fn elsewhere() -> Result<()> {
    println!("{TASK}: rustup target add {ELSEWHERE}");
    if !step::has("rustup", &["target", "add", ELSEWHERE]) {
        println!("{TASK}: rustup has no {ELSEWHERE} here: it goes unchecked");
        return Ok(());
    }
    let mut check = cargo(&["check", "--locked", "--package", "vringd", "--target", ELSEWHERE]);
    // Some crates compile C in passing, for which there need be no compiler here: types do without what it makes.
    let variables = ["CC", "AR"].map(|tool| format!("{tool}_{}", ELSEWHERE.replace('-', "_")));
    step::run(TASK, check.envs(variables.map(|name| (name, "true"))))
}

/// The daemon with the oldest compiler that Cargo.toml promises, where rustup has it: a toolchain is nothing to fetch in passing.
fn oldest() -> Result<()> {
    let version = env!("CARGO_PKG_RUST_VERSION");
    let name = format!("{version}.0");
    let Some(toolchain) = [version, name.as_str()].into_iter().find(|name| has_toolchain(name)) else {
        println!(
            "{TASK}: rustup has no toolchain {version}: that the daemon builds with it goes unchecked (rustup toolchain install {version})"
        );
        return Ok(());
    };
    let mut command = Command::new("rustup");
    command.args([
        "run",
        toolchain,
        "cargo",
        "check",
        "--locked",
        "--package",
        "vringd",
        "--target-dir",
        "target/oldest",
    ]);
    // Cargo names its own compiler to what it runs.
    command.env_remove("RUSTC").env_remove("RUSTDOC").env_remove("CARGO").current_dir(step::workspace());
    step::run(TASK, &mut command)
}

fn has_toolchain(name: &str) -> bool {
    step::has("rustup", &["which", "--toolchain", name, "rustc"])
}
