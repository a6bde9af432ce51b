//! Two 9P sessions on a directory that they may change, with something beside the directory that they may not.

use crate::calls::{Answer, Moved, Scene};
use crate::p9::{P9Policy, Service, Session};
use device::p9::{Dialect, HEADER_BYTES, Kind, NOFID, READ_HEAD_BYTES, decode};
use passthrough::{Options, Source, Tree};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use tempfile::TempDir;
use vring::Segment;

/// Requests of one input.
const STEPS_MAX: usize = 64;
/// In a message's type: it is the second client's.
const SECOND: u8 = 0x80;
/// What no answer may tell.
const SECRET: &str = "what lies beside the directory";

thread_local! {
    /// Made once for all inputs: the directory that is served is in it.
    static STAGE: Option<TempDir> = stage().ok();
}

fn stage() -> io::Result<TempDir> {
    // In memory where that can be had: every input makes and removes files.
    let stage = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    fs::write(stage.path().join("outside"), SECRET)?;
    Ok(stage)
}

/// The directory as every input finds it.
fn furnish(inside: &Path) -> io::Result<()> {
    fs::create_dir_all(inside.join("directory/inner"))?;
    fs::write(inside.join("file"), vec![7; 10_000])?;
    fs::write(inside.join("directory/inner/deep"), "deep")?;
    symlink("../outside", inside.join("link"))?;
    symlink("..", inside.join("up"))
}

/// Removes a directory, whatever was done to its permissions.
fn clear(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, PermissionsExt::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            clear(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(directory)
}

/// Plays one input and returns how many requests succeeded. Layout of `data`: options (1), messages. Bit 0 of the options is
/// 9P2000.u, bit 1 longer messages. A message is its type (1), its length (1) and its fields; bit 7 of the type makes it the
/// second client's. A version and an attach, whose fid is 0, come before.
///
/// # Panics
/// When something beside the directory is told or changed, or something is left when the session is gone; that is what the
/// fuzzer looks for.
pub fn p9_session(data: &[u8]) -> usize {
    STAGE.with(|stage| {
        let Some(stage) = stage else {
            return 0;
        };
        let inside = stage.path().join("inside");
        if furnish(&inside).is_err() {
            return 0;
        }
        let answered = play(data, &inside);
        clear(&inside).expect("a session makes nothing that cannot be removed");
        check_outside(stage.path());
        answered
    })
}

fn check_outside(stage: &Path) {
    let names: Vec<_> =
        fs::read_dir(stage).expect("it is there").map(|entry| entry.map(|entry| entry.file_name())).collect();
    assert!(
        matches!(&names[..], [Ok(name)] if name == "outside"),
        "something appeared beside the directory: {names:?}"
    );
    let outside = stage.join("outside");
    let links = fs::metadata(&outside).expect("it is there").nlink();
    let content = fs::read_to_string(outside).expect("it is there");
    assert_eq!((links, content.as_str()), (1, SECRET), "a file beside the directory was changed");
}

fn play(data: &[u8], inside: &Path) -> usize {
    let Some((&options, mut rest)) = data.split_first() else {
        return 0;
    };
    let served = Options { xattr: true, ..Options::default() };
    let Ok(tree) = Tree::new(Source::Path(inside.to_owned()), served) else {
        return 0;
    };
    let tree = Arc::new(tree);
    let service = Service::new(tree.clone(), P9Policy::default(), 1);
    let msize = if options & 2 == 0 { 4096 } else { 16_384 };
    let dialect = if options & 1 == 0 { Dialect::L } else { Dialect::U };
    let mut clients = [Client::new(&service, msize), Client::new(&service, msize)];
    let mut answered: usize = clients.iter_mut().map(|client| client.begin(dialect)).sum();
    for _ in 0..STEPS_MAX {
        let [kind, len, more @ ..] = rest else { break };
        let (body, more) = more.split_at(usize::from(*len).min(more.len()));
        let [first, second] = &mut clients;
        answered += if kind & SECOND == 0 { first } else { second }.ask(kind & !SECOND, body);
        rest = more;
    }
    drop(clients);
    let left = tree.describe();
    assert_eq!((left.nodes, left.handles, left.lock_owners), (1, 0, 0), "a session has left something behind");
    answered
}

struct Client {
    session: Arc<Session>,
    answer: Vec<u8>,
}

impl Client {
    fn new(service: &Arc<Service>, msize: usize) -> Client {
        Client { session: Session::new(service), answer: vec![0; msize] }
    }

    fn begin(&mut self, dialect: Dialect) -> usize {
        let name = dialect.version().as_bytes();
        let version =
            [&(self.answer.len() as u32).to_le_bytes()[..], &(name.len() as u16).to_le_bytes(), name].concat();
        let attach = [&0_u32.to_le_bytes()[..], &NOFID.to_le_bytes(), &[0; 4], &NOFID.to_le_bytes()].concat();
        self.ask(Kind::Version as u8, &version) + self.ask(Kind::Attach as u8, &attach)
    }

    /// Sends one message: 1 when it succeeds.
    fn ask(&mut self, kind: u8, body: &[u8]) -> usize {
        let size = (HEADER_BYTES + body.len()) as u32;
        let mut message = [&size.to_le_bytes()[..], &[kind, 1, 0], body].concat();
        let bytes = message.clone();
        let Ok((header, request)) = decode(&bytes, u64::from(size), self.session.dialect()) else {
            return 0;
        };
        let (readable, writable) = ([segment(&mut message)], [segment(&mut self.answer)]);
        let (mut reply, mut data, mut moved) = (Vec::new(), Vec::new(), Moved::default());
        let mut scene =
            Scene { readable: &readable, writable: &writable, reply: &mut reply, data: &mut data, moved: &mut moved };
        let outcome = self.session.perform(&header, &request, &mut scene);
        let told: &[u8] = match outcome {
            Ok(Answer::Data(count)) => self.answer.get(READ_HEAD_BYTES..READ_HEAD_BYTES + count).expect("it fits"),
            Ok(Answer::Reply | Answer::Silence) => &reply,
            Err(_) => {
                assert!(reply.is_empty(), "an error comes with something else");
                &[]
            }
        };
        assert!(told.len() + HEADER_BYTES <= self.answer.len(), "an answer is longer than was agreed on");
        assert!(!told.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "a secret was told");
        usize::from(outcome.is_ok())
    }
}

fn segment(buffer: &mut [u8]) -> Segment {
    let len = buffer.len();
    // SAFETY: the buffer outlives the request that uses the segment, and nobody looks at it meanwhile.
    unsafe { Segment::from_raw_parts(NonNull::from(buffer).cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::super::seeds;
    use super::*;

    fn message(kind: Kind, fields: &[&[u8]]) -> Vec<u8> {
        let body = fields.concat();
        [&[kind as u8, body.len() as u8], &body[..]].concat()
    }

    fn word(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn walk(fid: u32, newfid: u32, names: &[&str]) -> Vec<u8> {
        let names: Vec<_> = names.iter().map(|name| text(name)).collect();
        message(Kind::Walk, &[&word(fid), &word(newfid), &(names.len() as u16).to_le_bytes(), &names.concat()])
    }

    /// Read, or Readdir.
    fn read(kind: Kind, fid: u32, count: u32) -> Vec<u8> {
        message(kind, &[&word(fid), &[0; 8], &word(count)])
    }

    fn sequences() -> Vec<(&'static str, Vec<u8>)> {
        let plain = |steps: &[Vec<u8>]| [&[0][..], &steps.concat()].concat();
        let legacy = |steps: &[Vec<u8>]| [&[1][..], &steps.concat()].concat();
        let on = |kind, fid: u32| message(kind, &[&word(fid)]);
        let lopen = |fid: u32, flags: u32| message(Kind::Lopen, &[&word(fid), &word(flags)]);
        let write =
            |fid: u32, data: &[u8]| message(Kind::Write, &[&word(fid), &[0; 8], &word(data.len() as u32), data]);
        let lock = |kind: u8| message(Kind::Lock, &[&word(1), &[kind], &word(0), &[0; 16], &word(9), &text("host")]);
        let of_second = |mut step: Vec<u8>| {
            step[0] |= SECOND;
            step
        };
        vec![
            ("read", plain(&[walk(0, 1, &["file"]), lopen(1, 0), read(Kind::Read, 1, 1000), on(Kind::Clunk, 1)])),
            ("write", plain(&[walk(0, 1, &["file"]), lopen(1, 2), write(1, b"data"), on(Kind::GetAttr, 1)])),
            ("list", plain(&[walk(0, 1, &[]), lopen(1, 0), read(Kind::ReadDir, 1, 1000)])),
            (
                "up",
                plain(&[walk(0, 1, &["directory", "inner", "..", "..", "..", ".."]), walk(1, 2, &["up", "outside"])]),
            ),
            ("links", plain(&[walk(0, 1, &["link"]), on(Kind::ReadLink, 1), lopen(1, 0), on(Kind::Remove, 1)])),
            (
                "create",
                plain(&[
                    walk(0, 1, &[]),
                    message(Kind::Lcreate, &[&word(1), &text("new"), &word(2), &word(0o600), &word(0)]),
                    write(1, b"data"),
                    message(Kind::UnlinkAt, &[&word(0), &text("new"), &word(0)]),
                    read(Kind::Read, 1, 10),
                ]),
            ),
            (
                "rename",
                plain(&[
                    message(Kind::Mkdir, &[&word(0), &text("made"), &word(0o755), &word(0)]),
                    walk(0, 1, &["made"]),
                    walk(0, 2, &["directory", "inner"]),
                    message(Kind::RenameAt, &[&word(0), &text("directory"), &word(1), &text("moved")]),
                    walk(2, 3, &["..", ".."]),
                    message(Kind::Rename, &[&word(2), &word(0), &text("inner")]),
                ]),
            ),
            (
                "xattr",
                plain(&[
                    walk(0, 1, &["file"]),
                    walk(0, 2, &["file"]),
                    message(Kind::XattrCreate, &[&word(1), &text("user.a"), &4_u64.to_le_bytes(), &word(0)]),
                    write(1, b"data"),
                    on(Kind::Clunk, 1),
                    message(Kind::XattrWalk, &[&word(2), &word(3), &text("user.a")]),
                    read(Kind::Read, 3, 10),
                ]),
            ),
            (
                "two",
                plain(&[
                    walk(0, 1, &["file"]),
                    lopen(1, 2),
                    lock(1),
                    of_second(walk(0, 1, &["file"])),
                    of_second(lopen(1, 2)),
                    of_second(lock(1)),
                    on(Kind::Clunk, 1),
                    of_second(lock(1)),
                    walk(0, 2, &["directory", "inner"]),
                    of_second(message(Kind::RenameAt, &[&word(0), &text("directory"), &word(0), &text("moved")])),
                    walk(2, 3, &["..", "..", "moved"]),
                ]),
            ),
            ("lock", plain(&[walk(0, 1, &["file"]), lopen(1, 2), lock(1), lock(2), lock(0)])),
            (
                "legacy",
                legacy(&[
                    walk(0, 1, &[]),
                    message(Kind::Open, &[&word(1), &[0]]),
                    read(Kind::Read, 1, 2000),
                    walk(0, 2, &[]),
                    message(Kind::Create, &[&word(2), &text("new"), &word(0o644), &[2], &text("")]),
                    on(Kind::Stat, 2),
                    on(Kind::Remove, 2),
                ]),
            ),
        ]
    }

    #[test]
    fn seeds_hold() {
        let mut answered = 0;
        seeds::hold("p9_session", &sequences(), |seed| answered += p9_session(seed));
        assert!(answered >= 85, "only {answered} requests succeeded");
    }

    /// Messages that make sense in an order that does not, with fields of each other.
    #[test]
    fn shuffled_messages_hold() {
        let mut steps = Vec::new();
        for (_, seed) in sequences() {
            let mut rest = &seed[1..];
            while let [_, len, ..] = rest {
                let (step, more) = rest.split_at(2 + usize::from(*len));
                steps.push(step.to_vec());
                rest = more;
            }
        }
        let mut numbers = seeds::Numbers::new();
        let mut answered = 0;
        for _ in 0..500 {
            let mut input = vec![numbers.below(4) as u8];
            for _ in 0..STEPS_MAX {
                let mut step = steps[numbers.below(steps.len())].clone();
                // The lowest byte of the first fid becomes another one's, or any byte something else.
                if numbers.below(4) == 0 && step.len() > 2 {
                    step[2] = numbers.below(4) as u8;
                }
                if numbers.below(3) == 0 {
                    step[0] ^= SECOND;
                }
                if numbers.below(8) == 0 && step.len() > 2 {
                    let at = 2 + numbers.below(step.len() - 2);
                    step[at] = numbers.next() as u8;
                }
                input.extend(step);
            }
            answered += p9_session(&input);
        }
        assert!(answered >= 4000, "only {answered} requests succeeded");
    }
}
