//! Moments at which a test ends the process: behind each store by which a request is taken, answered or shown.
//!
//! A killed process has made all its stores up to one, and none behind it. Nothing here is in a program that was built
//! without the feature `crash-points`, and no release has it.

/// Whether this program can be told to kill itself behind a store of its rings: never what anybody serves with.
pub const CRASH_POINTS: bool = cfg!(feature = "crash-points");

/// Behind one store.
#[cfg(not(any(test, feature = "crash-points")))]
#[inline(always)]
pub(crate) fn point() {}

#[cfg(all(feature = "crash-points", not(test)))]
pub(crate) use armed::point;

#[cfg(test)]
pub(crate) use observed::{at_each_point, point};

/// In a program: kills itself behind the store that the environment names.
#[cfg(all(feature = "crash-points", not(test)))]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    /// How many stores of all rings of the process to make before the end. Unset or 0: no end.
    const VARIABLE: &str = "VRING_CRASH_AFTER_STORES";

    static LEFT: LazyLock<AtomicU64> = LazyLock::new(|| {
        let stores = std::env::var(VARIABLE).ok().and_then(|value| value.parse().ok());
        AtomicU64::new(stores.unwrap_or(0))
    });

    /// Behind one store.
    #[inline]
    pub(crate) fn point() {
        // 0 stays 0: other threads may get here while the process is being killed.
        if LEFT.load(Ordering::Relaxed) != 0 && LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
            die();
        }
    }

    /// The way an operator would do it: no destructor, no handler.
    #[cold]
    fn die() -> ! {
        let _ = kill_process(getpid(), Signal::KILL);
        std::process::abort()
    }
}

/// In this crate's tests: looks at memory as the process would have left it.
#[cfg(test)]
mod observed {
    use std::cell::RefCell;

    type Hook = Box<dyn FnMut()>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Behind one store. A hook is not called for its own stores, unless it installs one for them.
    pub(crate) fn point() {
        if let Some(mut hook) = HOOK.take() {
            hook();
            HOOK.set(Some(hook));
        }
    }

    /// Runs `run` with `hook` behind each of its stores.
    pub(crate) fn at_each_point<T>(hook: impl FnMut() + 'static, run: impl FnOnce() -> T) -> T {
        let before = HOOK.replace(Some(Box::new(hook)));
        let result = run();
        HOOK.set(before);
        result
    }
}
