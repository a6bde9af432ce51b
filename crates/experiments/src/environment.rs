//! The machine that a run is made on, as a report must name it.
//!
//! Nothing here fails: what cannot be found out is left empty, and a run does not depend on it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bench::environment::{self, Mount};
use guest::process::Group;

use crate::experiment::{Experiment, Medium, Place, ServerKind};
use crate::record::Environment;
use crate::stand::Site;

/// A program that has not told its version by then has none.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// Looks at the machine: what `experiment` will use of it at `site`.
pub fn look(site: &Site, experiment: &Experiment) -> Environment {
    Environment {
        kernel: environment::kernel(),
        processor: processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()).unwrap_or_default(),
        processors: u32::try_from(environment::processors()).unwrap_or(1),
        nodes: u32::try_from(guest::numa::nodes().len()).unwrap_or(1),
        memory_mib: meminfo_mib(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal:").unwrap_or(0),
        storage: storage(site, experiment),
        programs: programs(site, experiment),
        accelerator: accelerator(site, experiment),
    }
}

/// How much memory may be taken without pushing anything else out, in MiB; 0 if the kernel does not tell.
pub fn memory_available_mib() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo_mib(&meminfo, "MemAvailable:").unwrap_or(0)
}

fn processor(cpuinfo: &str) -> Option<String> {
    // x86 says `model name`, others `Model` or `cpu model`; ARM often says nothing that a person would know.
    ["model name", "cpu model", "Model", "uarch"].iter().find_map(|key| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == *key).then(|| value.split_whitespace().collect::<Vec<_>>().join(" "))
        })
    })
}

fn meminfo_mib(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

fn storage(site: &Site, experiment: &Experiment) -> Vec<String> {
    let has = |medium| experiment.configurations.iter().any(|configuration| configuration.data.medium == medium);
    let mut lines = Vec::new();
    for (medium, name, directory) in [(Medium::Disk, "disk", &site.data), (Medium::Memory, "memory", &site.memory)] {
        if !has(medium) {
            continue;
        }
        // Data may not have been laid out yet.
        let there = directory.ancestors().find(|path| path.exists());
        let found = there.and_then(Mount::of).map(|mount| {
            // What has no device is on none.
            let device = device(&mount.number).map(|device| format!(" ({device})")).unwrap_or_default();
            format!("{mount}{device}")
        });
        lines.push(format!("{name}: {}", found.unwrap_or_else(|| "unknown".into())));
    }
    if has(Medium::None) {
        lines.push("none: made up by the server".into());
    }
    lines
}

/// Model of a block device, and whether the kernel takes it for one that rotates; of a virtual one it does by default.
fn device(number: &str) -> Option<String> {
    let link = fs::canonicalize(Path::new("/sys/dev/block").join(number)).ok()?;
    // A partition has no queue; its disk is the directory above.
    let disk = link.ancestors().take(2).find(|path| path.join("queue").is_dir())?;
    let word = |file: &str| fs::read_to_string(disk.join(file)).ok().map(|text| text.trim().to_owned());
    let rotates = format!("rotational={}", word("queue/rotational")?);
    let model = word("device/model").or_else(|| {
        let driver = fs::canonicalize(disk.join("device/driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    });
    Some(model.map_or_else(|| rotates.clone(), |model| format!("{model}, {rotates}")))
}

fn programs(site: &Site, experiment: &Experiment) -> Vec<String> {
    let configurations =
        || experiment.configurations.iter().filter(|configuration| configuration.unsupported.is_none());
    let at = |place: Place| configurations().any(|configuration| configuration.place == place);
    let by = |kinds: &[ServerKind]| configurations().any(|configuration| kinds.contains(&configuration.server.kind));
    let mut lines = Vec::new();
    let tell = |name: &str, program: Option<&Path>| {
        let version = program.map(|program| version(program).unwrap_or_else(|| "unknown version".into()));
        let version = version.unwrap_or_else(|| "not found".into());
        if version.contains(name) { version } else { format!("{name}: {version}") }
    };
    if by(&[ServerKind::VringdDisk, ServerKind::VringdScsi, ServerKind::VringdDir, ServerKind::Vringd9p])
        || at(Place::Frontend)
    {
        lines.push(tell("vringd", Some(&site.vringd)));
    }
    if by(&[ServerKind::Virtiofsd]) {
        lines.push(tell("virtiofsd", site.programs.virtiofsd.as_deref()));
    }
    if by(&[ServerKind::QemuStorageDaemon]) {
        lines.push(tell("qemu-storage-daemon", site.programs.storage_daemon.as_deref()));
    }
    if at(Place::Qemu) {
        lines.push(tell("QEMU", site.kit.qemu.as_deref()));
    }
    if at(Place::Host) {
        lines.push(tell("fio on the host", site.programs.fio.as_deref()));
    }
    if (at(Place::Uml) || at(Place::Qemu))
        && let Some(root) = &site.kit.root
    {
        let packages = fs::read_to_string(root.join("var/lib/dpkg/status")).unwrap_or_default();
        let version = packaged(&packages, "fio").unwrap_or_else(|| "unknown version".into());
        lines.push(format!("fio in guests: {version}"));
    }
    if at(Place::Uml) {
        lines.push(tell("guest kernel (User Mode Linux)", site.kit.uml.as_deref()));
    }
    if at(Place::Qemu)
        && let Some(kernel) = &site.kit.kernel
    {
        let release = kernel_release(kernel).unwrap_or_else(|| "unknown version".into());
        lines.push(format!("guest kernel (QEMU): {release}"));
    }
    lines
}

/// Version of a package of Debian in a root file system whose programs may not run here (deb822(5)).
fn packaged(status: &str, name: &str) -> Option<String> {
    let is_it = |paragraph: &&str| paragraph.lines().any(|line| line.strip_prefix("Package: ") == Some(name));
    let paragraph = status.split("\n\n").find(is_it)?;
    Some(paragraph.lines().find_map(|line| line.strip_prefix("Version: "))?.to_owned())
}

/// The first line of what a program says to `--version`.
fn version(program: &Path) -> Option<String> {
    let output = tempfile::NamedTempFile::new().ok()?;
    let mut command = Command::new(program);
    command.arg("--version");
    let mut process = Group::start(&command, output.path()).ok()?;
    let status = process.wait(VERSION_LIMIT).ok()?;
    let text = process.output();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    status.success().then(|| line.to_owned())
}

/// The release of a kernel for x86, from its image (kernel: `Documentation/arch/x86/boot.rst`, `kernel_version`).
fn kernel_release(image: &Path) -> Option<String> {
    const MAGIC_AT: u64 = 0x202;
    const VERSION_AT: u64 = 0x20e;
    let mut file = File::open(image).ok()?;
    let mut read = |at: u64, bytes: &mut [u8]| {
        file.seek(SeekFrom::Start(at)).ok()?;
        file.read_exact(bytes).ok()
    };
    let mut magic = [0; 4];
    read(MAGIC_AT, &mut magic)?;
    if &magic != b"HdrS" {
        return None;
    }
    let mut offset = [0; 2];
    read(VERSION_AT, &mut offset)?;
    let mut text = [0; 64];
    read(u64::from(u16::from_le_bytes(offset)) + 0x200, &mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(text.split([' ', '\0']).next()?.to_owned())
}

fn accelerator(site: &Site, experiment: &Experiment) -> String {
    let has_qemu = experiment
        .configurations
        .iter()
        .any(|configuration| configuration.place == Place::Qemu && configuration.unsupported.is_none());
    if !has_qemu {
        return String::new();
    }
    guest::qemu::accelerator(&site.kit).map(|accelerator| accelerator.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_and_memory_are_read_by_name() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A  fine   CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(processor(cpuinfo).as_deref(), Some("A fine CPU @ 2 GHz"));
        assert_eq!(processor("flags: x"), None);
        let meminfo = "MemFree: 1 kB\nMemTotal:       2097152 kB\n";
        assert_eq!(meminfo_mib(meminfo, "MemTotal:"), Some(2048));
        assert_eq!(meminfo_mib(meminfo, "MemAvailable:"), None);
    }

    #[test]
    fn a_kernel_tells_its_release() {
        let mut image = vec![0_u8; 0x2000];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x1000_u16.to_le_bytes());
        image[0x1200..0x121d].copy_from_slice(b"6.12.57-amd64 (builder@host) ");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &image).unwrap();
        assert_eq!(kernel_release(file.path()).as_deref(), Some("6.12.57-amd64"));
        fs::write(file.path(), "no kernel").unwrap();
        assert_eq!(kernel_release(file.path()), None);
    }

    #[test]
    fn a_package_tells_its_version() {
        let status =
            "Package: fio-examples\nVersion: 1\n\nPackage: fio\nStatus: install ok installed\nVersion: 3.39-1\n";
        assert_eq!(packaged(status, "fio").as_deref(), Some("3.39-1"));
        assert_eq!(packaged(status, "qemu"), None);
    }

    #[test]
    fn a_version_is_the_first_line() {
        assert!(version(Path::new("cat")).unwrap().contains("cat"));
        assert_eq!(version(Path::new("/nonexistent/program")), None);
    }
}
