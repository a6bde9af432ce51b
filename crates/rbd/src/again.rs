//! Opens an image that was open before, while guests run: requests wait meanwhile, however long the cluster is away.
//!
//! What fails is tried again, but for an image that is another one by now, or that somebody else may have written
//! ([`guard::take_over`](crate::guard::take_over)): that is lost to its guest, whose requests fail from then on, until a person has it opened as it is.

use crate::busy::Busy;
use crate::connection::{Connection, Opened};
use crate::error::RbdError;
use crate::ffi::Library;
use crate::guard;
use crate::held::Held;
use crate::open::{Expected, client, open};
use crate::openings::{OPENINGS, Place, Waits};
use crate::options::RbdOptions;
use crate::room;
use crate::was::Was;
use std::collections::BTreeSet;
use std::io;
use std::mem::discriminant;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};
use storage::Kind as _;
use values::OnLost;

/// After how long what has failed is tried again, at first and at last.
const TRY_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// How long images of one cluster are opened one after the other. One that takes longer has its connection by then, and waits for the cluster.
const TURN: Duration = Duration::from_millis(500);

/// What is to be opened again.
pub(crate) struct Again {
    /// What it has to be.
    expected: Expected,
    /// When it is tried first.
    after: Duration,
    /// Closed when that has ended.
    before: Option<Arc<Opened>>,
}

impl Again {
    /// What this `was`, and only if nobody else has had it.
    pub(crate) fn as_it_was(was: &Was) -> Again {
        Again { expected: Expected::Untouched(was.clone()), after: Duration::ZERO, before: None }
    }

    /// The same behind one that is open still.
    pub(crate) fn behind(before: Arc<Opened>, was: &Was, after: Duration) -> Again {
        Again { expected: Expected::Untouched(was.clone()), after, before: Some(before) }
    }

    /// What this `was`, whoever has written it since.
    pub(crate) fn as_it_is(was: &Was) -> Again {
        Again { expected: Expected::Same(was.clone()), after: Duration::ZERO, before: None }
    }

    /// Has a thread open it for `connection`, until what is returned first is dropped.
    pub(crate) fn begin(
        mut self,
        options: &RbdOptions,
        connection: &Arc<Connection>,
    ) -> io::Result<(Sender<()>, JoinHandle<()>)> {
        let (ends, ended) = channel();
        let (options, connection) = (options.clone(), Arc::downgrade(connection));
        // It is this process's still, to whoever else opens it here.
        let held = self.expected.untouched().and_then(|was| was.owner.as_deref()).map(Held::by);
        let opens = move || {
            let _busy = Busy::new();
            self.keep_trying(&options, &connection, &ended);
            drop(held);
            if let Some(before) = self.before {
                wait_until_last(&before);
            }
        };
        Ok((ends, Builder::new().name("rbd-open".to_owned()).spawn(opens)?))
    }

    fn keep_trying(&mut self, options: &RbdOptions, connection: &Weak<Connection>, ended: &Receiver<()>) {
        let (begun, image) = (Instant::now(), options.spec());
        let [mut next, longest] = TRY_AGAIN_AFTER;
        let (mut after, mut told) = (self.after, None);
        while ended.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
            let opened = self.once(options, connection);
            // Closed where nobody wants it any more.
            let Some(connection) = connection.upgrade() else { return };
            match opened {
                Ok(opened) => {
                    let (opened, waited) = connection.come(opened, self.expected.untouched().is_some());
                    let ms = begun.elapsed().as_millis();
                    tracing::info!(%image, ms, waited, "an image is open again");
                    // Whoever has it last waits for this thread.
                    drop(connection);
                    // Guests do not wait for that. What was taken as it is was signed before.
                    if let Some(held) = opened.live.held().filter(|_| self.expected.untouched().is_some()) {
                        guard::sign(&opened.live.image, &image, held);
                    }
                    return;
                }
                Err(RbdError::Lost { why, .. }) => return lose(&connection, &why),
                // Whoever has it may write it for as long as he likes.
                Err(error @ RbdError::Locked { .. }) if self.expected.untouched().is_none() => {
                    return lose(&connection, &error.to_string());
                }
                Err(error) => {
                    connection.is_late(&error.to_string());
                    let kind = discriminant(&error);
                    if told.replace(kind) != Some(kind) {
                        tracing::warn!(%error, "an image cannot be opened again yet: its requests wait");
                    }
                }
            }
            (after, next) = (next, longest.min(next * 2));
        }
    }

    fn once(&mut self, options: &RbdOptions, connection: &Weak<Connection>) -> Result<Opened, RbdError> {
        let client = client(Library::get()?, options)?;
        let monitors = client.setting("mon_host").unwrap_or_default();
        let _turn = TURNS.take(&monitors);
        let _opening = OPENINGS.begin(Place { monitors, spec: options.spec() }, Waits::Guests(connection.clone()))?;
        room::look(1).map_err(|why| RbdError::NoRoom { spec: options.spec().to_string(), why })?;
        let opened = open(options, client, &self.expected, &|| connection.strong_count() > 0);
        if let Expected::Untouched(was) = &mut self.expected {
            // That was seen to, if it could be.
            was.watcher = None;
        }
        let image = opened.map_err(|error| match error {
            // What guests have read comes with no other.
            RbdError::NoImage(spec) | RbdError::NoSnapshot(spec) => {
                RbdError::Lost { spec, why: "it was removed".to_owned() }
            }
            RbdError::NoPool(_) | RbdError::NoNamespace { .. } => RbdError::Lost {
                spec: options.spec().to_string(),
                why: "its pool, or the namespace, was removed".to_owned(),
            },
            error => error,
        })?;
        Opened::of(image, &options.spec(), options.read_only())
    }
}

fn lose(connection: &Connection, why: &str) {
    let image = connection.options().spec();
    let requests = match connection.options().on_lost {
        OnLost::Error => "fail",
        OnLost::Wait => "wait",
    };
    tracing::error!(%image, reason = why, "an image is lost to its guest, whose requests {requests}: `vringd ctl disk reopen` opens it as it is now");
    connection.lose(why);
}

/// A thread that closes what it is given, which waits for the cluster.
pub(crate) fn closer() -> io::Result<Sender<Arc<Opened>>> {
    let (closes, given) = channel();
    let close = move || {
        let _busy = Busy::new();
        given.iter().for_each(|opened| wait_until_last(&opened));
    };
    Builder::new().name("rbd-open".to_owned()).spawn(close)?;
    Ok(closes)
}

/// Waits until no worker is about to hand it a request any more, and all that it has been handed have ended: whoever has it last closes it.
fn wait_until_last(opened: &Arc<Opened>) {
    while Arc::strong_count(opened) > 1 || opened.live.image.is_used() {
        sleep(LOOK_AGAIN_AFTER);
    }
}

/// Images of one cluster are opened one after the other: where there is room for the next connection is found out by having its threads for a moment,
/// which others must not take for theirs meanwhile, as librbd ends the program then.
static TURNS: Turns = Turns { taken: Mutex::new(BTreeSet::new()), freed: Condvar::new() };

struct Turns {
    /// By the monitors.
    taken: Mutex<BTreeSet<String>>,
    freed: Condvar,
}

/// The turn of one, until it is dropped.
struct Turn {
    turns: &'static Turns,
    monitors: String,
}

impl Turns {
    /// Waits for the turn of a cluster's image, for a while: nothing if the one before takes longer.
    fn take(&'static self, monitors: &str) -> Option<Turn> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(taken, TURN, |taken| taken.contains(monitors));
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        taken.insert(monitors.to_owned()).then(|| Turn { turns: self, monitors: monitors.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.monitors);
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_one_cluster_have_their_turns_and_wait_for_none_that_hangs() {
        let turns: &'static Turns = Box::leak(Box::new(Turns { taken: Mutex::default(), freed: Condvar::new() }));
        let first = turns.take("192.0.2.1").expect("it is free");
        assert!(turns.take("192.0.2.2").is_some(), "another cluster's");
        let begin = Instant::now();
        assert!(turns.take("192.0.2.1").is_none() && begin.elapsed() >= TURN);
        let next = std::thread::spawn(|| turns.take("192.0.2.1").is_some());
        drop(first);
        assert!(next.join().unwrap());
        assert!(turns.take("192.0.2.1").is_some());
    }
}
