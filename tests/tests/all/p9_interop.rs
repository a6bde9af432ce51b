//! One directory served twice at once, by QEMU's own 9p server and by ours, under each mapped security model: what one
//! writes on disk is what the other reads.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::device::Device;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::p9_guest;
use tests::qemu::{self, BootFrom};

const LIMIT: Duration = Duration::from_secs(240);

/// One of each kind of file, each with an owner and a mode, made through the mount `$from` and seen through `$to`; then
/// changed through `$to` and seen through `$from`.
const THERE_AND_BACK: &str = "there_and_back() {
    from=$1 to=$2
    mkdir $from/d
    echo content >$from/d/file; chown 1000:1001 $from/d/file; chmod 4751 $from/d/file
    ln -s target/of/a/link $from/d/link; chown -h 5:6 $from/d/link
    mknod $from/d/null c 1 3; chmod 622 $from/d/null
    mknod $from/d/disk b 240 300
    mknod $from/d/fifo p; chown 7:8 $from/d/fifo
    mkdir $from/d/sub; chmod 2770 $from/d/sub; chown 9:10 $from/d/sub
    ln $from/d/file $from/d/hard
    chown 11:12 $from/d; chmod 1711 $from/d
    look $from/d >/tmp/made; look $to/d >/tmp/seen
    cat /tmp/seen
    cmp /tmp/made /tmp/seen
    test \"$(cat $to/d/file)\" = content
    test \"$(readlink $to/d/link)\" = target/of/a/link
    test $(stat -c %h $to/d/hard) = 2
    test $(ls -A $to/d | wc -l) = 7
    chown 21:22 $to/d/file; chmod 600 $to/d/file; chmod 111 $to/d/sub; chown -h 23:24 $to/d/link
    mv $to/d/fifo $to/d/sub/moved; rm $to/d/null; mv $to/d/disk $to/d/other
    look $to/d >/tmp/made; look $from/d >/tmp/seen
    cat /tmp/seen
    cmp /tmp/made /tmp/seen
    rm -r $from/d
    test -z \"$(ls -A $to)\"
}
look() { find $1 | sort | while read path; do stat -c '%F %u %g %a %t %T' \"$path\"; done; }
";

const MODELS: [&str; 2] = ["mapped-xattr", "mapped-file"];

#[test]
fn mapped_directories_are_shared_with_qemu() -> Result<()> {
    let lab = Lab::take_turn();
    let options = p9_guest::options("cache=none");
    let (mut directories, mut servers, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    let mut script = format!("{THERE_AND_BACK}\nset -x\n");
    for model in MODELS {
        let shared = TempDir::new()?;
        let ours = Directory::p9(shared.path()).option(format!("--security-model={model}"));
        let ours = DirectoryServer::start(&lab, &ours)?;
        devices.push(ours.device());
        devices.push(Device::Qemu9p {
            directory: shared.path().to_owned(),
            tag: format!("qemu-{model}"),
            security_model: model.to_owned(),
        });
        // Ours all have one tag; a device that is mounted is not looked at again.
        script.push_str(&format!(
            "mkdir /ours-{model} /qemu-{model}
             mount -t 9p -o {options} share /ours-{model}
             mount -t 9p -o {options} qemu-{model} /qemu-{model}
             there_and_back /qemu-{model} /ours-{model}
             there_and_back /ours-{model} /qemu-{model}
             # The owner of the directory itself.
             chown 31:32 /qemu-{model}/.; chmod 1755 /qemu-{model}/.
             test \"$(stat -c '%u %g %a' /ours-{model}/.)\" = '31 32 1755'
             echo left >/ours-{model}/left; chown 41:42 /ours-{model}/left\n"
        ));
        directories.push(shared);
        servers.push(ours);
    }
    qemu::run(&lab, BootFrom::Host, &devices, 1, &script, LIMIT)?;
    for (shared, server) in directories.iter().zip(&mut servers) {
        ensure!(fs::read_to_string(shared.path().join("left"))? == "left\n");
        server.check_alive()?;
    }
    Ok(())
}
