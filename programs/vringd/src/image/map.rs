//! `vringd image map`, printed as it goes: an image may have more extents than there is memory.

use crate::failure::Failure;
use crate::out::{Out, size, told};
use ::image::tools::{self, From, Mapped};
use serde::ser::{SerializeSeq, Serializer};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

/// Writes where a disk has data to standard output.
pub(super) fn map(from: &From, out: Out) -> Result<(), Failure> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    let written = if out.json { json(from, &mut stdout) } else { words(from, &mut stdout) };
    match written {
        Ok(written) => told(written.and_then(|()| stdout.flush())),
        Err(failure) => {
            // Half a line helps nobody.
            let _ = stdout.into_parts();
            Err(failure)
        }
    }
}

fn json(from: &From, to: &mut impl Write) -> Result<io::Result<()>, Failure> {
    let mut json = serde_json::Serializer::pretty(&mut *to);
    let mut list = match json.serialize_seq(None) {
        Ok(list) => list,
        Err(error) => return Ok(Err(error.into())),
    };
    let written = walk(from, &mut |part| Ok(list.serialize_element(part)?))?;
    Ok(written.and_then(|()| Ok(list.end()?)).and_then(|()| writeln!(to)))
}

fn words(from: &From, to: &mut impl Write) -> Result<io::Result<()>, Failure> {
    let (mut data_bytes, mut hole_bytes) = (0, 0);
    if let Err(error) = writeln!(to, "{:>16} {:>16}", "start", "length") {
        return Ok(Err(error));
    }
    let written = walk(from, &mut |Mapped { start, length, data, .. }| {
        let (kind, sum) = if *data { ("data", &mut data_bytes) } else { ("hole", &mut hole_bytes) };
        *sum += length;
        writeln!(to, "{start:>16} {length:>16}  {kind}")
    })?;
    Ok(written.and_then(|()| writeln!(to, "{} of data, {} of holes", size(data_bytes), size(hole_bytes))))
}

/// Ends where nothing can be written any more.
fn walk(from: &From, write: &mut dyn FnMut(&Mapped) -> io::Result<()>) -> Result<io::Result<()>, Failure> {
    let mut written = Ok(());
    let each = &mut |part: &Mapped| {
        written = write(part);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    tools::map(from, each).map_err(Failure::of)?;
    Ok(written)
}
