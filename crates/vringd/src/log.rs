//! Where the log goes, and how much of it.

use crate::failure::Failure;
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// The socket of the system log (syslog(3)).
const SYSLOG: &str = "/dev/log";

/// Logs to standard error what `level` says: a level, or a filter like `link=debug,info`.
///
/// # Errors
/// [`Failure::Usage`] when that is neither.
pub(crate) fn start(level: &str) -> Result<(), Failure> {
    let filter = filter(level)?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
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
