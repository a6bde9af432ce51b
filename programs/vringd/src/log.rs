//! Where the log goes, in which form, and how much of it.
//!
//! Whatever is said about an export has a field `export`, and what is said about a ring a field `ring` beside it. What comes
//! too often is left out and counted.

mod flood;

use crate::failure::Failure;
use clap::ValueEnum;
use flood::Flood;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::path::Path;
use std::sync::OnceLock;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The socket of the system log (syslog(3)).
const SYSLOG: &str = "/dev/log";
/// Names the journal's stream that standard error is, if it is one (systemd.exec(5)).
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// In which form the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// To the journal when standard error goes there anyway, else as text
    #[default]
    Auto,
    /// Lines for people, to standard error
    Text,
    /// One JSON object a line, to standard error
    Json,
    /// Entries with fields, to the systemd journal
    Journald,
}

/// What is logged, and how.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// A level, or a filter like `vhost_user=debug,info`.
    pub(crate) level: String,
    /// The form.
    pub(crate) format: Format,
    /// The process will see the host's paths for as long as it logs.
    pub(crate) sees_host: bool,
}

/// How the log was started.
static STARTED: OnceLock<Options> = OnceLock::new();

/// The arguments by which another program logs as this one does.
pub(crate) fn arguments() -> Vec<String> {
    let Some(Options { level, format, .. }) = STARTED.get() else { return Vec::new() };
    let format = format.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    ["--log-level", level, "--log-format", &format].map(str::to_owned).to_vec()
}

type Output = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts to log, panics included.
///
/// # Errors
/// [`Failure::Usage`] for a level that is none, and a journal that cannot be reached.
pub(crate) fn start(options: &Options) -> Result<(), Failure> {
    let filter = filter(&options.level)?;
    let output = match options.format {
        Format::Text => text(),
        Format::Json => json(),
        // Each entry goes to the journal's path, which a sandbox takes away.
        Format::Journald if !options.sees_host => {
            return Err(Failure::Usage(
                "--log-format: journald cannot be reached from inside the sandbox: use text, json or --sandbox=none"
                    .into(),
            ));
        }
        Format::Journald => journal().map_err(|error| {
            Failure::Usage(format!("--log-format: journald cannot be reached: {error}: use text or json"))
        })?,
        Format::Auto if options.sees_host && stderr_is_journal() => journal().unwrap_or_else(|_| text()),
        Format::Auto => text(),
    };
    tracing_subscriber::registry().with(output).with(filter).with(Flood::default()).init();
    let _ = STARTED.set(options.clone());
    log_panics();
    Ok(())
}

fn text() -> Output {
    tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .boxed()
}

/// Fields beside the message, and those of the session around it.
fn json() -> Output {
    tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(std::io::stderr)
        .boxed()
}

/// Fields become `EXPORT=`, `RING=` and so on.
fn journal() -> std::io::Result<Output> {
    let priorities = PriorityMappings {
        error: Priority::Error,
        warn: Priority::Warning,
        info: Priority::Informational,
        debug: Priority::Debug,
        trace: Priority::Debug,
    };
    let journal = tracing_journald::layer()?.with_field_prefix(None).with_priority_mappings(priorities);
    Ok(journal.with_syslog_identifier("vringd".into()).boxed())
}

/// Whether standard error is the stream to the journal that the environment speaks of, and not redirected since.
fn stderr_is_journal() -> bool {
    let named = std::env::var(JOURNAL_STREAM).unwrap_or_default();
    rustix::fs::fstat(std::io::stderr()).is_ok_and(|stat| is_stream(&named, stat.st_dev, stat.st_ino))
}

fn is_stream(named: &str, device: u64, inode: u64) -> bool {
    named.split_once(':').is_some_and(|(of, number)| of.parse() == Ok(device) && number.parse() == Ok(inode))
}

/// A panic is a line like any other; what it means for an export is said by whoever catches it.
fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let said = info.payload().downcast_ref::<&str>().copied();
        let said = said.or_else(|| info.payload().downcast_ref::<String>().map(String::as_str));
        let message = said.unwrap_or("(no message)");
        tracing::error!(thread = thread.name(), place, message, "a thread panicked");
        // Only when RUST_BACKTRACE asks for it.
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            tracing::error!(thread = thread.name(), "it came from\n{trace}");
        }
    }));
}

/// Logs to the system log under the name `name`; to standard error where there is none.
///
/// # Errors
/// As for [`start`].
pub(crate) fn start_syslog(level: &str, name: &'static std::ffi::CStr) -> Result<(), Failure> {
    // A sandbox hides the socket: it has to be opened before.
    let options = syslog_tracing::Options::LOG_PID | syslog_tracing::Options::LOG_NDELAY;
    let syslog = Path::new(SYSLOG)
        .exists()
        .then(|| syslog_tracing::Syslog::new(name, options, syslog_tracing::Facility::Daemon))
        .flatten();
    let Some(syslog) = syslog else {
        start(&Options { level: level.to_owned(), format: Format::Text, sees_host: false })?;
        tracing::warn!("--syslog: there is no {SYSLOG}: logging to standard error");
        return Ok(());
    };
    // The system log has its own time stamps and priorities.
    let format = tracing_subscriber::fmt().with_env_filter(filter(level)?).with_ansi(false).with_target(false);
    format.without_time().with_level(false).with_writer(syslog).init();
    log_panics();
    Ok(())
}

/// Whether it says what to log.
pub(crate) fn is_filter(level: &str) -> bool {
    filter(level).is_ok()
}

fn filter(level: &str) -> Result<EnvFilter, Failure> {
    // A bare word that is no level would be taken for the name of a target, and everything else be silent.
    let bare = level.split(',').find(|part| !part.contains('=') && part.parse::<tracing::Level>().is_err());
    if let Some(bare) = bare.filter(|bare| *bare != "off") {
        return Err(Failure::Usage(format!(
            "--log-level: `{bare}` is not a level: use error, warn, info, debug or trace"
        )));
    }
    EnvFilter::builder().parse(level).map_err(|error| {
        Failure::Usage(format!(
            "--log-level: `{level}` is not a filter ({error}): use error, warn, info, debug or trace"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters() {
        for level in ["off", "error", "info", "trace", "vhost_user=debug,info"] {
            filter(level).unwrap();
        }
        for level in ["loud", "", "info,loud", "link=loud"] {
            let refused = filter(level).unwrap_err();
            assert!(refused.to_string().starts_with("--log-level: "), "{refused}");
        }
    }

    #[test]
    fn a_stream_is_known_by_both_its_numbers() {
        assert!(is_stream("8:12345", 8, 12345));
        for other in ["8:12346", "9:12345", "8", "", "8:", ":12345", "8:12345:1", "x:12345"] {
            assert!(!is_stream(other, 8, 12345), "{other}");
        }
    }

    #[test]
    fn the_journal_is_out_of_reach_from_a_sandbox() {
        let options = Options { level: "info".into(), format: Format::Journald, sees_host: false };
        let refused = start(&options).unwrap_err();
        assert!(refused.to_string().starts_with("--log-format: journald cannot be reached from inside"), "{refused}");
    }
}
