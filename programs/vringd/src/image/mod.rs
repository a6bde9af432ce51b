//! The command `vringd image`.

mod args;
mod log;
mod luks;
mod map;
mod show;

pub(crate) use args::Args;

use crate::bar::Bar;
use crate::failure::Failure;
use crate::out::Out;
use ::image::Qcow2Options;
use ::image::tools::{self, Backing, BitmapChange, CreateOptions, Foreign, ForeignFormat, From, SnapshotChange};
use args::{Bitmap, Command, Convert, Create, Format, Layout, Measure, Readable, Rebase, Snapshot};
use control::model::ByteSize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs `vringd image`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let out = Out { json: args.json };
    // A write that the limit refuses is an error like any other.
    let caught = crate::run::outlive_file_size_limit();
    caught.map_err(|error| Failure::Runtime(format!("cannot watch for signals: {error}")))?;
    crate::run::raise_file_limit();
    match args.command {
        Command::Create(create) => out.print(&self::create(create)?, show::info)?,
        Command::CreateLuks(create) => out.print(&self::luks::create(create)?, self::luks::show)?,
        Command::Info { path, chain } => info(&path, chain, out)?,
        Command::Convert(convert) => self::convert(convert, out)?,
        Command::Compare { one, other, format, other_format, snapshot, other_snapshot, allow_backing } => {
            let one = source(one, format, ("--snapshot", snapshot), &allow_backing)?;
            let other = source(other, other_format, ("--other-snapshot", other_snapshot), &allow_backing)?;
            let bar = Bar::new("compare");
            let compared = tools::compare(&one, &other, &mut |done, all| bar.show(done, all)).map_err(Failure::of)?;
            drop(bar);
            out.print(&compared, show::compared)?;
            return Ok(if compared.same { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Map { path, format, snapshot, allow_backing } => {
            let from = source(path, format, ("--snapshot", snapshot), &allow_backing)?;
            map::map(&from, out)?;
        }
        Command::Snapshot(what) => out.print(&snapshot(&what)?, |all| show::snapshots(all))?,
        Command::Log(what) => return log::run(what, out),
        Command::Bitmap(what) => out.print(&bitmap(&what)?, |all| show::bitmaps(all))?,
        Command::Measure(measure) => out.print(&self::measure(measure)?, show::measured)?,
        Command::Resize { path, size, format, shrink, allow_backing } => {
            let image = match format {
                Format::Raw => From::Raw(path),
                Format::Qcow2 => From::Qcow2(Qcow2Options { allow: allow_backing, ..Qcow2Options::new(path) }),
            };
            let bar = Bar::new("resize");
            let resized = tools::resize(&image, size, shrink, &mut |done, all| bar.show(done, all));
            let resized = resized.map_err(Failure::of)?;
            drop(bar);
            out.print(&resized, |resized| show::resized(image.path(), resized))?;
        }
        Command::Commit { path, keep, allow_backing } => {
            let options = Qcow2Options { allow: allow_backing, ..Qcow2Options::new(path) };
            let bar = Bar::new("commit");
            let committed = tools::commit(&options, keep, &mut |done, all| bar.show(done, all));
            let committed = committed.map_err(Failure::of)?;
            drop(bar);
            out.print(&committed, |committed| show::committed(&options.path, committed))?;
        }
        Command::Rebase(rebase) => self::rebase(rebase, out)?,
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
    let Create { path, size, backing, backing_format, layout, force } = create;
    let backing = self::backing(backing, backing_format);
    tools::create(&path, &CreateOptions { backing, ..options(&layout, size, force) }).map_err(Failure::of)?;
    tools::info(&path).map_err(Failure::of)
}

fn info(path: &Path, chain: bool, out: Out) -> Result<(), Failure> {
    if let Some(info) = self::luks::info(path)? {
        return out.print(&info, self::luks::show);
    }
    if chain {
        let shown = |all: &Vec<tools::Info>| all.iter().map(show::info).collect::<Vec<_>>().join("\n");
        return out.print(&tools::chain(path).map_err(Failure::of)?, shown);
    }
    out.print(&tools::info(path).map_err(Failure::of)?, show::info)
}

fn snapshot(what: &Snapshot) -> Result<Vec<tools::SnapshotInfo>, Failure> {
    let (path, change) = match what {
        Snapshot::List { path } => return Ok(tools::info(path).map_err(Failure::of)?.snapshots),
        Snapshot::Create { path, name } => {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (path, SnapshotChange::Take { name, at })
        }
        Snapshot::Apply { path, snapshot } => (path, SnapshotChange::Apply(snapshot)),
        Snapshot::Delete { path, snapshot } => (path, SnapshotChange::Delete(snapshot)),
    };
    let bar = Bar::new("check");
    let changed = tools::change_snapshots(path, change, &mut |done, all| bar.show(done, all));
    changed.map_err(Failure::of)
}

fn bitmap(what: &Bitmap) -> Result<Vec<tools::BitmapEntry>, Failure> {
    let (path, change) = match what {
        Bitmap::List { path } => return tools::bitmaps(path).map_err(Failure::of),
        Bitmap::Add { path, name, granularity } => (path, BitmapChange::Add { name, granularity_bytes: granularity.0 }),
        Bitmap::Remove { path, name } => (path, BitmapChange::Remove(name)),
        Bitmap::Clear { path, name } => (path, BitmapChange::Clear(name)),
        Bitmap::Enable { path, name } => (path, BitmapChange::Enable(name)),
        Bitmap::Disable { path, name } => (path, BitmapChange::Disable(name)),
    };
    let bar = Bar::new("check");
    let changed = tools::change_bitmaps(path, change, &mut |done, all| bar.show(done, all));
    changed.map_err(Failure::of)
}

fn backing(name: Option<PathBuf>, format: Option<Format>) -> Option<Backing> {
    name.map(|name| Backing { name, is_qcow2: format == Some(Format::Qcow2) })
}

fn rebase(rebase: Rebase, out: Out) -> Result<(), Failure> {
    let Rebase { path, backing, backing_format, no_backing: _, unchecked, allow_backing } = rebase;
    let backing = self::backing(backing, backing_format);
    let options = Qcow2Options { allow: allow_backing, ..Qcow2Options::new(path) };
    let bar = Bar::new("rebase");
    let rebased = tools::rebase(&options, backing.as_ref(), unchecked, &mut |done, all| bar.show(done, all));
    let rebased = rebased.map_err(Failure::of)?;
    drop(bar);
    out.print(&rebased, |rebased| show::rebased(&options.path, rebased))
}

fn options(layout: &Layout, size: Option<ByteSize>, force: bool) -> CreateOptions {
    CreateOptions {
        size_bytes: size.map(|size| size.0),
        cluster_bytes: layout.cluster_size.0,
        refcount_bits: layout.refcount_bits,
        subclusters: layout.subclusters,
        backing: None,
        force,
    }
}

/// An image that is read, with what is behind it; as it was at a snapshot, if the option says so.
fn source(
    path: PathBuf,
    format: Readable,
    (option, snapshot): (&str, Option<String>),
    allow: &[PathBuf],
) -> Result<From, Failure> {
    let allow = allow.to_vec();
    let foreign = |path, format| From::Foreign(Foreign { path, format, allow: allow.clone() });
    match format {
        Readable::Qcow2 => {
            Ok(From::Qcow2(Qcow2Options { read_only: true, snapshot, allow, ..Qcow2Options::new(path) }))
        }
        _ if snapshot.is_some() => {
            let format = format!("{format:?}").to_lowercase();
            Err(Failure::Usage(format!("{option}: has no meaning for a {format} image: it is for qcow2 images")))
        }
        Readable::Raw => Ok(From::Raw(path)),
        Readable::Vmdk => Ok(foreign(path, ForeignFormat::Vmdk)),
        Readable::Vhdx => Ok(foreign(path, ForeignFormat::Vhdx)),
        Readable::Vpc => Ok(foreign(path, ForeignFormat::Vpc)),
    }
}

fn convert(convert: Convert, out: Out) -> Result<(), Failure> {
    let Convert { source, target, from, to, snapshot, allow_backing, size, layout, compress, compression, force } =
        convert;
    let from = self::source(source, from, ("--snapshot", snapshot), &allow_backing)?;
    let bar = Bar::new("convert");
    let mut shown = |done, all| bar.show(done, all);
    let converted = match to {
        Format::Qcow2 => {
            let compression = compress.then_some(match compression {
                args::Compression::Zlib => image::Compression::Zlib,
                args::Compression::Zstd => image::Compression::Zstd,
            });
            tools::to_qcow2(&from, &target, &options(&layout, size, force), compression, &mut shown)
        }
        Format::Raw if compress => {
            return Err(Failure::Usage("--compress: has no meaning for a raw image".to_owned()));
        }
        Format::Raw if size.is_some() => {
            return Err(Failure::Usage("--size: has no meaning for a raw image".to_owned()));
        }
        Format::Raw => tools::to_raw(&from, &target, force, &mut shown),
    };
    let converted = converted.map_err(Failure::of)?;
    drop(bar);
    out.print(&converted, |converted| show::converted(&target, to, converted))
}

fn measure(measure: Measure) -> Result<tools::Measured, Failure> {
    let Measure { source, size, from, snapshot, allow_backing, layout } = measure;
    let source =
        source.map(|source| self::source(source, from, ("--snapshot", snapshot), &allow_backing)).transpose()?;
    let bar = Bar::new("measure");
    let options = options(&layout, size, false);
    tools::measure(source.as_ref(), &options, &mut |done, all| bar.show(done, all)).map_err(Failure::of)
}
