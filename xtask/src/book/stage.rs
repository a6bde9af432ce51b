//! What mdbook reads: the documents and what they link to, laid out as in the repository, so that links between them hold.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::api;
use super::summary::{self, Line, SUMMARY};
use crate::step::workspace;

/// Where the API's pages lie in the book.
const API: &str = "docs/api";
/// What draws diagrams in a page, at the root of the book: mdbook-mermaid's.
pub(super) const SCRIPTS: [&str; 2] = ["mermaid.min.js", "mermaid-init.js"];

/// Makes the book's sources in `place`.
pub(super) fn stage(place: &Path) -> Result<()> {
    let lines = summary::read(&fs::read_to_string(workspace().join(SUMMARY)).context(SUMMARY)?)?;
    let mut contents = String::new();
    let mut linked = BTreeSet::new();
    for line in &lines {
        match line {
            Line::Page { stands, title, file } if is(file, "json") => {
                contents.push_str(&stage_api(place, stands, title, file)?);
            }
            Line::Page { stands, title, file } => {
                writeln!(contents, "{stands}[{title}]({})", file.display())?;
                let text = fs::read_to_string(workspace().join(file)).with_context(|| file.display().to_string())?;
                linked.extend(summary::linked(file, &text));
                write(place, file, &with_diagrams(file, text))?;
            }
            Line::Other(text) => writeln!(contents, "{text}")?,
        }
    }
    for file in linked.iter().filter(|file| !is(file, "md")) {
        let to = place.join(file);
        fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
        fs::copy(workspace().join(file), &to).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    write(place, Path::new("SUMMARY.md"), &contents)
}

/// Makes the pages of the API; their lines of the summary.
fn stage_api(place: &Path, stands: &str, title: &str, file: &Path) -> Result<String> {
    let pages = api::pages(&fs::read_to_string(workspace().join(file))?).with_context(|| file.display().to_string())?;
    let mut lines = format!("{stands}[{title}]({API}/{})\n", api::FIRST);
    for page in pages {
        if page.file != api::FIRST {
            writeln!(lines, "  {stands}[{}]({API}/{})", page.title, page.file)?;
        }
        write(place, &Path::new(API).join(page.file), &page.text)?;
    }
    Ok(lines)
}

/// The script is large: pages without a diagram do not load it.
fn with_diagrams(file: &Path, mut text: String) -> String {
    if text.contains("```mermaid") {
        let root = "../".repeat(file.components().count() - 1);
        for script in SCRIPTS {
            text.push_str(&format!("\n<script src=\"{root}{script}\"></script>"));
        }
        text.push('\n');
    }
    text
}

fn write(place: &Path, file: &Path, text: &str) -> Result<()> {
    let to = place.join(file);
    fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
    fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))
}

fn is(file: &Path, kind: &str) -> bool {
    file.extension().is_some_and(|extension| extension == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_with_diagrams_load_what_draws_them() {
        let page = |file: &str, text: &str| with_diagrams(Path::new(file), text.to_owned());
        assert_eq!(page("docs/a.md", "# A\n"), "# A\n");
        assert!(page("A.md", "```mermaid\n```\n").contains("<script src=\"mermaid.min.js\">"));
        assert!(page("docs/with/a.md", "```mermaid\n```\n").contains("<script src=\"../../mermaid-init.js\">"));
    }

    #[test]
    fn the_whole_book_is_laid_out() {
        let place = tempfile::tempdir().unwrap();
        stage(place.path()).unwrap();
        let contents = fs::read_to_string(place.path().join("SUMMARY.md")).unwrap();
        for line in ["[vringd](README.md)", "- [Install](docs/install.md)", "  - [Types](docs/api/types.md)"] {
            assert!(contents.lines().any(|other| other.ends_with(line)), "{line}\n{contents}");
        }
        for file in ["README.md", "docs/demo.svg", "docs/openapi.json", "docs/api/types.md", "share/README.md"] {
            assert!(place.path().join(file).is_file(), "{file}");
        }
    }
}
