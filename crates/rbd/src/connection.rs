//! The image behind a storage: open, being opened again while requests wait, or lost.
//!
//! A client that the cluster has come to refuse (a blocklist), and a program that has come behind another one, have the image opened again by a
//! thread ([`again`](crate::again)). A request waits in a line until that has ended, in the one or the other way.

use crate::again::{self, Again};
use crate::budget::{Budget, Permit};
use crate::error::RbdError;
use crate::ffi::{Image, Parked};
use crate::guard;
use crate::live::{Live, Look};
use crate::open::OpenImage;
use crate::options::RbdOptions;
use crate::spec::Spec;
use crate::was::Was;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::{JoinHandle, current};
use std::time::{Duration, Instant};
use storage::kit::Jobs;
use storage::{Description, Link, LinkState};
use values::OnLost;

/// An image that was open for less is not opened again at once: whatever ended it may do so again.
const LASTED: Duration = Duration::from_secs(1);
/// Bytes that librbd keeps of an image's requests, at most: a copy of each write, and what it has read.
const KEPT_BYTES_MAX: u64 = 128 << 20;

/// Why an image is opened again.
pub(crate) const REFUSED: &str = "the cluster refuses this client";

/// An open image. Dropped, its lock is given up, and whoever has it last closes it: both wait for the cluster.
pub(crate) struct Opened {
    pub(crate) live: Arc<Live>,
    /// Looks again from time to time.
    look: Option<Look>,
    /// librbd has a cache of its own in front of it.
    pub(crate) cached: bool,
    since: Instant,
    spec: Spec,
}

impl Opened {
    /// What has been opened just now.
    pub(crate) fn of(image: OpenImage, spec: &Spec, read_only: bool) -> Result<Opened, RbdError> {
        let cached = image.cached;
        let live = Live::of(image, spec);
        let mut opened = Opened { live, look: None, cached, since: Instant::now(), spec: spec.clone() };
        // Of one that is written the lock keeps everybody off who would remove it.
        let look = if read_only { opened.live.look_often() } else { Ok(None) };
        opened.look = look.map_err(|source| RbdError::Thread { spec: spec.to_string(), source })?;
        Ok(opened)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.look = None;
        if let Some(held) = self.live.held() {
            guard::give_up(&self.live.image, &self.spec, held);
        }
    }
}

/// A request, and what it costs of what librbd may keep, in bytes.
pub(crate) type Waiting = (u64, Parked);

/// Requests that wait.
type Line = Mutex<Vec<Waiting>>;

/// What becomes of requests.
enum State {
    /// They are handed over.
    Open(Arc<Opened>),
    /// They wait for it to be opened again.
    /// If it is lost then, they `may_wait` on.
    Opening { line: Line, may_wait: bool, since: Instant, why: String, was: Box<Was>, _ends: Sender<()> },
    /// They fail; or wait for somebody's word, where there is a line.
    Lost { line: Option<Line>, since: Instant, why: String, was: Box<Was> },
}

/// The image behind a storage, whatever has become of it.
pub(crate) struct Connection {
    state: RwLock<State>,
    /// Who opens it, or has opened it last.
    opener: Mutex<Option<JoinHandle<()>>>,
    is_ending: AtomicBool,
    /// Images up to this number were lost: what ends of them is done again on no later one, which may be another's work.
    lost_up_to: AtomicU64,
    /// The first image behind which nobody else can have written, since somebody had it opened as it was.
    same_since: AtomicU64,
    /// What a cache has had of an image is gone, and no flush has failed for it yet.
    owes_loss: AtomicBool,
    budget: Arc<Budget<Parked>>,
    options: RbdOptions,
    /// What guests are told of it.
    about: Description,
}

impl Connection {
    /// To an image that is open.
    pub(crate) fn to(opened: Opened, options: &RbdOptions, about: Description, jobs: &Jobs) -> Arc<Connection> {
        Arc::new_cyclic(|this| Connection {
            state: RwLock::new(State::Open(followed(this.clone(), opened))),
            opener: Mutex::default(),
            is_ending: AtomicBool::new(false),
            lost_up_to: AtomicU64::new(0),
            same_since: AtomicU64::new(0),
            owes_loss: AtomicBool::new(false),
            budget: budget(this, jobs),
            options: options.clone(),
            about,
        })
    }

    /// To one that is opened again, as the program before this one had it open.
    pub(crate) fn again(was: Was, options: &RbdOptions, jobs: &Jobs) -> io::Result<Arc<Connection>> {
        let about = was.about.clone();
        let (why, first) = ("the daemon's program was replaced".to_owned(), Again::as_it_was(&was));
        let line = Some(Line::default());
        let lost = State::Lost { line, since: Instant::now(), why: why.clone(), was: Box::new(was.clone()) };
        let (state, options) = (RwLock::new(lost), options.clone());
        let is_ending = AtomicBool::new(false);
        let connection = Arc::new_cyclic(|this| Connection {
            state,
            opener: Mutex::default(),
            is_ending,
            lost_up_to: AtomicU64::new(0),
            same_since: AtomicU64::new(0),
            owes_loss: AtomicBool::new(false),
            budget: budget(this, jobs),
            options,
            about,
        });
        connection.begin(&mut connection.change(), first, was, why)?;
        Ok(connection)
    }

    /// Has a thread open the image. Those who wait already go on waiting.
    fn begin(self: &Arc<Self>, state: &mut State, again: Again, was: Was, why: String) -> io::Result<()> {
        let (ends, opener) = again.begin(&self.options, self)?;
        *self.opener.lock().unwrap_or_else(PoisonError::into_inner) = Some(opener);
        let may_wait = !matches!(state, State::Lost { line: None, .. });
        let line = state.take_line();
        *state = State::Opening { line, may_wait, since: Instant::now(), why, was: Box::new(was), _ends: ends };
        Ok(())
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn options(&self) -> &RbdOptions {
        &self.options
    }

    pub(crate) fn about(&self) -> &Description {
        &self.about
    }

    /// The image, if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        match &*self.state() {
            State::Open(opened) => Some(opened.clone()),
            State::Opening { .. } | State::Lost { .. } => None,
        }
    }

    /// Bytes that a guest can have.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        match &*self.state() {
            State::Open(opened) => opened.live.capacity_bytes(),
            State::Opening { was, .. } | State::Lost { was, .. } => was.bytes,
        }
    }

    /// Has a request go on, as soon as there is an image and room for it. Where it is lost its reply says so.
    pub(crate) fn go(&self, (bytes, parked): Waiting, submit: impl FnOnce(Arc<Opened>, Parked, Permit<Parked>)) {
        let Some((parked, opened)) = self.admit(bytes, parked) else { return };
        if let Some((parked, permit)) = self.budget.ask(bytes, parked) {
            submit(opened, parked, permit);
        }
    }

    /// The request with its image, or nothing where it waits for that, or fails.
    fn admit(&self, bytes: u64, parked: Parked) -> Option<(Parked, Arc<Opened>)> {
        match &*self.state() {
            State::Open(opened) if self.may_follow(&parked) => return Some((parked, opened.clone())),
            // Its reply says so as it goes.
            State::Open(_) => {}
            State::Opening { line, .. } | State::Lost { line: Some(line), .. } => {
                let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
                // Its reply says so as it goes.
                if !self.is_ending.load(Ordering::Acquire) {
                    line.push((bytes, parked));
                }
            }
            State::Lost { line: None, .. } => {}
        }
        None
    }

    /// Whether nobody else can have written behind the request that this one follows on.
    fn may_follow(&self, parked: &Parked) -> bool {
        parked.follows.is_none_or(|image| image >= self.same_since.load(Ordering::Acquire))
    }

    /// Whether a flush has to fail, as something is gone that was answered before it. It is told once, as by the kernel.
    pub(crate) fn takes_loss(&self) -> bool {
        self.owes_loss.load(Ordering::Relaxed) && self.owes_loss.swap(false, Ordering::AcqRel)
    }

    /// One of its requests has ended since the cluster refuses this client, or since the image's lock is not its any more: opens the image again if that is
    /// so still. Whether the request may be done again then, by waiting as any other.
    pub(crate) fn refused(self: &Arc<Self>, number: u64, why: &str) -> bool {
        let mut state = self.change();
        let opened = match &*state {
            State::Open(opened) if opened.live.image.number == number => opened.clone(),
            _ if self.is_lost(number) => return false,
            // It was opened again since.
            State::Open(_) | State::Opening { .. } => return true,
            State::Lost { line, .. } => return line.is_some(),
        };
        if opened.cached {
            // Guests have to hear of that. Without a thread that closes it each request does by itself.
            let Ok(closes) = again::closer() else { return false };
            let reason = format!("{why}, and what librbd had in its cache is gone");
            tracing::error!(image = %self.options.spec(), reason, "an image is lost to its guest, whose requests fail");
            self.lost_up_to.store(Image::newest_number(), Ordering::Release);
            self.owes_loss.store(true, Ordering::Release);
            let was = Box::new(opened.live.was(self.about.clone()));
            *state = State::Lost { line: None, since: Instant::now(), why: reason, was };
            drop(state);
            let _ = closes.send(opened);
            return false;
        }
        let was = opened.live.was(self.about.clone());
        let after = if opened.since.elapsed() < LASTED { LASTED } else { Duration::ZERO };
        let again = Again::behind(opened, &was, after);
        if let Err(error) = self.begin(&mut state, again, was, why.to_owned()) {
            // The next one to be refused tries again.
            tracing::error!(image = %self.options.spec(), %error, "there can be no thread to open an image again");
            return false;
        }
        tracing::warn!(image = %self.options.spec(), reason = why, "an image is opened again, and its requests wait");
        true
    }

    /// Whether what this image has answered may be lost with it.
    pub(crate) fn is_lost(&self, number: u64) -> bool {
        number <= self.lost_up_to.load(Ordering::Acquire)
    }

    /// It is open again, `untouched` or as others have left it: those who have waited go on, in order. How many these are.
    pub(crate) fn come(self: &Arc<Self>, opened: Opened, untouched: bool) -> (Arc<Opened>, usize) {
        let opened = followed(Arc::downgrade(self), opened);
        let before = {
            let mut state = self.change();
            if !untouched {
                self.same_since.store(opened.live.image.number, Ordering::Release);
            }
            std::mem::replace(&mut *state, State::Open(opened.clone()))
        };
        let State::Opening { line, .. } = before else { return (opened, 0) };
        let mut line = line.into_inner().unwrap_or_else(PoisonError::into_inner);
        // The replies of the others say so as they go.
        line.retain(|(_, parked)| self.may_follow(parked));
        let waited = line.len();
        for (bytes, parked) in line {
            if let Some((Parked { ready, reply, .. }, permit)) = self.budget.ask(bytes, parked) {
                ready.submit(&opened.live.image, reply, permit);
            }
        }
        (opened, waited)
    }

    /// It cannot be opened yet.
    pub(crate) fn is_late(&self, reason: &str) {
        if let State::Opening { why, .. } = &mut *self.change() {
            reason.clone_into(why);
        }
    }

    /// It is not opened again by itself: requests that wait fail, and so do all that come, unless they are to wait for somebody's word.
    pub(crate) fn lose(&self, why: &str) {
        let mut state = self.change();
        let State::Opening { was, may_wait, .. } = &*state else { return };
        let (was, may_wait) = (was.clone(), *may_wait);
        let line = (may_wait && self.options.on_lost == OnLost::Wait).then(|| state.take_line());
        if line.is_none() {
            self.lost_up_to.store(Image::newest_number(), Ordering::Release);
        }
        let lost = State::Lost { line, since: Instant::now(), why: why.to_owned(), was };
        let before = std::mem::replace(&mut *state, lost);
        drop(state);
        // The replies of those who have waited say so as they go.
        drop(before);
    }

    /// Requests that wait for it to be opened, or for somebody's word, fail; `for_good`, so do all that come meanwhile.
    pub(crate) fn end_waiting(&self, for_good: bool) {
        if for_good {
            self.is_ending.store(true, Ordering::Release);
        }
        if let State::Opening { line, .. } | State::Lost { line: Some(line), .. } = &*self.state() {
            let line = std::mem::take(&mut *line.lock().unwrap_or_else(PoisonError::into_inner));
            // Their replies say so as they go.
            drop(line);
        }
    }

    /// Why there is no image behind it.
    pub(crate) fn not_open(&self) -> String {
        match &*self.state() {
            State::Open(_) => "it is open by now: try again".to_owned(),
            State::Opening { why, .. } => format!("it is being opened again ({why}): try again when it is open"),
            State::Lost { why, .. } => {
                format!("it is lost to its guest ({why}): `vringd ctl disk reopen` opens it as it is now")
            }
        }
    }

    /// How things stand.
    pub(crate) fn link(&self) -> Link {
        let not_open =
            |state, since: &Instant, why: &String| Link { state, since: Some(since.elapsed()), why: Some(why.clone()) };
        match &*self.state() {
            State::Open(opened) if opened.live.is_gone() => {
                Link { state: LinkState::Lost, since: None, why: Some("it was removed".to_owned()) }
            }
            State::Open(_) => Link { state: LinkState::Open, since: None, why: None },
            State::Opening { since, why, .. } => not_open(LinkState::Opening, since, why),
            State::Lost { line: None, since, why, .. } => not_open(LinkState::Lost, since, why),
            State::Lost { line: Some(_), since, why, .. } => not_open(LinkState::LostWaiting, since, why),
        }
    }

    /// Opens what is lost, as it is now.
    pub(crate) fn open_again(self: &Arc<Self>) -> io::Result<()> {
        let mut state = self.change();
        let (was, why) = match &*state {
            State::Open(opened) if opened.live.is_gone() => {
                return Err(io::Error::other("it was removed: remove its export and its disk, and add another one"));
            }
            State::Open(_) => return Err(io::Error::other("it is open")),
            State::Opening { .. } => return Ok(()),
            State::Lost { was, why, .. } => (Was::clone(was), why.clone()),
        };
        self.begin(&mut state, Again::as_it_is(&was), was, why)?;
        tracing::info!(image = %self.options.spec(), "an image that was lost is opened as it is now");
        Ok(())
    }
}

impl State {
    /// Those who wait, of whom there are none left then.
    fn take_line(&mut self) -> Line {
        match self {
            Self::Opening { line, .. } | Self::Lost { line: Some(line), .. } => std::mem::take(line),
            Self::Open(_) | Self::Lost { line: None, .. } => Line::default(),
        }
    }
}

/// Dropped, an open image is closed, for which whoever has opened it has to be done with it.
impl Drop for Connection {
    fn drop(&mut self) {
        let opener = self.opener.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let is_open = matches!(self.state.get_mut().unwrap_or_else(PoisonError::into_inner), State::Open(_));
        if let Some(opener) = opener.filter(|opener| is_open && opener.thread().id() != current().id()) {
            let _ = opener.join();
        }
    }
}

/// An image that is opened again, too, where the cluster is found to refuse its client though nobody asks it for anything.
fn followed(connection: Weak<Connection>, opened: Opened) -> Arc<Opened> {
    let number = opened.live.image.number;
    opened.live.when_refused(move || {
        if let Some(connection) = connection.upgrade() {
            connection.refused(number, REFUSED);
        }
    });
    Arc::new(opened)
}

/// What librbd may keep of requests, of which the next one's turn has come on any thread.
fn budget(connection: &Weak<Connection>, jobs: &Jobs) -> Arc<Budget<Parked>> {
    let (connection, elsewhere) = (connection.clone(), jobs.clone());
    Budget::new(KEPT_BYTES_MAX, move |parked, permit| {
        let connection = connection.clone();
        // That may be a thread of librbd's.
        elsewhere.go(move || {
            // Whoever has the request keeps it.
            let Some(connection) = connection.upgrade() else { return };
            if let Some((Parked { ready, reply, .. }, opened)) = connection.admit(permit.bytes(), parked) {
                ready.submit(&opened.live.image, reply, permit);
            }
        });
    })
}
