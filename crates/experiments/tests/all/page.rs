//! The page of runs: well-formed whatever stands in names, without anything to load, with every chart, and honest about what
//! failed.

use std::collections::{BTreeMap, BTreeSet};

use experiments::experiment::{
    Configuration, Data, DropCaches, Experiment, Guest, Medium, Order, Place, Published, PublishedFigure, Quick,
    Server, ServerKind, Workload,
};
use experiments::record::{Environment, Figures, Header, Latency, Outcome, Run, SCHEMA, Sample};
use experiments::report::{Report, html};
use proptest::prelude::*;
use scraper::{ElementRef, Html, Selector};

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
    let latency =
        Latency { mean_us: us, p50_us: us, p90_us: us * 2.0, p99_us: us * 4.0, p999_us: us * 9.0, max_us: us * 20.0 };
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
    html::page(&runs.into_iter().map(Report::of).collect::<Vec<_>>())
}

fn select<'p>(page: &'p Html, selector: &str) -> Vec<ElementRef<'p>> {
    page.select(&Selector::parse(selector).expect("a selector")).collect()
}

fn text(element: &ElementRef<'_>) -> String {
    element.text().collect()
}

/// Fails unless the page is HTML without parse errors, all its charts are XML, and nothing in it loads or runs anything.
fn check(page: &str) {
    let parsed = Html::parse_document(page);
    assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
    for part in page.split("<svg").skip(1) {
        let (inner, _) = part.split_once("</svg>").expect("an svg ends");
        let svg = format!("<svg{inner}</svg>");
        roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error} in {svg}"));
        assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
    }
    assert_eq!(select(&parsed, "script").len(), 1, "the page's own");
    assert!(select(&parsed, "img, iframe, object, embed, link, base, form, audio, video, image, use").is_empty());
    for element in select(&parsed, "*") {
        for (name, value) in element.value().attrs() {
            assert!(!name.starts_with("on") && name != "src", "{name}={value}");
            assert!(name != "href" || value.starts_with('#'), "{value}");
        }
    }
    for style in select(&parsed, "style").iter().map(text) {
        assert!(!style.contains("@import"));
        assert!(style.split("url(").skip(1).all(|url| url.starts_with('#')), "{style}");
    }
    let policy = select(&parsed, "meta[http-equiv=Content-Security-Policy]");
    assert!(policy.iter().any(|meta| meta.attr("content").is_some_and(|text| text.contains("default-src 'none'"))));
    let ids: Vec<&str> = select(&parsed, "[id]").iter().filter_map(|element| element.attr("id")).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "an id names one element");
    for link in select(&parsed, "a[href]") {
        let target = link.attr("href").unwrap_or("").trim_start_matches('#');
        assert!(unique.contains(target), "{target} is nowhere");
    }
    for chart in select(&parsed, "svg.chart") {
        let title = chart.children().find_map(ElementRef::wrap).map(|title| text(&title)).unwrap_or_default();
        assert!(!title.is_empty(), "a chart says what it is");
        assert_eq!(chart.attr("aria-label"), Some(title.as_str()));
    }
}

#[test]
fn names_that_are_markup_stay_names() {
    let page = page(vec![bars(), curves()]);
    check(&page);
    assert!(!page.contains("<script>alert"));
    let parsed = Html::parse_document(&page);
    assert_eq!(text(&select(&parsed, "#x0 .lead")[0]), EVIL);
    assert_eq!(text(&select(&parsed, "blockquote p")[0]), EVIL);
    let rows: Vec<String> = select(&parsed, "#x0 tbody th").iter().map(text).collect();
    assert!(rows.iter().any(|row| row == EVIL), "the configuration's name in a table");
    assert!(rows.iter().any(|row| row == "write <&> \"both\""));
    assert!(select(&parsed, ".machine td").iter().any(|cell| text(cell) == EVIL));
}

#[test]
fn every_chart_is_there() {
    let page = Html::parse_document(&page(vec![bars(), curves()]));
    let titles = |section: &str| -> Vec<String> {
        let charts = select(&page, &format!("{section} svg.chart"));
        charts.iter().filter_map(|chart| chart.attr("aria-label")).map(str::to_owned).collect()
    };
    let has = |titles: &[String], start: &str| titles.iter().any(|title| title.starts_with(start));
    let bars = titles("#x0");
    for start in
        ["Bandwidth, MiB/s", "Latency percentiles", "Server and guest", "Published and measured", "All configurations"]
    {
        assert!(has(&bars, start), "{start} in {bars:?}");
    }
    let curves = titles("#x1");
    for start in
        ["Requests a second, IOPS by jobs", "Latency, 99th percentile", "Requests a second of all processor time"]
    {
        assert!(has(&curves, start), "{start} in {curves:?}");
    }
    for (mark, least) in [
        ("#x0 .whisker", 1),
        ("#x0 rect.bar.behind", 1),
        ("#x0 rect.absent", 1),
        ("#x0 svg.chart .tick", 2),
        ("#x0 svg.chart .point.hollow", 1),
        ("#x0 svg.chart .one", 1),
        ("#x1 svg.chart polyline.curve", 2),
        ("#x1 svg.chart polyline.level", 1),
        ("#x1 svg.chart .band", 2),
        ("#x1 svg.chart .cross", 1),
    ] {
        assert!(select(&page, mark).len() >= least, "{mark}");
    }
}

#[test]
fn what_shows_0_says_why() {
    let page = Html::parse_document(&page(vec![bars()]));
    let notes: Vec<String> = select(&page, "#x0 .notes li").iter().map(text).collect();
    for (start, about) in [
        ("Failed: died of", "breaks: read"),
        ("Unsupported: no window here", "cannot: all workloads"),
        ("Some rounds failed: timed out", "breaks: write"),
        ("Not run", "base: write"),
    ] {
        assert!(notes.iter().any(|note| note.starts_with(start) && note.contains(about)), "{start} in {notes:?}");
    }
    let hatched = select(&page, "#x0 .matrix td:has(.hatched)");
    assert_eq!(hatched.len(), 3, "one failed, two unsupported");
    for cell in hatched {
        assert!(text(&cell).starts_with('0') && text(&cell).contains('['), "0 with its note");
        let title = cell.attr("title").unwrap_or("");
        assert!(title.contains("died of") || title.contains("no window here"), "{title}");
    }
}

#[test]
fn a_run_of_minutes_is_marked_everywhere() {
    let marks = |page: &str| {
        let page = Html::parse_document(page);
        (select(&page, "header .quick").len(), select(&page, "section h2 .badge").len())
    };
    assert_eq!(marks(&page(vec![bars(), curves()])), (0, 0));
    let mut quick = curves();
    quick.header.quick = true;
    assert_eq!(marks(&page(vec![bars(), quick])), (1, 1));
}

#[test]
fn nothing_measured_is_a_page_too() {
    check(&html::page(&[]));
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
    let of = |at: usize| workload(&format!("w{at}"), &[("engine", ["psync", "libaio", "mmap"][at % 3])]);
    let wide = experiment("wide", configurations, (0..30).map(of).collect());
    let page = page(vec![run(wide, |round, _, _| Some(Outcome::Measured(figures(f64::from(round)))))]);
    check(&page);
    let parsed = Html::parse_document(&page);
    let headings: Vec<String> = select(&parsed, "h4").iter().map(text).collect();
    assert!(headings.starts_with(&["psync".to_owned(), "libaio".into(), "mmap".into()]), "{headings:?}");
    let colours: BTreeSet<&str> =
        select(&parsed, "#x0 svg.chart g[class^=c]").iter().filter_map(|g| g.attr("class")).collect();
    assert_eq!(colours.len(), 12, "one colour a configuration");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a journal holds, the page is well-formed and every coordinate is a number.
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
        check(&page(vec![run]));
    }
}
