//! O_DIRECT on a real file system: its page cache has no part in what happens to a file.

use engine::Solo;
use storage::{FileOptions, FileStorage, Operation, Task};
use testkit::storage as kit;

const SECTOR: usize = 512;
/// Sectors in a block of the file system.
const SECTORS: usize = 8;
const BLOCKS: usize = 64;

/// What a file system cannot write past its page cache, as part of a hole, it writes through that, a block at a time. What is written
/// past it into the same block meanwhile would be undone, or fail the next flush.
#[test]
fn sectors_of_one_block_are_written_side_by_side() {
    let image = kit::image(kit::disk(), (BLOCKS * SECTORS * SECTOR) as u64);
    let options = FileOptions { direct: true, ..FileOptions::new(image.path()) };
    let storage = FileStorage::open(&options).unwrap();
    let mut solo = Solo::new().unwrap();
    for round in 0..100u32 {
        let before = (round as u8) | 1;
        if round % 2 == 0 {
            kit::write(&mut solo, &storage, 0, &vec![before; BLOCKS * SECTORS * SECTOR]).unwrap();
        } else {
            let mut hole = Task::new();
            hole.begin(Operation::Discard { offset: 0, len: (BLOCKS * SECTORS * SECTOR) as u64 });
            kit::run(&mut solo, &storage, &mut hole).unwrap();
        }
        let after = before.wrapping_add(2);
        let mut memory = AlignedBlocks::filled(after);
        let mut tasks = Vec::new();
        for block in 0..BLOCKS {
            for sector in 0..SECTORS {
                let offset = ((block * SECTORS + sector) * SECTOR) as u64;
                let mut task = Task::new();
                let operation = match (sector + block) % 4 {
                    0 => Operation::WriteZeroes { offset, len: SECTOR as u64, unmap: true, durable: false },
                    1 => Operation::WriteZeroes { offset, len: SECTOR as u64, unmap: false, durable: false },
                    _ => {
                        task.buffers = vec![memory.sector(block)];
                        Operation::Write { offset, durable: sector % 3 == 0 }
                    }
                };
                task.begin(operation);
                tasks.push(task);
            }
        }
        kit::run_together(&mut solo, &storage, &mut tasks);
        let mut flush = Task::new();
        flush.begin(Operation::Flush);
        kit::run(&mut solo, &storage, &mut flush).unwrap();
        let now = kit::read(&mut solo, &storage, 0, BLOCKS * SECTORS * SECTOR);
        for (number, sector) in now.chunks(SECTOR).enumerate() {
            let (block, at) = (number / SECTORS, number % SECTORS);
            let expected = if (at + block) % 4 < 2 { 0 } else { after };
            assert!(sector.iter().all(|byte| *byte == expected), "round {round}, block {block}, sector {at}");
        }
    }
}

/// A sector for each block, where O_DIRECT takes them.
struct AlignedBlocks(Vec<[u128; 256]>);

impl AlignedBlocks {
    fn filled(byte: u8) -> AlignedBlocks {
        AlignedBlocks(vec![[u128::from_ne_bytes([byte; 16]); 256]; BLOCKS + 1])
    }

    fn sector(&mut self, block: usize) -> libc::iovec {
        let start = self.0.as_mut_ptr().cast::<u8>();
        let shift = start.align_offset(4096);
        libc::iovec { iov_base: start.wrapping_add(shift + block * 4096).cast(), iov_len: SECTOR }
    }
}
