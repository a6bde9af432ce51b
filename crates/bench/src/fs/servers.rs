//! Who takes part: our server, peers by name or command, a server that runs already, and fio.

use std::path::Path;

use anyhow::{Result, bail};

use super::args::Args;
use super::contest::{Contender, Kind};
use super::protocol::{Address, Protocol};
use super::qemu::Qemu;
use crate::args::{number_namesakes, split, spoken, tell_protocol};
use crate::fio;
use crate::programs::{self, VIRTIOFSD_DIRECTORIES};
use crate::server::Template;

/// Requests that QEMU's 9p device has room for: its queue has 128 descriptors (`MAX_REQ` in its sources), and one takes up
/// to 4.
const QEMU_REQUESTS_MAX: u32 = 32;
/// Where distributions put diod, which is not on every path.
const DIOD_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

impl Args {
    /// Everybody, in the order of the command line; `vringd` is our own executable.
    pub(super) fn contenders(&self, vringd: &Path) -> Result<Vec<Contender>> {
        if let Some(socket) = &self.socket {
            let kind = Kind::Running(Address::of(self.protocol, socket), self.server_pid);
            return Ok(vec![self.contender(socket.clone(), kind, self.protocol)]);
        }
        let mut contenders = Vec::new();
        let default = [String::new()];
        let ours: &[String] = if self.ours.is_empty() { &default } else { &self.ours };
        for arguments in ours.iter().filter(|_| !self.alone) {
            let name = format!("vringd {arguments}").trim_end().to_owned();
            let template = self.our_command(vringd, self.protocol, arguments)?;
            contenders.push(Contender {
                aname: String::new(),
                ..self.contender(name, Kind::Server(template), self.protocol)
            });
        }
        for peer in &self.against {
            contenders.push(self.peer(vringd, peer)?);
        }
        let servers = contenders.iter().map(|contender| contender.protocol);
        if servers.clone().zip(servers.skip(1)).any(|(one, other)| one != other) {
            contenders.iter_mut().for_each(|contender| tell_protocol(&mut contender.name, contender.protocol));
        }
        if self.host_fio {
            let host = fio::Host { direct: self.load.direct, extra: Vec::new(), cpus: self.cpus.servers().to_vec() };
            contenders.push(self.contender("fio".into(), Kind::Fio(host), Protocol::Virtiofs));
        }
        if contenders.is_empty() {
            bail!("nothing to measure: --alone needs --against SERVER or --host-fio");
        }
        number_namesakes(contenders.iter_mut().map(|contender| &mut contender.name));
        Ok(contenders)
    }

    fn contender(&self, name: String, kind: Kind, protocol: Protocol) -> Contender {
        Contender { name, kind, protocol, aname: self.aname.clone() }
    }

    /// The command line of our server: no sandbox and no seccomp filter, as its peers.
    fn our_command(&self, vringd: &Path, protocol: Protocol, arguments: &str) -> Result<Template> {
        let own = Template::parse("--ours", arguments)?;
        let mut words = vec![vringd.to_string_lossy().into_owned(), "dir".into()];
        if protocol != Protocol::Virtiofs {
            words.extend(["--protocol", "9p"].map(String::from));
        }
        if !own.mentions("socket") {
            let place: &[&str] = match protocol {
                Protocol::Virtiofs | Protocol::P9 => &["--socket", "{socket}", "--tag", "bench"],
                Protocol::P9Unix => &["--listen", "unix:{socket}"],
                // Of root's daemon as well; what others of this host may do meanwhile stays in the directory of the run.
                Protocol::P9Tcp => &["--listen", "tcp:{socket}", "--clients-may-be-root", "--nosuid", "--nodev"],
            };
            words.extend(place.iter().copied().map(String::from));
        }
        words.extend(["--sandbox", "none", "--seccomp", "none"].map(String::from));
        if self.load.queues > 1 && !protocol.is_stream() {
            words.extend(["--queues".into(), self.load.queues.to_string()]);
        }
        if let Some(execution) = &self.execution {
            words.extend(["--execution".into(), execution.clone()]);
        }
        words.extend(self.load.direct.then(|| "--allow-direct-io".into()));
        words.extend(own.words().iter().cloned());
        words.extend((!own.mentions("dir")).then(|| "{dir}".into()));
        Ok(Template::from_words(words))
    }

    fn peer(&self, vringd: &Path, peer: &str) -> Result<Contender> {
        let (asked, server) = spoken(peer);
        let protocol = asked.unwrap_or(self.protocol);
        let (name, path) = server.split_once('=').unwrap_or((server, ""));
        let wrong = |speaks: &str| format!("--against {peer:?}: {name} speaks {speaks}");
        match name {
            "vringd" if path.is_empty() => {
                let template = self.our_command(vringd, protocol, "")?;
                let contender = self.contender("vringd".into(), Kind::Server(template), protocol);
                Ok(Contender { aname: String::new(), ..contender })
            }
            "virtiofsd" => {
                let protocol = asked.unwrap_or(Protocol::Virtiofs);
                if protocol != Protocol::Virtiofs {
                    bail!("{}", wrong("virtiofs"));
                }
                let template = self.virtiofsd_command(path)?;
                Ok(self.contender(template.program().to_owned(), Kind::Server(template), protocol))
            }
            "diod" => {
                let protocol = asked.unwrap_or(if protocol.is_stream() { protocol } else { Protocol::P9Unix });
                if !protocol.is_stream() {
                    bail!("{}", wrong("9p+unix and 9p+tcp"));
                }
                let template = self.diod_command(path)?;
                let contender = self.contender(template.program().to_owned(), Kind::Server(template), protocol);
                // Its trees are called by their paths.
                Ok(Contender { aname: "{dir}".into(), ..contender })
            }
            "qemu" => {
                let protocol = asked.unwrap_or(Protocol::P9);
                if protocol != Protocol::P9 {
                    bail!("{}", wrong("9p"));
                }
                Ok(self.contender("qemu".into(), Kind::Qemu(self.qemu(path)?), protocol))
            }
            _ => {
                let template = Template::parse("--against", server)?;
                let has_socket =
                    template.mentions("socket") || (protocol == Protocol::P9Tcp && template.mentions("port"));
                if !has_socket || !template.mentions("dir") {
                    bail!(
                        "--against {peer:?}: must be virtiofsd, diod, qemu or vringd, or mention {{socket}} and {{dir}}"
                    );
                }
                Ok(self.contender(template.program().to_owned(), Kind::Server(template), protocol))
            }
        }
    }

    fn virtiofsd_command(&self, path: &str) -> Result<Template> {
        let mut words = vec![found(path, "virtiofsd", &VIRTIOFSD_DIRECTORIES)];
        words.extend(["--socket-path", "{socket}", "--shared-dir", "{dir}"].map(String::from));
        words.extend(["--sandbox=none", "--seccomp=none", "--log-level=error"].map(String::from));
        words.extend(self.load.direct.then(|| "--allow-direct-io".into()));
        words.extend(self.more_arguments()?);
        Ok(Template::from_words(words))
    }

    fn diod_command(&self, path: &str) -> Result<Template> {
        let mut words = vec![found(path, "diod", &DIOD_DIRECTORIES)];
        words.extend(["--foreground", "--no-auth", "--logdest", "stderr"].map(String::from));
        words.extend(["--export", "{dir}", "--listen", "{socket}"].map(String::from));
        words.extend(self.more_arguments()?);
        Ok(Template::from_words(words))
    }

    fn qemu(&self, path: &str) -> Result<Qemu> {
        if u32::from(self.load.depth) * u32::from(self.load.queues) > QEMU_REQUESTS_MAX {
            let (depth, queues) = (self.load.depth, self.load.queues);
            bail!("--depth {depth} on --queues {queues}: qemu takes at most {QEMU_REQUESTS_MAX} requests at a time");
        }
        let path = if path.is_empty() { self.qemu_path.as_deref() } else { Some(Path::new(path)) };
        Ok(Qemu::at(path, self.more_arguments()?))
    }

    fn more_arguments(&self) -> Result<Vec<String>> {
        split("--against-args", self.against_args.as_deref().unwrap_or(""))
    }
}

/// The path that was said, or where the program is found, or its name.
fn found(path: &str, name: &str, directories: &[&str]) -> String {
    if !path.is_empty() {
        return path.to_owned();
    }
    programs::find(name, directories).map_or_else(|| name.to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::args;
    use super::*;

    fn commands(line: &str) -> Vec<(String, String)> {
        let contenders = args(line).unwrap().contenders(Path::new("/v")).unwrap();
        let words = |kind: &Kind| match kind {
            Kind::Server(template) => {
                let places = [("socket", "S"), ("port", "P"), ("dir", "D")];
                template.replace(&places.map(|(name, value)| (name, Some(Path::new(value))))).join(" ")
            }
            other => format!("{other:?}"),
        };
        contenders.iter().map(|contender| (contender.name.clone(), words(&contender.kind))).collect()
    }

    fn refused(line: &str) -> String {
        args(line).unwrap().contenders(Path::new("v")).unwrap_err().to_string()
    }

    #[test]
    fn servers_get_their_socket_and_directory() {
        let ours = "/v dir --socket S --tag bench --sandbox none --seccomp none";
        assert_eq!(commands(""), [("vringd".into(), format!("{ours} D"))]);
        assert_eq!(
            commands("--queues 2 --execution uring --direct")[0].1,
            format!("{ours} --queues 2 --execution uring --allow-direct-io D")
        );
        let two =
            commands("--ours '' --ours '--cache never' --against virtiofsd=/x/virtiofsd --against-args '--xattr'");
        assert_eq!(two[1], ("vringd --cache never".into(), format!("{ours} --cache never D")));
        let peer =
            "/x/virtiofsd --socket-path S --shared-dir D --sandbox=none --seccomp=none --log-level=error --xattr";
        assert_eq!(two[2], ("virtiofsd".into(), peer.into()));
        let other = commands("--alone --against '/b/peer -s {socket} {dir}' --against 'peer {socket} {dir}'");
        assert_eq!(other, [("peer".into(), "/b/peer -s S D".into()), ("peer#2".into(), "peer S D".into())]);
    }

    #[test]
    fn our_server_speaks_9p_where_it_is_told_to() {
        let free = "--sandbox none --seccomp none D";
        let command = |line: &str| commands(line)[0].1.clone();
        assert_eq!(command("--protocol 9p"), format!("/v dir --protocol 9p --socket S --tag bench {free}"));
        assert_eq!(
            command("--protocol 9p+unix --queues 4"),
            format!("/v dir --protocol 9p --listen unix:S {free}"),
            "connections are no queues"
        );
        let open = "--clients-may-be-root --nosuid --nodev";
        assert_eq!(command("--protocol 9p+tcp"), format!("/v dir --protocol 9p --listen tcp:S {open} {free}"));
    }

    #[test]
    fn names_tell_the_protocol_where_servers_differ_in_it() {
        let two = commands("--protocol 9p --ours '--execution uring' --against virtiofs:vringd");
        assert_eq!((&*two[0].0, &*two[1].0), ("vringd 9p --execution uring", "vringd virtiofs"));
        assert_eq!(two[1].1, "/v dir --socket S --tag bench --sandbox none --seccomp none D");
        let two = commands("--protocol 9p+tcp --against diod=/x/diod --against-args '-t 4'");
        assert_eq!(
            two[1],
            ("diod".into(), "/x/diod --foreground --no-auth --logdest stderr --export D --listen S -t 4".into())
        );
        let contenders = args("--protocol 9p --against diod --aname x").unwrap().contenders(Path::new("/v")).unwrap();
        assert_eq!((contenders[1].protocol, &*contenders[1].aname), (Protocol::P9Unix, "{dir}"));
        assert_eq!(contenders[0].aname, "", "the name is for servers that are not known");
        let one =
            args("--protocol 9p+tcp --socket h:1 --dir d --aname x").unwrap().contenders(Path::new("/v")).unwrap();
        assert_eq!((&*one[0].name, &*one[0].aname), ("h:1", "x"));
        assert!(matches!(&one[0].kind, Kind::Running(Address::Tcp(address), None) if address == "h:1"));
    }

    #[test]
    fn qemu_is_where_it_is_said_to_be_or_where_the_program_knows_one() {
        let of = |line: &str, known: Option<&str>| {
            let args = Args { qemu_path: known.map(Into::into), ..args(line).unwrap() };
            let mut contenders = args.contenders(Path::new("/v")).unwrap();
            let peer = contenders.remove(1);
            let Kind::Qemu(qemu) = peer.kind else { panic!("{line}: {:?}", peer.kind) };
            (peer.name, peer.protocol, qemu.program, qemu.more)
        };
        let nine = |name: &str, program: &str| (name.to_owned(), Protocol::P9, program.to_owned(), Vec::new());
        assert_eq!(of("--protocol 9p --against qemu", None), nine("qemu", "qemu-system-x86_64"));
        assert_eq!(of("--protocol 9p --against qemu", Some("/lab/qemu")), nine("qemu", "/lab/qemu"));
        assert_eq!(of("--protocol 9p --against qemu=/x", Some("/lab/qemu")), nine("qemu", "/x"));
        let (name, _, _, more) = of("--against 9p:qemu --against-args '-trace x'", None);
        assert_eq!((&*name, more), ("qemu 9p", vec!["-trace".to_owned(), "x".to_owned()]));
    }

    #[test]
    fn a_command_may_take_a_port_over_tcp_alone() {
        assert_eq!(commands("--alone --against '9p+tcp:peer -p {port} {dir}'")[0].1, "peer -p P D");
        assert!(refused("--alone --against '9p+unix:peer -p {port} {dir}'").contains("{socket}"));
    }

    #[test]
    fn what_does_not_fit_names_the_option() {
        assert!(refused("--against 'peer {socket}'").contains("{dir}"));
        assert!(refused("--alone").contains("--against"));
        assert!(refused("--against 9p:virtiofsd").contains("speaks virtiofs"));
        assert!(refused("--against virtiofs:diod").contains("9p+unix"));
        assert!(refused("--against 9p:diod").contains("9p+unix"));
        assert!(refused("--against virtiofs:qemu").contains("qemu speaks 9p"));
        assert!(refused("--against qemu --depth 16 --queues 3").contains("--depth 16 on --queues 3"));
        assert!(refused("--against diod --against-args \"'\"").contains("--against-args"));
    }
}
