//! Modules of a kernel, with those they need.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use guest::process;

/// A module and its content, as the kernel loads it.
pub(super) type Module = (String, Vec<u8>);

/// The modules of one package.
#[derive(Debug)]
pub(super) struct Modules {
    busybox: PathBuf,
    files: HashMap<String, PathBuf>,
}

impl Modules {
    /// The modules below `directory`, packed with xz.
    pub(super) fn below(directory: &Path, busybox: PathBuf) -> Result<Self> {
        let mut files = HashMap::new();
        let mut directories = vec![directory.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    directories.push(path);
                } else if let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko.xz")) {
                    files.insert(canonical(name), path);
                }
            }
        }
        Ok(Self { busybox, files })
    }

    /// The modules called `names`, each behind those it needs.
    pub(super) fn in_order(&self, names: &[&str]) -> Result<Vec<Module>> {
        let mut loaded = Vec::new();
        for name in names {
            self.add(&canonical(name), &mut loaded)?;
        }
        Ok(loaded)
    }

    fn add(&self, name: &str, loaded: &mut Vec<Module>) -> Result<()> {
        if loaded.iter().any(|(other, _)| other == name) {
            return Ok(());
        }
        let file = self.files.get(name).with_context(|| format!("the kernel has no module {name}"))?;
        let mut unpack = Command::new(&self.busybox);
        let content = process::run(unpack.args(["xz", "-d", "-c"]).arg(file))?.stdout;
        for needed in needs(&content) {
            self.add(&canonical(&needed), loaded)?;
        }
        loaded.push((name.to_owned(), content));
        Ok(())
    }
}

/// Names are written with a hyphen here and an underscore there.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// What a module says that it needs: `depends=one,two` among the strings that describe it.
fn needs(content: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(place) = content.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value: Vec<u8> = content[place + KEY.len()..].iter().copied().take_while(|byte| *byte != 0).collect();
    let names = String::from_utf8_lossy(&value).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::{canonical, needs};

    #[test]
    fn needs_are_read_from_the_description() {
        assert_eq!(needs(b"\x7fELF..license=GPL\0depends=netfs,9pnet\0retpoline=Y\0"), ["netfs", "9pnet"]);
        assert!(needs(b"\x7fELF..license=GPL\0depends=\0").is_empty());
        assert!(needs(b"").is_empty());
        assert_eq!(canonical("crc32c-generic"), "crc32c_generic");
    }
}
