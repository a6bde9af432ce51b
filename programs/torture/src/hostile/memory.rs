//! Memory that is not what it was said to be: files that shrink under running rings, tables that lie.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use frontkit::{Memory, USER_BASE};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};
use tests::driver::{RING_BYTES, Ring};
use tests::frontend::DATA;

use super::attack::{Attack, Expect, On, Scene};
use super::raw::request;
use super::session::{
    self, BLOCK, BUFFER, HEADER, MEMORY_BYTES, Region, Session, borrowed, file, ring_state, settle, table,
};

const fn attack(
    name: &'static str,
    what: &'static str,
    expect: Expect,
    run: fn(&mut Scene<'_>) -> Result<()>,
) -> Attack {
    Attack { name, what, on: On::Any, expect, run }
}

/// Where another region can be.
const ELSEWHERE: u64 = 1 << 36;
/// Its length.
const ELSEWHERE_BYTES: u64 = 1 << 20;
/// Requests that are laid out at once.
const REQUESTS: u16 = 20;

pub(crate) const ATTACKS: &[Attack] = &[
    attack(
        "memory-shrinks-to-nothing",
        "truncates the memory file of an idle ring, then kicks",
        Expect::Broken,
        |scene| {
            let victim = scene.victim()?;
            settle();
            ftruncate(file(&victim.session.memory), 0)?;
            victim.kick();
            scene.keep(victim);
            Ok(())
        },
    ),
    attack(
        "memory-shrinks-under-load",
        "truncates the memory file while requests are served",
        Expect::Broken,
        |scene| {
            for round in 0..8 {
                scene.let_go();
                let victim = scene.victim()?;
                lay_out(&victim.ring, BUFFER, 64 << 10);
                let mut ring = victim.ring;
                for at in 0..REQUESTS {
                    ring.publish(3 * at);
                }
                ring.kick();
                // From before the server looks to after it is done.
                std::thread::sleep(std::time::Duration::from_micros(20 * round + scene.random.within(0..=20)));
                ftruncate(file(&victim.session.memory), 0)?;
                ring.kick();
                settle();
                scene.keep((victim.session, ring));
            }
            Ok(())
        },
    ),
    attack(
        "memory-loses-its-data",
        "truncates the memory file behind the rings: buffers vanish",
        Expect::Anything,
        |scene| {
            let victim = scene.victim()?;
            lay_out(&victim.ring, BUFFER, BLOCK);
            let mut ring = victim.ring;
            ftruncate(file(&victim.session.memory), DATA)?;
            for at in 0..REQUESTS {
                ring.publish(3 * at);
            }
            ring.kick();
            settle();
            scene.keep((victim.session, ring));
            Ok(())
        },
    ),
    attack(
        "memory-loses-its-used-ring",
        "truncates the memory file in the middle of the ring",
        Expect::Anything,
        |scene| {
            let victim = scene.victim()?;
            let [_, used, _] = session::areas(&victim.ring);
            lay_out(&victim.ring, BUFFER, BLOCK);
            let mut ring = victim.ring;
            for at in 0..REQUESTS {
                ring.publish(3 * at);
            }
            ftruncate(file(&victim.session.memory), used - used % 4096)?;
            ring.kick();
            settle();
            scene.keep((victim.session, ring));
            Ok(())
        },
    ),
    attack(
        "memory-shrinks-and-grows",
        "truncates the memory file again and again, and makes it long again",
        Expect::Anything,
        |scene| {
            let victim = scene.victim()?;
            for _ in 0..50 {
                ftruncate(file(&victim.session.memory), 4096 * scene.random.within(0..=64))?;
                victim.ring.kick();
                std::thread::yield_now();
                ftruncate(file(&victim.session.memory), MEMORY_BYTES)?;
                victim.ring.kick();
            }
            settle();
            scene.keep(victim);
            Ok(())
        },
    ),
    attack("second-region-shrinks", "truncates a region that holds only buffers", Expect::Anything, |scene| {
        let mut victim = scene.victim()?;
        let more = Memory::new(ELSEWHERE, ELSEWHERE_BYTES)?;
        let region = Region::of(&more).single();
        let added = victim.session.raw.order(request::ADD_MEM_REG, &region, &[file(&more)]);
        if !added.context("ADD_MEM_REG is not answered")? {
            anyhow::bail!("ADD_MEM_REG is refused");
        }
        lay_out(&victim.ring, ELSEWHERE, BLOCK);
        ftruncate(file(&more), 0)?;
        for at in 0..REQUESTS {
            victim.ring.publish(3 * at);
        }
        victim.kick();
        scene.keep((victim, more));
        Ok(())
    }),
    attack("table-of-nothing", "a memory table without regions", Expect::Anything, |scene| {
        propose(scene, |_| Ok((Vec::new(), Vec::new())))
    }),
    attack("table-with-overlap", "two regions that overlap in the guest", Expect::Anything, |scene| {
        propose(scene, |session| {
            let region = Region::of(&session.memory);
            let other = Region { guest_addr: region.guest_addr + 4096, ..region };
            Ok((vec![region, other], vec![dup(session)?, dup(session)?]))
        })
    }),
    attack("table-with-a-region-twice", "one region twice", Expect::Anything, |scene| {
        propose(scene, |session| {
            let region = Region::of(&session.memory);
            Ok((vec![region, region], vec![dup(session)?, dup(session)?]))
        })
    }),
    attack("table-with-an-empty-region", "a region of no bytes", Expect::Anything, |scene| {
        propose(scene, |session| Ok((vec![elsewhere(0, 0)], vec![dup(session)?])))
    }),
    attack("table-beyond-its-file", "a region longer than its file", Expect::Anything, |scene| {
        propose(scene, |session| Ok((vec![elsewhere(MEMORY_BYTES * 16, 0)], vec![dup(session)?])))
    }),
    attack("table-of-all-addresses", "a region as long as the address space", Expect::Anything, |scene| {
        propose(scene, |session| Ok((vec![Region { guest_addr: 0, ..elsewhere(u64::MAX, 0) }], vec![dup(session)?])))
    }),
    attack("table-offset-wraps", "an offset and a length that wrap around", Expect::Anything, |scene| {
        propose(scene, |session| Ok((vec![elsewhere(8192, u64::MAX - 4095)], vec![dup(session)?])))
    }),
    attack("table-offset-unaligned", "an offset that is no multiple of a page", Expect::Anything, |scene| {
        propose(scene, |session| Ok((vec![elsewhere(8192, 4097)], vec![dup(session)?])))
    }),
    attack("table-addresses-wrap", "guest and frontend addresses that wrap around", Expect::Anything, |scene| {
        propose(scene, |session| {
            let region =
                Region { guest_addr: u64::MAX - 4095, user_addr: u64::MAX - 4095, ..elsewhere(ELSEWHERE_BYTES, 0) };
            Ok((vec![region], vec![dup(session)?]))
        })
    }),
    attack("table-without-descriptors", "two regions and not one descriptor", Expect::Anything, |scene| {
        propose(scene, |_| Ok((vec![elsewhere(4096, 0), elsewhere(4096, 4096)], Vec::new())))
    }),
    attack("table-with-few-descriptors", "two regions and one descriptor", Expect::Anything, |scene| {
        propose(scene, |session| {
            let second = Region { guest_addr: ELSEWHERE * 2, ..elsewhere(4096, 0) };
            Ok((vec![elsewhere(4096, 0), second], vec![dup(session)?]))
        })
    }),
    attack("table-with-many-descriptors", "one region and two hundred descriptors", Expect::Anything, |scene| {
        propose(scene, |session| {
            let fds = (0..200).map(|_| dup(session)).collect::<Result<_>>()?;
            Ok((vec![elsewhere(4096, 0)], fds))
        })
    }),
    attack("table-with-many-regions", "more regions than a table may have", Expect::Anything, |scene| {
        propose(scene, |session| {
            let regions = (0..64).map(|at| Region { guest_addr: ELSEWHERE + (at << 24), ..elsewhere(4096, 0) });
            Ok((regions.collect(), (0..64).map(|_| dup(session)).collect::<Result<_>>()?))
        })
    }),
    attack("table-of-a-pipe", "a pipe for memory", Expect::Anything, |scene| {
        propose(scene, |_| Ok((vec![elsewhere(4096, 0)], vec![std::io::pipe()?.0.into()])))
    }),
    attack("table-of-a-directory", "a directory for memory", Expect::Anything, |scene| {
        propose(scene, |_| {
            let directory = open("/", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            Ok((vec![elsewhere(4096, 0)], vec![directory]))
        })
    }),
    attack("table-of-a-device", "/dev/zero for memory", Expect::Anything, |scene| {
        propose(scene, |_| {
            let device = open("/dev/zero", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            Ok((vec![elsewhere(4096, 0)], vec![device]))
        })
    }),
    attack("table-of-sealed-memory", "memory that may not be written", Expect::Anything, |scene| {
        propose(scene, |_| {
            let sealed = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&sealed, ELSEWHERE_BYTES)?;
            fcntl_add_seals(&sealed, SealFlags::WRITE)?;
            Ok((vec![elsewhere(ELSEWHERE_BYTES, 0)], vec![sealed]))
        })
    }),
    attack("table-without-the-ring", "takes a running ring's memory away", Expect::Anything, |scene| {
        propose(scene, |_| {
            let other = memfd_create("other", MemfdFlags::CLOEXEC)?;
            ftruncate(&other, ELSEWHERE_BYTES)?;
            Ok((vec![elsewhere(ELSEWHERE_BYTES, 0)], vec![other]))
        })
    }),
    attack(
        "table-elsewhere-under-load",
        "moves a running ring's memory to another file again and again",
        Expect::Anything,
        |scene| {
            let mut victim = scene.victim()?;
            let same = Region::of(&victim.session.memory);
            for round in 0..50_u64 {
                lay_out(&victim.ring, BUFFER, BLOCK);
                victim.ring.publish(3 * (round % 16) as u16);
                victim.ring.kick();
                let other = memfd_create("other", MemfdFlags::CLOEXEC)?;
                ftruncate(&other, MEMORY_BYTES)?;
                let other = [other];
                let ours = [file(&victim.session.memory)];
                let fds = if round % 2 == 0 { borrowed(&other) } else { ours.to_vec() };
                if victim.session.raw.order(request::SET_MEM_TABLE, &table(&[same]), &fds).is_err() {
                    break;
                }
            }
            scene.keep(victim);
            Ok(())
        },
    ),
    attack("region-in-use-removed", "removes the region in which the ring is", Expect::Anything, |scene| {
        let mut victim = scene.victim()?;
        let region = Region::of(&victim.session.memory);
        let wrong = Region { bytes: region.bytes - 4096, ..region };
        for region in [wrong, region, region] {
            let _refused = victim.session.raw.order(request::REM_MEM_REG, &region.single(), &[]);
        }
        victim.kick();
        scene.keep(victim);
        Ok(())
    }),
    attack("regions-without-end", "adds regions until nobody takes them any more", Expect::Anything, |scene| {
        let mut victim = scene.victim()?;
        let fd = dup(&victim.session)?;
        let fds = borrowed(std::slice::from_ref(&fd));
        for at in 0..700_u64 {
            let region = Region {
                guest_addr: ELSEWHERE + (at << 20),
                user_addr: USER_BASE + ELSEWHERE + (at << 20),
                bytes: 4096,
                offset: RING_BYTES,
            };
            match victim.session.raw.order(request::ADD_MEM_REG, &region.single(), &fds) {
                Ok(true) => {}
                Ok(false) | Err(_) => break,
            }
        }
        victim.kick();
        scene.keep(victim);
        Ok(())
    }),
    attack("memory-before-features", "starts everything before anything is negotiated", Expect::Anything, |scene| {
        let mut raw = scene.fresh()?;
        let memory = Memory::new(0, MEMORY_BYTES)?;
        let table = table(&[Region::of(&memory)]);
        let _silent = raw.send(request::SET_MEM_TABLE, 1, &table, &[file(&memory)]);
        for index in 0..4 {
            let _silent = raw.send(request::SET_VRING_NUM, 1, &ring_state(index, 64), &[]);
            let _silent = raw.send(request::SET_VRING_ENABLE, 1, &ring_state(index, 1), &[]);
        }
        let _answer = raw.ask(request::GET_FEATURES, &[]);
        scene.keep((raw, memory));
        Ok(())
    }),
];

/// Fills the descriptor table with requests of three descriptors: header, data at `buffer`, status.
fn lay_out(ring: &Ring, buffer: u64, len: u32) {
    ring.queue.memory().write(HEADER, &[0; 16]);
    for at in 0..REQUESTS {
        session::lay_out(ring, 3 * at, buffer, len);
    }
}

/// A region beside the one that is there.
fn elsewhere(bytes: u64, offset: u64) -> Region {
    Region { guest_addr: ELSEWHERE, user_addr: USER_BASE + ELSEWHERE, bytes, offset }
}

/// The file behind the session's memory once more.
fn dup(session: &Session) -> Result<OwnedFd> {
    Ok(file(&session.memory).try_clone_to_owned()?)
}

/// Regions, and the descriptors that come with them.
type Proposal = (Vec<Region>, Vec<OwnedFd>);

/// Proposes another memory table to a session with a running ring, and kicks.
fn propose(scene: &mut Scene<'_>, make: fn(&Session) -> Result<Proposal>) -> Result<()> {
    let mut victim = scene.victim()?;
    let (regions, fds) = make(&victim.session)?;
    // Refused, or the session ends, or it is even right.
    let _answer = victim.session.raw.order(request::SET_MEM_TABLE, &table(&regions), &borrowed(&fds));
    victim.kick();
    scene.keep(victim);
    Ok(())
}
