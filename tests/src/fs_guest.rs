//! What the guests that mount a directory have in common.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::device::Device;
use crate::directory_server::{DirectoryServer, Protocol, TAG};
use crate::lab::Lab;
use crate::p9_guest;
use crate::uml::{self, Guest, Kernel, Machine};
use crate::vringd;

/// Makes a repository in the guest, clones it, builds the clone, and removes it all. Each of the
/// programs that are built says its own number.
pub const CLONE_BUILD_REMOVE: &str = "export GIT_CONFIG_GLOBAL=/tmp/gitconfig
     git config --global user.name guest
     git config --global user.email guest@example.org
     git config --global init.defaultBranch main
     mkdir origin; cd origin; git init --quiet
     number=0
     while [ $number -lt 400 ]; do
         mkdir -p part$((number % 20))
         echo \"int f$number(void) { return $number; }\" >part$((number % 20))/f$number.c
         number=$((number + 1))
     done
     echo 'int f399(void); int main(void) { return f399() != 399; }' >main.c
     printf '%s\\n' 'objects = $(patsubst %.c,%.o,$(wildcard part*/*.c))' \
         'program: main.o $(objects)' '\ttcc -o $@ $^' '%.o: %.c' '\ttcc -c -o $@ $<' >Makefile
     git add . && git commit --quiet --message first
     git tag start && echo changed >>main.c && git commit --quiet --all --message second && git reset --quiet --hard start
     cd ..
     git clone --quiet --no-local --no-hardlinks file:///mnt/share/origin clone
     cd clone
     git fsck --full --strict
     git switch --quiet --create work
     git mv part0 moved && git commit --quiet --message moved
     git checkout --quiet main
     test -z \"$(git status --porcelain)\"
     make --silent --jobs=4
     ./program
     test $(find . -name '*.o' | wc -l) = 401
     git clean --quiet --force -d -x
     test -z \"$(find . -name '*.o')\"
     cd ..
     cp -a /usr/share/perl5 perl5
     tar -cf perl5.tar perl5
     mkdir again; tar -xf perl5.tar -C again
     diff -r perl5 again/perl5
     rm -r origin clone perl5 perl5.tar again
     test -z \"$(ls -A)\"";

/// Wraps a script for a User Mode Linux guest: it runs in the mounted directory, `/mnt/share`. It
/// knows this package's tool as `$tool` and the programs that test file systems as
/// `$programs/NAME`. What it does is shown on the console. At its end the directory is unmounted, which fails if anything still uses it.
pub fn script(lab: &Lab, body: &str) -> Result<String> {
    around(lab, &format!("mount -t virtiofs {TAG} /mnt/share"), body)
}

/// As [`script`], with `mount`, which mounts on `/mnt/share` and may do more.
pub(crate) fn around(lab: &Lab, mount: &str, body: &str) -> Result<String> {
    let tools = tools(lab)?;
    Ok(format!(
        "{tools}
         {mount}
         cd /mnt/share
         {body}
         cd /
         umount /mnt/share"
    ))
}

/// What [`script`] promises beside the directory.
fn tools(lab: &Lab) -> Result<String> {
    let tool = vringd::beside_the_test("fs_tool")?;
    let tool_directory = tool.parent().context("a program lies in a directory")?.display();
    let programs = lab.fs_programs();
    let programs = programs.display();
    Ok(format!(
        "set -x
         mkdir /mnt/share /mnt/tool /mnt/programs
         mount -t hostfs none /mnt/tool -o hostfs={tool_directory}
         mount -t hostfs none /mnt/programs -o hostfs={programs}
         tool=/mnt/tool/fs_tool
         programs=/mnt/programs"
    ))
}

/// One of several scripts that share a guest, whose start takes as long as many of them.
#[derive(Debug)]
pub struct Script<'a> {
    /// By what its failure is told.
    pub name: &'a str,
    /// Whose directory it runs in. Those of one guest have different tags.
    pub server: &'a DirectoryServer,
    /// Options of the mount beyond what it needs.
    pub options: &'a str,
    /// As for [`script`].
    pub body: &'a str,
}

/// Boots one guest for all scripts, each on its own directory; see [`uml::run_each`].
///
/// # Errors
///
/// Names every script that failed.
pub fn run_each(lab: &Lab, machine: impl Into<Machine>, scripts: &[Script<'_>], limit: Duration) -> Result<()> {
    let before = format!("{}\nexport tool programs", tools(lab)?);
    let whole = |script: &Script<'_>| {
        let Script { name, server, options, body } = script;
        let (kind, options) = match server.protocol() {
            Protocol::VirtioFs if options.is_empty() => ("virtiofs", String::new()),
            Protocol::VirtioFs => ("virtiofs", format!("-o {options}")),
            Protocol::P9 => ("9p", format!("-o {}", p9_guest::options(options))),
        };
        let tag = server.tag();
        let body =
            format!("mount -t {kind} {options} {tag} /mnt/share\ncd /mnt/share\n{body}\ncd /\numount /mnt/share");
        // What still uses the directory must not be there for the next script, nor when the kernel goes down, which would wait
        // for a 9p device for ever.
        uml::Script { name: (*name).to_owned(), body, amends: "umount -l /mnt/share" }
    };
    let devices: Vec<Device> = scripts.iter().map(|script| script.server.device()).collect();
    let scripts: Vec<uml::Script> = scripts.iter().map(whole).collect();
    uml::run_each(lab, machine, &devices, &before, &scripts, limit)
}

/// Boots a guest on a served directory and lets it run a script; see [`script`].
pub fn boot(lab: &Lab, machine: impl Into<Machine>, server: &DirectoryServer, body: &str) -> Result<Guest> {
    Guest::boot(lab, machine, &[server.device()], &script(lab, body)?)
}

/// As [`boot`], and the script must succeed. Returns the console's text.
pub fn run(lab: &Lab, kernel: Kernel, server: &DirectoryServer, body: &str, limit: Duration) -> Result<String> {
    uml::run(lab, kernel, &[server.device()], &script(lab, body)?, limit)
}
