//! What a guest can do that owns its rings and its memory, and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use frontkit::Memory;
use tests::driver::{INDIRECT, NEXT, Ring, WRITE, readable, tear_descriptor, writable, write_descriptor};
use tests::frontend::{DATA, INDIRECT_DESC, kind};
use tests::fuse::{self, init_body, op};

use super::attack::{Attack, Expect, On, Scene, Victim};
use super::session::{
    BLOCK, BUFFER, HEADER, MEMORY_BYTES, NOWHERE, RING_SIZE, STATUS, TABLE, areas, bytes, is_used, lay_out,
};
use crate::rng::Rng;

/// How often something is changed under the server's eyes.
const CHANGES: usize = 2000;
/// How long requests that may well be answered are waited for.
const A_MOMENT: Duration = Duration::from_millis(200);
/// Requests of noise.
const NOISE: usize = 200;
/// Noise in flight at once.
const NOISE_AT_ONCE: u16 = 16;

const fn guest(
    name: &'static str,
    what: &'static str,
    expect: Expect,
    run: fn(&mut Scene<'_>) -> Result<()>,
) -> Attack {
    Attack { name, what, on: On::Any, expect, run }
}

const fn only(on: On, name: &'static str, what: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Attack {
    Attack { name, what, on, expect: Expect::Anything, run }
}

pub(crate) const ATTACKS: &[Attack] = &[
    guest("avail-index-jumps", "moves the available index by more than the ring holds", Expect::Broken, |scene| {
        lie(scene, |ring| ring.queue.set_available_index(RING_SIZE + 1))
    }),
    guest("avail-index-backwards", "moves the available index back by one", Expect::Broken, |scene| {
        lie(scene, |ring| ring.queue.set_available_index(u16::MAX))
    }),
    guest("head-outside", "offers a head outside the descriptor table", Expect::Broken, |scene| {
        lie(scene, |ring| ring.publish(RING_SIZE))
    }),
    guest("head-far-outside", "offers head 65535", Expect::Broken, |scene| lie(scene, |ring| ring.publish(u16::MAX))),
    guest("chain-loops", "two descriptors that continue at each other", Expect::Broken, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, HEADER, 16, NEXT, 1);
            ring.queue.set_descriptor(1, BUFFER, BLOCK, NEXT, 0);
            ring.publish(0);
        })
    }),
    guest("chain-continues-at-itself", "a descriptor that continues at itself", Expect::Broken, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(7, BUFFER, BLOCK, NEXT | WRITE, 7);
            ring.publish(7);
        })
    }),
    guest("next-outside", "a chain that continues outside the table", Expect::Broken, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, HEADER, 16, NEXT, RING_SIZE);
            ring.publish(0);
        })
    }),
    guest("buffer-outside-memory", "a buffer where there is no memory", Expect::Broken, |scene| {
        buffer(scene, NOWHERE, BLOCK)
    }),
    guest("buffer-wraps", "a buffer over the end of the address space", Expect::Broken, |scene| {
        buffer(scene, u64::MAX - 100, BLOCK)
    }),
    guest("buffer-over-the-end", "a buffer that begins in memory and ends behind it", Expect::Broken, |scene| {
        buffer(scene, MEMORY_BYTES - 100, BLOCK)
    }),
    guest("buffer-of-4-gib", "a buffer with the largest length there is", Expect::Broken, |scene| {
        buffer(scene, DATA, u32::MAX)
    }),
    guest("buffers-of-length-zero", "a chain of empty buffers", Expect::Anything, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, HEADER, 0, NEXT, 1);
            ring.queue.set_descriptor(1, BUFFER, 0, NEXT | WRITE, 2);
            ring.queue.set_descriptor(2, NOWHERE, 0, WRITE, 0);
            ring.publish(0);
        })
    }),
    guest("nothing-writable", "a request without room for an answer", Expect::Anything, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, HEADER, 16, 0, 0);
            ring.publish(0);
        })
    }),
    guest("nothing-readable", "a request without a request", Expect::Anything, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, BUFFER, BLOCK, WRITE, 0);
            ring.publish(0);
        })
    }),
    guest("readable-behind-writable", "a readable buffer behind a writable one", Expect::Broken, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, STATUS, 1, NEXT | WRITE, 1);
            ring.queue.set_descriptor(1, HEADER, 16, 0, 0);
            ring.publish(0);
        })
    }),
    guest("unknown-flags", "descriptors with every flag that means nothing", Expect::Anything, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, HEADER, 16, NEXT | 0xfff8, 1);
            ring.queue.set_descriptor(1, STATUS, 1, WRITE | 0xfff8, 0);
            ring.publish(0);
        })
    }),
    guest("indirect-nested", "an indirect table in an indirect table", Expect::Broken, |scene| {
        lie(scene, |ring| {
            write_descriptor(ring.queue.memory(), TABLE, TABLE + 4096, 32, INDIRECT, 0);
            table(ring, 16, INDIRECT);
        })
    }),
    guest("indirect-in-the-middle", "an indirect table that other descriptors follow", Expect::Broken, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, HEADER, 16, NEXT, 1);
            ring.queue.set_descriptor(1, TABLE, 32, INDIRECT | NEXT, 2);
            ring.queue.set_descriptor(2, STATUS, 1, WRITE, 0);
            ring.publish(0);
        })
    }),
    guest("indirect-odd-length", "an indirect table of 15 bytes", Expect::Broken, |scene| {
        lie(scene, |ring| table(ring, 15, INDIRECT))
    }),
    guest("indirect-empty", "an indirect table of no bytes", Expect::Broken, |scene| {
        lie(scene, |ring| table(ring, 0, INDIRECT))
    }),
    guest("indirect-huge", "an indirect table of 4 GiB", Expect::Broken, |scene| {
        lie(scene, |ring| table(ring, u32::MAX - 15, INDIRECT))
    }),
    guest("indirect-outside-memory", "an indirect table where there is no memory", Expect::Broken, |scene| {
        lie(scene, |ring| {
            ring.queue.set_descriptor(0, NOWHERE, 32, INDIRECT, 0);
            ring.publish(0);
        })
    }),
    guest("indirect-loops", "an indirect table whose entries continue at each other", Expect::Broken, |scene| {
        lie(scene, |ring| {
            write_descriptor(ring.queue.memory(), TABLE, HEADER, 16, NEXT, 1);
            write_descriptor(ring.queue.memory(), TABLE + 16, BUFFER, 16, NEXT, 0);
            table(ring, 32, INDIRECT);
        })
    }),
    guest("indirect-of-32768", "an indirect table as long as legal, each entry a buffer", Expect::Anything, |scene| {
        lie(scene, |ring| {
            for at in 0..32768_u64 {
                let next = at as u16 + 1;
                let flags = if at < 32767 { NEXT | WRITE } else { WRITE };
                write_descriptor(ring.queue.memory(), TABLE + 16 * at, BUFFER, BLOCK, flags, next);
            }
            table(ring, 16 * 32768, INDIRECT);
        })
    }),
    guest("indirect-not-negotiated", "an indirect table without the feature", Expect::Broken, |scene| {
        let mut victim = scene.victim_without(INDIRECT_DESC)?;
        table(&mut victim.ring, 32, INDIRECT);
        victim.kick();
        scene.keep(victim);
        Ok(())
    }),
    guest("same-head-twice", "a head offered again before it was used", Expect::Anything, |scene| {
        lie(scene, |ring| {
            lay_out(ring, 0, BUFFER, BLOCK);
            ring.publish(0);
            ring.publish(0);
        })
    }),
    guest("same-head-everywhere", "a ring full of one head", Expect::Anything, |scene| {
        lie(scene, |ring| {
            lay_out(ring, 3, BUFFER, BLOCK);
            for _ in 0..RING_SIZE {
                ring.publish(3);
            }
        })
    }),
    guest("buffers-in-the-ring", "an answer that is written over the ring itself", Expect::Anything, |scene| {
        lie(scene, |ring| {
            let [desc, used, avail] = areas(ring);
            for (at, area) in [desc, used, avail].into_iter().enumerate() {
                let head = 3 * at as u16;
                lay_out(ring, head, area, BLOCK);
            }
            ring.publish(3);
            ring.publish(6);
            ring.publish(0);
        })
    }),
    guest("used-ring-overwritten", "writes its own used ring while requests are served", Expect::Anything, |scene| {
        let mut victim = scene.victim()?;
        let [_, used, _] = areas(&victim.ring);
        for at in 0..8 {
            lay_out(&victim.ring, 3 * at, BUFFER, BLOCK);
            victim.ring.publish(3 * at);
            victim.ring.kick();
            let noise = bytes(&mut scene.random, 6 + 8 * usize::from(RING_SIZE));
            victim.session.memory.write(used, &noise);
        }
        victim.kick();
        scene.keep(victim);
        Ok(())
    }),
    guest("descriptors-flip", "changes descriptors while they are read", Expect::Anything, |scene| {
        under_changes(scene, flip)
    }),
    guest("ring-scribbled", "random bytes over the whole ring while it is served", Expect::Anything, |scene| {
        under_changes(scene, scribble)
    }),
    guest("flood-of-kicks", "kicks without end, until the counter is full", Expect::Anything, |scene| {
        let mut victim = scene.victim()?;
        let kick = victim.ring.eventfds.kick.try_clone()?;
        for round in 0..50_000_u32 {
            // The largest step fills the counter at once; what does not fit is refused.
            let _full = kick.write(if round % 1000 == 999 { 1 << 63 } else { 1 });
        }
        lay_out(&victim.ring, 0, BUFFER, BLOCK);
        victim.ring.publish(0);
        // It may have been seen without a kick, which does not fit any more.
        is_used(&victim.ring, 1, A_MOMENT);
        scene.keep(victim);
        Ok(())
    }),
    only(On::Disk, "disk-requests-noise", "requests with random headers, lengths and sectors", disk_noise),
    only(On::Disk, "disk-beyond-the-end", "reads, writes and discards behind the last sector", |scene| {
        let mut victim = scene.victim()?;
        let sectors = [1 << 20, u64::MAX, u64::MAX / 512, u64::MAX / 512 + 1, 1 << 55];
        for (at, sector) in sectors.into_iter().enumerate() {
            victim.session.memory.write(BUFFER, &[0xff; 64]);
            for kind in [kind::IN, kind::OUT, kind::DISCARD, kind::WRITE_ZEROES] {
                let data = if kind == kind::IN { writable(BUFFER, BLOCK) } else { readable(BUFFER, BLOCK) };
                victim.ring.request(kind, sector, &[data]);
            }
            victim.ring.kick();
            if !is_used(&victim.ring, 4 * (at as u16 + 1), A_MOMENT) {
                break;
            }
        }
        scene.keep(victim);
        Ok(())
    }),
    only(On::Directory, "fuse-noise", "FUSE requests with random operations, lengths and bodies", fuse_noise),
];

/// Spoils a fresh ring, kicks, and leaves it so.
fn lie(scene: &mut Scene<'_>, lie: impl FnOnce(&mut Ring)) -> Result<()> {
    let mut victim = scene.victim()?;
    // A header that would do: the lie is elsewhere.
    victim.session.memory.write(HEADER, &[0; 16]);
    lie(&mut victim.ring);
    victim.kick();
    // Nothing new, but a look at what is left.
    victim.kick();
    scene.keep(victim);
    Ok(())
}

fn buffer(scene: &mut Scene<'_>, address: u64, len: u32) -> Result<()> {
    lie(scene, |ring| {
        lay_out(ring, 0, address, len);
        ring.publish(0);
    })
}

/// Offers the table of descriptors at [`TABLE`].
fn table(ring: &mut Ring, len: u32, flags: u16) {
    ring.queue.set_descriptor(0, TABLE, len, flags, 1);
    ring.publish(0);
}

/// Offers requests while another thread makes changes.
fn under_changes(scene: &mut Scene<'_>, change: fn(&Memory, [u64; 3], &mut Rng)) -> Result<()> {
    for _ in 0..4 {
        // Only the last one is looked at; the others end whatever state their rings are in.
        scene.let_go();
        let mut victim = scene.victim()?;
        let Victim { session, ring } = &mut victim;
        session.memory.write(HEADER, &[0; 16]);
        let places = areas(ring);
        let mut random = scene.random.clone();
        scene.random.next();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (memory, over) = (&session.memory, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    change(memory, places, &mut random);
                }
            });
            for round in 0..CHANGES {
                let head = (round % 16) as u16 * 3;
                lay_out(ring, head, BUFFER, BLOCK);
                ring.publish(head);
                if round % 8 == 0 {
                    ring.kick();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        victim.kick();
        scene.keep(victim);
    }
    Ok(())
}

/// Changes lengths, addresses, flags and links of one of the first descriptors.
fn flip(memory: &Memory, [desc, ..]: [u64; 3], random: &mut Rng) {
    let (address, len) = random.pick(&[(HEADER, 16), (NOWHERE, BLOCK), (BUFFER, u32::MAX), (BUFFER, BLOCK)]);
    let flags = random.next() as u16 & (NEXT | WRITE | INDIRECT);
    tear_descriptor(memory, desc + 16 * random.within(0..=47), address, len, flags, random.next() as u16);
}

/// Writes some bytes somewhere into one of the areas.
fn scribble(memory: &Memory, [desc, used, avail]: [u64; 3], random: &mut Rng) {
    let size = u64::from(RING_SIZE);
    let (start, room) = random.pick(&[(desc, 16 * size), (used, 6 + 8 * size), (avail, 6 + 2 * size)]);
    let count = random.within(1..=16);
    let noise = bytes(random, count as usize);
    memory.write(start + random.within(0..=room - count), &noise);
}

fn disk_noise(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let random = &mut scene.random;
    let Victim { session, ring } = &mut victim;
    for round in 0..NOISE {
        let kinds = [0, 1, 2, 4, 8, 10, 11, 13, 14, 15, 16, random.next() as u32];
        let mut header = random.pick(&kinds).to_le_bytes().to_vec();
        header.extend(bytes(random, 4));
        let sectors = [random.within(0..=1 << 15), random.next(), u64::MAX / 512];
        header.extend(random.pick(&sectors).to_le_bytes());
        session.memory.write(HEADER, &header);
        session.memory.write(BUFFER, &bytes(random, 64));
        // The buffers, in any lengths; some requests are well-formed by chance.
        let lengths = [0, 1, 15, 16, 17, 511, 512, 513, BLOCK, 1 << 20];
        let (readable, writable) = (random.within(1..=3), random.within(0..=2));
        let head = (round % 8) as u16 * 8;
        for at in 0..readable + writable {
            let last = at + 1 == readable + writable;
            let flags = if at >= readable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            let (address, len) = match at {
                0 if !random.once_in(4) => (HEADER, 16),
                _ => (BUFFER, random.pick(&lengths)),
            };
            let at = head + at as u16;
            ring.queue.set_descriptor(at, address, len, flags, at + 1);
        }
        ring.publish(head);
        ring.kick();
        if !is_used(ring, ring.queue.next_available(), A_MOMENT) {
            break;
        }
    }
    scene.keep(victim);
    Ok(())
}

fn fuse_noise(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let random = &mut scene.random;
    let Victim { session, ring } = &mut victim;
    for round in 0..NOISE {
        let request =
            if round == 0 { fuse::request(op::INIT, 1, 0, &init_body(7, 38)) } else { fuse(random, round as u64) };
        // Each request in flight has a place of its own.
        let slot = (round % usize::from(NOISE_AT_ONCE)) as u16;
        let place = DATA + u64::from(slot) * (1 << 16);
        session.memory.write(place, &request);
        let head = 2 * slot;
        let room = random.pick(&[0, 16, 100, 8192]);
        ring.queue.set_descriptor(head, place, request.len() as u32, NEXT, head + 1);
        ring.queue.set_descriptor(head + 1, place + (1 << 15), room, WRITE, 0);
        ring.publish(head);
        ring.kick();
        let behind = ring.queue.next_available().saturating_sub(NOISE_AT_ONCE / 2);
        if ring.queue.used_index() < behind && !is_used(ring, ring.queue.next_available(), A_MOMENT) {
            break;
        }
    }
    victim.kick();
    scene.keep(victim);
    Ok(())
}

/// A FUSE request of any operation but those that may rightly wait for ever, end the session or take all there is.
fn fuse(random: &mut Rng, unique: u64) -> Vec<u8> {
    let opcode = match random.within(0..=60) as u32 {
        // FALLOCATE would fill the disk.
        op::SETLKW | op::DESTROY | 43 => op::GETATTR,
        opcode => opcode,
    };
    let node = random.pick(&[1, 1, 1, 2, 3, 0, u64::MAX]);
    let names: [&[u8]; 6] = [b"a\0", b"b\0c\0", b"..\0", b"/\0", b"\0", b"no-end"];
    let mut body = Vec::<u8>::new();
    for _ in 0..random.within(0..=3) {
        match random.within(0..=2) {
            0 => body.extend(random.pick(&names)),
            1 => body.extend(random.pick(&[0_u64, 1, 2, 4096, 1 << 31, u64::MAX]).to_le_bytes()),
            _ => {
                let count = random.within(0..=99) as usize;
                body.extend(bytes(random, count));
            }
        }
    }
    let mut request = fuse::request(opcode, unique, node, &body);
    if random.once_in(4) {
        // A length that lies.
        let claimed = random.pick(&[0, 39, 40, 4096, u32::MAX]);
        for (byte, new) in request.iter_mut().zip(claimed.to_le_bytes()) {
            *byte = new;
        }
    }
    request
}
