//! Where the log goes, and how much of it.

use crate::failure::Failure;
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
    /// A level, or a filter like `link=debug,info`.
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

/// Logs to standard error what `level` says: a level, or a filter like `link=debug,info`.
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
                "--log-format: journald cannot be reached from inside the sandbox: use text, json or --sandbox=none".into(),
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
        .init();
    Ok(())
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
        start(level)?;
        tracing::warn!("--syslog: there is no {SYSLOG}: logging to standard error");
        return Ok(());
    };
    // The system log has its own time stamps and priorities.
    let format = tracing_subscriber::fmt().with_env_filter(filter(level)?).with_ansi(false).with_target(false);
    format.without_time().with_level(false).with_writer(syslog).init();
    Ok(())
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
        for level in ["off", "error", "info", "trace", "link=debug,info"] {
            filter(level).unwrap();
        }
        for level in ["loud", "", "info,loud", "link=loud"] {
            let refused = filter(level).unwrap_err();
            assert!(refused.to_string().starts_with("--log-level: "), "{refused}");
        }
    }
}
