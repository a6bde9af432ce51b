//! Calls: what each takes and answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::document::{Call, Document, Media};
use super::{TYPES, cell, types};

/// A call with its method and path.
pub(super) struct Tagged<'a> {
    method: &'static str,
    path: &'a str,
    call: &'a Call,
}

/// The calls of each tag, by path.
pub(super) fn by_tag(document: &Document) -> Result<BTreeMap<&str, Vec<Tagged<'_>>>> {
    let mut tagged: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (path, of_path) in &document.paths {
        for (method, call) in of_path.calls() {
            let tag = call.tags.first().with_context(|| format!("{} has no tag", call.operation_id))?;
            tagged.entry(tag.as_str()).or_default().push(Tagged { method, path, call });
        }
    }
    Ok(tagged)
}

impl Tagged<'_> {
    /// Its row in a list, with a link to its section on `page`.
    pub(super) fn row(&self, page: &str) -> String {
        let heading = self.heading();
        let slug = crate::links::slug(&heading.replace('`', ""));
        format!("| [{heading}]({page}#{slug}) | {} |\n", cell(&self.call.summary))
    }

    fn heading(&self) -> String {
        format!("{} `{}`", self.method, self.path)
    }
}

/// The section of one call.
pub(super) fn section(tagged: &Tagged<'_>) -> Result<String> {
    let call = tagged.call;
    let mut text = format!("## {}\n\n{}\n\n", tagged.heading(), call.summary);
    if !call.description.is_empty() {
        write!(text, "{}\n\n", call.description)?;
    }
    if !call.parameters.is_empty() {
        text.push_str("| parameter | in | type | |\n|---|---|---|---|\n");
        for parameter in &call.parameters {
            let kind = types::named(&parameter.schema, TYPES)?;
            let optional = if parameter.required { "" } else { "; optional" };
            let about = cell(&parameter.description);
            writeln!(text, "| `{}` | {} | {kind}{optional} | {about} |", parameter.name, parameter.place)?;
        }
        text.push('\n');
    }
    if let Some(body) = &call.request_body {
        let optional = if body.required { "" } else { ", which may be left out" };
        write!(text, "**Body**: {}{optional}\n\n", content(&body.content)?)?;
    }
    text.push_str("| answer | body | |\n|---|---|---|\n");
    for (status, answer) in &call.responses {
        writeln!(text, "| {status} | {} | {} |", content(&answer.content)?, cell(&answer.description))?;
    }
    text.push('\n');
    Ok(text)
}

/// JSON goes without saying.
fn content(media: &BTreeMap<String, Media>) -> Result<String> {
    let one = |(kind, media): (&String, &Media)| {
        Ok(match (kind.as_str(), media.schema.kinds.main()) {
            ("application/json", None) if media.schema.is_unknown() => "object".to_owned(),
            ("application/json", _) => types::named(&media.schema, TYPES)?,
            (_, Some("string")) => format!("`{kind}`"),
            _ => format!("{} (`{kind}`)", types::named(&media.schema, TYPES)?),
        })
    };
    Ok(media.iter().map(one).collect::<Result<Vec<_>>>()?.join(", or "))
}
