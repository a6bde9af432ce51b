//! Programs of others: where they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// Where distributions put virtiofsd, which is in nobody's `PATH`.
pub const VIRTIOFSD_DIRECTORIES: [&str; 4] = ["/usr/libexec", "/usr/lib", "/usr/lib/qemu", "/usr/lib/virtiofsd"];

/// Where a program is: the path that `name` is, or the first in `PATH`, and then in `further` directories, of this name.
pub fn find(name: &str, further: &[&str]) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| is_program(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&path).chain(further.iter().map(PathBuf::from));
    directories.find_map(|at| Some(at.join(name)).filter(|path| is_program(path)))
}

/// Whether a file is there that can be executed.
pub fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Starts a program, to find out before anything is laid out that it cannot be; the error ends with the `fix`.
pub(crate) fn require(program: &Path, fix: &str) -> Result<()> {
    let started = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    if let Err(error) = started {
        bail!("{}: cannot start it ({error}): give {fix}", program.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_missing_is_named_with_the_fix() {
        let error = require(Path::new("/nonexistent/peer"), "--peer PATH").unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/peer: cannot start it"), "{error}");
        assert!(error.ends_with("give --peer PATH"), "{error}");
    }
}
