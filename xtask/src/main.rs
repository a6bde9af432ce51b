//! Development tasks: `cargo xtask lab`, `check`, `test`, `fuzz`, `book`, `package` and `torture`.

mod book;
mod check;
mod fuzz;
mod links;
mod make;
mod package;
mod space;
mod step;
mod test;
mod tools;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of vringd.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check formatting, lints and documentation.
    Check,
    /// Fetch or build the guests and peers that the tests need.
    ///
    /// Everything lands in $VRINGD_LAB, else in vringd-lab in the user's cache directory, else in
    /// target/lab. A step whose result is current is skipped.
    Lab(make::Options),
    /// Fuzz the targets of `fuzz/`, and add time, executions and coverage to the ledger there.
    Fuzz(fuzz::Options),
    /// Build the documents as a book, in target/book, and check its links.
    ///
    /// mdbook lands in target/tools. The pages need no network.
    Book,
    /// Make a package for Debian, in target/debian, with a bill of materials; with --oci an image for containers, too.
    ///
    /// Everything that it needs lands in target. With --check it is tried in fresh roots of Debian's.
    Package(package::Options),
    /// Run every test there is, guests included, from a fresh clone; with --quick less, with --long more.
    Test(test::Options),
    /// Kill servers under load and look at every request; ends with one line of figures, and fails on any loss.
    ///
    /// Builds the program `torture`, and hands all else on to it.
    #[command(disable_help_flag = true)]
    Torture {
        /// What `torture --help` tells of.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.task {
        Task::Book => book::make(),
        Task::Check => check::run(),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Lab(options) => make::run(&options),
        Task::Package(options) => package::make(&options),
        Task::Test(options) => test::run(&options),
        Task::Torture { arguments } => step::torture(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
