//! Where the answers of offline tools go: words for people, JSON for programs.

use crate::failure::Failure;
use control::model::ByteSize;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use storage::copy::Copied;

/// Standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    /// In JSON.
    pub(crate) json: bool,
}

impl Out {
    pub(crate) fn print<T: serde::Serialize>(
        self,
        answer: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = if self.json {
            let json = serde_json::to_string_pretty(answer);
            json.map_err(|error| Failure::Runtime(format!("cannot write JSON: {error}")))? + "\n"
        } else {
            words(answer)
        };
        told(io::stdout().write_all(text.as_bytes()))
    }
}

/// What became of a write to standard output.
pub(crate) fn told(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        // `vringd volume … | head` has had enough: that is no failure.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::Runtime(format!("cannot write the output: {error}"))),
    }
}

/// Lines of `name  value`, the values aligned.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

/// Rounded, as people say it.
pub(crate) fn size(bytes: u64) -> String {
    ByteSize(bytes).rounded()
}

/// What a conversion has made.
pub(crate) fn converted(target: &Path, form: &str, size_bytes: u64, copied: Copied) -> String {
    let (written, left_out) = (size(copied.data_bytes), size(copied.zero_bytes));
    format!("{}: {form} of {}; {written} written, {left_out} zeroes left out\n", target.display(), size(size_bytes))
}
