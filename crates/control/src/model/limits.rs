//! Limits of exports and of groups of exports.

use super::name::check_name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use values::ByteSize;
use values::FieldError;

/// Limits of one export, and the group whose limits it shares. In a new export, what is left out is not limited; in a
/// change, what is left out stays as it is. 0 and the empty name lift a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Requests a second, 1 to 1000000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Requests that may pass at once after a pause, at least a hundredth of `iops`; a tenth of it when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_requests: Option<u64>,
    /// Bytes read and written a second, at least 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
    /// Bytes that may pass at once after a pause, at least a hundredth of `bytes_per_second`; a tenth of it when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<ByteSize>,
    /// Name of the group whose limits the export shares with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A group as a person describes it: the `[[group]]` table of the configuration file and the body of `POST /v1/groups`
/// are this same type. What is left out or 0 is not limited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// Name, unique among the daemon's groups: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// Requests a second of all its exports together, 1 to 1000000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Requests that may pass at once after a pause, at least a hundredth of `iops`; a tenth of it when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_requests: Option<u64>,
    /// Bytes read and written a second by all its exports together, at least 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
    /// Bytes that may pass at once after a pause, at least a hundredth of `bytes_per_second`; a tenth of it when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<ByteSize>,
}

/// Changes to a group that apply at once. What is left out stays as it is; 0 lifts a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// Requests a second of all its exports together, 1 to 1000000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Requests that may pass at once after a pause, at least a hundredth of `iops`; 0 is a tenth of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_requests: Option<u64>,
    /// Bytes read and written a second by all its exports together, at least 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
    /// Bytes that may pass at once after a pause, at least a hundredth of `bytes_per_second`; 0 is a tenth of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<ByteSize>,
}

/// A group with its exports, which share its limits evenly: each that wants something gets as much as any other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Name, unique among the daemon's groups.
    pub name: String,
    /// Requests a second of all its exports together; absent when they are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Requests that may pass at once after a pause; absent when that is a tenth of `iops`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_requests: Option<u64>,
    /// Bytes read and written a second by all its exports together; absent when they are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
    /// Bytes that may pass at once after a pause; absent when that is a tenth of `bytes_per_second`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<ByteSize>,
    /// Names of its exports.
    pub exports: Vec<String>,
}

/// The rates of an export or a group, wherever they are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests a second.
    pub iops: Option<u64>,
    /// Requests that may pass at once.
    pub burst_requests: Option<u64>,
    /// Bytes a second.
    pub bytes_per_second: Option<u64>,
    /// Bytes that may pass at once.
    pub burst_bytes: Option<u64>,
}

impl Rates {
    /// Most requests a second that can be asked for: more than any ring carries.
    pub const IOPS_MAX: u64 = 1_000_000_000;
    /// Fewest bytes a second that can be asked for: less would not bring one block a second.
    pub const BYTES_PER_SECOND_MIN: u64 = 4096;
    /// Most bytes a second that can be asked for.
    pub const BYTES_PER_SECOND_MAX: u64 = 1 << 50;
    /// A burst is worth at least this part of a second.
    const BURST_SHARE: u64 = 100;

    /// Checks every rate and burst; `place` stands before the names of fields, as in `limits.`.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self, place: &str) -> Result<(), FieldError> {
        let range = |field: &str, value: Option<u64>, least: u64, most: u64| match value {
            Some(value) if !(least..=most).contains(&value) => {
                let message = format!("must be {least} to {most}, or 0 for no limit, not {value}");
                Err(FieldError::new(format!("{place}{field}"), message))
            }
            _ => Ok(()),
        };
        range("iops", self.iops, 1, Self::IOPS_MAX)?;
        range("bytes_per_second", self.bytes_per_second, Self::BYTES_PER_SECOND_MIN, Self::BYTES_PER_SECOND_MAX)?;
        let burst = |field: &str, burst: Option<u64>, of: &str, rate: Option<u64>| {
            let Some(burst) = burst else { return Ok(()) };
            let refuse = |message: String| Err(FieldError::new(format!("{place}{field}"), message));
            match rate {
                None => refuse(format!("means nothing without a limit: set `{of}` as well")),
                Some(rate) if burst < (rate / Self::BURST_SHARE).max(1) => {
                    let least = (rate / Self::BURST_SHARE).max(1);
                    refuse(format!("must be at least {least}, a hundredth of `{of}`, not {burst}"))
                }
                Some(_) if burst > Self::BYTES_PER_SECOND_MAX => {
                    refuse(format!("must be at most {}, not {burst}", Self::BYTES_PER_SECOND_MAX))
                }
                Some(_) => Ok(()),
            }
        };
        burst("burst_requests", self.burst_requests, "iops", self.iops)?;
        burst("burst_bytes", self.burst_bytes, "bytes_per_second", self.bytes_per_second)
    }

    /// These rates with a change: what the change leaves out stays, 0 lifts a limit and, with it, its burst.
    #[must_use]
    pub fn changed(self, change: Rates) -> Rates {
        let one = |old: Option<u64>, new: Option<u64>| new.or(old).filter(|value| *value != 0);
        let (iops, bytes_per_second) =
            (one(self.iops, change.iops), one(self.bytes_per_second, change.bytes_per_second));
        let kept = |rate: Option<u64>, old: Option<u64>| rate.and(old);
        Rates {
            iops,
            burst_requests: one(kept(iops, self.burst_requests), change.burst_requests),
            bytes_per_second,
            burst_bytes: one(kept(bytes_per_second, self.burst_bytes), change.burst_bytes),
        }
    }
}

/// The four fields that say a rate, which several types spell out.
macro_rules! rates_of {
    ($($type:ty),*) => {$(
        impl From<&$type> for Rates {
            fn from(from: &$type) -> Rates {
                Rates {
                    iops: from.iops,
                    burst_requests: from.burst_requests,
                    bytes_per_second: from.bytes_per_second.map(|size| size.0),
                    burst_bytes: from.burst_bytes.map(|size| size.0),
                }
            }
        }
    )*};
}
rates_of!(Limits, NewGroup, GroupSettings, Group);

impl Limits {
    /// Limits with these rates and this group.
    pub fn new(rates: Rates, group: Option<String>) -> Limits {
        Limits {
            iops: rates.iops,
            burst_requests: rates.burst_requests,
            bytes_per_second: rates.bytes_per_second.map(ByteSize),
            burst_bytes: rates.burst_bytes.map(ByteSize),
            group,
        }
    }

    /// These limits with a change: what the change leaves out stays, 0 and the empty name lift a limit.
    #[must_use]
    pub fn changed(&self, change: &Limits) -> Limits {
        let group = change.group.clone().or_else(|| self.group.clone()).filter(|group| !group.is_empty());
        Limits::new(Rates::from(self).changed(Rates::from(change)), group)
    }

    /// Checks every field, those that are to lift a limit included.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        let set = Limits::default().changed(self);
        Rates::from(&set).check("limits.")?;
        // What is to lift a limit goes with a burst as little as no limit does.
        set.group.as_deref().map_or(Ok(()), |group| check_name("limits.group", group))
    }

    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }
}

impl NewGroup {
    /// A group of that name with these rates.
    pub fn new(name: impl Into<String>, rates: Rates) -> NewGroup {
        let Limits { iops, burst_requests, bytes_per_second, burst_bytes, .. } = Limits::new(rates, None);
        NewGroup { name: name.into(), iops, burst_requests, bytes_per_second, burst_bytes }
    }

    /// Its rates, without those that are 0.
    pub fn rates(&self) -> Rates {
        Rates::default().changed(Rates::from(self))
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_name("name", &self.name)?;
        self.rates().check("")
    }

    /// The group as it is shown, with the names of its exports.
    pub fn with_exports(&self, exports: Vec<String>) -> Group {
        let Limits { iops, burst_requests, bytes_per_second, burst_bytes, .. } = Limits::new(self.rates(), None);
        Group { name: self.name.clone(), iops, burst_requests, bytes_per_second, burst_bytes, exports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> Limits {
        toml::from_str(text).unwrap()
    }

    fn fault(text: &str) -> String {
        limits(text).check().expect_err(text).to_string()
    }

    #[test]
    fn every_bad_field_is_named_with_the_fix() {
        assert!(fault("iops = 2000000000").starts_with("limits.iops: must be 1 to 1000000000"));
        assert!(fault("bytes_per_second = 100").starts_with("limits.bytes_per_second: must be 4096 to "));
        assert_eq!(
            fault("iops = 10000\nburst_requests = 50"),
            "limits.burst_requests: must be at least 100, a hundredth of `iops`, not 50"
        );
        assert!(fault("burst_requests = 50").ends_with("set `iops` as well"));
        assert!(fault("iops = 0\nburst_requests = 50").ends_with("set `iops` as well"));
        assert!(fault("burst_bytes = '1M'").starts_with("limits.burst_bytes: means nothing"));
        assert!(fault("group = 'a b'").starts_with("limits.group: must be"));
        limits("iops = 0\nburst_requests = 0\nbytes_per_second = '100M'\nburst_bytes = '1G'\ngroup = ''")
            .check()
            .unwrap();
        let group: NewGroup = toml::from_str("name = ''\niops = 5").unwrap();
        assert_eq!(group.check().unwrap_err().field, "name");
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let old = limits("iops = 1000\nburst_requests = 500\nbytes_per_second = '1M'\ngroup = 'gold'");
        assert_eq!(old.changed(&limits("")), old);
        let faster = old.changed(&limits("iops = 2000"));
        assert_eq!(
            (faster.iops, faster.burst_requests, faster.group.as_deref()),
            (Some(2000), Some(500), Some("gold"))
        );
        let lifted = old.changed(&limits("iops = 0\ngroup = ''"));
        assert_eq!(lifted, limits("bytes_per_second = '1M'"));
        assert_eq!(old.changed(&limits("burst_requests = 0")).burst_requests, None);
        assert!(lifted.changed(&limits("bytes_per_second = 0")).is_none());
    }
}
