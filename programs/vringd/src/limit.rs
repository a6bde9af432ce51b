//! Limits, and the groups that share them: between the API's words and the exports.

use crate::failure::field;
use control::ApiError;
use control::model::{self as api, GroupSettings, NewGroup, Rates};
use export::{Export, Group, Limits, Rate};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an export is limited to.
pub(crate) type Limiting = (Limits, Option<Arc<Group>>);

/// The groups by name, each with what it was described by.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_name: Mutex<BTreeMap<String, (NewGroup, Arc<Group>)>>,
    /// Held while limits change anywhere, so that an export and its group agree afterwards.
    changing: Mutex<()>,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (NewGroup, Arc<Group>)>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody else changes a limit or a group while this is held.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What these words limit an export to.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the field at fault.
    pub(crate) fn resolve(&self, limits: &api::Limits) -> Result<Limiting, ApiError> {
        limits.check()?;
        // What is 0 or empty limits nothing.
        let limits = api::Limits::default().changed(limits);
        let group = limits.group.as_ref().map(|name| {
            let missing = || field("limits.group", format_args!("there is no group `{name}`: make it first"));
            self.lock().get(name).map(|(_, group)| group.clone()).ok_or_else(missing)
        });
        Ok((rates_in(Rates::from(&limits)), group.transpose()?))
    }

    /// What an export would be limited to after this change.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve).
    pub(crate) fn changed(&self, export: &Export, change: &api::Limits) -> Result<Limiting, ApiError> {
        let now = shown(export.limits(), export.group().map(|group| group.name().to_owned()));
        self.resolve(&now.changed(change))
    }

    /// All groups as they are described now.
    pub(crate) fn all(&self) -> Vec<NewGroup> {
        self.lock().values().map(|(new, _)| new.clone()).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// [`ApiError::NoSuchGroup`].
    pub(crate) fn get(&self, name: &str) -> Result<NewGroup, ApiError> {
        let missing = || ApiError::NoSuchGroup { name: name.to_owned() };
        self.lock().get(name).map(|(new, _)| new.clone()).ok_or_else(missing)
    }

    /// Makes a group.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`], [`ApiError::GroupExists`].
    pub(crate) fn add(&self, new: NewGroup) -> Result<(), ApiError> {
        new.check()?;
        let mut groups = self.lock();
        if groups.contains_key(&new.name) {
            return Err(ApiError::GroupExists { name: new.name });
        }
        let group = Arc::new(Group::new(&*new.name, rates_in(new.rates())));
        groups.insert(new.name.clone(), (new, group));
        Ok(())
    }

    /// Changes a group, of which these are the exports.
    ///
    /// # Errors
    /// [`ApiError::NoSuchGroup`], [`ApiError::InvalidField`].
    pub(crate) fn change(
        &self,
        name: &str,
        settings: GroupSettings,
        exports: &[Arc<Export>],
    ) -> Result<NewGroup, ApiError> {
        let new = NewGroup::new(name, self.get(name)?.rates().changed(Rates::from(&settings)));
        new.check()?;
        let group = Arc::new(Group::new(name, rates_in(new.rates())));
        self.lock().insert(name.to_owned(), (new.clone(), group.clone()));
        for export in exports {
            export.set_limits(export.limits(), Some(group.clone()));
        }
        Ok(new)
    }

    /// Forgets a group, of which these are the exports.
    ///
    /// # Errors
    /// [`ApiError::NoSuchGroup`], [`ApiError::GroupInUse`].
    pub(crate) fn remove(&self, name: &str, exports: &[Arc<Export>]) -> Result<(), ApiError> {
        self.get(name)?;
        if !exports.is_empty() {
            let names: Vec<&str> = exports.iter().map(|export| export.name()).collect();
            return Err(ApiError::GroupInUse { name: name.to_owned(), exports: names.join(", ") });
        }
        self.lock().remove(name);
        Ok(())
    }
}

/// Rates in the words of the exports.
fn rates_in(rates: Rates) -> Limits {
    Limits {
        requests: rates.iops.map(|iops| Rate::new(iops, rates.burst_requests)),
        bytes: rates.bytes_per_second.map(|bytes| Rate::new(bytes, rates.burst_bytes)),
    }
}

/// Limits in the words of the API.
pub(crate) fn shown(limits: Limits, group: Option<String>) -> api::Limits {
    let rates = Rates {
        iops: limits.requests.map(Rate::per_second),
        burst_requests: limits.requests.and_then(Rate::burst_given),
        bytes_per_second: limits.bytes.map(Rate::per_second),
        burst_bytes: limits.bytes.and_then(Rate::burst_given),
    };
    api::Limits::new(rates, group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> api::Limits {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_is_set_is_shown() {
        let groups = Groups::default();
        groups.add(NewGroup::new("gold", Rates { iops: Some(500), ..Rates::default() })).unwrap();
        let set = limits("iops = 1000\nburst_requests = 10\nbytes_per_second = '1G'\ngroup = 'gold'");
        let (own, group) = groups.resolve(&set).unwrap();
        assert_eq!(shown(own, group.map(|group| group.name().to_owned())), set);
        let (own, group) = groups.resolve(&limits("iops = 0\ngroup = ''")).unwrap();
        assert!(own.is_none() && group.is_none());
    }

    #[test]
    fn a_group_that_is_not_there_is_named_with_the_fix() {
        let error = Groups::default().resolve(&limits("group = 'gold'")).unwrap_err();
        assert_eq!(error.to_string(), "limits.group: there is no group `gold`: make it first");
    }

    #[test]
    fn groups_come_change_and_go() {
        let groups = Groups::default();
        let gold = NewGroup::new("gold", Rates { iops: Some(500), ..Rates::default() });
        groups.add(gold.clone()).unwrap();
        assert!(matches!(groups.add(gold), Err(ApiError::GroupExists { .. })));
        let settings =
            GroupSettings { iops: Some(0), bytes_per_second: Some(api::ByteSize(1 << 20)), ..Default::default() };
        assert_eq!(groups.change("gold", settings, &[]).unwrap().rates().bytes_per_second, Some(1 << 20));
        let refused = GroupSettings { burst_requests: Some(5), ..Default::default() };
        assert!(matches!(groups.change("gold", refused, &[]), Err(ApiError::InvalidField { .. })));
        assert_eq!(groups.all().len(), 1);
        groups.remove("gold", &[]).unwrap();
        assert!(matches!(groups.remove("gold", &[]), Err(ApiError::NoSuchGroup { .. })));
    }

    /// The control room states the least burst of its own, because it knows no other room.
    #[test]
    fn the_apis_least_burst_is_that_of_the_exports() {
        for iops in [1, 99, 100, 10_000, 123_456] {
            let least = Rate::burst_least(iops);
            let with = |burst| api::Limits { iops: Some(iops), burst_requests: Some(burst), ..Default::default() };
            assert!(with(least).check().is_ok(), "{iops}");
            assert!(least == 1 || with(least - 1).check().is_err(), "{iops}");
        }
    }
}
