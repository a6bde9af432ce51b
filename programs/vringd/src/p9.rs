//! From a directory over 9p as the API describes it to its options, and back to what the API shows.

use crate::directory;
use control::model as api;
use control::model::directory::Directory;
use control::model::{Listen, NewExport, P9Info};
use export::{Multidevs, P9Options, P9Policy, P9Status, StreamAddress};

/// What the service needs to know of the directory `about` of the export `new`.
pub(crate) fn options_in(about: &Directory, new: &NewExport) -> P9Options {
    P9Options {
        // A stream has no device that could show one.
        tag: if new.listen.is_some() { None } else { about.tag(&new.name) },
        queues: new.queues(),
        policy: P9Policy {
            msize_max: about.msize_max(),
            multidevs: multidevs_in(about.multidevs.unwrap_or_default()),
            ..P9Policy::default()
        },
        execution: about.execution,
    }
}

/// Where clients connect.
pub(crate) fn address_in(listen: &Listen) -> StreamAddress {
    match listen {
        Listen::Unix(path) => StreamAddress::Unix(path.clone()),
        Listen::Tcp(address) => StreamAddress::Tcp(*address),
        Listen::Vsock { cid, port } => StreamAddress::Vsock { cid: *cid, port: *port },
        Listen::Fd(number) => StreamAddress::Fd(*number),
    }
}

fn multidevs_in(multidevs: api::Multidevs) -> Multidevs {
    match multidevs {
        api::Multidevs::Remap => Multidevs::Remap,
        api::Multidevs::Forbid => Multidevs::Forbid,
        api::Multidevs::Warn => Multidevs::Warn,
    }
}

fn multidevs_out(multidevs: Multidevs) -> api::Multidevs {
    match multidevs {
        Multidevs::Remap => api::Multidevs::Remap,
        Multidevs::Forbid => api::Multidevs::Forbid,
        Multidevs::Warn => api::Multidevs::Warn,
    }
}

/// A directory over 9p as the API shows it.
pub(crate) fn shown(status: &P9Status) -> api::DirectoryInfo {
    let p9 = P9Info {
        msize: (status.msize > 0).then_some(status.msize),
        msize_max: status.policy.msize_max,
        multidevs: multidevs_out(status.policy.multidevs),
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

    /// One grammar, though neither room knows the other.
    #[test]
    fn every_form_of_an_address_means_the_same_to_both_rooms() {
        for text in [
            "unix:/run/p9.sock",
            "tcp:5640",
            "tcp::5640",
            "tcp:localhost:1",
            "tcp:10.0.0.1:1",
            "tcp:[::1]:0",
            "vsock:564",
            "vsock:any:564",
            "vsock:2:564",
            "vsock:4294967295:564",
            "fd:3",
            "tcp:",
            "tcp:x:1",
            "tcp:::1:1",
            "vsock:x:1",
            "vsock:4294967295",
            "fd:-1",
            "unix:",
            "udp:1",
        ] {
            let (listen, address) = (text.parse::<Listen>(), text.parse::<StreamAddress>());
            assert_eq!(listen.as_ref().ok().map(address_in), address.as_ref().ok().cloned(), "{text}");
            if let (Ok(listen), Ok(address)) = (listen, address) {
                assert_eq!(listen.to_string(), address.to_string());
            }
        }
    }
}
