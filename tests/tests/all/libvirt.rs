//! Domains of libvirt that have their disks and directories from us, as the page about libvirt writes them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::lab::Lab;
use tests::libvirt::{Host, PLACE, block};
use tests::moving::rounds;
use tests::qemu::QUIET;
use tests::vringd;

const MIB: u64 = 1 << 20;
const SECTOR_BYTES: u64 = 512;
/// Until a guest has gone on, which has to boot first or waits for a daemon.
const LIMIT: Duration = Duration::from_secs(120);

/// Each round writes a block of the disk and a file of the directory, looks at those of eight rounds before, and tells how many disks
/// there are and how large the first one is. What the host leaves in `order` is done. It goes on for ever, and ends where something
/// is wrong.
const SCRIPT: &str = "mkdir -p /mnt
    mount -t virtiofs share /mnt
    echo up >>/mnt/boots
    exec 3>>/mnt/log
    round=0
    block() { yes \"$1\" | head -c 16384; }
    while true; do
        block $round | dd of=/dev/vda bs=16k seek=$((round % 64)) oflag=direct 2>/dev/null
        echo $round >/mnt/file.$((round % 64))
        echo \"line $round\" >&3
        test \"$(tail -n 1 /mnt/log)\" = \"line $round\"
        if [ $round -ge 8 ]; then
            before=$((round - 8))
            block $before >/expected
            dd if=/dev/vda bs=16k skip=$((before % 64)) count=1 iflag=direct 2>/dev/null | cmp - /expected
            test \"$(cat /mnt/file.$((before % 64)))\" = $before
        fi
        if [ -e /mnt/order ]; then
            mv /mnt/order /tmp/order
            . /tmp/order
        fi
        round=$((round + 1))
        echo \"round $round ends: $(ls -d /dev/vd? | wc -l) disks, $(cat /sys/block/vda/size) sectors\"
    done";

/// Where the page has its images.
const IMAGES: &str = "/var/lib/libvirt/images";

/// What domains and their hosts have in common.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Self> {
        let place = Self(TempDir::with_prefix("vringd-test-")?);
        for (name, size) in [("vm1.qcow2", "64M"), ("vm2.qcow2", "32M")] {
            let made = vringd::run(place.path(), &["image", "create", "--size", size, name])?;
            ensure!(made.status.success(), "{}", vringd::said(&made));
        }
        fs::create_dir(place.path().join("share"))?;
        fs::create_dir(place.path().join("more"))?;
        fs::write(place.path().join("script"), SCRIPT)?;
        let page = block("toml", "control")?;
        let (_, export) = page.split_once("[[export]]").context("the page has an export")?;
        let config = format!("{page}\n[[export]]{}", export.replace("vm1", "vm2")).replace(IMAGES, PLACE);
        // QEMU is root's on these hosts.
        let config: Vec<_> = config.lines().filter(|line| !line.starts_with("socket_owner")).collect();
        fs::write(place.path().join("vringd.toml"), config.join("\n"))?;
        fs::write(place.path().join("domain.xml"), domain()?)?;
        fs::write(place.path().join("disk.xml"), disk()?.replace("vm1", "vm2").replace("vda", "vdb"))?;
        // With the page's program and its options.
        let more = directory("more", "more")?.replace("<source ", &format!("{}<source ", block("xml", "<binary ")?));
        fs::write(place.path().join("directory.xml"), more)?;
        Ok(place)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn console(&self) -> String {
        fs::read(self.path().join("console"))
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }

    /// Waits until the guest says `text`, which it says each round.
    fn wait_to_say(&self, text: &str) -> Result<()> {
        self.wait(self.console().len(), |console| console.contains(text)).with_context(|| text.to_owned())
    }

    /// Waits until it has gone on for rounds enough to have looked at what was there before.
    fn goes_on(&self) -> Result<()> {
        self.wait(self.console().len(), |console| rounds(console) >= 10)
    }

    fn wait(&self, from: usize, is_enough: impl Fn(&str) -> bool) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let console = self.console();
            ensure!(!console.contains("vringd-lab-status"), "something was wrong in the guest: {console}");
            if is_enough(console.get(from..).unwrap_or_default()) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the guest does not go on: {console}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Has the guest do something in its next round, and waits until it says that it has.
    fn do_there(&self, script: &str) -> Result<()> {
        let from = self.console().len();
        self.order(&format!("{script}; echo that is done"))?;
        self.wait(from, |console| console.contains("that is done"))
    }

    /// Has the guest do something in its next round.
    fn order(&self, script: &str) -> Result<()> {
        let written = self.path().join("order");
        fs::write(&written, script)?;
        Ok(fs::rename(written, self.path().join("share/order"))?)
    }

    fn boots(&self) -> Result<usize> {
        Ok(fs::read_to_string(self.path().join("share/boots"))?.lines().count())
    }
}

/// The page's disk.
fn disk() -> Result<String> {
    block("xml", "<disk ")
}

/// The page's directory.
fn directory(source: &str, target: &str) -> Result<String> {
    let page = block("xml", "<filesystem ")?;
    Ok(page.replace("'/srv/share'", &format!("'{PLACE}/{source}'")).replace("'share'", &format!("'{target}'")))
}

/// A domain of them, with the lab's kernel, whose script is a file of its firmware. It has one processor, as the emulator
/// loses the timers of others at times ([`tests::spoiled`]). Each port takes a device that is plugged in.
fn domain() -> Result<String> {
    Ok(format!(
        "<domain type='qemu'>
           <name>vm1</name>
           <memory unit='MiB'>256</memory>
           <vcpu>1</vcpu>
           {}
           <sysinfo type='fwcfg'><entry name='opt/vringd/script' file='{PLACE}/script'/></sysinfo>
           <os>
             <type arch='x86_64' machine='q35'>hvm</type>
             <kernel>/lab/vmlinuz</kernel>
             <initrd>/lab/initramfs</initrd>
             <cmdline>console=ttyS0 quiet panic=-1 init_on_alloc=0 {QUIET}</cmdline>
           </os>
           <features><acpi/></features>
           <clock offset='utc'><timer name='hpet' present='no'/></clock>
           <devices>
             <controller type='pci' index='0' model='pcie-root'/>
             {}
             {}
             {}
             <serial type='file'><source path='{PLACE}/console' append='on'/><target port='0'/></serial>
             <memballoon model='none'/>
           </devices>
         </domain>",
        block("xml", "<memoryBacking>")?,
        "<controller type='pci' model='pcie-root-port'/>".repeat(8),
        disk()?,
        directory("share", "share")?,
    ))
}

/// The daemon of a host, started anew.
const SERVE: &str = "mkdir -p /run/vringd
    vringd serve /place/vringd.toml >>/place/$(hostname)/vringd.log 2>&1 &
    echo $! >/run/vringd/pid
    until vringd ctl export list >/dev/null 2>&1; do kill -0 $!; sleep 0.05; done";

/// A host with a daemon that serves the disks.
fn host(lab: &Lab, place: &Place, name: &str) -> Result<Host> {
    let mut host = Host::start(lab, place.path(), name)?;
    host.run(SERVE)?;
    Ok(host)
}

#[test]
fn a_domain_is_changed_saved_and_restored() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let mut host = host(&lab, &place, "here")?;
    host.run("virsh define /place/domain.xml; virsh start vm1")?;
    place.goes_on()?;

    host.run("virsh attach-device vm1 /place/disk.xml --live; virsh attach-device vm1 /place/directory.xml --live")?;
    place.wait_to_say("2 disks")?;
    // Its own words are not what this looks for.
    let server = r"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -x -e '--thread-pool-size=[0]'";
    host.run(server).context("it has the options of the page")?;
    place.do_there("mkdir -p /more; mount -t virtiofs more /more; echo well >/more/made; umount /more")?;
    ensure!(fs::read_to_string(place.path().join("more/made"))? == "well\n");
    // libvirt waits until the guest has let go of it.
    host.run("virsh detach-device vm1 /place/disk.xml --live; virsh detach-device vm1 /place/directory.xml --live")?;
    place.wait_to_say("1 disks")?;
    host.run(&format!("while {server}; do sleep 0.1; done"))?;
    host.run("vringd ctl disk resize vm1 96M")?;
    place.wait_to_say(&format!("{} sectors", 96 * MIB / SECTOR_BYTES))?;

    for (leave, come_back) in [
        ("virsh save vm1 /tmp/saved", "virsh restore /tmp/saved"),
        ("virsh managedsave vm1", "virsh start vm1"),
        ("virsh suspend vm1", "virsh resume vm1"),
        // The daemon dies under it, and another one goes on.
        ("kill -9 $(cat /run/vringd/pid)", SERVE),
    ] {
        host.run(leave)?;
        host.run(come_back)?;
        place.goes_on()?;
    }
    ensure!(place.boots()? == 1, "it was one life until here");
    place.order("reboot -f")?;
    place.goes_on()?;
    ensure!(place.boots()? == 2);
    host.run("virsh destroy vm1; until vringd ctl export list | grep 'vm1 *listening'; do sleep 0.05; done")?;
    Ok(())
}

/// Moves the domain to another host, over sockets in their place.
fn migrate(to: &str) -> String {
    format!(
        "virsh migrate vm1 --live --p2p --persistent --undefinesource \
         --desturi 'qemu+unix:///system?socket={PLACE}/{to}/run/libvirt-sock' --migrateuri 'unix://{PLACE}/{to}/move.sock'"
    )
}

#[test]
fn a_domain_moves_to_another_libvirt_and_back() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let mut here = host(&lab, &place, "here")?;
    let mut there = host(&lab, &place, "there")?;
    here.run("virsh define /place/domain.xml; virsh start vm1")?;
    place.goes_on()?;

    // Given up half-way, it stays.
    let slowly = format!(
        "virsh migrate-setspeed vm1 8
         ({}) >/tmp/said 2>&1 & moves=$!
         until virsh domjobinfo vm1 | grep -q 'Memory processed'; do sleep 0.1; done
         virsh domjobabort vm1
         if wait $moves; then exit 1; fi
         virsh migrate-setspeed vm1 10000",
        migrate("there")
    );
    here.run(&slowly)?;
    place.goes_on()?;

    here.run(&migrate("there"))?;
    place.goes_on()?;
    ensure!(there.run("virsh domstate vm1")?.contains("running"));
    here.fails("virsh domstate vm1")?;
    there.run(&migrate("here"))?;
    place.goes_on()?;
    ensure!(here.run("virsh domstate vm1")?.contains("running"));
    ensure!(place.boots()? == 1, "it was one life");
    Ok(())
}
