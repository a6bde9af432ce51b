//! What a new image needs, against what is then made.

use super::*;
use proptest::prelude::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use tempfile::TempDir;
use testkit::storage as kit;

fn options(size_bytes: Option<u64>, cluster_bytes: u64, refcount_bits: u32, subclusters: bool) -> CreateOptions {
    CreateOptions { size_bytes, cluster_bytes, refcount_bits, subclusters, backing: None, force: true }
}

fn sized(size_bytes: u64, cluster_bytes: u64, refcount_bits: u32) -> Measured {
    let options = options(Some(size_bytes), cluster_bytes, refcount_bits, false);
    measure(None, &options, &mut |_, _| {}).unwrap()
}

#[test]
fn sizes_that_qemu_says_are_those_that_we_say() {
    // `qemu-img measure -O qcow2 --size`, with the options in front.
    let said = [
        ((20 << 30, 65_536, 16), (3_538_944, 21_478_375_424)),
        ((1 << 40, 65_536, 16), (168_034_304, 1_099_679_662_080)),
        ((1 << 30, 2 << 20, 1), (10_485_760, 1_084_227_584)),
    ];
    for ((size_bytes, cluster_bytes, refcount_bits), (required, fully_allocated)) in said {
        let measured = sized(size_bytes, cluster_bytes, refcount_bits);
        assert_eq!(measured, Measured { required, fully_allocated }, "{size_bytes} in {cluster_bytes}");
    }
    let error = measure(None, &options(Some(1 << 50), 512, 16, false), &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.starts_with("the new image: ") && error.contains("use larger ones"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever the layout: an image needs no more than was said, when it is made of a file and when all of it is
    /// written.
    #[test]
    fn images_need_no_more_than_was_said(
        pieces in prop::collection::vec((0u64..5 << 20, 1usize..200_000), 0..30),
        (cluster_bits, refcount_order, subclusters) in (0usize..4, 0u32..7, any::<bool>()),
    ) {
        let directory = TempDir::new_in(kit::shm()).unwrap();
        let at = |name: &str| directory.path().join(name);
        let file = File::create(at("raw")).unwrap();
        file.set_len(6 << 20).unwrap();
        for (from, len) in pieces {
            file.write_all_at(&vec![7; len], from).unwrap();
        }
        let cluster_bytes = 1 << [9, 12, 16, 21][cluster_bits];
        let options = options(None, cluster_bytes, 1 << refcount_order, subclusters && cluster_bytes > 4096);
        let raw = From::Raw(at("raw"));
        let said = measure(Some(&raw), &options, &mut |_, _| {}).unwrap();
        let end = |from: &From| {
            to_qcow2(from, &at("image"), &options, None, &mut |_, _| {}).unwrap();
            check(&at("image"), false, true, &mut |_, _| {}).unwrap().end_bytes
        };
        let made = end(&raw);
        prop_assert!(made <= said.required, "{} bytes were needed, and {:?} said", made, said);
        std::fs::write(at("full"), vec![7; 6 << 20]).unwrap();
        let full = From::Raw(at("full"));
        let made = end(&full);
        prop_assert!(made <= said.fully_allocated, "{} bytes were needed, and {:?} said", made, said);
        let all = measure(Some(&full), &options, &mut |_, _| {}).unwrap();
        prop_assert_eq!(all.required, all.fully_allocated);
        prop_assert_eq!(all.fully_allocated, said.fully_allocated);
    }
}
