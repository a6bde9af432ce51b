//! From a directory over 9p as the API describes it to its options, and back to what the API shows.

use crate::directory;
use control::model as api;
use control::model::directory::Directory;
use control::model::{NewExport, P9Info};
use export::{P9Options, P9Policy, P9Status};

/// What the service needs to know of the directory `about` of the export `new`.
pub(crate) fn options_in(about: &Directory, new: &NewExport) -> P9Options {
    P9Options {
        // A stream has no device that could show one.
        tag: if new.listen.is_some() { None } else { about.tag(&new.name) },
        queues: new.queues(),
        policy: P9Policy {
            msize_max: about.msize_max(),
            multidevs: about.multidevs.unwrap_or_default(),
            ..P9Policy::default()
        },
        execution: about.execution,
    }
}

/// A directory over 9p as the API shows it.
pub(crate) fn shown(status: &P9Status) -> api::DirectoryInfo {
    let p9 = P9Info {
        msize: (status.msize > 0).then_some(status.msize),
        msize_max: status.policy.msize_max,
        multidevs: status.policy.multidevs,
        fids: status.fids as u64,
        connections: status.connections as u64,
    };
    api::DirectoryInfo {
        tag: status.tag.clone(),
        protocol: status.dialect.map(str::to_owned),
        cache: None,
        execution: status.execution,
        execution_chosen: status.execution,
        locks_waiting: status.locks_waiting as u64,
        p9: Some(p9),
        ..directory::of_tree(&status.tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::model::Multidevs;

    fn export(more: &str, directory: &str) -> NewExport {
        let directory = format!("directory = {{ path = '/srv', protocol = '9p', {directory} }}");
        toml::from_str(&format!("name = 'home'\nkind = 'dir'\n{more}\n{directory}")).unwrap()
    }

    fn options(new: &NewExport) -> P9Options {
        options_in(new.directory().unwrap(), new)
    }

    #[test]
    fn what_a_person_chooses_is_passed_on() {
        let new = export("socket = '/s'\nqueues = 3", "msize = '64K', multidevs = 'warn', execution = 'inline'");
        let options = options(&new);
        assert_eq!((options.tag.as_deref(), options.queues), (Some("home"), 3));
        assert_eq!((options.policy.msize_max, options.policy.multidevs), (64 << 10, Multidevs::Warn));
        assert_eq!(options.execution, engine::Execution::Inline);
    }

    /// The control room states the defaults of its own, because it knows no other room.
    #[test]
    fn the_apis_defaults_are_those_of_the_rooms() {
        let new = export("listen = 'tcp:5640'", "tag = ''");
        let options = options(&new);
        assert_eq!((options.tag, options.queues), (None, 64));
        assert_eq!(options.policy, P9Policy::default());
    }
}
