//! Snapshots: what disks hold at one moment, set aside in files while guests go on.

use super::name::check_name;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use utoipa::ToSchema;
use values::FieldError;

/// Description of a snapshot: the body of `POST /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// The disks, all at the same moment: at least one, each once.
    pub disks: Vec<SnapshotDisk>,
}

/// A disk in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDisk {
    /// Name of the disk, whose storage is a qcow2 image.
    pub disk: String,
    /// Absolute path that the image file gets. A new, empty overlay takes its place, with this file behind it.
    #[schema(value_type = String)]
    pub to: PathBuf,
}

impl NewSnapshot {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_disks("to", self.disks.iter().map(|disk| (disk.disk.as_str(), disk.to.as_path())))
    }
}

/// Checks the list `disks`, in which each disk stands once beside a path of its own, in the field `path`.
pub(super) fn check_disks<'a>(
    path_field: &str,
    disks: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Result<(), FieldError> {
    let mut seen: Vec<(&str, &Path)> = Vec::new();
    for (index, (disk, path)) in disks.into_iter().enumerate() {
        let place = |field: &str| format!("disks[{index}].{field}");
        check_name(&place("disk"), disk)?;
        check_path(&place(path_field), path)?;
        if seen.iter().any(|(other, _)| *other == disk) {
            return Err(FieldError::new(place("disk"), format_args!("`{disk}` is in the list already")));
        }
        if let Some((other, _)) = seen.iter().find(|(_, taken)| *taken == path) {
            let message =
                format_args!("{} is that of `{other}` already: give each disk a file of its own", path.display());
            return Err(FieldError::new(place(path_field), message));
        }
        seen.push((disk, path));
    }
    if seen.is_empty() {
        return Err(FieldError::new("disks", "must name at least one disk"));
    }
    Ok(())
}

/// Refuses a path that is not absolute.
pub(super) fn check_path(field: &str, path: &Path) -> Result<(), FieldError> {
    if path.is_relative() {
        return Err(FieldError::new(field, "must be an absolute path: the daemon has its own working directory"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_field_is_named() {
        let fault = |disks: &[(&str, &str)]| {
            let disks = disks.iter().map(|&(disk, to)| SnapshotDisk { disk: disk.into(), to: to.into() }).collect();
            NewSnapshot { disks }.check().map_err(|error| error.to_string())
        };
        assert_eq!(fault(&[("a", "/a"), ("b", "/b")]), Ok(()));
        assert_eq!(fault(&[]), Err("disks: must name at least one disk".into()));
        assert!(fault(&[("a", "/a"), ("", "/b")]).unwrap_err().starts_with("disks[1].disk: must be 1 to 64"));
        assert!(fault(&[("a", "a.qcow2")]).unwrap_err().starts_with("disks[0].to: must be an absolute path"));
        assert!(fault(&[("a", "")]).unwrap_err().starts_with("disks[0].to: must be an absolute path"));
        assert_eq!(fault(&[("a", "/a"), ("a", "/b")]), Err("disks[1].disk: `a` is in the list already".into()));
        assert_eq!(
            fault(&[("a", "/x"), ("b", "/x")]),
            Err("disks[1].to: /x is that of `a` already: give each disk a file of its own".into())
        );
    }
}
