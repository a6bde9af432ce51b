//! Descriptors and mounts on their way from one tree to the next, by their places in a list.

use super::error::AdoptError;
use super::form::{MountForm, Place};
use crate::mount::Mount;
use crate::stat::MountKey;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A descriptor that a tree uses, and keeps open for as long as this lives.
pub type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// What is handed over.
#[derive(Default)]
pub(crate) struct Outgoing {
    descriptors: Vec<Descriptor>,
    mounts: Vec<MountForm>,
    places: HashMap<MountKey, u32>,
}

impl Outgoing {
    /// The place of a descriptor that was not given before.
    pub(crate) fn place(&mut self, descriptor: Descriptor) -> Place {
        self.descriptors.push(descriptor);
        // A process has fewer.
        (self.descriptors.len() - 1) as Place
    }

    /// The place of a mount, which may have been given before.
    pub(crate) fn mount(&mut self, mount: &Mount) -> u32 {
        if let Some(place) = self.places.get(&mount.key()) {
            return *place;
        }
        let form = mount.hand_over(self);
        self.mounts.push(form);
        let place = (self.mounts.len() - 1) as u32;
        self.places.insert(mount.key(), place);
        place
    }

    pub(super) fn into_parts(self) -> (Vec<MountForm>, Vec<Descriptor>) {
        (self.mounts, self.descriptors)
    }
}

/// What was handed over. What nobody takes is closed in the end.
#[derive(Debug)]
pub(crate) struct Incoming {
    descriptors: Vec<Option<OwnedFd>>,
    mounts: Vec<Arc<Mount>>,
}

impl Incoming {
    pub(super) fn new(descriptors: Vec<OwnedFd>) -> Incoming {
        Incoming { descriptors: descriptors.into_iter().map(Some).collect(), mounts: Vec::new() }
    }

    /// The descriptor at a place; once.
    pub(crate) fn take(&mut self, place: Place) -> Result<OwnedFd, AdoptError> {
        let there = self.descriptors.get_mut(place as usize).and_then(Option::take);
        there.ok_or(AdoptError::Descriptor(place))
    }

    pub(super) fn add_mount(&mut self, mount: Arc<Mount>) {
        self.mounts.push(mount);
    }

    /// The mount at a place.
    pub(crate) fn mount(&self, place: u32) -> Result<Arc<Mount>, AdoptError> {
        self.mounts.get(place as usize).cloned().ok_or(AdoptError::Mount(place))
    }
}
