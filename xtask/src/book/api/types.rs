//! Types: JSON Schemas in words.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use super::cell;
use super::document::{Additional, Schema};

/// The section of one type.
pub(super) fn section((name, schema): (&String, &Schema)) -> Result<String> {
    let mut text = format!("## {name}\n\n{}\n\n", schema.description);
    if !schema.one_of.is_empty() {
        text.push_str("| one of | |\n|---|---|\n");
        for each in &schema.one_of {
            let kind = named(each, "").with_context(|| name.clone())?;
            writeln!(text, "| {kind} | {} |", cell(&each.description))?;
        }
        text.push('\n');
        return Ok(text);
    }
    if schema.properties.is_empty() {
        write!(text, "{}\n\n", sentence(schema).with_context(|| name.clone())?)?;
        return Ok(text);
    }
    if let Some(Additional::Any(false)) = schema.additional_properties {
        text.push_str("Any other field is refused.\n\n");
    }
    text.push_str("| field | type | |\n|---|---|---|\n");
    for (field, of_field) in &schema.properties {
        let kind = named(of_field, "").with_context(|| format!("{name}.{field}"))?;
        let optional = if schema.required.contains(field) { "" } else { "; optional" };
        writeln!(text, "| `{field}` | {kind}{optional} | {} |", cell(description(of_field)))?;
    }
    text.push('\n');
    Ok(text)
}

/// What a schema with no fields allows.
fn sentence(schema: &Schema) -> Result<String> {
    let mut text = match &schema.values[..] {
        [] => String::new(),
        values => format!("One of {}.", listed(values)),
    };
    if let Some(pattern) = &schema.pattern {
        write!(text, "Pattern: `{pattern}`.")?;
    }
    if !schema.examples.is_empty() {
        write!(text, " Example: {}.", listed(&schema.examples))?;
    }
    if text.is_empty() {
        text = format!("{}.", named(schema, "")?);
    }
    Ok(text)
}

/// Text stands without quotes where none can be meant.
fn listed(values: &[serde_json::Value]) -> String {
    let quoted = |value: &serde_json::Value| match value.as_str() {
        Some(text) if text.chars().all(|char| char.is_ascii_digit()) => format!("`{value}`"),
        Some(text) => format!("`{text}`"),
        None => format!("`{value}`"),
    };
    values.iter().map(quoted).collect::<Vec<_>>().join(", ")
}

/// A field that may be null keeps its description one level further down.
fn description(schema: &Schema) -> &str {
    let alternatives = schema.one_of.iter().map(|each| each.description.as_str());
    std::iter::once(schema.description.as_str()).chain(alternatives).find(|text| !text.is_empty()).unwrap_or("")
}

/// A type in a few words, with links to those that have a section on `page`.
pub(super) fn named(schema: &Schema, page: &str) -> Result<String> {
    if let Some(reference) = &schema.reference {
        let name = reference.strip_prefix("#/components/schemas/").context("a reference that leads elsewhere")?;
        return Ok(format!("[{name}]({page}#{})", name.to_lowercase()));
    }
    if !schema.one_of.is_empty() {
        let each = schema.one_of.iter().map(|each| named(each, page)).collect::<Result<Vec<_>>>()?;
        return Ok(each.join(", or "));
    }
    if !schema.all_of.is_empty() {
        return tagged(&schema.all_of, page);
    }
    let kind = match schema.kinds.main() {
        Some("string") if !schema.values.is_empty() => listed(&schema.values),
        Some("string") => "text".to_owned(),
        Some("boolean") => "boolean".to_owned(),
        Some(number @ ("integer" | "number")) => with_range(number, schema),
        Some("array") => {
            let items = schema.items.as_ref().context("a list of nothing")?;
            format!("list of {}", named(items, page)?)
        }
        Some("object") => object(schema, page)?,
        None | Some("null") => "null".to_owned(),
        Some(other) => bail!("type {other}"),
    };
    let null = if schema.kinds.with_null() { ", or null" } else { "" };
    Ok(kind + null)
}

fn with_range(kind: &str, schema: &Schema) -> String {
    match (&schema.minimum, &schema.maximum) {
        (Some(least), Some(most)) => format!("{kind}, {least} to {most}"),
        (Some(least), None) => format!("{kind}, at least {least}"),
        (None, Some(most)) => format!("{kind}, at most {most}"),
        (None, None) => kind.to_owned(),
    }
}

fn object(schema: &Schema, page: &str) -> Result<String> {
    if !schema.properties.is_empty() {
        let field = |(name, schema): (&String, &Schema)| {
            Ok(match &schema.values[..] {
                [value] => format!("`{name}`: `{value}`"),
                _ => format!("`{name}`: {}", named(schema, page)?),
            })
        };
        return Ok(schema.properties.iter().map(field).collect::<Result<Vec<_>>>()?.join(", "));
    }
    Ok(match &schema.additional_properties {
        Some(Additional::Of(values)) => format!("map of names to {}", plural(&named(values, page)?)),
        Some(Additional::Any(_)) | None => "object".to_owned(),
    })
}

/// Of a number, which is all that maps have.
fn plural(kind: &str) -> String {
    kind.replacen("integer", "integers", 1)
}

/// An object that says of which kind it is: the fields of a type, and one with a name.
fn tagged(parts: &[Schema], page: &str) -> Result<String> {
    let (types, tags): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.reference.is_some());
    let tags = tags.into_iter().map(|part| named(part, page)).collect::<Result<Vec<_>>>()?.join(", ");
    let types = types.into_iter().map(|part| named(part, page)).collect::<Result<Vec<_>>>()?.join(", ");
    Ok(format!("{tags}, and the fields of {types}"))
}
