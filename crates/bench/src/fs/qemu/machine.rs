//! The virtual machine around the device: its memory, and the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use frontkit::{Area, Areas, Memory};

use crate::driver::QueuePlan;

/// The program, where it is on the path.
const PROGRAM: &str = "qemu-system-x86_64";
/// The machine: memory, registers, and nothing that has a timer.
const MACHINE: &str = "microvm,memory-backend=ram,x-option-roms=off,pit=off,pic=off,rtc=off,isa-serial=off";
/// What a PC's firmware is at least. Nobody runs it.
const FIRMWARE_BYTES: usize = 64 << 10;
const MIB: u64 = 1 << 20;
/// Where in the machine's memory ours begins: a PC's firmware lies over parts of the first MiB.
const RAM_START: u64 = 2 * MIB;

/// All the memory of a machine, with room for a queue and the buffers of its requests in it. Guest addresses are offsets in
/// its file.
pub(crate) struct Ram {
    /// What QEMU opens, and how long it is.
    path: PathBuf,
    bytes: u64,
    pub(super) memory: Arc<Memory>,
    pub(super) areas: Areas,
    pub(super) buffers: Area,
    pub(super) queue_size: u16,
}

impl Ram {
    /// For a queue as planned.
    pub(crate) fn new(plan: QueuePlan) -> Result<Self> {
        let (memory, mut places) = QueuePlan::lay_out(&[plan], RAM_START, RAM_START)?;
        let (areas, buffers) = places.pop().context("a place for each queue")?;
        let (path, bytes) = memory.path()?;
        Ok(Self { path, bytes, memory, areas, buffers, queue_size: plan.size })
    }
}

/// A QEMU that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Qemu {
    /// The program: a path, or a name on the path.
    pub(crate) program: String,
    /// More arguments.
    pub(crate) more: Vec<String>,
}

impl Qemu {
    /// The program at `path`, or the one on the path.
    pub(crate) fn at(path: Option<&Path>, more: Vec<String>) -> Self {
        let program = path.map_or_else(|| PROGRAM.to_owned(), |path| path.to_string_lossy().into_owned());
        Self { program, more }
    }

    /// The command line of a machine that serves `dir`, has `ram`, and listens for qtest on `socket`. A file with
    /// firmware is made beside the socket, so that QEMU does without an installation's files.
    pub(crate) fn command(&self, socket: &Path, dir: &Path, ram: &Ram) -> Result<Vec<String>> {
        let firmware = socket.with_file_name("firmware");
        fs::write(&firmware, [0; FIRMWARE_BYTES]).with_context(|| format!("cannot write {}", firmware.display()))?;
        let mib = ram.bytes / MIB;
        let mut words: Vec<String> = vec![self.program.clone()];
        // The log of qtest would go to standard error otherwise, with every kick.
        words.extend(["-accel", "qtest", "-qtest-log", "none"].map(String::from));
        words.extend(["-nodefaults", "-no-user-config", "-display", "none"].map(String::from));
        words.extend(["-machine", MACHINE, "-global", "virtio-mmio.force-legacy=false"].map(String::from));
        words.extend(["-bios".into(), firmware.to_string_lossy().into_owned()]);
        words.extend(["-m".into(), format!("{mib}M"), "-object".into()]);
        words.push(format!("memory-backend-file,id=ram,size={mib}M,share=on,mem-path={}", value(&ram.path)));
        words.extend(["-qtest".into(), format!("unix:{},server=on,wait=off", value(socket))]);
        // Of its security models the one that costs least.
        words.extend(["-fsdev".into(), format!("local,id=tree,path={},security_model=none", value(dir))]);
        words.extend(["-device", "virtio-9p-device,fsdev=tree,mount_tag=bench"].map(String::from));
        words.extend(self.more.iter().cloned());
        Ok(words)
    }
}

/// A path as the value of one of QEMU's options, where a comma stands for the next option unless it is doubled.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_memory_device_and_directory_and_doubles_commas() {
        let place = tempfile::tempdir().unwrap();
        let ram = Ram::new(QueuePlan { size: 64, buffer_bytes: 3 << 20 }).unwrap();
        let qemu = Qemu::at(None, vec!["-S".into()]);
        let words = qemu.command(&place.path().join("s"), Path::new("/srv/a,b"), &ram).unwrap();
        assert_eq!((&*words[0], &**words.last().unwrap()), ("qemu-system-x86_64", "-S"));
        let line = words.join(" ");
        // Two MiB before the areas, and what these take rounded up.
        assert!(line.contains("-m 6M") && line.contains("size=6M,share=on,mem-path=/proc/"), "{line}");
        assert!(line.contains("path=/srv/a,,b,security_model=none"), "{line}");
        assert!(line.contains(&format!("-qtest unix:{}", place.path().join("s").display())), "{line}");
        assert_eq!(fs::metadata(place.path().join("firmware")).unwrap().len(), 64 << 10);
        assert_eq!(Qemu::at(Some(Path::new("/x/qemu")), Vec::new()).program, "/x/qemu");
    }
}
