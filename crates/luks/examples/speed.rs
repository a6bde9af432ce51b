//! What encryption costs: megabytes a second of processor time (so that a busy machine does not count), of the cipher by itself and of
//! requests of a disk in memory.
//!
//! `cargo run --release -p luks --example speed`

use engine::{Solo, Token};
use luks::kdf::{Hash, Kdf};
use luks::new::New;
use luks::xts::{Direction, Xts};
use luks::{LuksStorage, Passphrase};
use rustix::time::{ClockId, clock_gettime};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use storage::{MemoryOptions, Operation, Step, Storage, Task};
use values::ByteSize;

const SECONDS: f64 = 0.5;
const DISK_BYTES: u64 = 32 << 20;

/// Seconds for which this thread has had a processor.
fn processor() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Megabytes a second of what `step` does, which is so many bytes each time.
fn rate(bytes: usize, mut step: impl FnMut(u64)) -> f64 {
    let (start, mut count) = (processor(), 0u64);
    while processor() - start < SECONDS {
        (0..64).for_each(|turn| step(count + turn));
        count += 64;
    }
    count as f64 * bytes as f64 / (processor() - start) / 1e6
}

fn ciphers() {
    for key_bytes in Xts::KEY_BYTES {
        let key: Vec<u8> = (0..key_bytes).map(|at| at as u8).collect();
        let Some(xts) = Xts::new(&key) else { continue };
        for sector in [512, 4096] {
            for (direction, word) in [(Direction::Encrypt, "encrypt"), (Direction::Decrypt, "decrypt")] {
                let mut bytes = vec![7; 4096];
                let rate = rate(bytes.len(), |turn| xts.run(direction, &mut bytes, turn * 8, sector));
                println!("AES-{} sectors of {sector:4} {word} {rate:6.0} MB/s", key_bytes * 4);
            }
        }
    }
}

/// Operations of `len` bytes, one after the other.
fn requests(storage: &dyn Storage, solo: &mut Solo, len: usize, write: bool) -> f64 {
    let mut memory = vec![0u8; len];
    let mut task = Task::new();
    rate(len, |turn| {
        let offset = turn * len as u64 % DISK_BYTES;
        task.buffers.clear();
        task.buffers.push(libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: len });
        task.begin(if write { Operation::Write { offset, durable: false } } else { Operation::Read { offset } });
        let mut step = storage.start(&mut task, Token::request(0), &mut solo.io());
        while let Step::Pending = step {
            let completion = solo.wait().expect("the kernel completes it");
            step = storage.resume(&mut task, completion, &mut solo.io());
        }
        assert!(matches!(step, Step::Done(Ok(()))), "{step:?}");
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ciphers();
    let key = std::env::temp_dir().join(format!("vringd-speed-{}", std::process::id()));
    std::fs::write(&key, "correct horse")?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    let passphrase = Passphrase::read(&key);
    std::fs::remove_file(&key)?;
    let passphrase = passphrase?;
    let kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1000, salt: Vec::new() };
    let new = New { digest_iterations: 1000, sector_bytes: 512, ..New::version(2, kdf) };
    let size = Some(ByteSize(new.data_offset() + DISK_BYTES));
    let memory = storage::open(&MemoryOptions { size, ..MemoryOptions::default() })?;
    luks::tools::format(&*memory, &new, &passphrase)?;
    let plain: Arc<dyn Storage> = memory.clone();
    let encrypted = LuksStorage::unlock(memory, &passphrase, false)?;
    let mut solo = Solo::new()?;
    for len in [4096, 64 << 10, 1 << 20] {
        for write in [false, true] {
            let [bare, luks] = [&*plain, &encrypted].map(|storage| requests(storage, &mut solo, len, write));
            let word = if write { "writes" } else { "reads" };
            println!("{word:6} of {len:7}: memory {bare:6.0} MB/s, LUKS over it {luks:6.0} MB/s");
        }
    }
    Ok(())
}
