//! An image for containers: the daemon, the libraries that it is linked with, and nothing else.
//!
//! An OCI image layout (image-spec 1.1, `image-layout.md`) in a tar archive, of one layer. Whoever makes it of the same program and the
//! same libraries gets the same bytes: names are in order, all times are the commit's, all owners root.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Commit;
use super::root::Root;
use crate::step::{output, run, workspace};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Makes the image of a program with its bill of materials; where it lies.
pub(super) fn write(task: &str, program: &Path, materials: &Path, commit: &Commit) -> Result<PathBuf> {
    let directory = workspace().join("target/oci");
    fs::create_dir_all(&directory)?;
    let stripped = directory.join("vringd");
    run(task, Command::new("strip").arg("-o").arg(&stripped).arg(program))?;
    let root = root(&stripped, materials)?;
    let layer = root.archive(commit.time)?;
    let image = image(&layer, commit)?;
    let path = directory.join(format!("vringd-{}-{}.tar", env!("CARGO_PKG_VERSION"), architecture()));
    let mut file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(&image.archive(commit.time)?)?;
    Ok(path)
}

/// The container's file system.
fn root(program: &Path, materials: &Path) -> Result<Root> {
    let mut root = Root::default();
    root.program("usr/bin/vringd", fs::read(program)?);
    root.link("usr/libexec/vringd/virtiofsd", "../../bin/vringd");
    for library in libraries(&output(Command::new("ldd").arg(program))?)? {
        let inside = library.strip_prefix("/").with_context(|| format!("{} is not absolute", library.display()))?;
        root.program(inside, fs::read(&library)?);
        let copyright = copyright(&library)?;
        root.file(copyright.strip_prefix("/")?, fs::read(&copyright).with_context(|| copyright.display().to_string())?);
    }
    let documents = Path::new("usr/share/doc/vringd");
    root.file(documents.join("vringd.cdx.json"), fs::read(materials)?);
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        root.file(documents.join(licence), fs::read(workspace().join(licence))?);
    }
    root.file("etc/vringd/config.toml", fs::read(workspace().join("dist/config.toml"))?);
    // For `--user`, and owners of sockets.
    root.file("etc/passwd", b"root:x:0:0:root:/:/\nnobody:x:65534:65534:nobody:/:/\n".to_vec());
    root.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n".to_vec());
    root.directory("run/vringd", 0o755);
    root.directory("tmp", 0o1777);
    Ok(root)
}

/// The image layout: blobs by their digests, and what says which is which.
fn image(layer: &[u8], commit: &Commit) -> Result<Root> {
    let labels = json!({
        "org.opencontainers.image.title": "vringd",
        "org.opencontainers.image.description": "Storage daemon for virtual machines: disks and directories over vhost-user",
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.revision": commit.hash,
        "org.opencontainers.image.created": commit.date,
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
    });
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(layer)?;
    let mut layout = Root::default();
    let layer_blob = blob(&mut layout, LAYER, gzip.finish()?);
    let config = json!({
        "created": commit.date,
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/vringd"],
            "Cmd": ["serve", "/etc/vringd/config.toml"],
            "Env": ["PATH=/usr/bin"],
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(layer)] },
        "history": [{ "created": commit.date, "created_by": "cargo xtask package --oci" }],
    });
    let config_blob = blob(&mut layout, CONFIG, bytes(&config)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config_blob,
        "layers": [layer_blob],
        "annotations": labels,
    });
    let mut manifest_blob = blob(&mut layout, MANIFEST, bytes(&manifest)?);
    manifest_blob["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    // By which `podman load` and `skopeo copy` name it.
    let name = concat!("vringd:", env!("CARGO_PKG_VERSION"));
    manifest_blob["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest_blob] });
    layout.file("index.json", bytes(&index)?);
    layout.file("oci-layout", bytes(&json!({ "imageLayoutVersion": "1.0.0" }))?);
    Ok(layout)
}

/// Adds a blob; its descriptor (image-spec, `descriptor.md`).
fn blob(layout: &mut Root, kind: &str, bytes: Vec<u8>) -> Value {
    let digest = digest(&bytes);
    let size = bytes.len();
    layout.file(format!("blobs/{}", digest.replace(':', "/")), bytes);
    json!({ "mediaType": kind, "digest": digest, "size": size })
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn bytes(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

/// As image-spec and Go call it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The files that `ldd` names, the loader among them.
fn libraries(ldd: &str) -> Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in ldd.lines().map(str::trim).filter(|line| !line.starts_with("linux-vdso")) {
        let file = line.rsplit_once(" (0x").map_or(line, |(file, _)| file);
        let file = file.split_once(" => ").map_or(file, |(_, file)| file);
        ensure!(file.starts_with('/'), "the program needs a library that is not here: {line}");
        libraries.push(PathBuf::from(file));
    }
    ensure!(!libraries.is_empty(), "ldd names no libraries");
    Ok(libraries)
}

/// What the package of a library says of its licence. On merged systems dpkg may know a file by either of its names.
fn copyright(library: &Path) -> Result<PathBuf> {
    let names = [library.to_owned(), Path::new("/usr").join(library.strip_prefix("/")?), library.canonicalize()?];
    for name in names {
        if let Ok(found) = output(Command::new("dpkg-query").arg("--search").arg(&name)) {
            let package = found.split([':', ',']).next().unwrap_or_default();
            return Ok(Path::new("/usr/share/doc").join(package).join("copyright"));
        }
    }
    bail!(
        "no package of Debian's has {}: an image takes libraries with what says under which licence",
        library.display()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn commit() -> Commit {
        Commit { hash: "c0ffee".to_owned(), time: 1_700_000_000, date: "2023-11-14T22:13:20Z".to_owned() }
    }

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().to_str().unwrap().to_owned(), bytes)
        };
        archive.entries().unwrap().map(read).collect()
    }

    #[test]
    fn descriptors_lead_from_the_index_to_the_layer() {
        let layout = files(&image(b"a layer", &commit()).unwrap().archive(0).unwrap());
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            let bytes = layout[&format!("blobs/{}", digest.replace(':', "/"))].clone();
            assert_eq!(bytes.len() as u64, descriptor["size"].as_u64().unwrap());
            assert_eq!(super::digest(&bytes), digest);
            bytes
        };
        assert_eq!(json(&layout["oci-layout"])["imageLayoutVersion"], "1.0.0");
        let index = json(&layout["index.json"]);
        let manifest = json(&blob(&index["manifests"][0]));
        let config = json(&blob(&manifest["config"]));
        let mut layer = Vec::new();
        GzDecoder::new(&blob(&manifest["layers"][0])[..]).read_to_end(&mut layer).unwrap();
        assert_eq!(layer, b"a layer");
        assert_eq!(config["rootfs"]["diff_ids"][0], super::digest(b"a layer"));
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.revision"], "c0ffee");
    }

    #[test]
    fn the_same_commit_gives_the_same_bytes() {
        let make = || image(b"a layer", &commit()).unwrap().archive(commit().time).unwrap();
        assert!(make() == make());
    }

    #[test]
    fn libraries_are_read_from_ldd() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f4d)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f4e)\n";
        let expected = ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(ldd).unwrap(), expected);
        assert!(libraries("\tlibgone.so.1 => not found\n").is_err());
        assert!(libraries("\tstatically linked\n").is_err());
    }
}
