//! User Mode Linux: a kernel that is a process, and whose `virtio_uml` driver is a vhost-user frontend.
//!
//! A guest's root file system is a directory of the host, seen read-only through hostfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::device::Device;
use crate::kit::Kit;
use crate::machine::Machine;
use crate::numa;
use crate::shell::{Agent, Guest, Share};

/// virtio device ids of a block device, of a SCSI host, of 9p and of a file system (virtio 1.3, section 5).
const VIRTIO_ID_BLOCK: u32 = 2;
const VIRTIO_ID_SCSI: u32 = 8;
const VIRTIO_ID_9P: u32 = 9;
const VIRTIO_ID_FS: u32 = 26;

/// A second is usual.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// The console on which host and guest talk; its other end is standard input.
const LINE: &str = "/dev/tty1";

/// Drivers that a kernel may have as modules, in the order in which they are loaded.
const MODULES: &[&str] = &["virtio_blk", "fuse", "virtiofs"];
/// Where Debian's package has them.
const MODULES_OF_SYSTEM: &str = "/usr/lib/uml/modules";
/// A loader beside the kernel says that the kernel was linked for a newer C library than this machine may
/// have.
const LOADER: &str = "ld.so";

/// Boots a guest that waits for scripts.
///
/// # Errors
/// Something of the kit is missing, a device is none for User Mode Linux, a path has characters that the
/// kernel's command line cannot carry, the kernel has fewer processors than asked for, or it does not boot.
pub fn boot(kit: &Kit, machine: &Machine, devices: &[Device]) -> Result<Guest> {
    let share = Share::new()?;
    let command = command(kit, machine, devices, &share, Some(LINE))?;
    Agent { share, command, limit: BOOT_LIMIT }.boot(machine.processors)
}

/// The command that boots a guest which runs the file `script` of the directory `share` with `sh -eu`,
/// writes its status to the file `exit` there, and ends. The script knows the directory as `$job`, and
/// talks to the console.
pub fn command_for_one_script(kit: &Kit, machine: &Machine, devices: &[Device], share: &Share) -> Result<Command> {
    command(kit, machine, devices, share, None)
}

fn command(kit: &Kit, machine: &Machine, devices: &[Device], share: &Share, line: Option<&str>) -> Result<Command> {
    let program = kit.uml()?;
    let directory = program.parent().context("a kernel lies in a directory")?;
    provide_modules(program, share)?;
    let mut command = Command::new("env");
    if let Ok(loader) = fs::canonicalize(directory.join(LOADER)) {
        // Only the kernel may see the other libraries, not the programs that start it.
        let libraries = loader.parent().context("a loader lies in a directory")?;
        command.arg(format!("LD_LIBRARY_PATH={}", libraries.display())).current_dir(directory);
    }
    command
        .arg(program)
        .arg(format!("mem={}M", machine.memory_mib))
        .args(["rootfstype=hostfs", "ro"])
        .arg(format!("rootflags={}", word(kit.root()?)?))
        .arg(format!("uml_dir={}", word(share.path())?))
        .args(["con=null", "con0=null,fd:1", "seccomp=on", "quiet", "panic=-1"]);
    if line.is_some() {
        command.arg("con1=fd:0");
    }
    if machine.processors > 1 {
        command.arg(format!("ncpus={}", machine.processors));
    }
    for device in devices {
        let (socket, id) = match device {
            Device::Disk { socket, .. } => (socket, VIRTIO_ID_BLOCK),
            Device::Scsi { socket, .. } => (socket, VIRTIO_ID_SCSI),
            // Its tag comes from its server.
            Device::Directory { socket, .. } => (socket, VIRTIO_ID_FS),
            Device::Directory9p { socket, .. } => (socket, VIRTIO_ID_9P),
            Device::DirectoryDax { .. } => {
                bail!("User Mode Linux has no shared memory regions: give a directory with a window to a QEMU guest")
            }
            Device::ReconnectingDisk { .. } => {
                bail!("User Mode Linux does not connect again: give such a disk to a QEMU guest")
            }
            Device::QemuDisk { .. } | Device::Qemu9p { .. } => {
                bail!("what QEMU serves itself can be given to a QEMU guest only, not to User Mode Linux")
            }
        };
        ensure!(
            !word(socket)?.contains(':'),
            "User Mode Linux cannot take a socket with a colon in its path: {}",
            socket.display()
        );
        command.arg(format!("virtio_uml.device={}:{id}", socket.display()));
    }
    command.arg(share.init(&format!("-t hostfs none -o hostfs={}", word(share.path())?), line)?);
    ensure!(!machine.instruction_clock, "User Mode Linux has no clock that counts instructions");
    if machine.one_node { numa::bind(&command) } else { Ok(command) }
}

/// A path as a word of a kernel's command line.
fn word(path: &Path) -> Result<&str> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    let fits = !text.contains(|letter: char| letter.is_whitespace() || "\"'\\$,;`".contains(letter));
    ensure!(fits, "a kernel's command line cannot carry the path {text}: choose one without spaces and quotes");
    Ok(text)
}

/// Copies the modules that belong to the kernel into the share, named in the order of loading.
fn provide_modules(kernel: &Path, share: &Share) -> Result<()> {
    let beside = kernel.with_file_name("modules");
    let source = if beside.is_dir() {
        beside
    } else if kernel.starts_with("/usr") {
        PathBuf::from(MODULES_OF_SYSTEM)
    } else {
        return Ok(());
    };
    let target = share.path().join("modules");
    fs::create_dir_all(&target)?;
    for (index, name) in MODULES.iter().enumerate() {
        let file = format!("{name}.ko");
        if let Some(found) = find(&source, &file) {
            fs::copy(&found, target.join(format!("{index}-{file}")))
                .with_context(|| format!("cannot read {}", found.display()))?;
        }
    }
    Ok(())
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<_> = fs::read_dir(directory).ok()?.flatten().collect();
    let here = entries.iter().find(|entry| entry.file_name() == name).map(fs::DirEntry::path);
    here.or_else(|| {
        let mut directories = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.find_map(|entry| find(&entry.path(), name))
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn kit(directory: &Path) -> Kit {
        fs::create_dir_all(directory.join("root/bin")).unwrap();
        fs::write(directory.join("root/bin/sh"), "").unwrap();
        fs::write(directory.join("linux"), "").unwrap();
        Kit { uml: Some(directory.join("linux")), root: Some(directory.join("root")), ..Kit::default() }
    }

    fn arguments(command: &Command) -> Vec<String> {
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn devices_of_qemu_are_refused() {
        let directory = TempDir::new().unwrap();
        let device = Device::Qemu9p { directory: "/tmp".into(), tag: "share".into(), security_model: "none".into() };
        let share = Share::new().unwrap();
        let error = command(&kit(directory.path()), &Machine::default(), &[device], &share, None).unwrap_err();
        assert!(error.to_string().contains("QEMU guest only"), "{error}");
    }

    #[test]
    fn servers_are_told_by_their_sockets_and_kinds() {
        let directory = TempDir::new().unwrap();
        let share = Share::new().unwrap();
        let devices = [
            Device::Disk { socket: "/run/a".into(), queues: 1 },
            Device::Directory { socket: "/run/b".into(), tag: "share".into(), queues: 1 },
            Device::Directory9p { socket: "/run/c".into(), tag: "share".into() },
        ];
        let command = command(&kit(directory.path()), &Machine::default(), &devices, &share, None).unwrap();
        let words = arguments(&command);
        for wanted in ["/run/a:2", "/run/b:26", "/run/c:9"] {
            assert!(words.contains(&format!("virtio_uml.device={wanted}")), "{words:?}");
        }
    }

    #[test]
    fn modules_beside_the_kernel_come_along_in_order() {
        let directory = TempDir::new().unwrap();
        let kit = kit(directory.path());
        let modules = directory.path().join("modules");
        fs::create_dir_all(modules.join("7.2/fs")).unwrap();
        fs::write(modules.join("virtio_blk.ko"), "block").unwrap();
        fs::write(modules.join("7.2/fs/virtiofs.ko"), "fs").unwrap();
        let share = Share::new().unwrap();
        command(&kit, &Machine::default(), &[], &share, None).unwrap();
        assert_eq!(fs::read_to_string(share.path().join("modules/0-virtio_blk.ko")).unwrap(), "block");
        assert_eq!(fs::read_to_string(share.path().join("modules/2-virtiofs.ko")).unwrap(), "fs");
    }

    #[test]
    fn line_is_given_to_guests_that_wait() {
        let directory = TempDir::new().unwrap();
        let kit = kit(directory.path());
        let share = Share::new().unwrap();
        let machine = Machine { processors: 2, ..Machine::default() };
        let waiting = arguments(&command(&kit, &machine, &[], &share, Some(LINE)).unwrap());
        assert!(waiting.contains(&"con1=fd:0".to_owned()) && waiting.contains(&"ncpus=2".to_owned()), "{waiting:?}");
        assert!(waiting.last().unwrap().ends_with("/run/vringd /dev/tty1\""), "{waiting:?}");
        let single = arguments(&command(&kit, &Machine::default(), &[], &share, None).unwrap());
        assert!(!single.iter().any(|word| word.starts_with("con1=") || word.starts_with("ncpus=")), "{single:?}");
    }

    #[test]
    fn path_that_a_command_line_would_split_is_refused() {
        assert!(word(Path::new("/tmp/two words")).is_err());
        assert!(word(Path::new("/tmp/a\"b")).is_err());
        assert_eq!(word(Path::new("/tmp/a-b_c.d")).unwrap(), "/tmp/a-b_c.d");
    }
}
