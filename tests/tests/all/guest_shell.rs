//! Guests that stay up and run one script after the other.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest::{Device, Guest, Kit, Machine, Shell, qemu, uml};
use tests::directory_server::{Directory, DirectoryServer, TAG};
use tests::lab::Lab;
use tests::server::{Disk, Server};

const LIMIT: Duration = Duration::from_secs(120);
const SHORT_LIMIT: Duration = Duration::from_secs(2);

const ONE: Machine = Machine { processors: 1, memory_mib: 256, one_node: false, instruction_clock: false };
const TWO: Machine = Machine { processors: 2, memory_mib: 256, one_node: false, instruction_clock: false };

/// What holds in every guest.
fn runs_scripts(guest: &mut Guest) -> Result<()> {
    let first = guest.run("echo one; cat; uname -r", LIMIT)?;
    ensure!(first.status == 0 && first.stderr.is_empty(), "{first:?}");
    ensure!(first.stdout == format!("one\n{}\n", guest.kernel()), "{first:?}");
    let second = guest.run("echo out; echo err >&2; echo kept >/tmp/kept; exit 3", LIMIT)?;
    ensure!((second.status, &*second.stdout, &*second.stderr) == (3, "out\n", "err\n"), "{second:?}");
    let third = guest.run("cat /tmp/kept; false; echo never", LIMIT)?;
    ensure!((third.status, &*third.stdout) == (1, "kept\n"), "{third:?}");
    // What no line could carry whole.
    let long = guest.run("head -c 3000000 /dev/zero | tr '\\0' x", LIMIT)?;
    ensure!(long.status == 0 && long.stdout.len() == 3_000_000 && long.stdout.bytes().all(|byte| byte == b'x'));
    let fio = guest.run("fio --version", LIMIT)?;
    ensure!(fio.stdout.starts_with("fio-3"), "{fio:?}");
    let job = "fio --name=job --filename=/tmp/file --size=1m --rw=randread --output-format=json";
    let job = guest.run(job, LIMIT)?;
    ensure!(job.status == 0 && job.stdout.contains("\"jobs\""), "{job:?}");
    Ok(())
}

/// Processor time of the guest grows with what it does.
fn counts_time(guest: &mut Guest) -> Result<()> {
    let before = guest.cpu_s()?;
    let output = guest.run("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; times", LIMIT)?;
    ensure!(output.status == 0 && guest.cpu_s()? > before, "no time was used by {output:?}");
    Ok(())
}

/// Processes of a group, by `/proc`.
fn members(group: u32) -> Result<Vec<String>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let fields: Vec<&str> = stat.rsplit_once(')').context("a stat has a name")?.1.split_whitespace().collect();
        if fields.get(2) == Some(&group.to_string().as_str()) && fields.first() != Some(&"Z") {
            members.push(stat);
        }
    }
    Ok(members)
}

fn leaves_no_process(group: u32) -> Result<()> {
    let start = Instant::now();
    while !members(group)?.is_empty() {
        ensure!(start.elapsed() < LIMIT, "still there: {:?}", members(group)?);
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Ends by itself, and nothing stays.
fn ends(guest: Guest) -> Result<()> {
    let group = guest.pid().context("a guest is a process")?;
    let guest: Box<dyn Shell> = Box::new(guest);
    guest.end()?;
    leaves_no_process(group)
}

/// A script that outlives its limit takes the guest with it.
fn dies_after_its_limit(mut guest: Guest) -> Result<()> {
    let group = guest.pid().context("a guest is a process")?;
    let share = guest.share().to_owned();
    ensure!(!members(group)?.is_empty() && share.exists());
    let error = format!("{:#}", guest.run("sleep 1000", SHORT_LIMIT).unwrap_err());
    ensure!(error.contains("did not answer within 2 s") && error.lines().count() == 1, "{error}");
    leaves_no_process(group)?;
    let error = format!("{:#}", guest.run("true", LIMIT).unwrap_err());
    ensure!(error.contains("has gone"), "{error}");
    ensure!(guest.cpu_s().is_err());
    drop(guest);
    ensure!(!share.exists(), "{} stays behind", share.display());
    Ok(())
}

#[test]
fn uml_guest_runs_scripts() -> Result<()> {
    let lab = Lab::take_turn();
    let mut guest = uml::boot(&lab.kit(), &TWO, &[])?;
    runs_scripts(&mut guest)?;
    counts_time(&mut guest)?;
    ensure!(guest.run("nproc", LIMIT)?.stdout == "2\n");
    ends(guest)?;
    dies_after_its_limit(uml::boot(&lab.kit(), &ONE, &[])?)
}

#[test]
fn uml_guest_of_debian_runs_scripts() -> Result<()> {
    let lab = Lab::take_turn();
    let kit = Kit { uml: Some(lab.uml()), ..lab.kit() };
    let mut guest = uml::boot(&kit, &ONE, &[])?;
    runs_scripts(&mut guest)?;
    ends(guest)?;
    let error = format!("{:#}", uml::boot(&kit, &TWO, &[]).unwrap_err());
    ensure!(error.contains("runs 1 of 2 processors"), "{error}");
    Ok(())
}

#[test]
fn qemu_guest_runs_scripts() -> Result<()> {
    let lab = Lab::take_turn();
    let mut guest = qemu::boot(&lab.kit(), &TWO, &[])?;
    runs_scripts(&mut guest)?;
    counts_time(&mut guest)?;
    ensure!(guest.run("nproc", LIMIT)?.stdout == "2\n");
    ends(guest)?;
    dies_after_its_limit(qemu::boot(&lab.kit(), &ONE, &[])?)
}

#[test]
fn qemu_guests_clock_counts_instructions() -> Result<()> {
    let lab = Lab::take_turn();
    let mut guest = qemu::boot(&lab.kit(), &Machine { instruction_clock: true, ..TWO }, &[])?;
    let script = "read start _ </proc/uptime; i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done; read end _ </proc/uptime; \
                  echo $start $end; sleep 1";
    let begun = Instant::now();
    let said = guest.run(script, LIMIT)?;
    let here = begun.elapsed() - Duration::from_secs(1);
    let times: Vec<f64> = said.stdout.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(times.len() == 2, "{said:?}");
    // No translator does an instruction a nanosecond, so that its work takes longer here than there; a sleep does not.
    let there = times[1] - times[0];
    println!("{there} s of the guest's, {} s of ours", here.as_secs_f64());
    ensure!(there > 0.0 && there < 0.8 * here.as_secs_f64(), "{there} s of the guest's, {here:?} of ours");
    ends(guest)
}

#[test]
fn two_guests_work_at_once_on_a_disk_and_a_directory() -> Result<()> {
    let lab = Lab::take_turn();
    let files = tempfile::TempDir::new()?;
    fs::write(files.path().join("file"), "content\n")?;
    let image = files.path().join("image");
    fs::File::create(&image)?.set_len(8 << 20)?;
    let mut disk = Server::start(&lab, &Disk { queues: 2, ..Disk::new(image.as_path()) })?;
    let mut directory = DirectoryServer::start(&lab, &Directory::new(files.path()))?;
    let mut first = uml::boot(&lab.kit(), &TWO, &[disk.device()])?;
    let mut second = qemu::boot(&lab.kit(), &ONE, &[directory.device()])?;
    thread::scope(|scope| -> Result<()> {
        let first = scope.spawn(|| first.run("echo written >/dev/vda; sync; head -n 1 /dev/vda", LIMIT));
        let mount = format!("mkdir /mnt/share; mount -t virtiofs {TAG} /mnt/share; cat /mnt/share/file");
        let second = second.run(&mount, LIMIT)?;
        ensure!(second.stdout == "content\n", "{second:?}");
        let first = first.join().ok().context("the other guest")??;
        ensure!(first.stdout == "written\n", "{first:?}");
        Ok(())
    })?;
    ensure!(second.run("umount /mnt/share", LIMIT)?.status == 0);
    ends(first)?;
    ends(second)?;
    disk.check_alive()?;
    directory.check_alive()
}

#[test]
fn qemu_serves_a_disk_and_a_directory_itself() -> Result<()> {
    let lab = Lab::take_turn();
    let files = tempfile::TempDir::new()?;
    fs::write(files.path().join("file"), "content\n")?;
    let image = files.path().join("an,image");
    fs::File::create(&image)?.set_len(8 << 20)?;
    let devices = [
        Device::QemuDisk { image: image.clone(), queues: 2, direct: false },
        Device::Qemu9p {
            directory: files.path().to_owned(),
            tag: "share".to_owned(),
            security_model: "none".to_owned(),
        },
    ];
    let mut guest = qemu::boot(&lab.kit(), &TWO, &devices)?;
    let script = "echo written | dd of=/dev/vda conv=notrunc,fsync 2>/dev/null
         ls /sys/block/vda/mq | wc -l
         mkdir /mnt/share; mount -t 9p -o trans=virtio,version=9p2000.L,cache=mmap share /mnt/share
         cat /mnt/share/file; echo back >/mnt/share/back; umount /mnt/share";
    let output = guest.run(script, LIMIT)?;
    ensure!((output.status, &*output.stdout) == (0, "2\ncontent\n"), "{output:?}");
    ends(guest)?;
    ensure!(fs::read_to_string(files.path().join("back"))? == "back\n");
    ensure!(fs::read(&image)?.starts_with(b"written\n"));
    Ok(())
}

#[test]
fn kernel_that_does_not_boot_says_why() -> Result<()> {
    let lab = Lab::take_turn();
    let root = tempfile::TempDir::new()?;
    fs::create_dir(root.path().join("bin"))?;
    fs::write(root.path().join("bin/sh"), "no shell at all")?;
    let kit = Kit { root: Some(root.path().to_owned()), ..lab.kit() };
    let error = format!("{:#}", uml::boot(&kit, &ONE, &[]).unwrap_err());
    ensure!(error.contains("the guest does not boot") && error.lines().count() == 1, "{error}");
    let error =
        format!("{:#}", qemu::boot(&Kit { kernel: Some(Path::new("/nowhere").into()), ..kit }, &ONE, &[]).unwrap_err());
    ensure!(error.contains("/nowhere") && error.contains("--kernel FILE"), "{error}");
    Ok(())
}
