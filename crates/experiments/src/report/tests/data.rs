use super::*;
use crate::report::data;

fn csv(write: impl FnOnce(&mut Vec<u8>)) -> (Vec<String>, Vec<csv::StringRecord>) {
    let mut bytes = Vec::new();
    write(&mut bytes);
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let header = reader.headers().unwrap().iter().map(str::to_owned).collect();
    (header, reader.records().map(Result::unwrap).collect())
}

#[test]
fn json_holds_everything_and_reads_back() {
    let reports = [report(full())];
    let mut bytes = Vec::new();
    data::json(&reports, &mut bytes).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["schema"], data::SCHEMA);
    let entry = &value["experiments"][0];
    assert_eq!(entry["name"], "example");
    assert_eq!(entry["quick"], false);
    assert_eq!(entry["samples"].as_array().unwrap().len(), reports[0].run.samples.len());
    let summary: crate::report::summary::Summary = serde_json::from_value(entry["summary"].clone()).unwrap();
    let states = |summary: &crate::report::summary::Summary| {
        let states = summary.cells.iter().map(|c| (c.configuration.clone(), c.workload.clone(), c.state.clone()));
        states.collect::<Vec<_>>()
    };
    assert_eq!(states(&summary), states(&reports[0].summary));
    assert_eq!((summary.header, summary.tally), (reports[0].summary.header.clone(), reports[0].summary.tally));
    // Names of fields that the format's description promises.
    assert_eq!(entry["summary"]["cells"][1]["configuration"], "two");
    assert_eq!(entry["summary"]["cells"][1]["state"]["state"], "measured");
    assert!(entry["summary"]["cells"][1]["ratio"]["interval"]["low"].is_number());
    assert_eq!(entry["summary"]["cells"][1]["published"]["agreement"], "agree");
    assert_eq!(entry["summary"]["cells"][3]["state"]["reason"], "the server ended: no space");
}

#[test]
fn a_row_a_sample() {
    let mut quick = full();
    quick.header.quick = true;
    let reports = [report(quick)];
    let (header, rows) = csv(|bytes| data::samples_csv(&reports, bytes).unwrap());
    assert_eq!(rows.len(), 36);
    let column = |name: &str| header.iter().position(|column| column == name).unwrap();
    assert!(rows.iter().all(|row| &row[column("quick")] == "true"));
    assert_eq!((&rows[0][column("outcome")], &rows[0][column("configuration")]), ("measured", "one"));
    assert!(rows[0][column("iops")].parse::<f64>().unwrap() > 9_000.0);
    let broken = rows.iter().find(|row| &row[column("configuration")] == "broken").unwrap();
    assert_eq!((&broken[column("outcome")], &broken[column("iops")]), ("failed", ""));
    assert_eq!(&broken[column("reason")], "the server ended: no space");
}

#[test]
fn a_row_a_pair() {
    let reports = [report(full())];
    let (header, rows) = csv(|bytes| data::summary_csv(&reports, bytes).unwrap());
    assert_eq!(rows.len(), 12);
    let of = |configuration: &str, workload: &str, name: &str| {
        let column = |name: &str| header.iter().position(|column| column == name).unwrap();
        let is_it = |row: &&csv::StringRecord| {
            &row[column("configuration")] == configuration && &row[column("workload")] == workload
        };
        rows.iter().find(is_it).unwrap()[column(name)].to_owned()
    };
    assert_eq!((of("one", "read", "rounds"), of("one", "read", "ratio")), ("3".into(), String::new()));
    assert_eq!((of("two", "read", "hidden"), of("same", "read", "hidden")), ("false".into(), "true".into()));
    assert!(of("two", "read", "ratio_low").parse::<f64>().unwrap() > 1.5);
    assert_eq!(of("two", "write", "agreement"), "disagree");
    assert_eq!(of("two", "read", "published_configuration"), "their two");
    assert_eq!(
        (of("two", "read", "published_ratio"), of("two", "read", "published_baseline")),
        ("1.8".into(), "one".into())
    );
    assert_eq!((of("absent", "read", "state"), of("absent", "read", "iops")), ("unsupported".into(), String::new()));
    assert_eq!((of("flaky", "read", "rounds"), of("flaky", "read", "failures")), ("2".into(), "1".into()));
}

#[test]
fn the_columns_are_those_of_the_description() {
    // The description lists every column; a new one that it does not know is found here.
    let description = include_str!("../../../../../docs/formats/bench-results.md");
    let reports = [report(full())];
    let (samples, _) = csv(|bytes| data::samples_csv(&reports, bytes).unwrap());
    let (pairs, _) = csv(|bytes| data::summary_csv(&reports, bytes).unwrap());
    for column in samples.iter().chain(&pairs) {
        let name = column.trim_end_matches("_min").trim_end_matches("_max");
        assert!(description.contains(&format!("`{name}`")), "{column} is not described");
    }
}

#[test]
fn a_writer_that_fails_is_reported() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
    }
    let reports = [report(full())];
    assert!(data::json(&reports, Full).is_err());
    assert!(data::samples_csv(&reports, Full).is_err());
    assert!(data::summary_csv(&reports, Full).is_err());
}
