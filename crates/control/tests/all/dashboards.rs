//! What `share/` has for Prometheus and Grafana, held against the text of `/metrics`: a rule or a panel whose metric does
//! not exist is quiet for ever.

use crate::metrics::{scrape, text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Labels that Prometheus adds by itself.
const OTHERS: [&str; 5] = ["alertname", "alertstate", "instance", "job", "severity"];

/// Labels of each metric, by its name as Prometheus stores it.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// What a real rendering has. Families without a sample would have no labels to compare with, so there must be none.
fn exported() -> (BTreeSet<String>, Metrics) {
    let text = text();
    let families: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).map(str::to_owned).collect();
    let mut metrics = Metrics::new();
    // The parser folds buckets into histograms, so the lines are read as they are.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let labels = rest.split_once('}').map_or("", |(labels, _)| labels);
        metrics.entry(name.to_owned()).or_default().extend(keys(labels));
    }
    assert!(scrape(&text).samples.len() > metrics.len(), "{metrics:?}");
    for family in &families {
        assert!(metrics.keys().any(|name| name.starts_with(family.as_str())), "{family} has no sample");
    }
    (families, metrics)
}

/// Names before `=`, `!=`, `=~` and `!~` in a list of labels.
fn keys(labels: &str) -> Vec<String> {
    let mut quoted = false;
    let bare: String = labels
        .replace("\\\"", "")
        .chars()
        .filter(|&char| {
            quoted ^= char == '"';
            !quoted && char != '"'
        })
        .collect();
    let names = bare.split(',').map(|pair| pair.split(['=', '!']).next().unwrap().trim().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

fn is_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == ':'
}

/// Words of the text, each with what is behind it.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let begin = rest.find(is_word)?;
        let word = &rest[begin..];
        let end = word.find(|char| !is_word(char)).unwrap_or(word.len());
        rest = &word[end..];
        Some((&word[..end], rest))
    })
}

/// What is between these two behind the place, if the first one comes next.
fn enclosed(behind: &str, open: char, close: char) -> &str {
    let inner = behind.trim_start().strip_prefix(open).and_then(|inner| inner.split_once(close));
    inner.map_or("", |(inner, _)| inner)
}

/// Names and labels in the text that nobody exports.
fn unknown(text: &str, (families, metrics): &(BTreeSet<String>, Metrics)) -> Vec<String> {
    let recorded: BTreeSet<&str> = text.lines().filter_map(|line| Some(line.split_once("record: ")?.1)).collect();
    let all: BTreeSet<&str> = metrics.values().flatten().map(String::as_str).chain(OTHERS).collect();
    let mut unknown = Vec::new();
    let mut label = |name: &str, of: &str, known: bool| {
        if !known && !OTHERS.contains(&name) {
            unknown.push(format!("label {name} of {of}"));
        }
    };
    let mut missing = Vec::new();
    for (word, behind) in words(text) {
        // An aggregation of a recording rule: level:metric:operations.
        let (metric, exists) = match word.split(':').collect::<Vec<_>>()[..] {
            [_, metric, _] => {
                (metric, recorded.contains(word) && (families.contains(metric) || metrics.contains_key(metric)))
            }
            _ => (word, metrics.contains_key(word)),
        };
        if metric.starts_with("vringd_") {
            if !exists {
                missing.push(format!("metric {word}"));
                continue;
            }
            for name in keys(enclosed(behind, '{', '}')) {
                // A recorded name has no `_total`.
                let is_it = |sample: &str| sample == metric || metric != word && sample.starts_with(metric);
                let known = metrics.iter().any(|(sample, labels)| is_it(sample) && labels.contains(&name));
                label(&name, word, known);
            }
        } else if matches!(word, "by" | "without" | "on" | "ignoring") {
            for name in enclosed(behind, '(', ')').split(',').map(str::trim).filter(|name| !name.is_empty()) {
                label(name, word, all.contains(name));
            }
        } else if word == "labels" && behind.starts_with('.') {
            let (name, _) = words(behind).next().unwrap();
            label(name, "$labels", all.contains(name));
        }
    }
    missing.extend(unknown);
    missing
}

fn shared(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../share").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn rules_name_what_is_exported() {
    let exported = exported();
    let rules = shared("prometheus/vringd.rules.yml");
    assert_eq!(unknown(&rules, &exported), [""; 0]);
    assert!(words(&rules).filter(|(word, _)| word.starts_with("vringd_")).count() > 30);
    // Series of a test are as real as those of a rule.
    let records = rules.lines().filter(|line| line.contains("record: ")).collect::<Vec<_>>().join("\n");
    let tests = shared("prometheus/vringd.rules.test.yml");
    assert_eq!(unknown(&format!("{records}\n{tests}"), &exported), [""; 0]);
    let alerts = rules.lines().filter_map(|line| line.split_once("- alert: ")).map(|(_, name)| name);
    for name in alerts {
        assert!(
            tests.contains(&format!("\"{name}\"")) || tests.contains(&format!("alertname: {name}\n")),
            "{name} has no test"
        );
    }
}

/// All expressions, and all legends with the labels that they print.
fn panels(value: &serde_json::Value, expressions: &mut Vec<String>, legends: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if matches!(name.as_str(), "expr" | "query" | "definition") => {
                        expressions.push(text.to_owned());
                    }
                    Some(text) if name.ends_with("Format") => legends.push(text.to_owned()),
                    _ => panels(field, expressions, legends),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| panels(item, expressions, legends)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_what_is_exported() {
    let exported = exported();
    let dashboard = serde_json::from_str(&shared("grafana/vringd.json")).unwrap();
    let (mut expressions, mut legends) = (Vec::new(), Vec::new());
    panels(&dashboard, &mut expressions, &mut legends);
    assert!(expressions.len() > 50, "{expressions:?}");
    for expression in expressions {
        assert_eq!(unknown(&expression, &exported), [""; 0], "{expression}");
    }
    let all: BTreeSet<&str> = exported.1.values().flatten().map(String::as_str).chain(OTHERS).collect();
    for name in legends.iter().flat_map(|legend| legend.split("{{").skip(1)).filter_map(|part| part.split("}}").next())
    {
        assert!(all.contains(name), "no metric has the label {name}");
    }
}

#[test]
fn what_nobody_exports_is_found() {
    let exported = exported();
    let of = |text: &str| unknown(text, &exported);
    assert_eq!(of("rate(vringd_ring_errors_total{export=~\"a,b=c\", ring!=\"0\"}[5m])"), [""; 0]);
    assert_eq!(of("vringd_ring_latency_served_seconds_bucket{le=\"1\"}"), [""; 0]);
    assert_eq!(of("rate(vringd_ring_errors[5m])"), ["metric vringd_ring_errors"]);
    assert_eq!(of("vringd_volume_failed{ring=\"0\"}"), ["label ring of vringd_volume_failed"]);
    assert_eq!(of("sum by (export, disc) (vringd_volume_failed)"), ["label disc of by"]);
    assert_eq!(of("{{ $labels.expert }}"), ["label expert of $labels"]);
    assert_eq!(of("export:vringd_volume_failed:max"), ["metric export:vringd_volume_failed:max"]);
    assert_eq!(of("record: export:vringd_ring_errors:rate\nexport:vringd_ring_errors:rate{ring=\"0\"}"), [""; 0]);
}
