//! Links between the documents: each leads to a file that is in the repository, and to a heading that it has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::step::workspace;

/// What a document links to, and the names of its headings.
#[derive(Default)]
pub(crate) struct Document {
    pub(crate) links: Vec<String>,
    pub(crate) headings: BTreeSet<String>,
}

/// Says which links lead nowhere.
pub(crate) fn check(task: &str) -> Result<()> {
    let listed = Command::new("git").args(["ls-files", "-z", "*.md"]).current_dir(workspace()).output();
    let listed = listed.context("cannot start git")?;
    ensure!(listed.status.success(), "`git ls-files` failed: links are checked in a clone");
    let listed = String::from_utf8(listed.stdout)?;
    let (mut documents, mut links, mut dead) = (0, 0, Vec::new());
    let there = tracked()?;
    for file in listed.split_terminator('\0') {
        let document = Document::read(&fs::read_to_string(workspace().join(file)).context(file.to_owned())?);
        documents += 1;
        links += document.links.len();
        let lost = document.links.iter().filter(|link| !leads_somewhere((file, &document), link, &there));
        dead.extend(lost.map(|link| format!("{file}: {link}")));
    }
    ensure!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
    println!("{task}: {links} links of {documents} documents lead somewhere");
    Ok(())
}

/// All that a clone has: files, and the directories that they are in.
pub(crate) fn tracked() -> Result<BTreeSet<PathBuf>> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace()).output();
    let listed = String::from_utf8(listed.context("cannot start git")?.stdout)?;
    let with_directories = |file| Path::new(file).ancestors().map(Path::to_owned).collect::<Vec<_>>();
    Ok(listed.split_terminator('\0').flat_map(with_directories).collect())
}

impl Document {
    pub(crate) fn read(text: &str) -> Document {
        let mut document = Document::default();
        let mut heading = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => document.add(&slug(&heading.take().unwrap_or_default())),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        document
    }

    /// A second heading of a name has a number.
    fn add(&mut self, slug: &str) {
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let free = std::iter::once(slug.to_owned()).chain(numbered).find(|name| !self.headings.contains(name));
        self.headings.extend(free);
    }
}

/// The name of a heading in addresses, as forges make it.
pub(crate) fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    kept.flat_map(char::to_lowercase).map(|char| if char == ' ' { '-' } else { char }).collect()
}

fn leads_somewhere((file, document): (&str, &Document), link: &str, there: &BTreeSet<PathBuf>) -> bool {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
        return true;
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    if path.is_empty() {
        return heading.is_some_and(|heading| document.headings.contains(heading));
    }
    let Some(target) = beside(Path::new(file), path).filter(|target| there.contains(target)) else { return false };
    if path.ends_with('/') && !workspace().join(&target).is_dir() {
        return false;
    }
    let Some(heading) = heading else { return true };
    let is_document = target.extension().is_some_and(|kind| kind == "md");
    let text = fs::read_to_string(workspace().join(target));
    is_document && text.is_ok_and(|text| Document::read(&text).headings.contains(heading))
}

/// The path that a document means, from the root of the repository, or of whatever else its own path begins at. None outside of it.
pub(crate) fn beside(file: &Path, path: &str) -> Option<PathBuf> {
    let mut target = file.parent()?.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => target.push(name),
            Component::ParentDir => {
                if !target.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_the_names_that_forges_give_them() {
        assert_eq!(slug("A log in front of a qcow2 image"), "a-log-in-front-of-a-qcow2-image");
        assert_eq!(slug("`vringd.service`, and more: 2"), "vringdservice-and-more-2");
        let document = Document::read("# A `b`\n\n## Twice\n\n## Twice\n\n[x](y.md#z) ![i](p.svg)\n");
        assert_eq!(document.headings, ["a-b", "twice", "twice-1"].map(str::to_owned).into());
        assert_eq!(document.links, ["y.md#z", "p.svg"]);
    }

    #[test]
    fn what_leads_nowhere_is_found() {
        let document = Document::read("# Here\n");
        let there = tracked().unwrap();
        let leads = |link: &str| leads_somewhere(("docs/migration.md", &document), link, &there);
        for link in ["#here", "https://example.com/x#y", "../README.md", "decisions", "with/../../README.md"] {
            assert!(leads(link), "{link}");
        }
        for link in [
            "#there",
            "gone.md",
            "../../outside.md",
            "/etc/passwd",
            "../README.md#no-such-heading",
            "",
            "gone.md?x://",
            "../README.md/",
            "../target",
        ] {
            assert!(!leads(link), "{link}");
        }
    }
}
