//! LUKS containers: those of QEMU, which has version 1, and a daemon that goes on without the key file. What cryptsetup makes is a
//! fixture of `crates/luks`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use engine::Solo;
use image::tools::{self, CreateOptions};
use luks::kdf::{Hash, Kdf};
use luks::new::New;
use luks::{LuksStorage, Passphrase};
use storage::{FileOptions, FileStorage, Storage};
use tempfile::TempDir;
use testkit::{Rng, storage as kit};
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::driver::{readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::lab::Lab;
use tests::qemu_img::{img, io_with};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 4 * MIB;

fn write_key(path: &Path) -> Result<()> {
    fs::write(path, "correct horse")?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

/// The cheapest derivation, for a container whose passphrase everybody knows.
fn cheap(version: u16) -> New {
    let kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1000, salt: Vec::new() };
    New { digest_iterations: 1000, ..New::version(version, kdf) }
}

/// The options of QEMU's programs: the secret, and the container.
fn options(container: &Path, key: &Path) -> [String; 2] {
    let secret = format!("secret,id=s,file={}", key.display());
    [secret, format!("driver=luks,key-secret=s,file.driver=file,file.filename={}", container.display())]
}

/// What QEMU reads.
fn contents(lab: &Lab, container: &Path, key: &Path) -> Result<Vec<u8>> {
    let ([secret, image], out) = (options(container, key), container.with_extension("raw"));
    let out_text = out.to_str().context("UTF-8")?;
    img(lab, &["convert", "--object", &secret, "--image-opts", &image, "-O", "raw", out_text])?.expect_success()?;
    Ok(fs::read(out)?)
}

/// Writes random bytes at random places, some of them zeroes, to the disk and the vector.
fn change(storage: &dyn Storage, oracle: &mut [u8], rng: &mut Rng) -> Result<()> {
    let mut solo = Solo::new()?;
    for _ in 0..50 {
        let sectors = oracle.len() as u64 / 512;
        let at = rng.below(sectors);
        let len = (1 + rng.below(600)).min(sectors - at);
        let range = (at * 512) as usize..((at + len) * 512) as usize;
        oracle[range.clone()].iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
        kit::write(&mut solo, storage, at * 512, &oracle[range])?;
    }
    Ok(())
}

#[test]
fn qemu_and_we_read_what_the_other_has_written() -> Result<()> {
    let lab = Lab::take_turn();
    let place = TempDir::new_in(kit::disk())?;
    let [container, key] = ["container", "key"].map(|name| place.path().join(name));
    write_key(&key)?;
    let passphrase = Passphrase::read(&key)?;
    let mut rng = Rng(0x1b5);
    // QEMU measures how fast it derives keys, for seconds: AES-128 is with what cryptsetup makes.
    for by_qemu in ["aes-256", ""] {
        let _ = fs::remove_file(&container);
        if by_qemu.is_empty() {
            let new = cheap(1);
            fs::File::create(&container)?.set_len(new.data_offset() + BYTES)?;
            let file = FileStorage::open(&FileOptions::new(&container))?;
            luks::tools::format(&file, &new, &passphrase)?;
        } else {
            let secret = &options(&container, &key)[0];
            let how = format!("key-secret=s,iter-time=10,cipher-alg={by_qemu}");
            let path = container.to_str().context("UTF-8")?;
            let args = ["create", "-q", "-f", "luks", "--object", secret, "-o", &how, path, "4M"];
            img(&lab, &args)?.expect_success()?;
        }
        let open = || -> Result<LuksStorage> {
            let file = Arc::new(FileStorage::open(&FileOptions::new(&container))?);
            Ok(LuksStorage::unlock(file, &passphrase, false)?)
        };
        let storage = open()?;
        ensure!(storage.capacity_bytes() == BYTES, "{by_qemu}: {} bytes", storage.capacity_bytes());
        let mut oracle = kit::read(&mut Solo::new()?, &storage, 0, BYTES as usize);
        change(&storage, &mut oracle, &mut rng)?;
        drop(storage);
        kit::assert_same(&contents(&lab, &container, &key)?, &oracle, 0);
        let [secret, image] = options(&container, &key);
        let write = ["write -P 0x5a 3k 1M", "write -z 2M 64k", "write -P 0x11 4095k 1k"];
        io_with(&lab, &["--object", &secret, "--image-opts"], &image, &write)?.expect_success()?;
        oracle[3 << 10..(3 << 10) + (1 << 20)].fill(0x5a);
        oracle[2 << 20..(2 << 20) + (64 << 10)].fill(0);
        oracle[4095 << 10..].fill(0x11);
        kit::assert_same(&kit::read(&mut Solo::new()?, &open()?, 0, BYTES as usize), &oracle, 0);
    }
    Ok(())
}

/// Over an image of QEMU's, in a sandbox, with a key file that is gone when the next program takes over.
#[test]
fn an_upgrade_goes_on_without_the_key_file() -> Result<()> {
    let place = directory()?;
    let [image, key] = ["disk.qcow2", "key"].map(|name| place.path().join(name));
    write_key(&key)?;
    let new = cheap(2);
    let size_bytes = Some(new.data_offset() + BYTES);
    tools::create(&image, &CreateOptions { size_bytes, ..CreateOptions::default() })?;
    let container = storage::open(&image::Qcow2Options::new(&image))?;
    luks::tools::format(&*container, &new, &Passphrase::read(&key)?)?;
    drop(container);
    let storage = format!(
        "{{ kind = 'qcow2', path = '{DIRECTORY}/disk.qcow2', luks = {{ key_file = '{DIRECTORY}/key', allow_discards = true }} }}"
    );
    let config = format!("[[export]]\nname = 'e'\nsocket = '{DIRECTORY}/e.sock'\nqueues = 1\nstorage = {storage}\n");
    let daemon = Daemon::serve_in(place, &config)?;
    let about = daemon.export("e")?.storage.context("a disk")?;
    ensure!((&*about.kind, about.capacity_bytes, about.block_size_bytes) == ("luks", BYTES, 4096), "{about:?}");
    fs::remove_file(&key)?;
    let mut frontend = Frontend::connect(&daemon.socket("e"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for round in 0..3u8 {
        frontend.memory().write(DATA, &[round + 1; 8192]);
        let sector = u64::from(round) * 1024;
        ensure!(ring.run(kind::OUT, sector, &[readable(DATA, 8192)]).0 == status::OK, "round {round}");
        // Part of a sector that is encrypted as a whole.
        ensure!(ring.run(kind::OUT, sector, &[readable(DATA, 512)]).0 == status::IOERR, "round {round}");
        ensure!(ring.run(kind::OUT, sector + 1, &[readable(DATA, 4096)]).0 == status::IOERR, "round {round}");
        let takeover = daemon.upgrade()?.takeover.context("it took over")?;
        ensure!((takeover.sessions, takeover.lost.len()) == (1, 0), "{takeover:?}");
        for before in 0..=round {
            frontend.memory().write(DATA, &[0xee; 8192]);
            let sector = u64::from(before) * 1024;
            ensure!(ring.run(kind::IN, sector, &[writable(DATA, 8192)]).0 == status::OK, "round {round}");
            ensure!(frontend.memory().read(DATA, 8192) == [before + 1; 8192], "round {round}, block {before}");
        }
    }
    drop((ring, frontend));
    daemon.stop()
}
