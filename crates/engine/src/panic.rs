//! Panics: caught, and put into one line.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// Most characters of a panic's message that are kept: it ends in a log line and in the API.
const MESSAGE_CHARS_MAX: usize = 200;

thread_local! {
    /// Where this thread panicked last.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// panic at {place}: {message}
#[derive(Clone, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub struct Panic {
    /// First line of what it said.
    pub message: String,
    /// File and line of the code, as the compiler knew them.
    pub place: String,
}

impl Panic {
    fn of(payload: Box<dyn Any + Send>) -> Panic {
        let said = payload.downcast_ref::<&str>().copied();
        let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)");
        let message = said.lines().next().unwrap_or_default().chars().take(MESSAGE_CHARS_MAX).collect();
        let place = PLACE.try_with(|last| last.borrow_mut().take()).ok().flatten();
        // Dropping a payload runs code of whoever panicked, which may do so again.
        std::mem::forget(payload);
        Panic { message, place: place.unwrap_or_else(|| "an unknown place".to_owned()) }
    }
}

/// Runs `run`, and says how it panicked if it did. What `run` changes has to be given up, or be fit to be used half changed.
///
/// # Errors
/// The panic.
#[inline]
pub fn catch<T>(run: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(run)).map_err(Panic::of)
}

/// From now on a panic's place is known to [`catch`]. The hook that was there is called as before.
pub(crate) fn remember_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
            // Nothing to keep it in when the thread is on its way out, and nothing to be done about that.
            let _ = PLACE.try_with(|last| {
                if let Ok(mut last) = last.try_borrow_mut() {
                    *last = place;
                }
            });
            before(info);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_with_its_place() {
        remember_places();
        let line = line!() + 1;
        let panic = catch::<()>(|| panic!("{}\nand more", "x".repeat(300))).unwrap_err();
        assert_eq!(panic.message, "x".repeat(MESSAGE_CHARS_MAX));
        assert!(panic.place.ends_with(&format!("panic.rs:{line}")), "{panic}");
        assert!(panic.to_string().starts_with("panic at "), "{panic}");
    }

    #[test]
    fn whatever_is_thrown_is_caught() {
        let panic = catch::<()>(|| std::panic::panic_any(7)).unwrap_err();
        assert_eq!(panic.message, "(no message)");
        assert_eq!(catch(|| 7), Ok(7));
    }
}
