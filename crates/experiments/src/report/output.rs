//! Where reports go: files in a run's directory, and the terminal.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Report, data, page, table};

/// What a terminal that does not tell its width is taken to have, in characters.
const WIDTH_DEFAULT: u16 = 120;

/// Writes `report.html`, `results.json`, `results.csv` (a row a sample) and `summary.csv` (a row a pair) into `directory`.
/// Returns the path of the page.
///
/// # Errors
/// One of them cannot be written.
pub fn write(reports: &[Report], directory: &Path) -> Result<PathBuf> {
    put(directory, "results.json", |file| Ok(data::json(reports, file)?))?;
    put(directory, "results.csv", |file| Ok(data::samples_csv(reports, file)?))?;
    put(directory, "summary.csv", |file| Ok(data::summary_csv(reports, file)?))?;
    put(directory, "report.html", |file| Ok(file.write_all(page::page(reports)?.as_bytes())?))
}

/// Writes a file in one step, so that a reader never sees half of it.
fn put(directory: &Path, name: &str, fill: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<PathBuf> {
    let path = directory.join(name);
    let unfinished = directory.join(format!("{name}.new"));
    let write = || -> Result<PathBuf> {
        let mut file = BufWriter::new(File::create(&unfinished)?);
        fill(&mut file)?;
        file.flush()?;
        fs::rename(&unfinished, &path)?;
        Ok(path.clone())
    };
    write().with_context(|| format!("{}: cannot be written", path.display()))
}

/// Prints a report's table and what its figures say.
///
/// # Errors
/// As [`say`].
pub fn print(report: &Report) -> Result<()> {
    let reading: String = report.reading.iter().map(|sentence| format!("{sentence}\n")).collect();
    say(&format!("{}\n{reading}\n", table::render(&report.summary, width())))
}

/// Puts `text` on standard output.
///
/// # Errors
/// It cannot be written. A reader that has had enough (`| head`) is no error.
pub fn say(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the output"),
    }
}

/// How wide the terminal is, in characters.
pub fn width() -> usize {
    // Standard error is looked at too: tables are often piped into a pager.
    let of = |fd: rustix::fd::BorrowedFd<'_>| rustix::termios::tcgetwinsize(fd).ok().map(|size| size.ws_col);
    let columns = of(rustix::stdio::stdout()).or_else(|| of(rustix::stdio::stderr())).filter(|columns| *columns > 0);
    columns.unwrap_or(WIDTH_DEFAULT).into()
}
