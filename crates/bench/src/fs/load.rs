//! What every server is asked to do: the options of a run that figures depend on.

use std::time::Duration;

use clap::ArgAction;
use serde::{Serialize, Serializer};

use super::run::Conditions;
use crate::parse;
use crate::words::{plural, size};

/// What every server is asked to do, as options and as JSON keeps it.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub(crate) struct Load {
    /// Size of a read or write; suffixes K, M, G are powers of 1024
    ///
    /// Over 9P one that is longer than a message holds takes several requests, one after the other.
    #[arg(long = "bs", value_name = "SIZE", default_value = "4K", value_parser = data_size)]
    pub(crate) block_bytes: u32,

    /// Size of the file that is read or written
    #[arg(long = "file-size", value_name = "SIZE", default_value = "256M", value_parser = parse::positive_size)]
    pub(crate) file_bytes: u64,

    /// Open that file with O_DIRECT, and let the servers honour it
    #[arg(long)]
    pub(crate) direct: bool,

    /// Entries of the large directory
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=9_999_999))]
    pub(crate) entries: u32,

    /// Requests in flight on each queue; listings have one
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) depth: u16,

    /// Request queues, or connections; a device that has fewer queues gets as many requests on those
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) queues: u16,

    /// Leave EVENT_IDX out, and use flags to suppress kicks and notifications
    #[arg(long = "no-event-idx", action = ArgAction::SetFalse)]
    pub(crate) event_idx: bool,

    /// Look for replies all the time, instead of sleeping until one is announced
    ///
    /// Between looks others may use the processor.
    #[arg(long)]
    pub(crate) poll: bool,

    /// How long a run counts, such as 3, 500ms or 2m
    #[arg(long, visible_alias = "time", value_name = "TIME", default_value = "3s", value_parser = parse::positive_duration)]
    #[serde(serialize_with = "as_seconds")]
    pub(crate) seconds: Duration,

    /// How long to run before counting
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse::duration)]
    #[serde(rename = "ramp_seconds", serialize_with = "as_seconds")]
    pub(crate) ramp: Duration,

    /// How often each contender runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
}

fn data_size(text: &str) -> Result<u32, String> {
    match parse::block_size(text)? {
        bytes if bytes <= 1 << 20 => Ok(bytes),
        _ => Err("must be at most 1M".into()),
    }
}

fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

impl Load {
    /// How a run goes.
    pub(crate) fn conditions(&self) -> Conditions {
        Conditions { ramp: self.ramp, time: self.seconds, poll: self.poll }
    }

    /// It in words, for a directory on `file_system`.
    pub(crate) fn describe(&self, file_system: &str) -> String {
        let mut words = format!(
            "depth {}, {}, {} of {}{}, on {file_system}, {}",
            self.depth,
            plural(self.queues.into(), "queue"),
            size(u64::from(self.block_bytes)),
            size(self.file_bytes),
            if self.direct { " direct" } else { "" },
            plural(self.rounds as usize, "round"),
        );
        for (is_set, word) in [(self.poll, ", polling"), (!self.event_idx, ", without EVENT_IDX")] {
            words += if is_set { word } else { "" };
        }
        words
    }
}
