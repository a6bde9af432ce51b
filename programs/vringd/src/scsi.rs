//! Arguments of `vringd scsi`: one SCSI device with its disks, spelled as options.

use crate::confinement::Confinement;
use control::ctl::{LunIs, ScsiFlags, StorageFlags, disk};
use control::model::config::NewExport;
use control::model::{ByteSize, Favour, Lun, NewDisk, NewUnit, PolicyMode, Span};
use disk::StorageSpec;
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Serve a SCSI device with its disks on one socket, until SIGTERM, SIGINT or SIGHUP.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Attach a guest:
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=SOCKET -device vhost-user-scsi-pci,chardev=c0,num_queues=QUEUES …
Disks come and go while it serves, with --control:
  vringd ctl --control CONTROL disk add logs --image logs.img
  vringd ctl --control CONTROL lun add scsi 2 logs")]
pub(crate) struct Args {
    /// A disk: LUN=IMAGE, or LUN=KIND:IMAGE with a kind of `vringd disk --storage`, as in 0=root.img or 1:0=qcow2:data.qcow2; null and sim
    /// have a size for an image, as in 2=sim:1G. LUN is a number, 0 to 16383, or TARGET:NUMBER. May be given several times
    #[arg(long, value_name = "LUN=[KIND:]IMAGE", required = true)]
    pub(crate) lun: Vec<LunIs>,
    /// Path of the vhost-user socket to make; left out with --fd, or with a socket from the service manager
    #[arg(long, short, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Inherited descriptor of a listening vhost-user socket, instead of --socket
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    pub(crate) fd: Option<i32>,
    /// Name of the export [default: scsi]
    #[arg(long, value_name = "NAME", default_value = "scsi", hide_default_value = true)]
    pub(crate) name: String,
    /// Path of a control socket for `vringd ctl`; none when left out
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Name requests in the log that have not been answered for this long; 0s for none [default: 30s]
    #[arg(long, value_name = "TIME", default_value_t = crate::config::stuck_after_default(), hide_default_value = true)]
    pub(crate) stuck_after: Span,
    /// What is preferred where short answers and free processors cannot both be had
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) favour: Favour,
    /// Whether to choose by itself how workers wait and which ring they have
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub(crate) policy: PolicyMode,

    /// Say when less space than this is left for an image, as in 20G: in the log, and to the guest
    #[arg(long, value_name = "SIZE")]
    pub(crate) space_threshold: Option<ByteSize>,

    /// The device.
    #[command(flatten)]
    pub(crate) device: ScsiFlags,

    /// What all its disks have in common.
    #[command(flatten)]
    pub(crate) storage: StorageFlags,

    /// What the process gives up.
    #[command(flatten)]
    pub(crate) confinement: Confinement,
}

impl Args {
    /// The export that these options describe, and its disks.
    pub(crate) fn into_export(self) -> Result<(NewExport, Vec<NewDisk>), String> {
        let (mut disks, mut units, mut images) = (Vec::new(), Vec::new(), BTreeMap::new());
        for LunIs { lun, what } in &self.lun {
            let mut disk = disk(name_of(*lun), what, &self.storage).map_err(|error| error.to_string())?;
            let path = match &disk.storage {
                // Its only path is that of the cluster's configuration.
                StorageSpec::Rbd(image) => Some(format!("rbd:{}", image.spec()).into()),
                _ => disk.storage.paths().into_iter().next().map(|(_, path)| path.clone()),
            };
            if let Some(path) = &path
                && let Some(other) = images.insert(path.clone(), *lun)
            {
                return Err(format!("--lun: {} is LUN {other} and LUN {lun}", path.display()));
            }
            let serial = path.as_deref().map(|image| match &disk.storage {
                StorageSpec::Rbd(_) => fingerprint(image),
                _ => serial_of(image),
            });
            units.push(NewUnit { lun: *lun, disk: disk.name.clone(), serial });
            disks.push(disk);
        }
        if self.space_threshold.is_some() {
            let mut thin = disks.iter_mut().filter_map(|disk| is_counted(&mut disk.storage).then_some(disk)).peekable();
            if thin.peek().is_none() {
                return Err(
                    "--space-threshold: is of images that are written, and no --lun is one: leave it out".to_owned()
                );
            }
            thin.for_each(|disk| disk.space_threshold = self.space_threshold);
        }
        let new = self.device.describe(self.name, self.socket, units, None);
        Ok((NewExport { socket_fd: self.fd, poll: Some(new.poll.unwrap_or_default()), ..new }, disks))
    }
}

/// Whether a disk may have a threshold of space, as far as its description tells.
fn is_counted(storage: &mut StorageSpec) -> bool {
    let is_device = |path: &Path| std::fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device());
    matches!(storage.kind(), "file" | "qcow2" | "volume")
        && !storage.read_only()
        && storage.migratable().is_none()
        && !storage.paths().iter().any(|(_, path)| is_device(path))
}

fn name_of(lun: Lun) -> String {
    match lun.target {
        0 => format!("lun{}", lun.number),
        target => format!("lun{target}.{}", lun.number),
    }
}

/// The serial number of a disk that nobody has given one: the same each time, and another one for another image. To a guest two disks
/// of one number are one disk on two paths.
fn serial_of(image: &Path) -> String {
    fingerprint(&std::path::absolute(image).unwrap_or_else(|_| image.to_owned()))
}

/// Of what names a disk wherever the daemon runs.
fn fingerprint(name: &Path) -> String {
    // FNV-1a with 64 bits: what names a disk for years must not change with a library.
    let hash = name
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(words: &str) -> Result<(NewExport, Vec<NewDisk>), String> {
        let line = Line::try_parse_from(["scsi"].into_iter().chain(words.split(' ')));
        line.map_err(|error| error.to_string())?.args.into_export()
    }

    #[test]
    fn disks_have_the_kinds_and_the_numbers_that_are_said() {
        let (export, disks) =
            read("--socket /s --lun 0=/a.img --lun 1:2=qcow2:/b.qcow2 --lun 7=memory:/dev/shm/m --readonly").unwrap();
        let kinds: Vec<_> = disks.iter().map(|disk| (disk.name.as_str(), disk.storage.kind())).collect();
        assert_eq!(kinds, [("lun0", "file"), ("lun1.2", "qcow2"), ("lun7", "memory")]);
        assert!(disks.iter().all(|disk| disk.storage.read_only()));
        let luns: Vec<_> = export.luns.iter().map(|unit| (unit.lun.to_string(), unit.disk.clone())).collect();
        assert_eq!(
            luns,
            [("0".into(), "lun0".into()), ("1:2".into(), "lun1.2".into()), ("7".to_owned(), "lun7".to_owned())]
        );
        export.check().unwrap();
    }

    #[test]
    fn what_has_no_image_has_a_size() {
        let (export, mut disks) =
            read("--socket /s --lun 0=sim:512M --lun 1=sim:1G --read-latency 100us --channels 1024").unwrap();
        assert!(disks.iter_mut().all(|disk| disk.storage.kind() == "sim" && disk.storage.paths().is_empty()));
        // Its serial number is the disk's name.
        assert!(export.luns.iter().all(|unit| unit.serial.is_none()));
        export.check().unwrap();
        assert_eq!(read("--socket /s --lun 0=null:1G").unwrap().1[0].storage.kind(), "null");
    }

    #[test]
    fn a_threshold_is_that_of_images_that_are_written() {
        let thresholds = |words: &str| {
            read(&format!("--socket /s --space-threshold 20G {words}")).map(|(_, disks)| {
                disks.iter().map(|disk| disk.space_threshold.map(|size| size.0 >> 30)).collect::<Vec<_>>()
            })
        };
        assert_eq!(thresholds("--lun 0=/a --lun 1=null:1G --lun 2=qcow2:/q").unwrap(), [Some(20), None, Some(20)]);
        for nothing in ["--lun 0=null:1G", "--lun 0=/a --readonly"] {
            let refused = thresholds(nothing).unwrap_err();
            assert!(refused.starts_with("--space-threshold: ") && refused.ends_with("leave it out"), "{refused}");
        }
    }

    #[test]
    fn serial_numbers_stay_and_differ() {
        assert_eq!(serial_of(Path::new("/a")), "07d66707b49cd92d");
        assert_ne!(serial_of(Path::new("/srv/a.img")), serial_of(Path::new("/srv/b.img")));
        let (export, _) = read("--socket /s --lun 0=/a --lun 1=/b").unwrap();
        assert_eq!(export.luns[0].serial.as_deref(), Some("07d66707b49cd92d"));
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (words, why) in [
            ("--socket /s --lun 0", "use LUN=DISK"),
            ("--socket /s --lun 0=", "use LUN=DISK"),
            ("--socket /s --lun 16384=/a", "`16384` is not a LUN"),
            ("--socket /s --lun 0=null:/a", "--lun: null has no image: give it a size, as in null:1G, not `/a`"),
            ("--socket /s --lun 0=/a --seek 1ms", "--seek: has no meaning for the kind file"),
            ("--socket /s --lun 0=bogus:/a", "--lun: `bogus` is no kind of storage"),
            ("--socket /s --lun 0=/a --lun 1:0=file:/a", "--lun: /a is LUN 0 and LUN 1:0"),
            ("--socket /s --lun 0=/a --log /l", "--log: has no meaning for the kind file"),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
    }
}
