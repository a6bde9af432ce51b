//! Placeholders: `{axis}`, `{axis.key}`, and `{c.axis}` for a label of the configuration that a workload meets.

use super::problem::Problem;

/// Prefix of what a workload takes from the configuration.
pub(super) const OF_CONFIGURATION: &str = "c.";

/// `text` with every `{name}` replaced by what `value` makes of it.
///
/// What comes in for a placeholder is not looked through again, so that no value can be mistaken for a placeholder.
pub(super) fn fill(text: &str, mut value: impl FnMut(&str) -> Result<String, Problem>) -> Result<String, Problem> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (name, after) = after.split_once('}').ok_or(Problem::OpenBrace)?;
        filled.push_str(&value(name)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}
