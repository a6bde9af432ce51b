//! The control API as pages of the book: `docs/openapi.json` to Markdown. Pure.
//!
//! One page says what holds for all calls and lists them, one page for each tag has its calls, one has the types.

mod calls;
mod document;
mod types;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use document::Document;

/// A page of the book.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) title: String,
    /// Beside the other pages of the API.
    pub(super) file: String,
    pub(super) text: String,
}

/// The name of the first page, which leads to the others.
pub(super) const FIRST: &str = "README.md";
const TYPES: &str = "types.md";

/// All pages, the first one first.
pub(super) fn pages(json: &str) -> Result<Vec<Page>> {
    let document: Document = serde_json::from_str(json).context("OpenAPI that this program cannot show")?;
    let tagged = calls::by_tag(&document)?;
    let mut pages = vec![first(&document, &tagged)];
    for (tag, calls) in &tagged {
        let sections = calls.iter().map(calls::section).collect::<Result<String>>()?;
        let title = capital(tag);
        pages.push(Page { file: format!("{tag}.md"), text: format!("# {title}\n\n{sections}"), title });
    }
    let title = "Types".to_owned();
    let sections = document.components.schemas.iter().map(types::section).collect::<Result<String>>()?;
    let about = "A field that is *optional* may be left out in what goes to the daemon; an answer leaves it out where it has nothing to say.";
    pages.push(Page { file: TYPES.to_owned(), text: format!("# {title}\n\n{about}\n\n{sections}"), title });
    Ok(pages)
}

fn first(document: &Document, tagged: &BTreeMap<&str, Vec<calls::Tagged<'_>>>) -> Page {
    let info = &document.info;
    let mut text = format!(
        "# The control API\n\n{}\n\n```sh\ncurl --unix-socket /run/vringd/control.sock http://localhost/v1/info\n```\n\n\
         The daemon's own copy of this description, in OpenAPI, is at `/openapi.json`. This is version {} of the {}.\n",
        info.description.replace("`ErrorBody`", &format!("[`ErrorBody`]({TYPES}#errorbody)")),
        info.version,
        info.title,
    );
    for (tag, calls) in tagged {
        text.push_str(&format!("\n## {}\n\n| | |\n|---|---|\n", capital(tag)));
        for call in calls {
            text.push_str(&call.row(&format!("{tag}.md")));
        }
    }
    text.push_str(&format!("\nWhat is sent and answered: [types]({TYPES}).\n"));
    Page { title: "The control API".to_owned(), file: FIRST.to_owned(), text }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Text as a cell of a table holds it.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::links::Document as Markdown;
    use crate::step::workspace;

    fn real() -> Vec<Page> {
        pages(&fs::read_to_string(workspace().join("docs/openapi.json")).unwrap()).unwrap()
    }

    fn page<'a>(pages: &'a [Page], file: &str) -> &'a str {
        &pages.iter().find(|page| page.file == file).unwrap().text
    }

    #[test]
    fn every_call_and_type_of_the_daemons_document_has_a_heading() {
        let json = fs::read_to_string(workspace().join("docs/openapi.json")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let pages = real();
        let headings: Vec<_> =
            pages.iter().flat_map(|page| page.text.lines()).filter(|line| line.starts_with("## ")).collect();
        for (path, calls) in value["paths"].as_object().unwrap() {
            for method in calls.as_object().unwrap().keys() {
                let heading = format!("## {} `{path}`", method.to_uppercase());
                assert!(headings.contains(&heading.as_str()), "{heading}");
            }
        }
        for name in value["components"]["schemas"].as_object().unwrap().keys() {
            assert!(headings.contains(&format!("## {name}").as_str()), "{name}");
        }
    }

    #[test]
    fn every_link_leads_to_a_heading_of_a_page() {
        let pages = real();
        let read: BTreeMap<_, _> = pages.iter().map(|page| (page.file.as_str(), Markdown::read(&page.text))).collect();
        let mut links = 0;
        for (file, document) in &read {
            for link in &document.links {
                let (target, heading) =
                    link.split_once('#').map_or((link.as_str(), None), |(target, heading)| (target, Some(heading)));
                let target = if target.is_empty() { *file } else { target };
                let target = read.get(target).unwrap_or_else(|| panic!("{file}: {link}"));
                assert!(heading.is_none_or(|heading| target.headings.contains(heading)), "{file}: {link}");
                links += 1;
            }
        }
        assert!(links > 300, "{links} links");
    }

    #[test]
    fn a_call_has_its_parameters_body_answers_and_errors() {
        let pages = real();
        let exports = page(&pages, "exports.md");
        let change = exports.split("\n## ").find(|section| section.starts_with("PATCH `/v1/exports/{name}`")).unwrap();
        for part in [
            "all of the changes apply, or none",
            "| `name` | path | text | Name of the export |",
            "**Body**: [Settings](types.md#settings)",
            "| 200 | [Export](types.md#export) | The changed export |",
            "| 404 | [ErrorBody](types.md#errorbody) | There is no such export (`no-such-export`) |",
        ] {
            assert!(change.contains(part), "{part}\n{change}");
        }
    }

    #[test]
    fn a_type_has_its_fields_with_units_and_ranges() {
        let pages = real();
        let types = page(&pages, TYPES);
        for part in [
            "| `iops` | integer, at least 0, or null; optional | Requests a second, 1 to 1000000000. |",
            "One of `never`, `metadata`, `auto`, `always`.",
            "Pattern: `^[0-7]{1,4}$`. Example: `\"0660\"`.",
            "| `kind`: `\"qcow2\"`, and the fields of [Qcow2Storage](#qcow2storage) | A qcow2 image, with its backing files. |",
            "| `requests` | map of names to integers, at least 0 |",
            "| `exports` | list of text | Names of its exports. |",
        ] {
            assert!(types.contains(part), "{part}");
        }
    }

    #[test]
    fn what_a_page_would_leave_out_is_refused() {
        let document = r#"{"openapi":"3.1.0","info":{"title":"t","description":"d","version":"1"},"servers":[],"paths":{},
            "components":{"schemas":{"A":{"type":"string","maxLength":3}}}}"#;
        assert!(format!("{:#}", pages(document).unwrap_err()).contains("maxLength"));
    }
}
