//! The command `vringd image`.

mod args;
mod show;

pub(crate) use args::Args;

use crate::bar::Bar;
use crate::failure::Failure;
use crate::out::Out;
use ::image::Qcow2Options;
use ::image::tools::{self, Backing, CreateOptions, From};
use args::{Command, Convert, Create, Format, Layout};
use control::model::ByteSize;
use std::path::PathBuf;
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
        Command::Convert(convert) => self::convert(convert, out)?,
        Command::Compare { one, other, format, other_format, allow_backing } => {
            let (one, other) = (source(one, format, &allow_backing), source(other, other_format, &allow_backing));
            let bar = Bar::new("compare");
            let compared = tools::compare(&one, &other, &mut |done, all| bar.show(done, all)).map_err(Failure::of)?;
            drop(bar);
            out.print(&compared, show::compared)?;
            return Ok(if compared.same { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Map { path, format, allow_backing } => {
            let bar = Bar::new("map");
            let map = tools::map(&source(path, format, &allow_backing), &mut |done, all| bar.show(done, all));
            let map = map.map_err(Failure::of)?;
            drop(bar);
            out.print(&map, |map| show::map(map))?;
        }
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
    let Create { path, size, backing, backing_format, layout } = create;
    let backing = backing.map(|name| Backing { name, is_qcow2: backing_format == Some(Format::Qcow2) });
    tools::create(&path, &CreateOptions { backing, ..options(&layout, size) }).map_err(Failure::of)?;
    tools::info(&path).map_err(Failure::of)
}

fn options(layout: &Layout, size: Option<ByteSize>) -> CreateOptions {
    CreateOptions {
        size_bytes: size.map(|size| size.0),
        cluster_bytes: layout.cluster_size.0,
        refcount_bits: layout.refcount_bits,
        subclusters: layout.subclusters,
        backing: None,
        force: layout.force,
    }
}

/// An image that is read, with what is behind it.
fn source(path: PathBuf, format: Format, allow: &[PathBuf]) -> From {
    match format {
        Format::Raw => From::Raw(path),
        Format::Qcow2 => {
            From::Qcow2(Qcow2Options { read_only: true, allow: allow.to_vec(), ..Qcow2Options::new(path) })
        }
    }
}

fn convert(convert: Convert, out: Out) -> Result<(), Failure> {
    let Convert { source, target, from, to, allow_backing, size, layout } = convert;
    let from = self::source(source, from, &allow_backing);
    let bar = Bar::new("convert");
    let mut shown = |done, all| bar.show(done, all);
    let converted = match to {
        Format::Qcow2 => tools::to_qcow2(&from, &target, &options(&layout, size), &mut shown),
        Format::Raw if size.is_some() => {
            return Err(Failure::Usage("--size: has no meaning for a raw image".to_owned()));
        }
        Format::Raw => tools::to_raw(&from, &target, layout.force, &mut shown),
    };
    let converted = converted.map_err(Failure::of)?;
    drop(bar);
    out.print(&converted, |converted| show::converted(&target, to, converted))
}
