//! The page of runs: well-formed whatever stands in names, without anything to load, with all that its charts and tables
//! show, and honest about what failed.

use std::collections::{BTreeMap, BTreeSet};

use experiments::experiment::{
    Configuration, Data, DropCaches, Experiment, Guest, Medium, Order, Place, Published, PublishedFigure, Quick,
    Server, ServerKind, Workload,
};
use experiments::record::{Environment, Figures, Header, Latency, Outcome, Run, SCHEMA, Sample};
use experiments::report::{Report, page};
use proptest::prelude::*;
use scraper::{Html, Selector};
use serde_json::Value;

/// A name that would be markup, a script, a style, an attribute or an entity where it is not escaped.
const EVIL: &str = r#"a<b>&amp;"q"'s'</td></svg><script>alert(1)</script><img src=//x onerror=x>{}]]>"#;

fn configuration(name: &str, kind: ServerKind, labels: &[(&str, &str)]) -> Configuration {
    Configuration {
        name: name.to_owned(),
        labels: pairs(labels),
        values: BTreeMap::new(),
        baseline: None,
        place: Place::Uml,
        server: Server { kind, options: Vec::new() },
        data: Data { medium: Medium::Disk, files: 1, size_mib: 64 },
        guest: Guest::default(),
        unsupported: None,
    }
}

fn workload(name: &str, labels: &[(&str, &str)]) -> Workload {
    let (labels, fio) = (pairs(labels), BTreeMap::new());
    Workload { name: name.to_owned(), labels, fio, files: 1, own_files: 0, frontend: BTreeMap::new() }
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn experiment(name: &str, configurations: Vec<Configuration>, workloads: Vec<Workload>) -> Experiment {
    Experiment {
        name: name.to_owned(),
        title: "A title".to_owned(),
        claim: "What was claimed".to_owned(),
        source: "https://example.org/note".to_owned(),
        rounds: 3,
        order: Order::Rotating,
        time_s: 1.0,
        warm_up_s: 0.5,
        drop_caches: DropCaches::All,
        baseline: configurations.first().map(|first| first.name.clone()).unwrap_or_default(),
        configurations,
        workloads,
        published: None,
        quick: Quick::default(),
    }
}

fn figures(iops: f64) -> Figures {
    let us = 16e6 / iops;
    let latency = Latency {
        count: 1,
        mean_us: us,
        p50_us: us,
        p90_us: us * 2.0,
        p99_us: us * 4.0,
        p999_us: us * 9.0,
        max_us: us * 20.0,
    };
    let cpu = Some(0.5);
    Figures {
        seconds: 1.0,
        requests: iops as u64,
        iops,
        kib_per_s: iops * 4.0,
        latency,
        server_cpu_s: cpu,
        guest_cpu_s: cpu,
    }
}

fn run(experiment: Experiment, outcome: impl Fn(u32, &Configuration, &Workload) -> Option<Outcome>) -> Run {
    let mut samples = Vec::new();
    for round in 1..=3 {
        for workload in &experiment.workloads {
            for configuration in &experiment.configurations {
                if let Some(outcome) = outcome(round, configuration, workload) {
                    let (configuration, workload) = (configuration.name.clone(), workload.name.clone());
                    samples.push(Sample { round, configuration, workload, outcome });
                }
            }
        }
    }
    let environment =
        Environment { processors: 2, nodes: 1, programs: vec![EVIL.to_owned()], ..Environment::default() };
    let (vringd, begun) = ("0.1.0".to_owned(), "2026-11-21T12:00:00Z".to_owned());
    Run { header: Header { schema: SCHEMA, vringd, quick: false, begun, environment, experiment }, samples }
}

/// Bars: every outcome there is, names that are markup, and published figures.
fn bars() -> Run {
    let configurations = vec![
        configuration("base", ServerKind::Virtiofsd, &[]),
        configuration(EVIL, ServerKind::VringdDir, &[]),
        configuration("breaks", ServerKind::VringdDir, &[]),
        configuration("cannot", ServerKind::Qemu9p, &[]),
    ];
    let workloads = vec![workload("read", &[]), workload("write <&> \"both\"", &[])];
    let mut experiment = experiment("bars", configurations, workloads);
    EVIL.clone_into(&mut experiment.title);
    EVIL.clone_into(&mut experiment.claim);
    let figure = |configuration: &str, value: f64| PublishedFigure {
        configuration: configuration.to_owned(),
        workload: "read".to_owned(),
        their_configuration: format!("their {configuration}"),
        value,
    };
    experiment.published = Some(Published {
        source: EVIL.to_owned(),
        baseline: "base".to_owned(),
        unit: "KiB/s".to_owned(),
        figures: vec![figure("base", 100.0), figure(EVIL, 150.0), figure("cannot", 0.0)],
    });
    run(experiment, |round, configuration, workload| match configuration.name.as_str() {
        "breaks" if workload.name == "read" => Some(Outcome::Failed { reason: format!("died of {EVIL}") }),
        // One round of three fails: the others count.
        "breaks" if round == 2 => Some(Outcome::Failed { reason: "timed out".to_owned() }),
        "cannot" => Some(Outcome::Unsupported { reason: "no window here".to_owned() }),
        // Never run: the run was interrupted.
        "base" if workload.name != "read" => None,
        name => Some(Outcome::Measured(figures(1000.0 * (name.len() as f64) + 10.0 * f64::from(round)))),
    })
}

/// Curves: a numeric axis, one configuration beside it, one point that fails.
fn curves() -> Run {
    let mut configurations = vec![configuration("host", ServerKind::None, &[])];
    for workers in ["one", "many"] {
        for jobs in ["1", "2", "8"] {
            let labels = [("workers", workers), ("jobs", jobs)];
            configurations.push(configuration(&format!("{workers}-{jobs}"), ServerKind::VringdDisk, &labels));
        }
    }
    let experiment = experiment("curves", configurations, vec![workload("randrw", &[])]);
    run(experiment, |round, configuration, _| {
        if configuration.name == "one-8" {
            return Some(Outcome::Failed { reason: "kick eventfd: Resource temporarily unavailable".to_owned() });
        }
        let jobs: f64 = configuration.labels.get("jobs").and_then(|jobs| jobs.parse().ok()).unwrap_or(4.0);
        Some(Outcome::Measured(figures(5000.0 * jobs + 100.0 * f64::from(round))))
    })
}

fn page(runs: Vec<Run>) -> String {
    page::page(&runs.into_iter().map(Report::of).collect::<Vec<_>>()).expect("figures have a form as JSON")
}

/// The results in a page, as its script reads them.
fn results(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"id="results">"#).expect("a page holds its results");
    let (text, _) = rest.split_once("</script>").expect("an element ends");
    assert!(!text.contains('<'), "nothing in the results can end their element");
    serde_json::from_str(text).expect("the results are JSON")
}

fn of(runs: Vec<Run>) -> Value {
    results(&page(runs))
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|it| it.as_str().expect("a text")).collect()
}

fn list<'v>(value: &'v Value, field: &str) -> Vec<&'v Value> {
    value.as_array().expect("a list").iter().map(|it| &it[field]).collect()
}

/// Fails unless the page's parts are whole and the plan of each experiment fits its summary.
fn check(page: &str) {
    let results = results(page);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    for experiment in results["experiments"].as_array().expect("experiments") {
        let (plan, summary) = (&experiment["plan"], &experiment["summary"]);
        let length = |value: &Value| value.as_array().map(Vec::len);
        assert_eq!(length(&plan["cells"]), length(&summary["cells"]));
        assert_eq!(length(&plan["inks"]), length(&summary["header"]["experiment"]["configurations"]));
        let notes = length(&plan["notes"]).expect("notes") as u64;
        for number in list(&plan["cells"], "notes").into_iter().flat_map(|it| it.as_array().expect("numbers")) {
            assert!((1..=notes).contains(&number.as_u64().expect("a number")), "{number} of {notes}");
        }
    }
}

#[test]
fn names_that_are_markup_stay_names() {
    let page = page(vec![bars(), curves()]);
    check(&page);
    let parsed = Html::parse_document(&page);
    assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
    let count = |selector: &str| parsed.select(&Selector::parse(selector).expect("a selector")).count();
    assert_eq!(count("script"), 3, "results, layout and library");
    assert_eq!(count("img, iframe, object, embed, link, base, form, audio, video, svg, a, [src], [href]"), 0);
    let results = results(&page);
    let bars = &results["experiments"][0];
    let experiment = &bars["summary"]["header"]["experiment"];
    assert_eq!((&experiment["title"], &experiment["claim"]), (&EVIL.into(), &EVIL.into()));
    assert_eq!(bars["plan"]["groups"][0]["configurations"][1]["name"], EVIL);
    assert!(bars["plan"]["notes"][0]["text"].as_str().is_some_and(|text| text.contains(EVIL)));
    assert_eq!(results["machines"][0]["programs"][0], EVIL);
}

#[test]
fn a_page_has_its_library_and_loads_nothing() {
    let page = page(vec![curves()]);
    let (ours, library) = page.split_once("plotly.js v").expect("the library");
    assert!(ours.contains("default-src 'none'"));
    assert!(!ours.contains("http:") && !ours.contains("@import") && !ours.contains("url("));
    assert!(library.contains("Licensed under the MIT license"), "what it may be given away under");
    assert!(!library.contains("MathJax.loader"), "what the crate has besides stays out");
}

#[test]
fn bars_have_groups_and_verdicts() {
    let page = of(vec![bars()]);
    let (plan, summary) = (&page["experiments"][0]["plan"], &page["experiments"][0]["summary"]);
    assert!(plan["curves"].is_null());
    assert_eq!((&plan["measure"]["unit"], &plan["measure"]["field"]), (&"MiB/s".into(), &"kib_per_s".into()));
    assert_eq!(texts(&plan["chosen"]), ["read", "write <&> \"both\""]);
    assert_eq!(texts(&plan["without"]), ["cannot"]);
    assert_eq!(texts(&plan["published_baselines"]), ["base"]);
    let method = plan["method"].as_str().expect("a sentence");
    for words in [
        "4 configurations × 2 workloads, 3 of 3 rounds in turns",
        "1 s a measurement, 0.5 s of warm-up",
        "vringd 0.1.0",
    ] {
        assert!(method.contains(words), "{words} in {method}");
    }
    let cell = &summary["cells"][1];
    assert_eq!(cell["ratio"]["hidden"], false, "a verdict that the page does not have to repeat");
    assert_eq!(cell["published"]["agreement"], "agree");
    let hover = plan["cells"][1]["hover"].as_str().expect("lines");
    for words in [EVIL, "spread", "3 rounds", "IOPS", "p99", "the baseline"] {
        assert!(hover.contains(words), "{words} in {hover}");
    }
}

#[test]
fn curves_have_an_axis_and_share_their_colour() {
    let page = of(vec![curves()]);
    let plan = &page["experiments"][0]["plan"];
    let curves = &plan["curves"];
    assert_eq!(
        (&curves["axis"], texts(&curves["values"]), texts(&curves["others"])),
        (&"jobs".into(), vec!["1", "2", "8"], vec!["host"])
    );
    let drawn = &curves["parts"][0]["curves"];
    assert_eq!(list(drawn, "short"), ["one", "many"]);
    assert_eq!(texts(&drawn[0]["configurations"]), ["one-1", "one-2", "one-8"]);
    let inks = plan["inks"].as_array().expect("inks");
    assert!(inks[0]["hue"].is_null(), "the host is grey");
    assert_eq!((&inks[1], &inks[4]), (&inks[2], &inks[5]));
    assert_ne!(inks[1], inks[4]);
}

#[test]
fn what_shows_0_says_why() {
    let page = of(vec![bars()]);
    let plan = &page["experiments"][0]["plan"];
    let notes = plan["notes"].as_array().expect("notes");
    for (start, about) in [
        ("Failed: died of", "breaks: read"),
        ("Unsupported: no window here", "cannot: all workloads"),
        ("Some rounds failed: timed out", "breaks: write"),
        ("Not run", "base: write"),
    ] {
        let says =
            |note: &Value, field: &str, words: &str| note[field].as_str().is_some_and(|text| text.starts_with(words));
        assert!(notes.iter().any(|it| says(it, "text", start) && says(it, "about", about)), "{start} in {notes:?}");
    }
    let states = list(&page["experiments"][0]["summary"]["cells"], "state");
    for (state, words) in states.into_iter().zip(plan["cells"].as_array().expect("cells")) {
        if let Some(reason) = state["reason"].as_str() {
            assert!(words["hover"].as_str().is_some_and(|hover| hover.contains(reason)), "{words}");
            assert!(!words["notes"].as_array().expect("notes").is_empty());
        }
    }
}

#[test]
fn a_run_of_minutes_is_marked_everywhere() {
    let marks =
        |page: Value| (page["quick"].is_string(), list(&page["experiments"], "quick").contains(&&Value::Bool(true)));
    assert_eq!(marks(of(vec![bars(), curves()])), (false, false));
    let mut quick = curves();
    quick.header.quick = true;
    assert_eq!(marks(of(vec![bars(), quick])), (true, true));
}

#[test]
fn nothing_measured_is_a_page_too() {
    check(&page(Vec::new()));
    let mut empty = bars();
    empty.samples.clear();
    let mut bare = curves();
    bare.samples.clear();
    check(&page(vec![empty, bare]));
    check(&page(vec![run(experiment("none", Vec::new(), Vec::new()), |_, _, _| None)]));
}

#[test]
fn thirty_by_twelve_fit() {
    let configurations = (0..12).map(|at| configuration(&format!("c {at}"), ServerKind::VringdDir, &[])).collect();
    let of_kind = |at: usize| workload(&format!("w{at}"), &[("engine", ["psync", "libaio", "mmap"][at % 3])]);
    let wide = experiment("wide", configurations, (0..30).map(of_kind).collect());
    let page = of(vec![run(wide, |round, _, _| Some(Outcome::Measured(figures(f64::from(round)))))]);
    let plan = &page["experiments"][0]["plan"];
    assert_eq!(list(&plan["facets"], "title"), ["psync", "libaio", "mmap"]);
    let colours: BTreeSet<String> =
        plan["inks"].as_array().expect("inks").iter().map(|ink| format!("{} {}", ink["hue"], ink["shade"])).collect();
    assert_eq!(colours.len(), 12, "one colour a configuration");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a journal holds, the page is whole.
    #[test]
    fn any_figures_make_a_page(values in prop::collection::vec(prop_oneof![Just(0.0), any::<f64>(), 1.0..1e6], 7..8), name in ".*") {
        let mut run = curves();
        run.header.experiment.workloads[0].name.clone_from(&name);
        for (at, sample) in run.samples.iter_mut().enumerate() {
            sample.workload.clone_from(&name);
            if let Outcome::Measured(figures) = &mut sample.outcome {
                let value = values[at % values.len()];
                figures.iops = value;
                figures.kib_per_s = value;
                figures.latency.p99_us = value;
                figures.server_cpu_s = Some(value);
            }
        }
        let page = page(vec![run]);
        check(&page);
        prop_assert_eq!(&results(&page)["experiments"][0]["summary"]["cells"][0]["workload"], &name);
    }
}
