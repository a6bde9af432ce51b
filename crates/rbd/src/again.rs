//! Opens what the program before this one has had open, while guests run: requests wait meanwhile, however long the cluster is away.
//!
//! What fails is tried again, but for an image that is another one by now, or that somebody else may have written
//! ([`guard::take_over`](crate::guard::take_over)): that is lost to its guest, whose requests fail from then on.

use crate::connection::{Connection, Opened, Waiting};
use crate::error::RbdError;
use crate::ffi::Library;
use crate::open::{client, open};
use crate::openings::{OPENINGS, Place};
use crate::options::RbdOptions;
use crate::room;
use crate::was::Was;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};
use storage::Kind as _;

/// After how long what has failed is tried again, at first and at last.
const TRY_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];

/// What is opened again, until this is dropped.
pub(crate) struct Again {
    _ends: Sender<()>,
}

/// Has a thread open the image for `connection`. Those who have waited `go` on there.
pub(crate) fn begin(
    options: &RbdOptions,
    was: Was,
    connection: &Arc<Connection>,
    go: impl Fn(&Opened, Waiting) + Send + 'static,
) -> io::Result<Again> {
    let (ends, ended) = channel();
    let (options, connection) = (options.clone(), Arc::downgrade(connection));
    let opens = move || keep_trying(&options, &was, &connection, &ended, go);
    Builder::new().name("rbd-open".to_owned()).spawn(opens)?;
    Ok(Again { _ends: ends })
}

fn keep_trying(
    options: &RbdOptions,
    was: &Was,
    connection: &Weak<Connection>,
    ended: &Receiver<()>,
    go: impl Fn(&Opened, Waiting),
) {
    let (begun, image) = (Instant::now(), options.spec());
    let [mut after, longest] = TRY_AGAIN_AFTER;
    let mut told = String::new();
    loop {
        let opened = once(options, was, &|| connection.strong_count() > 0);
        // Closed where nobody wants it any more.
        let Some(connection) = connection.upgrade() else { return };
        match opened {
            Ok(opened) => {
                let waiting = connection.come(opened);
                let (ms, waited) = (begun.elapsed().as_millis(), waiting.len());
                tracing::info!(%image, ms, waited, "an image is open again");
                if let Some(opened) = connection.opened() {
                    waiting.into_iter().for_each(|request| go(opened, request));
                }
                return;
            }
            Err(error @ RbdError::Lost { .. }) => {
                tracing::error!(%error, "an image is lost to its guest, whose requests fail: remove its export or disk, and add it again");
                return connection.lose();
            }
            Err(error) => {
                let words = error.to_string();
                if words != told {
                    tracing::warn!(error = words, "an image cannot be opened again yet: its requests wait");
                    told = words;
                }
            }
        }
        drop(connection);
        if ended.recv_timeout(after) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        after = longest.min(after * 2);
    }
}

fn once(options: &RbdOptions, was: &Was, is_wanted: &dyn Fn() -> bool) -> Result<Opened, RbdError> {
    let client = client(Library::get()?, options)?;
    let place = Place { monitors: client.setting("mon_host").unwrap_or_default(), spec: options.spec() };
    let _turn = OPENINGS.begin(place)?;
    room::look(OPENINGS.connecting()).map_err(|why| RbdError::NoRoom { spec: options.spec().to_string(), why })?;
    let image = open(options, client, Some(was), is_wanted).map_err(|error| match error {
        // What guests have read comes with no other.
        RbdError::NoImage(spec) | RbdError::NoSnapshot(spec) => {
            RbdError::Lost { spec, why: "it is not there any more".to_owned() }
        }
        error => error,
    })?;
    Opened::of(image, &options.spec(), options.read_only())
}
