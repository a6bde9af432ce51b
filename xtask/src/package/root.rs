//! A tree of files in memory, and the tar archive that it becomes: the same bytes each time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

/// Files by their paths, which begin with no slash.
#[derive(Default)]
pub(super) struct Root {
    entries: BTreeMap<PathBuf, Entry>,
}

enum Entry {
    Directory { mode: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Link { target: PathBuf },
}

impl Root {
    pub(super) fn directory(&mut self, path: impl AsRef<Path>, mode: u32) {
        self.add(path.as_ref(), Entry::Directory { mode });
    }

    pub(super) fn file(&mut self, path: impl AsRef<Path>, bytes: Vec<u8>) {
        self.add(path.as_ref(), Entry::File { mode: 0o644, bytes });
    }

    pub(super) fn program(&mut self, path: impl AsRef<Path>, bytes: Vec<u8>) {
        self.add(path.as_ref(), Entry::File { mode: 0o755, bytes });
    }

    pub(super) fn link(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.add(path.as_ref(), Entry::Link { target: target.into() });
    }

    /// With the directories that it lies in.
    fn add(&mut self, path: &Path, entry: Entry) {
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            self.entries.entry(above.to_owned()).or_insert(Entry::Directory { mode: 0o755 });
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// In order of names, a directory before what is in it; everything is root's and of this time, in seconds since 1970.
    pub(super) fn archive(&self, time: u64) -> Result<Vec<u8>> {
        let mut archive = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = Header::new_gnu();
            header.set_mtime(time);
            header.set_uid(0);
            header.set_gid(0);
            let added = match entry {
                Entry::Directory { mode } => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    archive.append_data(&mut header, path, &[][..])
                }
                Entry::File { mode, bytes } => {
                    header.set_mode(*mode);
                    header.set_size(bytes.len() as u64);
                    archive.append_data(&mut header, path, &bytes[..])
                }
                Entry::Link { target } => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    archive.append_link(&mut header, path, target)
                }
            };
            added.with_context(|| path.display().to_string())?;
        }
        Ok(archive.into_inner()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_order_with_their_directories_and_one_time() {
        let mut root = Root::default();
        root.program("usr/bin/b", b"program".to_vec());
        root.file("etc/a", b"text".to_vec());
        root.link("usr/bin/a", "b");
        root.directory("tmp", 0o1777);
        let bytes = root.archive(12).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let seen = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (12, 0, 0));
            (entry.path().unwrap().display().to_string(), header.mode().unwrap(), header.entry_type())
        });
        let expected = [
            ("etc", 0o755, EntryType::Directory),
            ("etc/a", 0o644, EntryType::Regular),
            ("tmp", 0o1777, EntryType::Directory),
            ("usr", 0o755, EntryType::Directory),
            ("usr/bin", 0o755, EntryType::Directory),
            ("usr/bin/a", 0o777, EntryType::Symlink),
            ("usr/bin/b", 0o755, EntryType::Regular),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected.map(|(path, mode, kind)| (path.to_owned(), mode, kind)));
    }
}
