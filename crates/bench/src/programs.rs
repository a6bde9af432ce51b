//! Programs of others: where they are.

use std::path::{Path, PathBuf};

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
