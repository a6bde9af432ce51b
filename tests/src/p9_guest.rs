//! What the guests that mount a directory by 9p have in common.

use std::time::Duration;

use anyhow::Result;

use crate::directory_server::{DirectoryServer, TAG};
use crate::fs_guest;
use crate::lab::Lab;
use crate::uml::{self, Guest, Kernel, Machine};

/// The lab's own kernel with one processor: Debian's has no 9p over virtio.
pub const KERNEL: Kernel = Kernel::Smp(1);
/// The largest message of Linux over virtio: a page for each of the 128 slots of its ring but three
/// (`net/9p/trans_virtio.c`).
pub const MSIZE_MAX: u32 = 512_000;

/// Options of mount(8) for a directory over virtio, without caches unless `more` asks for one.
pub fn options(more: &str) -> String {
    let comma = if more.is_empty() { "" } else { "," };
    format!("trans=virtio,version=9p2000.L,msize={MSIZE_MAX}{comma}{more}")
}

/// Wraps a script as [`fs_guest::script`] does, for a directory by 9p that is mounted with `more`
/// beside what it needs; of what is said twice the kernel takes the last.
pub fn script(lab: &Lab, more: &str, body: &str) -> Result<String> {
    // A kernel that goes down waits for ever for a 9p device that is mounted: a script that fails must leave none.
    let mount = format!("trap 'cd /; umount -a -l -t 9p' EXIT\nmount -t 9p -o {} {TAG} /mnt/share", options(more));
    fs_guest::around(lab, &mount, body)
}

/// Boots a guest on a directory that is served by 9p and lets it run a script; see [`script`].
pub fn boot(lab: &Lab, machine: impl Into<Machine>, server: &DirectoryServer, more: &str, body: &str) -> Result<Guest> {
    Guest::boot(lab, machine, &[server.device()], &script(lab, more, body)?)
}

/// As [`boot`], and the script must succeed. Returns the console's text.
pub fn run(lab: &Lab, server: &DirectoryServer, more: &str, body: &str, limit: Duration) -> Result<String> {
    uml::run(lab, KERNEL, &[server.device()], &script(lab, more, body)?, limit)
}
