//! A load as a fio job file, or as arguments of fio.
//!
//! The load's own options say what kind it is; where to, how long and how it is reported are the frame's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Options of a job by name.
pub type Options = BTreeMap<String, String>;

/// Where a load goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An image, or a disk of the guest, by its path.
    File(String),
    /// Files of a directory, each with a job of its own.
    Files {
        /// The directory.
        directory: String,
        /// Names in it.
        names: Vec<String>,
        /// Size of each, in MiB.
        size_mib: u64,
    },
    /// Small files that the load makes itself in an empty directory.
    Own {
        /// The directory.
        directory: String,
        /// How many of them.
        files: u32,
    },
}

/// Size of a file of a load's own: one block of most file systems.
const OWN_FILE_SIZE: &str = "4k";

/// What stands in a job besides the load's own options.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Where the load goes.
    pub target: Target,
    /// How long figures count; until all is done when `None`.
    pub time: Option<Duration>,
    /// How long the load runs before.
    pub warm_up: Duration,
}

/// Writes the job file. The load's options have the last word; one whose value is empty is left out.
#[must_use]
pub fn render(options: &Options, frame: &Frame) -> String {
    let mut text = String::from("[global]\n");
    for (name, value) in global(options, frame) {
        line(&mut text, &name, &value);
    }
    match &frame.target {
        Target::File(path) => section(&mut text, 0, &escaped(path)),
        Target::Files { names, .. } => {
            for (index, name) in names.iter().enumerate() {
                section(&mut text, index, &escaped(name));
            }
        }
        // fio names them itself.
        Target::Own { .. } => text.push_str("\n[job0]\n"),
    }
    text
}

/// As arguments, for a load on the file at `path`.
pub(super) fn arguments(options: &Options, path: &str, (time, warm_up): (Option<Duration>, Duration)) -> Vec<String> {
    let frame = Frame { target: Target::File(String::new()), time, warm_up };
    let job = [("name".to_owned(), "bench".to_owned()), ("filename".to_owned(), escaped(path))];
    job.into_iter().chain(global(options, &frame)).map(|(name, value)| format!("--{name}={value}")).collect()
}

/// What all jobs have in common.
fn global(options: &Options, frame: &Frame) -> Vec<(String, String)> {
    // One figure for all jobs.
    let mut ours: Vec<(&str, String)> = vec![("group_reporting", "1".into())];
    if let Target::Own { directory, files } = &frame.target {
        // Each once, one behind the other; a warm-up would take its share of them.
        ours.push(("directory", escaped(directory)));
        ours.push(("nrfiles", files.to_string()));
        ours.push(("filesize", OWN_FILE_SIZE.into()));
        ours.push(("openfiles", "1".into()));
        ours.push(("file_service_type", "sequential".into()));
    } else {
        if let Some(time) = frame.time {
            // As long as it was asked for, not as long as the file lasts.
            ours.push(("time_based", "1".into()));
            ours.push(("runtime", format!("{}ms", time.as_millis())));
        }
        // The files lie there already: a load that makes one has the wrong name.
        ours.push(("allow_file_create", "0".into()));
        if !frame.warm_up.is_zero() {
            ours.push(("ramp_time", format!("{}ms", frame.warm_up.as_millis())));
        }
    }
    if let Target::Files { directory, size_mib, .. } = &frame.target {
        ours.push(("directory", escaped(directory)));
        ours.push(("size", format!("{size_mib}m")));
    }
    let ours = ours.into_iter().filter(|(name, _)| !options.contains_key(*name));
    let theirs = options.iter().filter(|(_, value)| !value.is_empty());
    ours.map(|(name, value)| (name.to_owned(), value))
        .chain(theirs.map(|(name, value)| (name.clone(), value.clone())))
        .collect()
}

fn section(text: &mut String, index: usize, filename: &str) {
    text.push_str(&format!("\n[job{index}]\n"));
    line(text, "filename", filename);
}

fn line(text: &mut String, name: &str, value: &str) {
    // An option is a line; a line break in one would be another option.
    let value = value.replace(['\n', '\r'], " ");
    // Writing to a string does not fail.
    let _written = writeln!(text, "{name}={value}");
}

/// A colon separates files for fio.
fn escaped(path: &str) -> String {
    path.replace(':', "\\:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn a_disk_has_one_section_and_no_size() {
        let frame = Frame {
            target: Target::File("/dev/vda".into()),
            time: Some(Duration::from_millis(2500)),
            warm_up: Duration::from_secs(1),
        };
        let text = render(&options(&[("rw", "randread"), ("bs", "4k"), ("hipri", "")]), &frame);
        let expected = "[global]\ngroup_reporting=1\ntime_based=1\nruntime=2500ms\nallow_file_create=0\nramp_time=1000ms\n\
                        bs=4k\nrw=randread\n\n[job0]\nfilename=/dev/vda\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn each_file_has_a_section() {
        let frame = Frame {
            target: Target::Files {
                directory: "/mnt/a:b".into(),
                names: vec!["file0".into(), "file1".into()],
                size_mib: 64,
            },
            time: Some(Duration::from_secs(1)),
            warm_up: Duration::ZERO,
        };
        let text = render(&options(&[("rw", "write")]), &frame);
        assert!(text.contains("directory=/mnt/a\\:b\nsize=64m\n"), "{text}");
        assert!(text.contains("[job0]\nfilename=file0\n\n[job1]\nfilename=file1\n"), "{text}");
        assert!(!text.contains("ramp_time"), "{text}");
    }

    #[test]
    fn own_files_are_made_once_each() {
        let frame = Frame {
            target: Target::Own { directory: "/mnt/own".into(), files: 10_000 },
            time: Some(Duration::from_secs(1)),
            warm_up: Duration::from_secs(1),
        };
        let text = render(&options(&[("ioengine", "filecreate"), ("openfiles", "16")]), &frame);
        assert_eq!(
            text,
            "[global]\ngroup_reporting=1\ndirectory=/mnt/own\nnrfiles=10000\nfilesize=4k\n\
             file_service_type=sequential\nioengine=filecreate\nopenfiles=16\n\n[job0]\n"
        );
    }

    #[test]
    fn the_workload_has_the_last_word_once() {
        let frame =
            Frame { target: Target::File("/x".into()), time: Some(Duration::from_secs(1)), warm_up: Duration::ZERO };
        let text =
            render(&options(&[("group_reporting", ""), ("time_based", "0"), ("rw", "read\nexec_prerun=x")]), &frame);
        assert!(!text.contains("group_reporting"), "{text}");
        assert_eq!(text.matches("time_based").count(), 1);
        assert!(text.contains("rw=read exec_prerun=x\n"), "{text}");
    }
}
