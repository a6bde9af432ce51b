//! Packages of other Debian suites, without touching the machine's own apt.
//!
//! Each suite gets an apt of its own: its own source list, its own empty list of installed
//! packages. Nothing is installed; packages are downloaded and unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Workshop, host};

/// Debian's keys; the machine's own package `debian-archive-keyring` brings them.
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where this machine gets its Debian from.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Mirror {
    uri: String,
    pub(crate) keyring: String,
}

impl Mirror {
    /// Reads the machine's package sources.
    pub(crate) fn of_this_machine() -> Result<Self> {
        let codename = host::codename()?;
        let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
        if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
            let mut more: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            more.sort();
            files.extend(more);
        }
        files
            .iter()
            .filter_map(|file| Some((file, fs::read_to_string(file).ok()?)))
            .find_map(|(file, text)| {
                if file.extension().is_some_and(|extension| extension == "sources") {
                    Self::in_deb822(&text, &codename)
                } else {
                    Self::in_one_line_style(&text, &codename)
                }
            })
            .with_context(|| {
                format!("no source of Debian's suite `{codename}` in /etc/apt: the lab takes its mirror from there")
            })
    }

    /// Finds the suite `codename` in a `.sources` file (sources.list(5), "deb822-style format").
    fn in_deb822(text: &str, codename: &str) -> Option<Self> {
        text.split("\n\n").find_map(|stanza| {
            let field = |name: &str| {
                stanza.lines().find_map(|line| {
                    let (key, value) = line.split_once(':')?;
                    key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
                })
            };
            let offers = field("Suites")?.split_whitespace().any(|suite| suite == codename)
                && field("Components")?.split_whitespace().any(|part| part == "main")
                && field("Types")?.split_whitespace().any(|kind| kind == "deb")
                && field("Enabled") != Some("no");
            let uri = field("URIs")?.split_whitespace().next()?;
            offers.then(|| Self::new(uri, field("Signed-By")))
        })
    }

    /// Finds the suite `codename` in a `.list` file (sources.list(5), "one-line-style format").
    fn in_one_line_style(text: &str, codename: &str) -> Option<Self> {
        text.lines().find_map(|line| {
            let rest = line.trim().strip_prefix("deb ")?.trim_start();
            let (options, rest) = match rest.strip_prefix('[') {
                Some(rest) => rest.split_once(']')?,
                None => ("", rest),
            };
            let mut words = rest.split_whitespace();
            let (uri, suite) = (words.next()?, words.next()?);
            let keyring = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
            (suite == codename && words.any(|part| part == "main")).then(|| Self::new(uri, keyring))
        })
    }

    fn new(uri: &str, keyring: Option<&str>) -> Self {
        Self {
            uri: uri.to_owned(),
            // Signed-By may also hold the key itself; then Debian's own keyring has to do.
            keyring: keyring.filter(|keyring| keyring.starts_with('/')).unwrap_or(KEYRING).to_owned(),
        }
    }

    /// The line of a source list for `suite`.
    pub(crate) fn line(&self, suite: &str) -> String {
        self.line_of("deb", suite)
    }

    /// As above, for packages of one kind (sources.list(5): `deb`, `deb-src`).
    fn line_of(&self, kind: &str, suite: &str) -> String {
        format!("{kind} [signed-by={}] {} {suite} main", self.keyring, self.uri)
    }
}

/// The apt of one suite.
pub(super) struct Suite<'a> {
    workshop: &'a Workshop,
    directory: PathBuf,
}

impl<'a> Suite<'a> {
    /// Fetches the package list of `suite`.
    pub(super) fn open(workshop: &'a Workshop, suite: &str) -> Result<Self> {
        Self::of_kind(workshop, suite, "deb")
    }

    /// Fetches the list of its source packages.
    pub(super) fn of_sources(workshop: &'a Workshop, suite: &str) -> Result<Self> {
        Self::of_kind(workshop, suite, "deb-src")
    }

    fn of_kind(workshop: &'a Workshop, suite: &str, kind: &str) -> Result<Self> {
        let directory = workshop.scratch().join("apt").join(suite);
        for name in ["lists/partial", "cache/archives/partial", "download"] {
            fs::create_dir_all(directory.join(name))?;
        }
        fs::write(directory.join("status"), "")?;
        let line = Mirror::of_this_machine()?.line_of(kind, suite);
        fs::write(directory.join("sources.list"), format!("{line}\n"))?;
        let suite = Self { workshop, directory };
        workshop.run(suite.apt("apt-get").arg("update"))?;
        Ok(suite)
    }

    /// The package that the empty package `meta` stands for: the first it depends on whose name
    /// starts with `prefix`.
    pub(super) fn behind(&self, meta: &str, prefix: &str) -> Result<String> {
        let output = self.apt("apt-cache").args(["depends", meta]).output()?;
        ensure!(output.status.success(), "apt-cache knows no package {meta}");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with(prefix))
            .map(str::to_owned)
            .with_context(|| format!("package {meta} depends on no {prefix}*"))
    }

    /// Downloads the source package `package`; where the archive of what it packs is.
    pub(super) fn source(&self, package: &str) -> Result<PathBuf> {
        self.download(&["source", "--download-only", package], ".orig.tar.xz")
    }

    /// Has apt-get download what ends so.
    fn download(&self, arguments: &[&str], ends: &str) -> Result<PathBuf> {
        let package = arguments[arguments.len() - 1];
        let download = self.directory.join("download").join(package);
        fs::create_dir_all(&download)?;
        self.workshop.run(self.apt("apt-get").args(arguments).current_dir(&download))?;
        fs::read_dir(&download)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().ends_with(ends))
            .with_context(|| format!("apt-get left no {ends} for {package}"))
    }

    /// Downloads `package` and unpacks it into `directory`.
    pub(super) fn unpack(&self, package: &str, directory: &Path) -> Result<()> {
        let file = self.download(&["download", package], ".deb")?;
        self.workshop.run(Command::new("dpkg").arg("-x").arg(&file).arg(directory))
    }

    fn apt(&self, program: &str) -> Command {
        let directory = self.directory.display();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::Etc::sourcelist={directory}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State={directory}"),
            format!("Dir::State::lists={directory}/lists"),
            format!("Dir::State::status={directory}/status"),
            format!("Dir::Cache={directory}/cache"),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
            // A mirror may be frozen on purpose, and these suites' lists expire within days.
            // Their signatures are still checked.
            "Acquire::Check-Valid-Until=false".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm-security
Components: main

Types: deb deb-src
# a remark
URIs: http://mirror.example/debian http://other.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/house.gpg
";

    #[test]
    fn deb822_sources_name_mirror_and_keyring() {
        assert_eq!(
            Mirror::in_deb822(DEB822, "bookworm"),
            Some(Mirror {
                uri: "http://mirror.example/debian".to_owned(),
                keyring: "/usr/share/keyrings/house.gpg".to_owned(),
            })
        );
        assert_eq!(Mirror::in_deb822(DEB822, "trixie"), None);
    }

    #[test]
    fn one_line_sources_name_mirror_and_keyring() {
        let text = "\
# deb http://remark.example/debian bookworm main
deb http://other.example/ nodistro main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm contrib main
";
        assert_eq!(
            Mirror::in_one_line_style(text, "bookworm").map(|mirror| mirror.line("sid")),
            Some("deb [signed-by=/k.gpg] http://mirror.example/debian sid main".to_owned())
        );
        assert_eq!(
            Mirror::in_one_line_style("deb http://m.example/debian bookworm main", "bookworm")
                .map(|mirror| mirror.keyring),
            Some(KEYRING.to_owned())
        );
    }
}
