//! Openings that are under way: one an image, and few for whom nobody waits any more.
//!
//! librbd gives no opening up that waits for a cluster, and each has a connection with its threads and descriptors. A service manager and
//! a control plane try again and again: without a bound these add up until there can be no thread, for which librbd ends the program.

use crate::error::RbdError;
use crate::spec::Spec;
use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Most openings that nobody waits for.
const GIVEN_UP_MAX: usize = 4;

/// Those of the process.
pub(crate) static OPENINGS: Openings = Openings { under_way: Mutex::new(Vec::new()) };

/// Openings that are under way.
pub(crate) struct Openings {
    under_way: Mutex<Vec<UnderWay>>,
}

struct UnderWay {
    place: Place,
    waits: Waits,
}

/// Who waits for an opening.
pub(crate) enum Waits {
    /// Whoever has asked for a new disk.
    Asker,
    /// Guests, of one that was open before and had its room, for as long as this is there.
    Guests(Weak<dyn Any + Send + Sync>),
    /// Nobody any more.
    Nobody,
}

impl Waits {
    fn is_over(&self) -> bool {
        match self {
            Waits::Asker => false,
            Waits::Guests(guests) => guests.strong_count() == 0,
            Waits::Nobody => true,
        }
    }
}

/// What is opened: the monitors, and the image there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) monitors: String,
    pub(crate) spec: Spec,
}

impl Openings {
    fn lock(&self) -> MutexGuard<'_, Vec<UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An opening begins, until what is returned is dropped.
    pub(crate) fn begin(&'static self, place: Place, waits: Waits) -> Result<Turn, RbdError> {
        let mut under_way = self.lock();
        let spec = || place.spec.to_string();
        if under_way.iter().any(|other| other.place == place) {
            return Err(RbdError::Waiting { spec: spec() });
        }
        let given_up = under_way.iter().filter(|other| other.waits.is_over()).count();
        if matches!(waits, Waits::Asker) && given_up >= GIVEN_UP_MAX {
            return Err(RbdError::ManyWait { spec: spec(), count: given_up });
        }
        under_way.push(UnderWay { place: place.clone(), waits });
        Ok(Turn { openings: self, place })
    }

    /// Nobody waits for this one any more.
    pub(crate) fn give_up(&self, place: &Place) {
        if let Some(opening) = self.lock().iter_mut().find(|opening| opening.place == *place) {
            opening.waits = Waits::Nobody;
        }
    }

    /// How many make a connection for which there was none before, now or in a moment.
    pub(crate) fn connecting(&self) -> usize {
        self.lock().iter().filter(|opening| matches!(opening.waits, Waits::Asker)).count()
    }
}

/// An opening that is under way.
pub(crate) struct Turn {
    openings: &'static Openings,
    place: Place,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.openings.lock().retain(|opening| opening.place != self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn place(image: &str) -> Place {
        Place { monitors: "192.0.2.1".to_owned(), spec: image.parse().unwrap() }
    }

    fn refusal(openings: &'static Openings, place: Place) -> String {
        openings.begin(place, Waits::Asker).err().expect("it is refused").to_string()
    }

    #[test]
    fn an_image_is_opened_once_at_a_time_and_few_are_given_up() {
        let openings: &'static Openings = Box::leak(Box::new(Openings { under_way: Mutex::default() }));
        let begin = |place| openings.begin(place, Waits::Asker);
        let first = begin(place("p/0")).unwrap();
        assert!(refusal(openings, place("p/0")).contains("p/0: an opening of this image still waits for its cluster"));
        // Other snapshots and other clusters are others.
        let snapshot = begin(place("p/0@s")).unwrap();
        let elsewhere = begin(Place { monitors: "192.0.2.2".to_owned(), ..place("p/0") }).unwrap();
        assert_eq!(openings.connecting(), 3);
        drop((snapshot, elsewhere));
        // What has ended is not given up any more.
        openings.give_up(&place("p/0@s"));
        openings.give_up(&place("p/0"));
        let more: Vec<_> = ["p/1", "p/2", "p/3"].map(|image| begin(place(image)).unwrap()).into();
        openings.give_up(&place("p/1"));
        openings.give_up(&place("p/2"));
        drop(begin(place("p/4")).unwrap());
        openings.give_up(&place("p/3"));
        assert!(refusal(openings, place("p/4")).contains("4 openings of images still wait for their clusters"));
        assert!(refusal(openings, place("p/0")).contains("of this image"));
        // For guests who have had an image before there is always room, and it is counted once.
        let guests: Arc<dyn Any + Send + Sync> = Arc::new(());
        let again = openings.begin(place("p/5"), Waits::Guests(Arc::downgrade(&guests))).unwrap();
        assert!(refusal(openings, place("p/5")).contains("of this image"));
        assert_eq!(openings.connecting(), 0);
        assert!(refusal(openings, place("p/6")).contains("4 openings"));
        drop(guests);
        assert!(refusal(openings, place("p/6")).contains("5 openings"));
        drop(again);
        drop(first);
        drop(begin(place("p/0")).unwrap());
        drop(more);
        assert_eq!(openings.connecting(), 0);
    }
}
