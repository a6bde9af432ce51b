//! Hosts with a libvirt of their own, in namespaces of this machine.

use std::fs;
use std::io::{PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;
use crate::process::Group;
use crate::vringd;

/// Where the tests' directory is on each host.
pub const PLACE: &str = "/place";

/// Until libvirt answers.
const START_LIMIT: Duration = Duration::from_secs(60);
/// For anything that a host is asked for: libvirt gives a guest half a minute to be killed, and more to be saved.
const ANSWER_LIMIT: Duration = Duration::from_secs(180);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// What QEMU runs as: the root of the namespace, which has no other users and no control groups.
const QEMU_CONF: &str = "user = 'root'\ngroup = 'root'\ndynamic_ownership = 0\nremember_owner = 0\nsecurity_driver = 'none'\n\
                         namespaces = []\ncgroup_controllers = []\nstdio_handler = 'file'\n";

/// The first process of a host. It makes itself a root file system of the lab's, of which nothing is changed, and then does what it is
/// told, line by line.
const INIT: &str = r#"
root=$home/root
mount -t tmpfs tmpfs "$home"
mkdir "$home/upper" "$home/work" "$root"
mount -t overlay overlay -o "$overlay,lowerdir=$lower,upperdir=$home/upper,workdir=$home/work" "$root"
mkdir -p "$root/place" "$root/lab" "$root/usr/libexec/vringd" "$root/usr/share/qemu/vhost-user"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
mount --rbind "$place" "$root/place"
mount --bind "$machine" "$root/lab"
touch "$root/usr/bin/vringd"
mount --bind "$vringd" "$root/usr/bin/vringd"
ln -s ../../bin/vringd "$root/usr/libexec/vringd/virtiofsd"
cp "$description" "$root/usr/share/qemu/vhost-user/"
hostname "$name"
cd "$root"
mkdir old
pivot_root . old
umount -l /old
cd /
ip link set lo up
. /place/$name/init
mkdir -p /run/libvirt
mount --bind "/place/$name/run" /run/libvirt
libvirtd >"/place/$name/libvirtd.log" 2>&1 &
while read -r script; do
    status=0
    timeout 150 sh -eu "$script" >"$script.said" 2>&1 </dev/null || status=$?
    echo "$status" >"$script.new"
    mv "$script.new" "$script.status"
done
"#;

/// A host. What runs on it ends when it is dropped.
#[derive(Debug)]
pub struct Host {
    orders: PipeWriter,
    given: u32,
    files: PathBuf,
    // It is killed before the files go.
    process: Group,
}

impl Host {
    /// A host of that name. What lies in `place` is in [`PLACE`] there, and its own files in a directory of its name.
    pub fn start(lab: &Lab, place: &Path, name: &str) -> Result<Self> {
        let files = place.join(name);
        fs::create_dir_all(files.join("run"))?;
        let home = files.join("home");
        fs::create_dir(&home)?;
        let is_root = rustix::process::geteuid().is_root();
        fs::write(
            files.join("init"),
            format!(
                "cat >/etc/libvirt/qemu.conf <<'END'\n{QEMU_CONF}END\n\
                 echo \"host_uuid = '$(cat /proc/sys/kernel/random/uuid)'\" >/etc/libvirt/libvirtd.conf\n"
            ),
        )?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child"]);
        if !is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command
            // Which buries what libvirt leaves to it, also while it waits for an order.
            .args(["bash", "-eu", "-c", INIT])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            // Which the tests' runner sets, for its own libraries.
            .env_remove("LD_LIBRARY_PATH")
            .env("name", name)
            .env("place", place)
            .env("home", &home)
            // Whose attributes are an unprivileged user's to set.
            .env("overlay", if is_root { "xino=off" } else { "userxattr" })
            .env("lower", lab.libvirt_root())
            .env("machine", lab.kernel().parent().context("the kernel lies in a directory")?)
            .env("vringd", fs::canonicalize(vringd::program()?)?)
            .env("description", Path::new(env!("CARGO_MANIFEST_DIR")).join("../share/vhost-user/50-vringd.json"));
        let (input, orders) = std::io::pipe()?;
        let process = Group::start_with(&command, input, &files.join("console"))?;
        let mut host = Self { orders, given: 0, files, process };
        let end = Instant::now() + START_LIMIT;
        while host.ask("test -S /run/libvirt/libvirt-sock && virsh version")?.0 != 0 {
            ensure!(Instant::now() < end, "libvirt does not answer");
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(host)
    }

    /// Has a script run there that has to end well, and returns what it says.
    pub fn run(&mut self, script: &str) -> Result<String> {
        let (status, said) = self.ask(script)?;
        ensure!(status == 0, "`{script}` ends with {status}: {said}");
        Ok(said)
    }

    /// Has a script run there that has to fail, and returns what it says.
    pub fn fails(&mut self, script: &str) -> Result<String> {
        let (status, said) = self.ask(script)?;
        ensure!(status != 0, "`{script}` succeeds: {said}");
        Ok(said)
    }

    fn ask(&mut self, script: &str) -> Result<(i32, String)> {
        self.given += 1;
        let path = self.files.join(format!("order-{}", self.given));
        fs::write(&path, script)?;
        let name = self.files.file_name().context("a host has a name")?.display();
        writeln!(self.orders, "{PLACE}/{name}/order-{}", self.given).context("the host has gone")?;
        let status = path.with_extension("status");
        let end = Instant::now() + ANSWER_LIMIT;
        while !status.exists() {
            self.process.check_alive("the host")?;
            ensure!(
                Instant::now() < end,
                "the host does not answer: {}",
                fs::read_to_string(self.files.join("console")).unwrap_or_default()
            );
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
        let said = fs::read_to_string(path.with_extension("said"))?;
        Ok((fs::read_to_string(status)?.trim().parse()?, said))
    }
}

impl Drop for Host {
    /// What it has said is in the test's output, which is shown if the test fails.
    fn drop(&mut self) {
        for name in ["console", "libvirtd.log", "vringd.log"] {
            if let Ok(text) = fs::read_to_string(self.files.join(name)) {
                println!("{}/{name}:\n{text}", self.files.display());
            }
        }
    }
}

/// The block of the page about libvirt that begins so, in a language as `xml`.
pub fn block(language: &str, begins: &str) -> Result<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/with/libvirt.md");
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let mut blocks =
        text.split("```").skip(1).step_by(2).filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n'));
    let found = blocks.find(|block| block.starts_with(begins));
    found.map(str::to_owned).with_context(|| format!("the page about libvirt has no block `{begins}`"))
}
