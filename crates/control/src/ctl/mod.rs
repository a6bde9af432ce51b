//! `vringd ctl`: the control API as a command.

mod add;
mod args;
mod bitmaps;
mod cells;
mod directory;
mod disk;
mod disks;
mod error;
mod figures;
mod follow;
mod jobs;
mod limit;
mod p9;
mod percentile;
mod policy;
mod pull;
mod run;
mod scsi;
mod table;
mod tls;
mod top;
mod trace;
mod units;
mod upgrade;
mod volume;

pub use add::{AddArgs, BackingFlags, DescriptionError, ExportFlags};
pub use args::{Args, Command, ExportCommand, RingCommand, TopArgs, WorkerCommand};
pub use bitmaps::{AddBitmapArgs, BitmapCommand};
pub use directory::{AddDirArgs, DirectoryFlags};
pub use disk::{Behind, DiskFlags, Served, StorageFlags};
pub use disks::{AddDiskArgs, DiskCommand};
pub use error::CtlError;
pub use jobs::{BackupArgs, ChainArgs, CopyFlags, DiskPath, JobArgs, JobCommand, MirrorArgs, SnapshotArgs};
pub use limit::{GroupCommand, LimitCommand, LimitFlags, RateFlags};
pub use policy::PolicyArgs;
pub use pull::{DiskListen, PullArgs};
pub use run::perform;
pub use scsi::{AddScsiArgs, LunIs, ScsiFlags, disk};
pub use tls::TlsFlags;
pub use trace::TraceArgs;
pub use units::UnitCommand;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Runs the command on the standard streams.
///
/// Exit status: 0 when it worked, 1 when the daemon refused or a job failed, 2 when the daemon cannot be reached or the
/// command is wrong, 130 when Ctrl-C ended the wait for a job.
#[expect(clippy::needless_pass_by_value, reason = "the last thing a process does with its arguments")]
pub fn run(args: Args) -> ExitCode {
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = stdout.lock();
    match perform(&args, &mut out, terminal).and_then(|()| out.flush().map_err(CtlError::from)) {
        Ok(()) => ExitCode::SUCCESS,
        // `vringd ctl … | head` has had enough: that is no failure.
        Err(CtlError::Output { source }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever has closed standard error still gets the exit status.
            let _ = writeln!(std::io::stderr(), "vringd ctl: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}
