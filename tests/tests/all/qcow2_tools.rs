//! Tools on qcow2 images against those of QEMU: what these make of a copy of the same images, and what they find in ours.

use anyhow::{Context, Result, ensure};
use image::tools::{CreateOptions, From};
use image::{Qcow2Options, tools};
use std::path::Path;
use tempfile::TempDir;
use testkit::storage as kit;
use tests::lab::Lab;
use tests::qemu_img;

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn img(lab: &Lab, args: &[&str]) -> Result<String> {
    qemu_img::img(lab, args)?.expect_success()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path of a test is UTF-8")
}

/// What `qemu-img measure` says.
fn measured(lab: &Lab, args: &[&str]) -> Result<(u64, u64)> {
    let said = img(lab, &[&["measure", "--output=json"], args].concat())?;
    let said: serde_json::Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let number = |name: &str| said[name].as_u64().with_context(|| said.to_string());
    Ok((number("required")?, number("fully-allocated")?))
}

#[test]
fn what_is_measured_is_what_qemu_says_or_more_where_more_is_made() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let at = |name: &str| directory.path().join(name);
    let options = |size_bytes, cluster_bytes, refcount_bits, subclusters| CreateOptions {
        size_bytes,
        cluster_bytes,
        refcount_bits,
        subclusters,
        backing: None,
        force: true,
    };
    for (cluster_bytes, subclusters) in [(512, false), (4096, false), (65_536, false), (65_536, true), (2 << 20, true)]
    {
        for refcount_bits in [1, 16, 64] {
            for size_bytes in [512, 1 << 20, (1 << 30) + 512, 40 << 30] {
                let options = options(Some(size_bytes), cluster_bytes, refcount_bits, subclusters);
                let ours = tools::measure(None, &options, &mut |_, _| {})?;
                let layout = format!(
                    "cluster_size={cluster_bytes},refcount_bits={refcount_bits},extended_l2={}",
                    if subclusters { "on" } else { "off" }
                );
                let args = ["-O", "qcow2", "-o", &layout, "--size", &size_bytes.to_string()];
                let theirs = measured(&lab, &args)?;
                let said = (ours.required, ours.fully_allocated);
                if cluster_bytes >= 65_536 {
                    ensure!(said == theirs, "{options:?}: QEMU says {theirs:?}, and we {said:?}");
                } else {
                    ensure!(said.0 == theirs.0 && said.1 >= theirs.1, "{options:?}: {theirs:?}, {said:?}");
                    ensure!(said.1 < theirs.1 + theirs.1 / 8, "{options:?}: {theirs:?}, {said:?}");
                }
            }
        }
    }
    let mut rng = Rng(7);
    let path = at("source");
    img(&lab, &["create", "-q", "-f", "qcow2", text(&path), "64M"])?;
    let writes: Vec<String> =
        (0..20).map(|_| format!("write -P 1 {}k {}k", rng.below(60_000), 1 + rng.below(3000))).collect();
    let writes: Vec<&str> = writes.iter().map(String::as_str).collect();
    qemu_img::io_file(&lab, "qcow2", &path, &writes)?.expect_success()?;
    img(&lab, &["convert", "-f", "qcow2", "-O", "raw", text(&path), text(&at("raw"))])?;
    let qcow2 = From::Qcow2(Qcow2Options { read_only: true, ..Qcow2Options::new(&path) });
    for (from, format, source) in [(qcow2, "qcow2", path), (From::Raw(at("raw")), "raw", at("raw"))] {
        for cluster_bytes in [512, 65_536, 2 << 20] {
            let options = options(None, cluster_bytes, 16, false);
            let ours = tools::measure(Some(&from), &options, &mut |_, _| {})?;
            let layout = format!("cluster_size={cluster_bytes}");
            let theirs = measured(&lab, &["-O", "qcow2", "-o", &layout, "-f", format, text(&source)])?;
            let said = (ours.required, ours.fully_allocated);
            ensure!(
                if cluster_bytes > 512 { said == theirs } else { said >= theirs },
                "{format}: {theirs:?}, {said:?}"
            );
            tools::to_qcow2(&from, &at("made"), &options, &mut |_, _| {})?;
            let end = tools::check(&at("made"), false, true, &mut |_, _| {})?.end_bytes;
            ensure!(end <= ours.required, "{format}, {cluster_bytes}: {end} bytes were needed, and {said:?} said");
        }
    }
    Ok(())
}
