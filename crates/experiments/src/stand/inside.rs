//! What happens where the load runs: the device is found, fio runs, and its figures are read.

use std::fmt::Write;

use guest::Output;

use super::{Data, Trouble, last_line};
use crate::experiment::{Configuration, Place, Workload};
use crate::record::Figures;
use crate::stand::data::file_name;
use bench::fio::job::Target;
use bench::fio::output;

/// Where disks of guests are found.
pub(super) const LIST_DISKS: &str = "ls /sys/block\n";
/// How often a guest looks for a device that is on its way, ten times a second.
const LOOKS_MAX: u32 = 50;
/// Where a load makes files of its own, below the directory that is served.
const OWN_FILES: &str = "own";

/// Errors that say that this can never work here (errno(3)): of mapping, of opening, of an engine.
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// Registers with a disk of a SCSI device, and takes a reservation, Write Exclusive: `$name`, which may have something else to tell at first.
const RESERVE: &str = "pr() { sg_persist --no-inquiry --out \"$@\" \"/dev/$name\" >/dev/null; }\n\
     command -v sg_persist >/dev/null || { echo 'sg_persist was not found in the guest: install sg3-utils there' >&2; exit 1; }\n\
     pr --register-ignore --param-sark=0xbe9c4 || pr --register-ignore --param-sark=0xbe9c4\n\
     pr --reserve --param-rk=0xbe9c4 --prout-type=1\n";

/// Words of fio that say the same.
const UNSUPPORTED: [&str; 3] = ["not loadable", "does not support direct", "is not supported"];

/// How a guest is made ready.
pub(super) struct Plan<'a> {
    pub(super) configuration: &'a Configuration,
    pub(super) data: Option<&'a Data>,
    pub(super) tag: &'a str,
    pub(super) mountpoint: &'a str,
    /// Disks that the guest had before ours.
    pub(super) disks_before: &'a [String],
}

/// Where the load will go, to be completed by what the guest says.
#[derive(Debug)]
pub(super) enum Expected {
    /// A disk that the guest names.
    Disk,
    /// Files below a mount point.
    Files(Target),
}

impl Plan<'_> {
    /// A script that finds the disk and prints its path, or mounts the directory.
    pub(super) fn prepare(&self) -> (String, Expected) {
        if self.configuration.server.kind.is_disk() {
            return (self.find_disk(), Expected::Disk);
        }
        let target = files(self.mountpoint.to_owned(), self.data);
        (self.mount(), Expected::Files(target))
    }

    fn find_disk(&self) -> String {
        let known: String = self.disks_before.iter().map(|name| format!("{}|", quoted(name))).collect();
        let reserve = if self.configuration.guest.reserve { RESERVE } else { "" };
        // Our own guests have one disk; a person's guest had others before. Without a scheduler of the guest between,
        // as every distribution has it for virtio disks with several queues.
        format!(
            "looks=0\nwhile :; do\n\
             for path in /sys/block/vd* /sys/block/sd*; do\n\
             [ -e \"$path\" ] || continue\nname=${{path##*/}}\n\
             case \"$name\" in {known}'') continue ;; esac\n\
             [ -b \"/dev/$name\" ] || continue\n\
             echo none 2>/dev/null >\"$path/queue/scheduler\" || :\n\
             {reserve}\
             echo \"/dev/$name\"\nexit 0\n\
             done\n\
             looks=$((looks + 1))\n\
             [ \"$looks\" -lt {LOOKS_MAX} ] || {{ echo 'no disk has appeared in the guest' >&2; exit 1; }}\n\
             sleep 0.1\n\
             done\n"
        )
    }

    fn mount(&self) -> String {
        let given = &self.configuration.guest.mount;
        let is_9p = self.configuration.server.kind.is_9p();
        let kind = if is_9p { "9p" } else { "virtiofs" };
        let options = if is_9p && !given.contains("trans=") {
            join(&["trans=virtio,version=9p2000.L", given])
        } else {
            given.clone()
        };
        let options = if options.is_empty() { String::new() } else { format!(" -o {}", quoted(&options)) };
        let mount = format!("mount -t {kind}{options} {} {}", quoted(self.tag), quoted(self.mountpoint));
        let first = quoted(&format!("{}/{}", self.mountpoint, file_name(0)));
        // A device that was plugged in a moment ago may still be on its way; our own guests booted with it.
        let looks = if self.configuration.place == Place::Ssh { LOOKS_MAX } else { 1 };
        format!(
            "mkdir -p {}\nlooks=0\nuntil {mount}; do\n\
             looks=$((looks + 1))\n\
             [ \"$looks\" -lt {looks} ] || exit 32\n\
             sleep 0.1\n\
             done\n\
             [ -s {first} ] || {{ echo 'the mounted directory lacks the data' >&2; exit 1; }}\n",
            quoted(self.mountpoint)
        )
    }
}

impl Expected {
    /// Completes the target with what the guest said.
    pub(super) fn find(self, output: &Output, configuration: &Configuration) -> Result<Target, Trouble> {
        if output.status != 0 {
            // mount(8) ends with advice.
            let complaint = output.stderr.lines().rev().map(str::trim).find(|line| line.starts_with("mount: "));
            let said = complaint.unwrap_or_else(|| last_line(&output.stderr));
            let mount = &configuration.guest.mount;
            // The window is of the frontend and of the server: with either lacking, the kernel refuses the option.
            if mount.split(',').any(|option| option.starts_with("dax")) {
                return Err(Trouble::Unsupported(format!("the guest cannot mount it with `{mount}`: {said}")));
            }
            return Err(Trouble::Failed(format!("the guest cannot use its device: {said}")));
        }
        match self {
            Self::Files(target) => Ok(target),
            Self::Disk => match last_line(&output.stdout) {
                path if path.starts_with("/dev/") => Ok(Target::File(path.to_owned())),
                _ => Err(Trouble::Failed("the guest did not name its disk".into())),
            },
        }
    }
}

/// Names of the disks in a listing.
pub(super) fn disks(listing: &Output) -> Vec<String> {
    listing.stdout.split_whitespace().map(str::to_owned).collect()
}

/// Where the load goes without a server.
pub(super) fn on_host(data: Option<&Data>) -> Result<Target, Trouble> {
    let Some(data) = data else {
        return Err(Trouble::Unsupported("on the host there must be data; medium `none` has none".into()));
    };
    Ok(files(data.directory().to_string_lossy().into_owned(), Some(data)))
}

fn files(directory: String, data: Option<&Data>) -> Target {
    let (count, size_mib) = data.map_or((0, 0), |data| (data.files(), data.size_mib()));
    Target::Files { directory, names: (0..count).map(file_name).collect(), size_mib }
}

/// The part of the target that a workload uses: as many files as it wants, or a place for its own.
pub(super) fn limited(target: &Target, workload: &Workload) -> Result<Target, Trouble> {
    if workload.own_files > 0 {
        return match target {
            Target::Files { directory, .. } => {
                Ok(Target::Own { directory: format!("{directory}/{OWN_FILES}"), files: workload.own_files })
            }
            _ => Err(Trouble::Unsupported("the workload makes files, and a disk has none".into())),
        };
    }
    let wanted = workload.files.max(1) as usize;
    match target {
        Target::File(_) if wanted > 1 => {
            Err(Trouble::Unsupported(format!("the workload wants {wanted} files, and a disk is one")))
        }
        Target::File(_) | Target::Own { .. } => Ok(target.clone()),
        Target::Files { directory, names, size_mib } => match names.get(..wanted) {
            Some(names) => {
                Ok(Target::Files { directory: directory.clone(), names: names.to_vec(), size_mib: *size_mib })
            }
            None => Err(Trouble::Failed(format!(
                "the workload wants {wanted} files, and the configuration's data has {}",
                names.len()
            ))),
        },
    }
}

/// Runs fio on a job file that reaches it by its standard input, so that no file is left.
///
/// A directory for files of the load's own is made before and removed behind it.
pub(super) fn fio_script(fio: &str, job: &str, target: &Target) -> String {
    // A quoted word at the start of a here-document: nothing in it is expanded.
    let mut end = String::from("END");
    while job.lines().any(|line| line == end) {
        end.push('D');
    }
    let mut script = String::new();
    // Writing to a string does not fail.
    let _written = match target {
        Target::Own { directory, .. } => {
            let own = quoted(directory);
            write!(
                script,
                "cd /tmp\nrm -rf {own}\nmkdir {own}\nstatus=0\n\
                 {fio} --output-format=json - <<'{end}' || status=$?\n{job}{end}\n\
                 rm -rf {own}\nexit $status\n"
            )
        }
        Target::File(_) | Target::Files { .. } => {
            write!(script, "cd /tmp\nexec {fio} --output-format=json - <<'{end}'\n{job}{end}\n")
        }
    };
    script
}

/// What fio measured, or why it did not.
pub(super) fn figures(answer: &Output, workload: &Workload) -> Result<Figures, Trouble> {
    // What a shell says when there is no such program.
    if answer.status == 127 {
        return Err(Trouble::Unsupported("fio was not found in the guest: install it there".into()));
    }
    let complaint = complaint(&answer.stderr).or_else(|| complaint(&answer.stdout));
    let is_unsupported = UNSUPPORTED.iter().any(|words| answer.stderr.contains(words) || answer.stdout.contains(words));
    let error = match output::parse(&answer.stdout) {
        // Its own processor time is a part of the guest's, which is told from outside.
        Ok(report) if answer.status == 0 => {
            return Ok(Figures { server_cpu_s: None, guest_cpu_s: None, ..Figures::from(&report) });
        }
        Ok(_) => {
            let reason = complaint.unwrap_or_else(|| format!("fio ended with status {}", answer.status));
            return Err(Trouble::Failed(reason));
        }
        Err(error) => error,
    };
    let is_mapping = workload.fio.get("ioengine").is_some_and(|engine| engine == "mmap");
    let never = match &error {
        output::Error::Job { number, .. } => match *number {
            ENOSYS | EOPNOTSUPP => true,
            ENODEV | EINVAL => is_mapping || is_unsupported,
            _ => false,
        },
        _ => is_unsupported,
    };
    let what = match (&error, complaint) {
        (output::Error::Job { message, .. }, _) if is_mapping && never => format!("mmap is refused: {message}"),
        (output::Error::Job { .. }, Some(complaint)) => format!("{error} ({complaint})"),
        (_, Some(complaint)) => complaint,
        (_, None) => match last_line(&answer.stderr) {
            "" => error.to_string(),
            last => format!("{error}: {last}"),
        },
    };
    let what = super::one_line(&what);
    Err(if never { Trouble::Unsupported(what) } else { Trouble::Failed(what) })
}

/// The line in which fio says what went wrong; it warns in others.
fn complaint(text: &str) -> Option<String> {
    let said = || text.lines().map(str::trim).filter(|line| line.starts_with("fio: "));
    let is_reason = |line: &&str| line.contains("error=") || UNSUPPORTED.iter().any(|words| line.contains(words));
    said().find(is_reason).or_else(|| said().next()).map(str::to_owned)
}

fn join(options: &[&str]) -> String {
    let there: Vec<&str> = options.iter().copied().filter(|option| !option.is_empty()).collect();
    there.join(",")
}

/// A word that a shell takes as it is.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
