//! Links in the built pages that lead nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use html5gum::{Token, Tokenizer};

use crate::links::beside;

/// What a page links to, and the names of its parts.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    names: BTreeSet<String>,
}

/// Looks at every page below `book`; how many links there are.
pub(super) fn check(book: &Path) -> Result<usize> {
    let mut files = BTreeSet::new();
    list(book, Path::new(""), &mut files)?;
    let pages = files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "html"));
    let read = |file: &PathBuf| Ok((file.clone(), Page::read(&fs::read_to_string(book.join(file))?)?));
    let pages = pages.map(read).collect::<Result<BTreeMap<_, _>>>()?;
    let mut dead = Vec::new();
    for (file, page) in &pages {
        let lost = page.links.iter().filter(|link| !leads_somewhere(file, link, &files, &pages));
        dead.extend(lost.map(|link| format!("{}: {link}", file.display())));
    }
    ensure!(dead.is_empty(), "links of the book that lead nowhere:\n{}", dead.join("\n"));
    Ok(pages.values().map(|page| page.links.len()).sum())
}

fn list(book: &Path, below: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(book.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list(book, &path, files)?;
        } else {
            files.insert(path);
        }
    }
    Ok(())
}

impl Page {
    fn read(html: &str) -> Result<Page> {
        let mut page = Page::default();
        let mut emitter = html5gum::emitters::default::DefaultEmitter::default();
        // Scripts and styles hold no tags.
        emitter.naively_switch_states(true);
        for token in Tokenizer::new_with_emitter(html, emitter) {
            let Ok(Token::StartTag(tag)) = token else { continue };
            let text = |name: &[u8]| {
                let value = tag.attributes.get(name).map(|value| String::from_utf8(value.to_vec()));
                value.transpose().context("a page is UTF-8")
            };
            page.names.extend(text(b"id")?);
            page.links.extend(text(b"href")?.into_iter().chain(text(b"src")?));
        }
        Ok(page)
    }
}

fn leads_somewhere(file: &Path, link: &str, files: &BTreeSet<PathBuf>, pages: &BTreeMap<PathBuf, Page>) -> bool {
    if ["https://", "http://", "mailto:", "data:"].iter().any(|scheme| link.starts_with(scheme)) {
        return true;
    }
    let (path, part) = link.split_once('#').map_or((link, None), |(path, part)| (path, Some(part)));
    let target = if path.is_empty() { Some(file.to_owned()) } else { beside(file, path) };
    let Some(target) = target.filter(|target| files.contains(target)) else { return false };
    part.is_none_or(|part| pages.get(&target).is_some_and(|page| page.names.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_is_found() {
        let book = tempfile::tempdir().unwrap();
        fs::create_dir(book.path().join("docs")).unwrap();
        let first = "<a href='docs/a.html#there'>a</a> <img src=docs/p.svg> <a href=https://x>x</a> <h1 id=here>h</h1> <a href='#here'>h</a>
            <script>s = '<a href=\"gone\">'</script><p>&lt;a href=\"gone\"&gt;";
        fs::write(book.path().join("index.html"), first).unwrap();
        fs::write(book.path().join("docs/p.svg"), "").unwrap();
        let second = |more: &str| {
            fs::write(book.path().join("docs/a.html"), format!("<p id=\"there\"><a href=\"../index.html\">{more}"))
        };
        second("").unwrap();
        assert_eq!(check(book.path()).unwrap(), 5);
        for dead in
            ["gone.html", "../gone.html", "#gone", "../index.html#gone", "p.svg#part", "../../index.html", "../docs"]
        {
            second(&format!("<a href=\"{dead}\">")).unwrap();
            let error = check(book.path()).unwrap_err().to_string();
            assert!(error.ends_with(&format!("docs/a.html: {dead}")), "{error}");
        }
    }
}
