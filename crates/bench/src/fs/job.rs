//! What can be measured. The requests that one operation of a job is made of are the protocol's (`step` of each).

use serde::Serialize;

use super::protocol::Protocol;

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Job {
    /// Sequential reads
    ReadSeq,
    /// Reads at random offsets
    ReadRand,
    /// Sequential writes
    WriteSeq,
    /// Writes at random offsets
    WriteRand,
    /// Attributes of known files
    Getattr,
    /// Look-ups of known names, with their attributes
    LookupHit,
    /// Look-ups of names that do not exist
    LookupMiss,
    /// Open and close
    OpenRelease,
    /// Create, close and unlink
    CreateUnlink,
    /// A small file's life: create, close, look up, attributes, unlink
    CreateStatUnlink,
    /// Make and remove a directory
    MkdirRmdir,
    /// Rename, there and back
    Rename,
    /// Listing of a large directory; counts entries
    Readdir,
    /// READDIRPLUS of a large directory whose files the server knows; counts entries (virtio-fs)
    Readdirplus,
    /// READDIRPLUS of a large directory, with every file forgotten at once; counts entries (virtio-fs)
    ReaddirplusCold,
    /// stat of files in a tree: two directories and a file looked up, its attributes, and the file forgotten
    Tree,
}

impl Job {
    /// The word for it, which is the option's value too.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it moves a file's data.
    pub(crate) fn is_data(self) -> bool {
        self.reads_data() || self.writes_data()
    }

    /// Whether it reads a file's data.
    pub(crate) fn reads_data(self) -> bool {
        matches!(self, Self::ReadSeq | Self::ReadRand)
    }

    /// Whether it writes a file's data.
    pub(crate) fn writes_data(self) -> bool {
        matches!(self, Self::WriteSeq | Self::WriteRand)
    }

    /// Whether its offsets are random.
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::ReadRand | Self::WriteRand)
    }

    /// Whether it lists a directory.
    pub(crate) fn lists(self) -> bool {
        matches!(self, Self::Readdir | Self::Readdirplus | Self::ReaddirplusCold)
    }

    /// Whether `protocol` has its requests.
    pub(crate) fn is_in(self, protocol: Protocol) -> bool {
        protocol == Protocol::Virtiofs || !matches!(self, Self::Readdirplus | Self::ReaddirplusCold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn names_are_those_of_the_option() {
        for job in Job::value_variants() {
            assert_eq!(job.to_possible_value().unwrap().get_name(), job.name());
            assert_eq!(serde_json::to_value(job).unwrap(), job.name());
        }
    }
}
