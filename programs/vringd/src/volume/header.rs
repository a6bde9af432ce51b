//! A raw image that begins like a volume: nobody refuses it, but somebody is told.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a volume begins (docs/formats/volume.md).
const MAGIC: [u8; 8] = *b"VRINGVOL";

/// Warns when the image at `path`, which is about to be served as it is, begins like a volume.
///
/// It is no more than a warning because a guest writes the first bytes of its own disk: a refusal would let it keep a
/// daemon, which starts all of its exports or none, from starting.
pub(crate) fn warn_of_volume(disk: &str, path: &Path) {
    if begins_like_a_volume(path) {
        tracing::warn!(
            disk,
            path = %path.display(),
            "a raw image that begins like a volume: if it is one, stop its export before a guest writes, and serve it \
             with storage `volume`"
        );
    }
}

/// Whether the image at `path` begins like a volume.
pub(crate) fn begins_like_a_volume(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    // What cannot be read now was opened a moment ago: nobody depends on the warning.
    File::open(path).and_then(|image| image.read_exact_at(&mut magic, 0)).is_ok() && magic == MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_volume_begins_like_one() {
        let image = tempfile::NamedTempFile::new().unwrap();
        assert!(!begins_like_a_volume(image.path()), "it is empty");
        image.as_file().write_all_at(&[0; 4096], 0).unwrap();
        assert!(!begins_like_a_volume(image.path()));
        image.as_file().write_all_at(&MAGIC, 0).unwrap();
        assert!(begins_like_a_volume(image.path()));
        assert!(!begins_like_a_volume(Path::new("/nonexistent/image")));
    }
}
