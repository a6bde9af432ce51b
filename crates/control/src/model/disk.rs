//! Disks: storages that are open and have names, apart from the exports that use them.

use super::export::StorageInfo;
use super::name::check_name;
use disk::{Sharing, StorageSpec, User};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use utoipa::ToSchema;
use values::{ByteSize, FieldError};

/// Description of a disk: the `[[disk]]` table of the configuration file and the body of `POST /v1/disks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDisk {
    /// Name, unique among the disks of the daemon: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// What stands behind it.
    pub storage: StorageSpec,
    /// Several SCSI devices may have it at once, whose reservations exclude each other; nothing else may. For guests that know of
    /// each other: cluster file systems, failover.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// File that keeps persistent reservations which guests want to survive a loss of power (APTPL), made where there is none; without
    /// it such a wish is refused. For SCSI devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reservations: Option<PathBuf>,
    /// Say when fewer bytes than these are left for a thin disk, whose blocks have space when they are written: the log does, and SCSI
    /// devices tell their guests. As in 20G; 1M to 4095T. For images in files, with discard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub space_threshold: Option<ByteSize>,
}

impl NewDisk {
    /// The smallest unit of a disk's size: exports with larger blocks leave a tail out.
    const BLOCK_BYTES: u32 = 512;
    /// The field of the file that keeps reservations.
    pub const RESERVATIONS: &str = "reservations";
    /// The field of the space that is to be left.
    pub const SPACE_THRESHOLD: &str = "space_threshold";
    /// What that may be, in bytes: what 32 bits count in sets of 1 MiB (SBC-4, THRESHOLD COUNT).
    const SPACE_THRESHOLD_BYTES: RangeInclusive<u64> = 1 << 20..=4095 << 40;

    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_name("name", &self.name)?;
        self.storage.check(Self::BLOCK_BYTES)?;
        if let Some(ByteSize(bytes)) = self.space_threshold
            && !Self::SPACE_THRESHOLD_BYTES.contains(&bytes)
        {
            let message = format_args!("must be 1M to 4095T, not {}", ByteSize(bytes));
            return Err(FieldError::new(NewDisk::SPACE_THRESHOLD, message));
        }
        if self.space_threshold.is_some() && self.storage.migratable().is_some() {
            let message = "excludes `migratable`: such an image is not looked at while it may be another host's; leave one of the two out";
            return Err(FieldError::new(NewDisk::SPACE_THRESHOLD, message));
        }
        if self.shared && self.storage.migratable().is_some() {
            let message =
                "excludes `migratable`: such an image is open only where its one guest runs; leave one of the two out";
            return Err(FieldError::new("shared", message));
        }
        if self.reservations.is_some() && self.storage.migratable().is_some() {
            let message =
                "excludes `migratable`: where the image goes its reservations do not; leave one of the two out";
            return Err(FieldError::new(NewDisk::RESERVATIONS, message));
        }
        if self.storage.passes() {
            let excluded = [("shared", self.shared), (NewDisk::RESERVATIONS, self.reservations.is_some())];
            if let Some((field, _)) = excluded.into_iter().find(|(_, is_given)| *is_given) {
                let message = "excludes storage `sg`: such a device keeps its reservations itself, and has one guest: leave this out";
                return Err(FieldError::new(field, message));
            }
        }
        if self.reservations.is_some() && self.sharing() == Sharing::Readers {
            let message = "is one unit's, and each device has one of its own of a read-only disk: describe the disk with \
                           `shared = true`, or leave this out";
            return Err(FieldError::new(NewDisk::RESERVATIONS, message));
        }
        let needs = self.storage.needs();
        if let Some(same) = needs.iter().find(|file| self.reservations.as_ref() == Some(&file.path)) {
            let message = format_args!("is the file of `storage.{}`: name one of its own", same.field);
            return Err(FieldError::new(NewDisk::RESERVATIONS, message));
        }
        Ok(())
    }

    /// Who may use it at once.
    pub fn sharing(&self) -> Sharing {
        Sharing::of(self.shared, &*self.storage)
    }
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Name, unique among the disks of the daemon.
    pub name: String,
    /// The export that was described with its storage, with which it goes; absent for a disk that stays open until it is
    /// removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<User>,
    /// What stands behind it. Guests may see larger blocks, and a capacity of whole ones.
    pub storage: StorageInfo,
    /// Whether several SCSI devices may have it at once, and nothing else may.
    #[serde(default)]
    pub shared: bool,
    /// File that keeps persistent reservations over a loss of power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservations: Option<String>,
    /// Its threshold, in bytes: when less space is left than this, the log and SCSI guests are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space_threshold_bytes: Option<u64>,
    /// Its users. A disk that is neither read-only nor shared has one at most.
    pub users: Vec<User>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn disk(more: &str) -> NewDisk {
        toml::from_str(&format!("name = 'd'\nstorage = {{ kind = 'file', path = '/d.img'{more}")).unwrap()
    }

    #[test]
    fn what_is_not_shared_is_described_as_before() {
        let (own, shared) = (disk(" }"), disk(" }\nshared = true"));
        assert_eq!(serde_json::to_value(&own).unwrap().as_object().unwrap().len(), 2);
        let text = serde_json::to_string(&shared).unwrap();
        assert!(text.contains("\"shared\":true"), "{text}");
        assert_eq!(serde_json::from_str::<NewDisk>(&text).unwrap(), shared);
        shared.check().unwrap();
        let of = |more| disk(more).sharing();
        assert_eq!((own.sharing(), shared.sharing()), (Sharing::One, Sharing::Units));
        assert_eq!(of(", read_only = true }"), Sharing::Readers);
        assert_eq!(of(", read_only = true }\nshared = true"), Sharing::Units);
    }

    #[test]
    fn reservations_are_kept_of_one_unit() {
        let kept = disk(" }\nreservations = '/var/lib/vringd/d'");
        kept.check().unwrap();
        assert_eq!(kept.reservations.as_deref(), Some(Path::new("/var/lib/vringd/d")));
        disk(", read_only = true }\nshared = true\nreservations = '/r'").check().unwrap();
        for more in [
            ", read_only = true }\nreservations = '/r'",
            ", migratable = true }\nreservations = '/r'",
            " }\nreservations = '/d.img'",
        ] {
            let refused = disk(more).check().unwrap_err();
            assert_eq!(refused.field, "reservations");
        }
    }

    #[test]
    fn a_threshold_is_in_its_range() {
        let with = |threshold: &str| disk(&format!(" }}\nspace_threshold = '{threshold}'")).check();
        with("1M").unwrap();
        with("4095T").unwrap();
        for wrong in ["0", "1023K", "4096T"] {
            let refused = with(wrong).unwrap_err();
            assert_eq!(refused.field, "space_threshold");
            assert!(refused.message.starts_with("must be 1M to 4095T, not "), "{}", refused.message);
        }
        let refused = disk(", migratable = true }\nspace_threshold = '1G'").check().unwrap_err();
        assert!(refused.field == "space_threshold" && refused.message.starts_with("excludes `migratable`: "));
    }

    #[test]
    fn an_image_that_changes_hands_is_not_shared() {
        disk(", migratable = true }").check().unwrap();
        let refused = disk(", migratable = true }\nshared = true").check().unwrap_err();
        assert_eq!(refused.field, "shared");
        assert!(refused.message.starts_with("excludes `migratable`: "), "{}", refused.message);
    }
}
