//! Why there is no figure.

/// Why a configuration could not be made ready or measured: one line for people.
#[derive(Clone, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum Trouble {
    /// {0}
    Unsupported(String),
    /// {0}
    Failed(String),
}

impl Trouble {
    /// A failure, from an error with all its causes.
    pub(crate) fn failed(error: &anyhow::Error) -> Self {
        Self::Failed(one_line(&format!("{error:#}")))
    }

    /// The same trouble, with what was being done before it.
    pub(crate) fn context(self, what: &str) -> Self {
        match self {
            Self::Unsupported(reason) => Self::Unsupported(format!("{what}: {reason}")),
            Self::Failed(reason) => Self::Failed(format!("{what}: {reason}")),
        }
    }
}

/// Longest reason, in characters: it stands in a table's footnote.
const REASON_CHARS_MAX: usize = 400;

/// Text as one line: consoles and logs have many, and a reason has one.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let joined = lines.join("; ");
    match joined.char_indices().nth(REASON_CHARS_MAX) {
        Some((end, _)) => format!("{}…", joined.get(..end).unwrap_or_default()),
        None => joined,
    }
}

/// The last line that says something, or nothing.
pub(crate) fn last_line(text: &str) -> &str {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

/// The line in which a program says why it ends: its last one, or the one before its advice on how to use it.
pub(crate) fn reason(text: &str) -> &str {
    let usage = text.lines().map(str::trim).rev().find(|line| line.starts_with("error: "));
    usage.unwrap_or_else(|| last_line(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        assert_eq!(one_line("a\n\n  b \n"), "a; b");
        let long = one_line(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), REASON_CHARS_MAX + 1);
    }

    #[test]
    fn the_last_line_says_something() {
        assert_eq!(last_line("first\nlast \n\n"), "last");
        assert_eq!(last_line(""), "");
    }

    #[test]
    fn advice_is_no_reason() {
        assert_eq!(reason("error: no such option\n\nUsage: x\n\nFor more, try --help.\n"), "error: no such option");
        assert_eq!(reason("started\nx: cannot listen\n"), "x: cannot listen");
    }

    #[test]
    fn a_context_keeps_the_kind() {
        let trouble = Trouble::Unsupported("no".into()).context("x");
        assert_eq!(trouble, Trouble::Unsupported("x: no".into()));
        assert_eq!(trouble.to_string(), "x: no");
    }
}
