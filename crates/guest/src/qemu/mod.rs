//! QEMU: a PC on virtio devices over PCI.
//!
//! A guest's root file system is a directory of the host, read-only, by QEMU's own 9p server. Nothing
//! changes it meanwhile, so the guest may remember what it has read of it; the directory through which
//! scripts come and go is a second one, of which it remembers nothing.

mod accelerator;
mod devices;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

pub use accelerator::{ACCELERATOR_VARIABLE, Accelerator, accelerator};
pub use devices::add_devices;

use crate::device::Device;
use crate::kit::Kit;
use crate::machine::Machine;
use crate::numa;
use crate::shell::{Agent, Guest, Share};

/// Three seconds are usual without KVM, on a machine that does nothing else.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// The serial port on which host and guest talk; its other end is standard input.
const LINE: &str = "/dev/ttyS1";
const ROOT_TAG: &str = "vringd-root";
const SHARE_TAG: &str = "vringd-share";
/// Words for the kernel that let an idle guest sleep: others are measured meanwhile. Nobody watches for
/// processors that hang, and the clock, which is this machine's own, is not compared with another one twice
/// a second. Nor does it look while it boots whether the timer ticks a few times in as many milliseconds: on a busy host an
/// emulated one does not, and the kernel panics ("IO-APIC + timer doesn't work!"; under KVM it does not look either).
pub const QUIET: &str = "nowatchdog tsc=reliable no_timer_check";
/// How the guest mounts the two: with the largest messages that 9p over virtio can carry.
const ROOT_OPTIONS: &str = "trans=virtio,version=9p2000.L,msize=512000,cache=loose";
const SHARE_OPTIONS: &str = "trans=virtio,version=9p2000.L,msize=512000,cache=none";

/// Boots a guest that waits for scripts, under KVM if that works here.
///
/// # Errors
/// Something of the kit is missing, QEMU does not take a device, or the kernel does not boot.
pub fn boot(kit: &Kit, machine: &Machine, devices: &[Device]) -> Result<Guest> {
    let share = Share::new()?;
    let command = command(kit, machine, devices, &share)?;
    Agent { share, command, limit: BOOT_LIMIT }.boot(machine.processors)
}

fn command(kit: &Kit, machine: &Machine, devices: &[Device], share: &Share) -> Result<Command> {
    let root = kit.root()?;
    let mut command = base(kit, machine)?;
    command
        .args([
            "-monitor",
            "none",
            "-chardev",
            "file,id=console,path=/dev/stdout,append=on",
            "-serial",
            "chardev:console",
        ])
        .args(["-chardev", "socket,id=line,fd=0", "-serial", "chardev:line"])
        .arg("-kernel")
        .arg(kit.kernel()?);
    if let Some(initramfs) = kit.initramfs()? {
        command.arg("-initrd").arg(initramfs);
    }
    command.arg("-append").arg(format!(
        "console=ttyS0 quiet panic=-1 {QUIET} root={ROOT_TAG} rootfstype=9p rootflags={ROOT_OPTIONS} ro {}",
        share.init(&format!("-t 9p -o {SHARE_OPTIONS} {SHARE_TAG}"), Some(LINE))?
    ));
    // `remap`: a directory may span file systems, and the guest tells files by their numbers.
    for (index, (directory, tag, more)) in
        [(root, ROOT_TAG, ",readonly=on"), (share.path(), SHARE_TAG, "")].into_iter().enumerate()
    {
        let path = option_value(directory)?;
        command
            .arg("-fsdev")
            .arg(format!("local,id=own{index},path={path},security_model=none,multidevs=remap{more}"))
            .arg("-device")
            .arg(format!("virtio-9p-pci,fsdev=own{index},mount_tag={tag}"));
    }
    add_devices(&mut command, kit.qemu()?, devices)?;
    if machine.one_node { numa::bind(&command) } else { Ok(command) }
}

/// QEMU with processors and a memory that vhost-user servers can map, without devices.
fn base(kit: &Kit, machine: &Machine) -> Result<Command> {
    ensure!(machine.processors > 0, "a guest needs a processor");
    let mut command = Command::new(kit.qemu()?);
    let memory_mib = machine.memory_mib;
    if machine.instruction_clock {
        // Processors are then emulated in turns.
        command.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=on"]);
    } else {
        command.args(accelerator(kit)?.options());
    }
    command
        .args(["-smp", &machine.processors.to_string(), "-m", &format!("{memory_mib}M")])
        // Without its high-precision timer, which wakes QEMU 250 times a second on behalf of an idle guest.
        .args(["-machine", "q35,hpet=off,memory-backend=memory"])
        .arg("-object")
        .arg(format!("memory-backend-memfd,id=memory,size={memory_mib}M,share=on"))
        .args(["-nodefaults", "-display", "none", "-no-reboot"]);
    Ok(command)
}

/// A path as the value of one of QEMU's options, where a comma stands for the next option unless it is
/// doubled.
fn option_value(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| anyhow::anyhow!("{} is not UTF-8", path.display()))?;
    Ok(text.replace(',', ",,"))
}
