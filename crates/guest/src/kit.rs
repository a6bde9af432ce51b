//! The files that guests are made of.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

/// The files that guests are made of. A guest needs some of them; what it needs and does not find
/// is an error that says how to get it.
///
/// What is asked of files from elsewhere than the lab:
/// - `root`, a directory that holds a Linux system: `/bin/sh`, `mount`, `mkdir`, `insmod` if there are
///   modules, and what scripts call (`fio`). It is read, never written. It needs `/proc`, `/sys`, `/dev`,
///   `/run`, `/tmp` and `/mnt` as places to mount on.
/// - `uml`, a User Mode Linux of version 6.16 or later. Drivers that it lacks (`virtio_blk`, `fuse`,
///   `virtiofs`) are taken as modules from the directory `modules` beside it, or from
///   `/usr/lib/uml/modules`.
/// - `kernel`, a bzImage with virtio-pci, virtio-blk, virtio-fs and 9p over virtio built in, or with an
///   `initramfs` that brings what is missing, mounts the root it is told by `root=`, `rootfstype=9p` and
///   `rootflags=`, and starts `init=` there with the arguments it was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kit {
    /// User Mode Linux, the program.
    pub uml: Option<PathBuf>,
    /// qemu-system-x86_64; for a vhost-user directory by 9p one that has `vhost-user-test-device-pci` (11 or later).
    pub qemu: Option<PathBuf>,
    /// A kernel for QEMU, as a bzImage.
    pub kernel: Option<PathBuf>,
    /// The initial file system of that kernel, if it needs one.
    pub initramfs: Option<PathBuf>,
    /// The directory that is the root file system of guests.
    pub root: Option<PathBuf>,
}

impl Kit {
    /// This kit, with the gaps filled from another.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        // An initial file system goes with one kernel.
        let initramfs = if self.kernel.is_some() { self.initramfs } else { self.initramfs.or(other.initramfs) };
        Self {
            uml: self.uml.or(other.uml),
            qemu: self.qemu.or(other.qemu),
            kernel: self.kernel.or(other.kernel),
            initramfs,
            root: self.root.or(other.root),
        }
    }

    /// User Mode Linux, which must be there.
    pub fn uml(&self) -> Result<&Path> {
        there(self.uml.as_deref(), "a User Mode Linux kernel", "uml")
    }

    /// QEMU, which must be there.
    pub fn qemu(&self) -> Result<&Path> {
        there(self.qemu.as_deref(), "qemu-system-x86_64", "qemu")
    }

    /// The kernel for QEMU, which must be there.
    pub fn kernel(&self) -> Result<&Path> {
        there(self.kernel.as_deref(), "a kernel for QEMU guests", "kernel")
    }

    /// The initial file system, which must be there if there is to be one.
    pub fn initramfs(&self) -> Result<Option<&Path>> {
        self.initramfs
            .as_deref()
            .map(|path| there(Some(path), "the initial file system of QEMU guests", "initramfs"))
            .transpose()
    }

    /// The root file system, which must be there and have a shell.
    pub fn root(&self) -> Result<&Path> {
        let root = there(self.root.as_deref(), "the root file system of guests", "root")?;
        // A link in it may be absolute: it is the guest that follows it.
        ensure!(
            root.join("bin/sh").symlink_metadata().is_ok(),
            "the root file system {} has no /bin/sh: give another one with --root DIRECTORY",
            root.display()
        );
        Ok(root)
    }
}

fn there<'a>(path: Option<&'a Path>, what: &str, option: &str) -> Result<&'a Path> {
    let value = if option == "root" { "DIRECTORY" } else { "FILE" };
    let Some(path) = path else {
        bail!("{what} was not found: run `cargo xtask lab` or give --{option} {value}");
    };
    ensure!(path.exists(), "{what} is not at {}: run `cargo xtask lab` or give --{option} {value}", path.display());
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_option() {
        let error = Kit::default().kernel().unwrap_err().to_string();
        assert!(error.contains("--kernel FILE") && error.contains("cargo xtask lab"), "{error}");
        let kit = Kit { uml: Some("/nowhere/linux".into()), ..Kit::default() };
        let error = kit.uml().unwrap_err().to_string();
        assert!(error.contains("/nowhere/linux") && error.contains("--uml FILE"), "{error}");
        assert_eq!(Kit::default().initramfs().unwrap(), None);
    }

    #[test]
    fn root_needs_a_shell() {
        let directory = TempDir::new().unwrap();
        let kit = Kit { root: Some(directory.path().to_owned()), ..Kit::default() };
        assert!(kit.root().unwrap_err().to_string().contains("/bin/sh"));
        fs::create_dir(directory.path().join("bin")).unwrap();
        fs::write(directory.path().join("bin/sh"), "").unwrap();
        assert_eq!(kit.root().unwrap(), directory.path());
    }

    #[test]
    fn initramfs_of_another_kernel_is_not_taken() {
        let lab = Kit { kernel: Some("a".into()), initramfs: Some("a-initramfs".into()), ..Kit::default() };
        let mine = Kit { kernel: Some("b".into()), ..Kit::default() };
        assert_eq!(mine.or(lab.clone()), Kit { kernel: Some("b".into()), ..Kit::default() });
        assert_eq!(Kit::default().or(lab.clone()), lab);
    }
}
