//! `docs/SUMMARY.md`: the pages of the book, in order. A document below `docs/` that it does not name is an error.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::links::{Document, beside, tracked};
use crate::step::workspace;

pub(super) const SUMMARY: &str = "docs/SUMMARY.md";

/// A line of the summary.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Line {
    /// A page: how it stands in the list (`- ` with its indent, or nothing), its title, its file from the root of the repository.
    Page { stands: String, title: String, file: PathBuf },
    /// A part's title, or anything else.
    Other(String),
}

/// Reads its text.
pub(super) fn read(text: &str) -> Result<Vec<Line>> {
    text.lines().map(line).collect()
}

fn line(line: &str) -> Result<Line> {
    let body = line.trim_start_matches([' ', '-']);
    let Some((title, link)) = body.strip_prefix('[').and_then(|link| link.strip_suffix(')')?.rsplit_once("](")) else {
        return Ok(Line::Other(line.to_owned()));
    };
    let file = beside(Path::new(SUMMARY), link)
        .with_context(|| format!("{SUMMARY}: {link} lies outside of the repository"))?;
    let stands = line[..line.len() - body.len()].to_owned();
    Ok(Line::Page { stands, title: title.to_owned(), file })
}

/// The files that are pages.
pub(super) fn pages<'a>(lines: &'a [Line]) -> BTreeSet<&'a Path> {
    let page = |line: &'a Line| match line {
        Line::Page { file, .. } => Some(file.as_path()),
        Line::Other(_) => None,
    };
    lines.iter().filter_map(page).collect()
}

/// Says which documents are no page of the book, and which links of pages lead to what can be none.
pub(crate) fn check(task: &str) -> Result<()> {
    let lines = read(&fs::read_to_string(workspace().join(SUMMARY)).context(SUMMARY)?)?;
    let (pages, there) = (pages(&lines), tracked()?);
    let is_document =
        |file: &&PathBuf| file.extension().is_some_and(|kind| kind == "md") && file.as_path() != Path::new(SUMMARY);
    let documents = there.iter().filter(is_document).filter(|file| file.starts_with("docs"));
    let mut wrong: Vec<_> = documents
        .filter(|file| !pages.contains(file.as_path()))
        .map(|file| format!("{SUMMARY} does not name {}", file.display()))
        .collect();
    for page in pages.iter().filter(|file| file.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(workspace().join(page)).with_context(|| page.display().to_string())?;
        let bad = linked(page, &text).into_iter().filter(|target| !may_be_linked(target, &pages));
        wrong.extend(bad.map(|target| {
            format!("{}: {} is neither a file nor a page of {SUMMARY}", page.display(), target.display())
        }));
    }
    ensure!(wrong.is_empty(), "the book lacks pages:\n{}", wrong.join("\n"));
    println!("{task}: {} documents are pages of the book", pages.len());
    Ok(())
}

/// The files of the repository that a page links to.
pub(super) fn linked(page: &Path, text: &str) -> BTreeSet<PathBuf> {
    let is_elsewhere = |link: &&String| link.contains("://") || link.starts_with("mailto:") || link.starts_with('#');
    let links = Document::read(text).links;
    let paths = links.iter().filter(|link| !is_elsewhere(link)).map(|link| link.split('#').next().unwrap_or_default());
    paths.filter_map(|path| beside(page, path)).collect()
}

/// A directory has no page, and a document that is none would stay Markdown.
fn may_be_linked(target: &Path, pages: &BTreeSet<&Path>) -> bool {
    let is_document = target.extension().is_some_and(|kind| kind == "md");
    !workspace().join(target).is_dir() && (!is_document || pages.contains(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_named_from_the_root() {
        let lines = read("# Summary\n\n[vringd](../README.md)\n\n- [`a` and b](a.md)\n  - [(c)](with/c.md)\n").unwrap();
        let page = |stands: &str, title: &str, file: &str| Line::Page {
            stands: stands.to_owned(),
            title: title.to_owned(),
            file: file.into(),
        };
        assert_eq!(lines[0], Line::Other("# Summary".to_owned()));
        assert_eq!(lines[2], page("", "vringd", "README.md"));
        assert_eq!(lines[4], page("- ", "`a` and b", "docs/a.md"));
        assert_eq!(lines[5], page("  - ", "(c)", "docs/with/c.md"));
        assert!(read("[x](../../outside.md)").is_err());
    }

    #[test]
    fn directories_and_documents_without_a_page_may_not_be_linked() {
        let pages = ["README.md", "docs/a.md"].map(Path::new).into();
        for target in ["README.md", "docs/a.md", "docs/openapi.json", "LICENSE-MIT"] {
            assert!(may_be_linked(Path::new(target), &pages), "{target}");
        }
        for target in ["docs", "dist/systemd", "SECURITY.md"] {
            assert!(!may_be_linked(Path::new(target), &pages), "{target}");
        }
    }
}
