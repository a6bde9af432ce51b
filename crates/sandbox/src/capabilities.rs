//! Which of root's rights a daemon keeps: `--modcaps`.

use caps::{CapSet, Capability, CapsHashSet};
use std::fmt;

/// What serving a directory takes: files for any owner (CHOWN, `DAC_OVERRIDE`, FOWNER, FSETID), created as any user (SETUID,
/// SETGID), device nodes for the client to open (MKNOD), and capabilities of files (SETFCAP).
const SERVING: [Capability; 8] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_MKNOD,
    Capability::CAP_SETFCAP,
];

/// Opens files by their handles.
const HANDLES: Capability = Capability::CAP_DAC_READ_SEARCH;

/// Why capabilities were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum CapabilityError {
    /// --modcaps: `{0}` is neither `+CAPABILITY` nor `-CAPABILITY`: write for example `+sys_admin:-chown`
    Form(String),
    /// --modcaps: there is no capability `{0}`: use the names of capabilities(7)
    Unknown(String),
    /// --modcaps takes dac_read_search away, which --inode-file-handles needs: keep it, or use --inode-file-handles=never
    Handles,
    /// --modcaps asks for {0}, which this process does not have: start the daemon with it, or leave it away
    Missing(String),
    /// give capabilities up: {0}; start the daemon with CAP_SETPCAP, or without any capability
    Kernel(String),
}

/// The capabilities that a daemon keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    keep: CapsHashSet,
    /// Asked for by name: not to have them is an error.
    asked: CapsHashSet,
}

impl Capabilities {
    /// What serving a directory takes, with or without file handles, changed as `changes` says: `+name` and `-name`, with
    /// colons in between, names with or without `CAP_`, in any case.
    ///
    /// # Errors
    /// For names that are none, and for changes that nothing can be served with.
    pub fn new(file_handles: bool, changes: Option<&str>) -> Result<Capabilities, CapabilityError> {
        let mut keep: CapsHashSet = SERVING.into_iter().collect();
        let mut asked = CapsHashSet::new();
        if file_handles {
            keep.insert(HANDLES);
        }
        for change in changes.into_iter().flat_map(|changes| changes.split(':')) {
            let form = || CapabilityError::Form(change.to_owned());
            let sign = change.chars().next().filter(|sign| matches!(sign, '+' | '-')).ok_or_else(form)?;
            let name = change.get(1..).filter(|name| !name.is_empty()).ok_or_else(form)?;
            let upper = name.to_ascii_uppercase();
            let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
            let capability = full.parse::<Capability>().map_err(|_| CapabilityError::Unknown(name.to_owned()))?;
            if sign == '+' {
                keep.insert(capability);
                asked.insert(capability);
            } else {
                keep.remove(&capability);
                asked.remove(&capability);
            }
        }
        if file_handles && !keep.contains(&HANDLES) {
            return Err(CapabilityError::Handles);
        }
        Ok(Capabilities { keep, asked })
    }

    /// None: what a process needs that has opened all that it will ever open by a right of root's.
    pub fn none() -> Capabilities {
        Capabilities { keep: CapsHashSet::new(), asked: CapsHashSet::new() }
    }

    /// Gives everything else up, for ever: for this thread and the threads and programs that it starts. A process without
    /// capabilities, root nor in a user namespace, is left as it is.
    ///
    /// # Errors
    /// When a capability that was asked for by name is missing, or the kernel refuses.
    pub fn apply(&self) -> Result<(), CapabilityError> {
        let kernel = |error: caps::errors::CapsError| CapabilityError::Kernel(error.to_string());
        let have = caps::read(None, CapSet::Permitted).map_err(kernel)?;
        if let Some(missing) = self.asked.difference(&have).next() {
            return Err(CapabilityError::Missing(missing.to_string().to_ascii_lowercase()));
        }
        if have.is_empty() {
            return Ok(());
        }
        let keep: CapsHashSet = self.keep.intersection(&have).copied().collect();
        // The bounding set first: changing it is itself a right.
        if have.contains(&Capability::CAP_SETPCAP) {
            for capability in caps::runtime::thread_all_supported().difference(&keep) {
                caps::drop(None, CapSet::Bounding, *capability).map_err(kernel)?;
            }
        }
        caps::clear(None, CapSet::Ambient).map_err(kernel)?;
        caps::set(None, CapSet::Effective, &keep).map_err(kernel)?;
        caps::set(None, CapSet::Permitted, &keep).map_err(kernel)?;
        caps::clear(None, CapSet::Inheritable).map_err(kernel)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> =
            self.keep.iter().map(|capability| capability.to_string().to_ascii_lowercase()).collect();
        names.sort_unstable();
        f.write_str(&names.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(file_handles: bool, changes: &str) -> String {
        Capabilities::new(file_handles, Some(changes)).unwrap().to_string()
    }

    #[test]
    fn changes_are_made_in_order() {
        let all = "cap_chown cap_dac_override cap_fowner cap_fsetid cap_mknod cap_setfcap cap_setgid cap_setuid";
        assert_eq!(Capabilities::new(false, None).unwrap().to_string(), all);
        assert_eq!(names(false, "+sys_admin:-chown:+CAP_CHOWN:-Sys_Admin"), all);
        let less = "cap_chown cap_dac_read_search cap_sys_admin";
        assert_eq!(names(true, "-dac_override:-fowner:-fsetid:-mknod:-setfcap:-setgid:-setuid:+sys_admin"), less);
    }

    #[test]
    fn errors_name_the_fix() {
        use CapabilityError as E;
        for (changes, error) in [
            ("", E::Form(String::new())),
            ("chown", E::Form("chown".to_owned())),
            ("+", E::Form("+".to_owned())),
            ("+chown:", E::Form(String::new())),
            ("-everything", E::Unknown("everything".to_owned())),
            ("-dac_read_search", E::Handles),
        ] {
            assert_eq!(Capabilities::new(true, Some(changes)), Err(error), "{changes}");
        }
        assert!(Capabilities::new(false, Some("-dac_read_search")).is_ok());
    }
}
