//! Axes: one entry of a file stands for the cross product of its axes' values.
//!
//! This works on TOML values, before they are typed: a placeholder may stand wherever a text may, a number included.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::placeholder::{OF_CONFIGURATION, fill};
use super::problem::Problem;

/// The most that one list of entries may come to. The shipped experiments stay below a hundred.
pub(super) const ENTRIES_MAX: usize = 2000;

/// An axis: its values in their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) name: String,
    pub(super) values: Vec<AxisValue>,
}

/// One value of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AxisValue {
    pub(super) name: String,
    /// What `{axis.key}` stands for; a key that another value of the axis has and this one has not is empty here.
    pub(super) keys: BTreeMap<String, String>,
}

/// One entry with a value chosen on every axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expanded {
    /// The entry, without axes and with every placeholder filled in.
    pub(super) table: Table,
    /// Axis to name of the value.
    pub(super) labels: BTreeMap<String, String>,
    /// `axis.key` to value.
    pub(super) values: BTreeMap<String, String>,
}

/// A field of an entry, and what is wrong with it.
pub(super) type Wrong = (String, Problem);

/// `own` and `defaults` as one: tables are joined key by key, of everything else `own`'s counts.
///
/// What only `own` has comes first, then what `defaults` has in its order. So an entry's own axes change most slowly, and one
/// that only has other values on an axis of the defaults leaves the order as it is.
pub(super) fn join(own: &Table, defaults: &Table) -> Table {
    let only_own = own.iter().filter(|(key, _)| !defaults.contains_key(*key));
    let mut joined: Table = only_own.map(|(key, value)| (key.clone(), value.clone())).collect();
    for (key, default) in defaults {
        let value = match (own.get(key), default) {
            (Some(Value::Table(ours)), Value::Table(theirs)) => Value::Table(join(ours, theirs)),
            (Some(ours), _) => ours.clone(),
            (None, _) => default.clone(),
        };
        joined.insert(key.clone(), value);
    }
    joined
}

/// Every entry that `entry` stands for; the first axis changes most slowly. Text under a key of `late` keeps the placeholders
/// that are a configuration's.
pub(super) fn expand(mut entry: Table, late: &[&str]) -> Result<Vec<Expanded>, Wrong> {
    let axes = match entry.remove("axes") {
        None => Vec::new(),
        Some(Value::Table(axes)) => axes.iter().map(|(name, values)| axis(name, values)).collect::<Result<_, _>>()?,
        Some(_) => return Err(("axes".into(), Problem::BadAxis("write axes.NAME = [...]"))),
    };
    let count = axes.iter().try_fold(1_usize, |count, axis| count.checked_mul(axis.values.len())).unwrap_or(usize::MAX);
    if count > ENTRIES_MAX {
        return Err(("axes".into(), Problem::TooMany(count, ENTRIES_MAX)));
    }
    let mut chosen: Vec<Vec<&AxisValue>> = vec![Vec::new()];
    for axis in &axes {
        chosen = chosen
            .iter()
            .flat_map(|before| axis.values.iter().map(|value| before.iter().copied().chain([value]).collect()))
            .collect();
    }
    chosen.iter().map(|values| one(&entry, &axes, values, late)).collect()
}

/// The entry with these values.
fn one(entry: &Table, axes: &[Axis], chosen: &[&AxisValue], late: &[&str]) -> Result<Expanded, Wrong> {
    let mut labels = BTreeMap::new();
    let mut values = BTreeMap::new();
    for (axis, value) in axes.iter().zip(chosen) {
        labels.insert(axis.name.clone(), value.name.clone());
        for (key, text) in &value.keys {
            values.insert(format!("{}.{key}", axis.name), text.clone());
        }
    }
    let mut table = Table::new();
    for (key, value) in entry {
        let filled = fill_value(value, key, &mut |name| {
            if name.starts_with(OF_CONFIGURATION) {
                let kept = late.contains(&key.as_str()).then(|| format!("{{{name}}}"));
                return kept.ok_or_else(|| Problem::ForeignPlaceholder(name.into()));
            }
            labels.get(name).or_else(|| values.get(name)).cloned().ok_or_else(|| Problem::UnknownPlaceholder {
                name: name.into(),
                known: known(labels.keys().chain(values.keys()), "an axis: this has none, add axes.NAME = [...]"),
            })
        })?;
        table.insert(key.clone(), filled);
    }
    Ok(Expanded { table, labels, values })
}

/// `value` with every text in it filled in, however deep.
fn fill_value(
    value: &Value,
    field: &str,
    fill_in: &mut impl FnMut(&str) -> Result<String, Problem>,
) -> Result<Value, Wrong> {
    Ok(match value {
        Value::String(text) => Value::String(fill(text, &mut *fill_in).map_err(|problem| (field.to_owned(), problem))?),
        Value::Array(items) => Value::Array(
            items
                .iter()
                .enumerate()
                .map(|(index, item)| fill_value(item, &format!("{field}[{index}]"), fill_in))
                .collect::<Result<_, _>>()?,
        ),
        Value::Table(table) => {
            let mut filled = Table::new();
            for (key, item) in table {
                filled.insert(key.clone(), fill_value(item, &format!("{field}.{key}"), fill_in)?);
            }
            Value::Table(filled)
        }
        other => other.clone(),
    })
}

fn axis(name: &str, values: &Value) -> Result<Axis, Wrong> {
    let wrong = |problem| (format!("axes.{name}"), problem);
    let is_word = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || "-_".contains(char));
    if !is_word || name == "c" {
        return Err(wrong(Problem::BadAxis("name it in small letters, digits, - and _, and not c")));
    }
    let Value::Array(items) = values else {
        return Err(wrong(Problem::BadAxis("write axes.NAME = [...]")));
    };
    if items.is_empty() {
        return Err(wrong(Problem::Empty("an axis has one value at least")));
    }
    let mut values: Vec<AxisValue> = Vec::new();
    for item in items {
        let value = axis_value(item).map_err(wrong)?;
        if values.iter().any(|other| other.name == value.name) {
            return Err(wrong(Problem::Twice(value.name)));
        }
        values.push(value);
    }
    let keys: Vec<String> = values.iter().flat_map(|value| value.keys.keys().cloned()).collect();
    for value in &mut values {
        for key in &keys {
            value.keys.entry(key.clone()).or_default();
        }
    }
    Ok(Axis { name: name.to_owned(), values })
}

fn axis_value(item: &Value) -> Result<AxisValue, Problem> {
    if let Some(name) = scalar(item) {
        return named(name, BTreeMap::new());
    }
    let Value::Table(table) = item else {
        return Err(Problem::BadAxis("this is neither"));
    };
    let name = table.get("name").and_then(scalar).ok_or(Problem::BadAxis("a table needs a name"))?;
    let mut keys = BTreeMap::new();
    for (key, value) in table.iter().filter(|(key, _)| *key != "name") {
        let text =
            scalar(value).ok_or(Problem::BadAxis("what stands in a table is a text, a number, true or false"))?;
        keys.insert(key.clone(), text);
    }
    named(name, keys)
}

fn named(name: String, keys: BTreeMap<String, String>) -> Result<AxisValue, Problem> {
    if name.is_empty() {
        return Err(Problem::Empty(
            "the name of a value cannot be; write {name = \"one\", text = \"\"} and use {axis.text}",
        ));
    }
    Ok(AxisValue { name, keys })
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// What may be named, for people.
pub(super) fn known<'a>(names: impl Iterator<Item = &'a String>, none: &str) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(text: &str) -> Table {
        text.parse().expect("TOML")
    }

    #[test]
    fn the_first_axis_changes_most_slowly() {
        let entry = table("name = '{b}-{a}'\naxes.b = ['x', 'y']\naxes.a = [1, 2]");
        let names: Vec<String> =
            expand(entry, &[]).unwrap().iter().map(|one| one.table["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["x-1", "x-2", "y-1", "y-2"]);
    }

    #[test]
    fn a_missing_key_is_empty_and_an_unknown_one_an_error() {
        let entry = table("name = '{a}{a.end}'\naxes.a = [{ name = 'one', end = '!' }, 'two']");
        let names: Vec<Value> =
            expand(entry, &[]).unwrap().into_iter().map(|mut one| one.table.remove("name").unwrap()).collect();
        assert_eq!(names, [Value::from("one!"), Value::from("two")]);
        let entry = table("name = '{a.edn}'\naxes.a = [{ name = 'one', end = '!' }]");
        let (field, problem) = expand(entry, &[]).unwrap_err();
        assert_eq!(field, "name");
        assert_eq!(problem.to_string(), "{a.edn} stands for nothing: use one of a, a.end");
    }

    #[test]
    fn what_an_axis_says_is_not_looked_through_again() {
        let entry = table("name = '{a}'\naxes.a = ['{b}']\naxes.b = ['x']");
        assert_eq!(expand(entry, &[]).unwrap()[0].table["name"], Value::from("{b}"));
    }

    #[test]
    fn own_tables_are_joined_with_the_defaults() {
        let own = table("a = 1\nt.x = 1\nt.u = [1]");
        let joined = join(&own, &table("a = 2\nb = 3\nt.x = 2\nt.y = 4\nt.u = [2, 3]"));
        assert_eq!(joined, table("a = 1\nb = 3\nt.x = 1\nt.y = 4\nt.u = [1]"));
    }

    #[test]
    fn a_product_that_is_too_large_is_refused_before_it_is_made() {
        let values: Vec<i64> = (0..100).collect();
        let mut entry = Table::new();
        let mut axes = Table::new();
        for name in ["p", "q", "r", "s", "t", "u", "v", "w", "x", "y", "z"] {
            axes.insert(name.into(), Value::from(values.clone()));
        }
        entry.insert("axes".into(), Value::Table(axes));
        assert!(matches!(expand(entry, &[]), Err((_, Problem::TooMany(usize::MAX, _)))));
    }

    /// Up to three axes of up to four values each, as their names.
    fn axes() -> impl Strategy<Value = Vec<Vec<String>>> {
        proptest::collection::vec(
            proptest::collection::btree_set("[a-z0-9]{1,4}", 1..5).prop_map(|set| set.into_iter().collect()),
            0..4,
        )
    }

    proptest! {
        /// Every combination is there once, in the order of an odometer, and says the same in its name and in its labels.
        #[test]
        fn an_entry_is_its_cross_product(axes in axes()) {
            let names: Vec<String> = (0..axes.len()).map(|number| format!("axis{number}")).collect();
            let mut entry = Table::new();
            let pattern: String = names.iter().map(|name| format!("/{{{name}}}")).collect();
            entry.insert("deep".into(), Value::Array(vec![Value::String(pattern)]));
            let values = names.iter().cloned().zip(axes.iter().map(|values| Value::from(values.clone())));
            entry.insert("axes".into(), Value::Table(values.collect()));
            let expanded = expand(entry, &[]).unwrap();

            prop_assert_eq!(expanded.len(), axes.iter().map(Vec::len).product::<usize>());
            for (number, one) in expanded.iter().enumerate() {
                let mut rest = number;
                let mut text = String::new();
                for (name, values) in names.iter().zip(&axes).rev() {
                    let value = &values[rest % values.len()];
                    rest /= values.len();
                    prop_assert_eq!(&one.labels[name], value);
                    text = format!("/{value}{text}");
                }
                prop_assert_eq!(one.table["deep"][0].as_str(), Some(text.as_str()));
                prop_assert!(!one.table.contains_key("axes"));
            }
        }

        /// No text makes it panic, and one without braces stays as it is.
        #[test]
        fn any_text_is_filled_or_refused(text in "[a-z{}. ]{0,20}") {
            let has_brace = text.contains('{');
            let mut entry = Table::new();
            entry.insert("name".into(), Value::String(text.clone()));
            match expand(entry, &["fio"]) {
                Ok(expanded) => prop_assert_eq!(expanded[0].table["name"].as_str(), Some(text.as_str())),
                Err((field, _)) => {
                    prop_assert!(has_brace);
                    prop_assert_eq!(field, "name");
                }
            }
        }
    }
}
