//! The command `vringd image`.

mod args;
mod show;

pub(crate) use args::Args;

use crate::bar::Bar;
use crate::failure::Failure;
use crate::out::Out;
use ::image::tools::{self, Backing, CreateOptions};
use args::{Command, Create, Format};
use std::process::ExitCode;

/// Runs `vringd image`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let out = Out { json: args.json };
    match args.command {
        Command::Create(create) => out.print(&self::create(create)?, show::info)?,
        Command::Info { path, chain: false } => out.print(&tools::info(&path).map_err(Failure::of)?, show::info)?,
        Command::Info { path, chain: true } => out.print(&tools::chain(&path).map_err(Failure::of)?, |all| {
            all.iter().map(show::info).collect::<Vec<_>>().join("\n")
        })?,
        Command::Check { path, repair, no_lock } => {
            let bar = Bar::new("check");
            let checked = tools::check(&path, repair, !no_lock, &mut |done, all| bar.show(done, all));
            let checked = checked.map_err(Failure::of)?;
            drop(bar);
            out.print(&checked, |checked| show::checked(checked, repair))?;
            return Ok(if checked.sound { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(create: Create) -> Result<tools::Info, Failure> {
    let Create { path, size, backing, backing_format, cluster_size, refcount_bits, subclusters, force } = create;
    let backing = backing.map(|name| Backing { name, is_qcow2: backing_format == Some(Format::Qcow2) });
    let size_bytes = size.map(|size| size.0);
    let options =
        CreateOptions { size_bytes, cluster_bytes: cluster_size.0, refcount_bits, subclusters, backing, force };
    tools::create(&path, &options).map_err(Failure::of)?;
    tools::info(&path).map_err(Failure::of)
}
