//! Buffers for events that are none.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use control::client::Client;
use http::Method;
use serde_json::{Value, json};
use tests::driver::WRITE;

use super::super::attack::{Attack, Scene};
use super::super::session::{BUFFER, PATIENCE, RING_SIZE, is_used, settle};
use super::{EVENT, REQUEST, SPARE, only};

pub(super) const ATTACKS: &[Attack] = &[
    only(
        "scsi-event-buffers",
        "buffers for events of any length, and none to write to, while a unit comes and goes",
        buffers,
    ),
    only("scsi-no-event-buffers", "more events than are kept, and no buffer for any of them", none),
    only("scsi-event-buffers-everywhere", "a ring full of one buffer for events", everywhere),
];

/// Takes the spare unit out, and puts it back: the server's place has its control socket.
pub(super) fn out_and_in(place: &Path) -> Result<()> {
    let control = Client::new(place.join("control.sock"))?;
    control.order(Method::DELETE, &format!("/v1/exports/scsi/luns/{SPARE}")).context("taking a unit out")?;
    let unit = json!({ "lun": SPARE.to_string(), "disk": "spare" });
    let _unit: Value = control.send(Method::POST, "/v1/exports/scsi/luns", &unit).context("putting a unit back")?;
    Ok(())
}

fn buffers(scene: &mut Scene<'_>) -> Result<()> {
    let mut session = scene.session()?;
    let _requests = session.ring(REQUEST)?;
    let mut ring = session.ring(EVENT)?;
    for (at, len) in (0..).zip([0, 1, 4, 15, 16, 17, 4096, 1 << 20]) {
        ring.queue.set_descriptor(at, BUFFER, len, WRITE, 0);
        ring.publish(at);
        // One that nothing can be written to.
        ring.queue.set_descriptor(at + 8, BUFFER, len, 0, 0);
        ring.publish(at + 8);
    }
    ring.kick();
    for _ in 0..8 {
        out_and_in(scene.place())?;
    }
    ensure!(is_used(&ring, 16, PATIENCE), "{} of 16 buffers are used by 16 events", ring.queue.used_index());
    scene.keep((session, ring));
    Ok(())
}

fn none(scene: &mut Scene<'_>) -> Result<()> {
    let mut session = scene.session()?;
    let _requests = session.ring(REQUEST)?;
    let mut ring = session.ring(EVENT)?;
    for _ in 0..40 {
        out_and_in(scene.place())?;
    }
    let memory = session.memory.clone();
    memory.write(BUFFER, &[0xee; 16]);
    ring.queue.set_descriptor(0, BUFFER, 16, WRITE, 0);
    ring.publish(0);
    ring.kick();
    ensure!(is_used(&ring, 1, PATIENCE), "no event comes for a buffer");
    let event = memory.read(BUFFER, 4);
    ensure!(event[3] & 0x80 != 0, "nobody says that events were missed: {event:02x?}");
    scene.keep((session, ring));
    Ok(())
}

fn everywhere(scene: &mut Scene<'_>) -> Result<()> {
    let mut session = scene.session()?;
    let _requests = session.ring(REQUEST)?;
    let mut ring = session.ring(EVENT)?;
    ring.queue.set_descriptor(3, BUFFER, 16, WRITE, 0);
    (0..RING_SIZE).for_each(|_| ring.publish(3));
    ring.kick();
    for _ in 0..4 {
        out_and_in(scene.place())?;
    }
    settle();
    scene.keep((session, ring));
    Ok(())
}
