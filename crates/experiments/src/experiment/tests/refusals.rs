//! What is refused, and in which words: each line names the file, the table, the field and the fix.

use crate::experiment::read;

/// A small experiment that reads; every case below changes one thing of it.
const FINE: &str = r#"
name = "mine"
title = "a title"
claim = "a claim"
source = "a source"
rounds = 3
baseline = "one"

[quick]
rounds = 1

[[configurations]]
name = "one"
place = "uml"
data = { medium = "disk", size_mib = 64 }
server = { kind = "vringd-disk", options = ["--direct"] }

[[configurations]]
name = "sim-{latency}"
axes.latency = ["1ms", "2ms"]
place = "frontend"
data = { medium = "none" }
server = { kind = "vringd-disk", options = ["--storage sim --size 1G --read-latency {latency}"] }

[[workloads]]
name = "load-{depth}"
axes.depth = [1, 16]
fio = { rw = "randread", iodepth = "{depth}" }
frontend = { rw = "randread", depth = "{depth}" }

[published]
source = "a note"
baseline = "one"
unit = "IOPS"
file = "figures.csv"
configurations = { theirs = ["one"], other = [] }
workloads = { reads = ["load-1"] }
"#;

const FIGURES: &str = "config,workload,value\ntheirs,reads,10\ntheirs,load-16,20.5\nother,reads,1\n";

fn read(toml: &str, figures: &str) -> Result<crate::experiment::Experiment, String> {
    read::text("mine.toml", toml, |name| if name == "figures.csv" { Ok(figures.into()) } else { Err("gone".into()) })
        .map_err(|error| error.to_string())
}

#[test]
fn the_one_that_is_changed_reads() {
    let experiment = read(FINE, FIGURES).unwrap();
    assert_eq!(experiment.configurations.len(), 3);
    let figures: Vec<(String, f64)> =
        experiment.published.unwrap().figures.into_iter().map(|figure| (figure.workload, figure.value)).collect();
    assert_eq!(figures, [("load-1".to_owned(), 10.0), ("load-16".to_owned(), 20.5)]);
}

/// From, to, and what is said.
const REFUSED: &[(&str, &str, &str)] = &[
    // The top.
    ("rounds = 3", "rounds = ", "mine.toml, line 6: "),
    ("rounds = 3", "ronds = 3", "mine.toml: ronds: is not known: use one of `name`, `title`"),
    ("rounds = 3", "rounds = 'three'", "mine.toml: rounds: invalid type: string \"three\", expected u32"),
    ("rounds = 3", "rounds = 0", "mine.toml: rounds: 0 is out of range: choose 1 to 100"),
    ("rounds = 3", "rounds = 101", "mine.toml: rounds: 101 is out of range"),
    ("rounds = 3", "time_s = 0.0", "mine.toml: time_s: 0 is out of range: choose 0.1 to 3600 (seconds)"),
    ("rounds = 3", "time_s = nan", "mine.toml: time_s: NaN is out of range"),
    ("rounds = 3", "warm_up_s = -1", "mine.toml: warm_up_s: -1 is out of range: choose 0 to 600 (seconds)"),
    ("rounds = 3", "order = 'any'", "mine.toml: order: unknown variant `any`, expected `rotating` or `fixed`"),
    ("title = \"a title\"\n", "", "mine.toml: title: is missing: add it"),
    ("\"a claim\"", "\" \"", "mine.toml: claim: is empty: say it in a line"),
    ("name = \"mine\"", "name = \"../mine\"", "mine.toml: name: \"../mine\" cannot be a name: use up to 64 letters"),
    (
        "baseline = \"one\"\n\n",
        "baseline = \"two\"\n\n",
        "mine.toml: baseline: there is no configuration \"two\": name one of one, sim-1ms, sim-2ms",
    ),
    ("rounds = 1", "rounds = 0", "mine.toml: quick.rounds: 0 is out of range"),
    ("rounds = 1", "size_mib = 0", "mine.toml: quick.size_mib: 0 is out of range: choose 1 to 1048576 (MiB)"),
    (
        "rounds = 1",
        "axes = { depht = [1] }",
        "mine.toml: [quick] axes.depht: there is no axis \"depht\": name one of depth, latency",
    ),
    (
        "rounds = 1",
        "axes = { depth = [2] }",
        "mine.toml: [quick] axes.depth: there is no value \"2\": name one of 1, 16",
    ),
    (
        "rounds = 1",
        "axes = { depth = [] }",
        "mine.toml: [quick] axes: leaves nothing of the workloads: name more values",
    ),
    // Axes and placeholders.
    (
        "sim-{latency}",
        "sim",
        "[[configurations]] 2 (sim): name: \"sim\" is there twice: names are unique, so put every axis into the name",
    ),
    (
        "sim-{latency}",
        "sim-{latncy}",
        "[[configurations]] 2 (sim-{latncy}): name: {latncy} stands for nothing: use one of latency",
    ),
    (
        "sim-{latency}",
        "sim-{latency",
        "[[configurations]] 2 (sim-{latency): name: a brace is not closed: write {axis} or {axis.key}",
    ),
    (
        "--direct",
        "{c.latency}",
        "[[configurations]] 1 (one): server.options[0]: {c.latency} is a configuration's: it works in a workload's",
    ),
    (
        "[\"1ms\", \"2ms\"]",
        "[]",
        "[[configurations]] 2 (sim-{latency}): axes.latency: is empty: an axis has one value at least",
    ),
    ("[\"1ms\", \"2ms\"]", "[\"1ms\", \"1ms\"]", "axes.latency: \"1ms\" is there twice"),
    (
        "[\"1ms\", \"2ms\"]",
        "\"1ms\"",
        "axes.latency: an axis is a list of values, each a text, a number, or a table with a name: write axes.NAME = [...]",
    ),
    (
        "[\"1ms\", \"2ms\"]",
        "[{ text = 1 }]",
        "axes.latency: an axis is a list of values, each a text, a number, or a table with a name: a table needs a name",
    ),
    ("axes.depth = [1, 16]", "axes.c = [1, 16]", "[[workloads]] 1 (load-{depth}): axes.c: an axis is a list"),
    (
        "axes.depth = [1, 16]",
        "axes.depth = [1, 16]\nlabels = { depth = 1 }",
        "[[workloads]] 1 (load-1): labels.depth: a label cannot have the name of an axis",
    ),
    (
        "iodepth = \"{depth}\"",
        "iodepth = \"{c.latency}\"",
        "[[workloads]] 1 (load-1): fio.iodepth: {c.latency} stands for nothing: use one of nothing (one)",
    ),
    (
        " depth = \"{depth}\"",
        " depth = \"{c.latncy}\"",
        "[[workloads]] 1 (load-1): frontend.depth: {c.latncy} stands for nothing: use one of c.latency (sim-1ms)",
    ),
    // Entries.
    (
        "place = \"uml\"\n",
        "",
        "mine.toml: [[configurations]] 1 (one): place: is missing: add it, here or in [defaults.configurations]",
    ),
    (
        "place = \"uml\"",
        "place = \"umml\"",
        "[[configurations]] 1 (one): place: unknown variant `umml`, expected one of `host`, `frontend`",
    ),
    ("place = \"uml\"", "palce = \"uml\"", "[[configurations]] 1 (one): palce: is not known: use one of `name`"),
    (
        "place = \"uml\"",
        "place = \"uml\"\nguest = { cpus = 1 }",
        "[[configurations]] 1 (one): guest.cpus: is not known: use one of `processors`",
    ),
    (
        "place = \"uml\"",
        "place = \"uml\"\nguest = { queues = \"two\" }",
        "guest.queues: invalid value: string \"two\", expected a whole number",
    ),
    ("place = \"uml\"", "place = \"uml\"\nguest = { queues = 0 }", "guest.queues: 0 is out of range: choose 1 to 256"),
    ("place = \"uml\"", "place = \"uml\"\nguest = { queues = 70000 }", "guest.queues: 70000 is out of range"),
    (
        "place = \"uml\"",
        "place = \"uml\"\nguest = { memory_mib = 1 }",
        "guest.memory_mib: 1 is out of range: choose 64 to 1048576 (MiB)",
    ),
    (
        "place = \"uml\"",
        "place = \"uml\"\nguest = { one_node = 3 }",
        "guest.one_node: invalid value: integer `3`, expected true or false",
    ),
    (
        "place = \"uml\"",
        "place = \"uml\"\nguest = { instruction_clock = true }",
        "guest.instruction_clock: only QEMU counts a guest's instructions: set the place to qemu",
    ),
    (
        "place = \"uml\"",
        "place = \"uml\"\nbaseline = \"sim\"",
        "[[configurations]] 1 (one): baseline: there is no configuration \"sim\"",
    ),
    (
        "place = \"uml\"",
        "place = \"uml\"\nunsupported = \"no\"",
        "mine.toml: baseline: is compared with \"one\", which is unsupported",
    ),
    ("size_mib = 64", "size_mib = 0", "data.size_mib: 0 is out of range: choose 1 to 1048576 (MiB)"),
    (
        ", size_mib = 64",
        "",
        "[[configurations]] 1 (one): data.size_mib: is missing: add it, here or in [defaults.configurations]",
    ),
    ("size_mib = 64", "size_mib = 64, files = 2", "data.files: a disk is one image: set it to 1"),
    ("\"--direct\"", "\"--serial 'x\"", "server.options[0]: a quotation mark is not closed: close it"),
    (
        "name = \"load-{depth}\"",
        "name = \"load {depth}\"",
        "[[workloads]] 1 (load 1): name: \"load 1\" cannot be a name",
    ),
    ("axes.depth", "files = 65\naxes.depth", "[[workloads]] 1 (load-1): files: 65 is out of range: choose 1 to 64"),
    (
        "axes.depth",
        "files = 2\naxes.depth",
        "files: configuration \"one\" has 1 files and this needs 2: raise data.files or lower files",
    ),
    // What does not go together.
    (
        "place = \"uml\"",
        "place = \"host\"",
        "server.kind: on the host fio reads the files themselves: set it to \"none\"",
    ),
    (
        "\"vringd-disk\", options = [\"--direct\"]",
        "\"none\"",
        "server.kind: without a server there is nothing to measure there",
    ),
    (
        "\"vringd-disk\", options = [\"--direct\"]",
        "\"qemu-9p\"",
        "server.kind: this device lives in QEMU's process: set place to qemu",
    ),
    (
        "\"vringd-disk\", options = [\"--direct\"]",
        "\"qemu-virtio-blk\"",
        "server.kind: this device lives in QEMU's process",
    ),
    (
        "\"vringd-disk\", options = [\"--direct\"]",
        "\"vringd-dir\", options = [\"--direct\"]",
        "server.options: --direct: only a disk has this: leave it out, or set server.kind to vringd-disk",
    ),
    ("\"--direct\"", "\"--cache=auto\"", "server.options: --cache: only a directory has this"),
    (
        "\"vringd-disk\", options = [\"--direct\"]",
        "\"vringd-9p\", options = [\"--protocol=9p\"]",
        "server.options: --protocol: server.kind says it, vringd-dir or vringd-9p: leave it out",
    ),
    ("\"--direct\"", "\"--socket /x\"", "server.options: --socket: the suite gives this: leave it out"),
    (
        "\"--direct\"",
        "\"--storage=null --size 1G\"",
        "data.medium: the storage in server.options makes its data up: set it to none",
    ),
    (
        "medium = \"none\" }",
        "medium = \"none\", size_mib = 3 }",
        "data.size_mib: what is made up is as large as --size in server.options says",
    ),
    ("--storage sim --size 1G", "--storage sim", "server.options: what is made up needs a size: add --size"),
    ("--storage sim --size 1G", "--storage volume", "data.medium: a volume is a file: set it to disk or memory"),
    ("--direct", "--path /x", "server.options: --path: the suite gives this: leave it out"),
    (
        "\"vringd-disk\", options = [\"--direct\"]",
        "\"vringd-scsi\", options = [\"--lun 0=/x\"]",
        "server.options: --lun: the suite gives this: leave it out",
    ),
    (
        "\"vringd-disk\", options = [\"--storage sim --size 1G",
        "\"vringd-scsi\", options = [\"--storage memory --size 1G",
        "data.medium: behind a SCSI device only sim and null make data up: set it to disk or memory",
    ),
    (
        "place = \"uml\"",
        "place = \"uml\"\nguest = { reserve = true }",
        "guest.reserve: only a disk of a SCSI device is reserved: leave it out, or set server.kind to vringd-scsi",
    ),
    (
        "--storage sim --size 1G",
        "--size 1G",
        "data.medium: only vringd-disk and vringd-scsi make data up: add --storage sim, null or memory",
    ),
    (
        "\"disk\", size_mib = 64 }\nserver = { kind = \"vringd-disk\", options = [\"--direct\"]",
        "\"none\" }\nserver = { kind = \"vringd-dir\"",
        "data.medium: a directory needs files to serve",
    ),
    (
        "place = \"uml\"",
        "place = \"uml\"\nguest = { mount = \"ro\" }",
        "guest.mount: only a directory in a guest is mounted: leave it out",
    ),
    (
        "fio = { rw = \"randread\", iodepth = \"{depth}\" }\n",
        "",
        "fio: configuration \"one\" runs in a guest, and this has no fio options: add some",
    ),
    (
        "frontend = { rw = \"randread\", depth = \"{depth}\" }\n",
        "",
        "frontend: configuration \"sim-1ms\" runs in a frontend, and this has no frontend options: add some",
    ),
    ("iodepth = \"{depth}\"", "filename = \"/etc/passwd\"", "fio.filename: the suite gives this: leave it out"),
    ("iodepth = \"{depth}\"", "name = \"a\\nb\"", "fio.name: the suite gives this"),
    ("iodepth = \"{depth}\"", "bs = \"4k\\nfilename=/x\"", "fio.bs: the value is one line of text"),
    (" depth = \"{depth}\"", " --depth = \"{depth}\"", "frontend.--depth: an option is named without dashes before it"),
    (" depth = \"{depth}\"", " json = \"-\"", "frontend.json: the suite gives this"),
    (" depth = \"{depth}\"", " reserve = true", "frontend.reserve: the suite gives this"),
    // Published figures.
    ("figures.csv", "none.csv", "mine.toml: [published] file: none.csv: gone"),
    ("unit = \"IOPS\"", "unti = \"IOPS\"", "mine.toml: published.unti: is not known: use one of `source`"),
    (
        "source = \"a note\"\nbaseline = \"one\"",
        "source = \"a note\"\nbaseline = \"two\"",
        "[published] baseline: there is no configuration \"two\"",
    ),
    ("theirs = [\"one\"]", "theirs = [\"two\"]", "[published] configurations: there is no configuration \"two\""),
    (
        "theirs = [\"one\"]",
        "theirs = [\"one\", \"one\"]",
        "[published] configurations: one load-1: two published figures are compared with this",
    ),
    (
        "theirs = [\"one\"]",
        "theirs = [\"sim-1ms\"]",
        "configuration \"sim-1ms\" has a figure for \"load-1\" and its baseline \"one\" has none",
    ),
    (
        "theirs = [\"one\"], ",
        "",
        "[published] file: figures.csv: has \"theirs\": say in published.configurations what it is compared with",
    ),
    (
        "reads = [\"load-1\"]",
        "reads = [\"load-2\"]",
        "[published] workloads: there is no workload \"load-2\": name one of load-1, load-16",
    ),
    (
        "unit = \"IOPS\"",
        "unit = \"IOPS\"\ncolumns = { value = \"iops\" }",
        "[published] file: figures.csv: has no column \"iops\"",
    ),
];

#[test]
fn each_is_refused_in_its_words() {
    let mut others = Vec::new();
    for (from, to, said) in REFUSED {
        assert_eq!(FINE.matches(from).count().min(1), 1, "{from} is not in the experiment that reads");
        let line = read(&FINE.replacen(from, to, 1), FIGURES).err().unwrap_or_else(|| format!("{to} was accepted"));
        if !(line.starts_with("mine.toml") && line.contains(said) && line.lines().count() == 1) {
            others.push(format!("instead of {said:?}\n{line:?}"));
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n\n"));
}

#[test]
fn figures_are_numbers() {
    for value in ["-1", "inf", "many", ""] {
        let line = read(FINE, &format!("config,workload,value\ntheirs,reads,{value}\n")).unwrap_err();
        assert!(line.contains("figures.csv: line 2: ") && line.contains("write a number from 0 on"), "{line}");
    }
}

#[test]
fn what_is_not_there_is_said_with_what_is() {
    let line = read::open("worker-per-vp").unwrap_err().to_string();
    assert!(line.starts_with("worker-per-vp: no shipped experiment has this name (thread-pool, "), "{line}");
    let line = read::open("./nowhere.toml").unwrap_err().to_string();
    assert!(line.starts_with("./nowhere.toml: cannot be read: "), "{line}");
}
