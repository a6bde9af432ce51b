//! What a sleep costs on this machine, measured once: two threads that wake each other.

use crate::clock::{monotonic_ns, thread_cpu_now_ns};
use policy::SleepPrice;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

/// Round trips: some milliseconds in all.
const ROUNDS: usize = 64;
/// How long the other thread has to be asleep before it is woken, in nanoseconds.
const SETTLE_NS: u64 = 40_000;

static PRICE: OnceLock<SleepPrice> = OnceLock::new();

/// Has the price measured, once a process, on threads of its own: whoever starts a worker does not wait for it, least of all while
/// guests wait for the next program to take over.
pub(crate) fn learn_sleep_price() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let measured = || {
            // Nobody else sets it.
            let _ = PRICE.set(measure().unwrap_or_default());
        };
        // Without a thread there is no price but the usual one.
        let _ = std::thread::Builder::new().name("sleep-price".to_owned()).spawn(measured);
    });
}

/// The price: the usual one until it is measured.
#[inline]
pub(crate) fn sleep_price() -> SleepPrice {
    PRICE.get().copied().unwrap_or_default()
}

/// Sleeps until the other one wakes us.
fn wait(bell: &OwnedFd) -> Option<()> {
    let read = rustix::io::retry_on_intr(|| rustix::io::read(bell, &mut [0; 8]));
    read.is_ok().then_some(())
}

fn wake(bell: &OwnedFd) -> Option<()> {
    rustix::io::write(bell, &1u64.to_ne_bytes()).ok().map(drop)
}

fn measure() -> Option<SleepPrice> {
    let (there, back) = (eventfd(0, EventfdFlags::CLOEXEC).ok()?, eventfd(0, EventfdFlags::CLOEXEC).ok()?);
    let woken_ns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (there, back, woken_ns) = (&there, &back, &woken_ns);
        let sleeper = std::thread::Builder::new().name("sleep-price".to_owned()).spawn_scoped(scope, move || {
            let before_ns = thread_cpu_now_ns();
            for _ in 0..ROUNDS {
                wait(there)?;
                woken_ns.store(monotonic_ns(), Ordering::Relaxed);
                wake(back)?;
            }
            Some(thread_cpu_now_ns() - before_ns)
        });
        let sleeper = sleeper.ok()?;
        let (mut wakes_ns, mut kicks_ns) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
        for _ in 0..ROUNDS {
            // It has to be asleep, as a worker is that has looked in vain.
            let settled_ns = monotonic_ns() + SETTLE_NS;
            while monotonic_ns() < settled_ns {
                std::hint::spin_loop();
            }
            let began_ns = monotonic_ns();
            wake(there)?;
            kicks_ns.push(monotonic_ns() - began_ns);
            wait(back)?;
            wakes_ns.push(woken_ns.load(Ordering::Relaxed).saturating_sub(began_ns));
        }
        let used_ns = sleeper.join().ok()?? / ROUNDS as u64;
        let (wake_ns, kick_ns) = (typical(wakes_ns), typical(kicks_ns));
        // The sleeper has woken us as often as it has slept.
        Some(SleepPrice { cpu_ns: used_ns.saturating_sub(kick_ns), wake_ns, kick_ns })
    })
}

/// No wake-up is taken for longer, in nanoseconds: what takes longer was something else.
const WAKE_MAX_NS: u64 = 100_000;

/// A busy machine makes some of them long: what is wanted is the price of a sleep, not of other people's work.
fn typical(mut times_ns: Vec<u64>) -> u64 {
    times_ns.sort_unstable();
    times_ns[times_ns.len() / 2].min(WAKE_MAX_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_costs_something_and_that_is_learned_in_the_end() {
        let price = measure().unwrap();
        assert!(price.wake_ns > 0 && price.kick_ns > 0, "{price:?}");
        learn_sleep_price();
        while PRICE.get().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(Some(sleep_price()), PRICE.get().copied());
    }
}
