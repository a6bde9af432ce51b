//! A 9p server that is just enough for every job, and the jobs on it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;

use super::wire::{AT_REMOVEDIR, NO_TAG, kind, open};
use crate::bytes::{encoded, u16_at, u32_at, u64_at};
use crate::fs::job::Job;
use crate::fs::lane::Order;
use crate::fs::protocol::{Address, Protocol};
use crate::fs::run::Conditions;
use crate::fs::scratch::{Amounts, Scratch, WORK};
use crate::fs::session::{Agreed, Session};
use crate::fs::shape::Shape;

/// EOPNOTSUPP.
const NOT_SUPPORTED: u32 = 95;

type Answer = Result<Vec<u8>, u32>;

/// What a server does, or does wrong.
#[derive(Debug, Clone, Copy, Default)]
struct Manners {
    /// Without Tunlinkat and Trenameat.
    lacks_at: bool,
    /// One byte of each Rread is wrong.
    garbles: bool,
}

struct Tiny {
    root: PathBuf,
    manners: Manners,
    msize: u32,
    fids: HashMap<u32, (PathBuf, Option<File>)>,
    /// Types of messages that were answered with what was asked for.
    done: BTreeSet<u8>,
}

fn errno(error: &io::Error) -> u32 {
    error.raw_os_error().unwrap_or(5) as u32
}

fn text(body: &[u8], at: usize) -> (&str, usize) {
    let end = at + 2 + usize::from(u16_at(body, at).unwrap());
    (std::str::from_utf8(&body[at + 2..end]).unwrap(), end)
}

fn qid(path: &Path) -> Answer {
    let data = fs::symlink_metadata(path).map_err(|error| errno(&error))?;
    Ok(encoded(|e| _ = e.u8(if data.is_dir() { 0x80 } else { 0 }).u32(0).u64(data.ino())))
}

impl Tiny {
    fn path(&self, fid: u32) -> Result<PathBuf, u32> {
        self.fids.get(&fid).map(|(path, _)| path.clone()).ok_or(9)
    }

    fn file(&self, fid: u32) -> Result<&File, u32> {
        self.fids.get(&fid).and_then(|(_, file)| file.as_ref()).ok_or(9)
    }

    /// The fields of the reply to a message.
    fn answer(&mut self, message: u8, body: &[u8]) -> Answer {
        let fid = u32_at(body, 0).unwrap();
        let failed = |error: io::Error| errno(&error);
        match message {
            kind::TVERSION => {
                self.msize = fid.min(8192);
                Ok(encoded(|e| _ = e.u32(self.msize).string(b"9P2000.L")))
            }
            kind::TATTACH => {
                let (_, uname_end) = text(body, 8);
                assert_eq!(text(body, uname_end).0, "tree", "the aname");
                self.fids.insert(fid, (self.root.clone(), None));
                qid(&self.root)
            }
            kind::TWALK => {
                let (newfid, count) = (u32_at(body, 4).unwrap(), u16_at(body, 8).unwrap());
                let (mut path, mut at) = (self.path(fid)?, 10);
                let mut fields = count.to_le_bytes().to_vec();
                for _ in 0..count {
                    let (name, end) = text(body, at);
                    path.push(name);
                    fields.extend(qid(&path)?);
                    at = end;
                }
                assert!(fid == newfid || !self.fids.contains_key(&newfid), "fid {newfid} is taken");
                self.fids.insert(newfid, (path, None));
                Ok(fields)
            }
            kind::TLOPEN => {
                let (path, flags) = (self.path(fid)?, u32_at(body, 4).unwrap());
                let is_writable = flags & open::READ_WRITE != 0;
                let file = File::options().read(true).write(is_writable).open(&path).map_err(failed)?;
                self.fids.insert(fid, (path.clone(), Some(file)));
                Ok([qid(&path)?, vec![0; 4]].concat())
            }
            kind::TLCREATE => {
                let path = self.path(fid)?.join(text(body, 4).0);
                let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
                self.fids.insert(fid, (path.clone(), Some(file)));
                Ok([qid(&path)?, vec![0; 4]].concat())
            }
            kind::TGETATTR => {
                let path = self.path(fid)?;
                let data = fs::symlink_metadata(&path).map_err(failed)?;
                let mut fields = [0x7ff_u64.to_le_bytes().to_vec(), qid(&path)?].concat();
                fields.extend(encoded(|e| {
                    e.u32(data.mode()).u32(data.uid()).u32(data.gid()).u64(data.nlink()).u64(0).u64(data.len());
                }));
                fields.resize(153, 0);
                Ok(fields)
            }
            kind::TREAD => {
                let (offset, count) = (u64_at(body, 4).unwrap(), u32_at(body, 12).unwrap());
                assert!(count + 24 <= self.msize, "Tread of {count} bytes");
                let mut data = vec![0; count as usize];
                let len = self.file(fid)?.read_at(&mut data, offset).map_err(failed)?;
                data.truncate(len);
                if let (true, Some(byte)) = (self.manners.garbles, data.first_mut()) {
                    *byte ^= 1;
                }
                Ok([(len as u32).to_le_bytes().to_vec(), data].concat())
            }
            kind::TWRITE => {
                let (offset, count) = (u64_at(body, 4).unwrap(), u32_at(body, 12).unwrap());
                assert_eq!(body.len(), 16 + count as usize);
                self.file(fid)?.write_all_at(&body[16..], offset).map_err(failed)?;
                Ok(count.to_le_bytes().to_vec())
            }
            kind::TREADDIR => {
                let (offset, count) = (u64_at(body, 4).unwrap() as usize, u32_at(body, 12).unwrap() as usize);
                let mut names: Vec<String> = vec![".".into(), "..".into()];
                for entry in fs::read_dir(self.path(fid)?).map_err(failed)? {
                    names.push(entry.map_err(failed)?.file_name().into_string().unwrap());
                }
                names[2..].sort_unstable();
                let mut data = Vec::new();
                for (next, name) in (1_u64..).zip(&names).skip(offset) {
                    let entry = encoded(|e| _ = e.bytes(&[0; 13]).u64(next).u8(0).string(name.as_bytes()));
                    if data.len() + entry.len() > count {
                        break;
                    }
                    data.extend(entry);
                }
                Ok([(data.len() as u32).to_le_bytes().to_vec(), data].concat())
            }
            kind::TMKDIR => {
                let path = self.path(fid)?.join(text(body, 4).0);
                fs::create_dir(&path).map_err(failed)?;
                qid(&path)
            }
            kind::TUNLINKAT | kind::TRENAMEAT if self.manners.lacks_at => Err(NOT_SUPPORTED),
            kind::TUNLINKAT => {
                let (name, end) = text(body, 4);
                let path = self.path(fid)?.join(name);
                let is_dir = u32_at(body, end).unwrap() == AT_REMOVEDIR;
                if is_dir { fs::remove_dir(path) } else { fs::remove_file(path) }.map_err(failed)?;
                Ok(Vec::new())
            }
            kind::TRENAMEAT => {
                let (from, end) = text(body, 4);
                let to = self.path(u32_at(body, end).unwrap())?.join(text(body, end + 4).0);
                fs::rename(self.path(fid)?.join(from), to).map_err(failed)?;
                Ok(Vec::new())
            }
            kind::TRENAME => {
                let to = self.path(u32_at(body, 4).unwrap())?.join(text(body, 8).0);
                fs::rename(self.path(fid)?, &to).map_err(failed)?;
                self.fids.insert(fid, (to, None));
                Ok(Vec::new())
            }
            kind::TREMOVE => {
                let (path, _) = self.fids.remove(&fid).ok_or(9_u32)?;
                if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.map_err(failed)?;
                Ok(Vec::new())
            }
            kind::TCLUNK => self.fids.remove(&fid).map(|_| Vec::new()).ok_or(9),
            other => panic!("message {other}"),
        }
    }

    /// Serves a connection to its end.
    fn serve(mut self, mut socket: UnixStream) -> Self {
        let mut front = [0; 7];
        while socket.read_exact(&mut front).is_ok() {
            let (size, tag) = (u32_at(&front, 0).unwrap() as usize, u16_at(&front, 5).unwrap());
            assert_eq!(tag == NO_TAG, front[4] == kind::TVERSION);
            let mut body = vec![0; size - front.len()];
            socket.read_exact(&mut body).unwrap();
            let (kind, fields) = match self.answer(front[4], &body) {
                Ok(fields) => {
                    self.done.insert(front[4]);
                    (front[4] + 1, fields)
                }
                Err(errno) => (kind::RLERROR, errno.to_le_bytes().to_vec()),
            };
            let header = encoded(|e| _ = e.header((7 + fields.len()) as u32, kind, tag));
            if socket.write_all(&[header, fields].concat()).is_err() {
                break;
            }
        }
        self
    }
}

/// Serves `connections` connections on `path`, one after the other's begin; what each has left, at its end.
fn start(path: &Path, root: &Path, connections: usize, manners: Manners) -> JoinHandle<Vec<Tiny>> {
    let listener = UnixListener::bind(path).unwrap();
    let root = root.to_owned();
    thread::spawn(move || {
        let served: Vec<_> = (0..connections)
            .map(|_| {
                let (socket, _) = listener.accept().unwrap();
                let (root, fids) = (root.clone(), HashMap::new());
                let tiny = Tiny { root, manners, msize: 0, fids, done: BTreeSet::new() };
                thread::spawn(move || tiny.serve(socket))
            })
            .collect();
        served.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const CONDITIONS: Conditions = Conditions { ramp: Duration::ZERO, time: Duration::from_millis(5), poll: false };

fn shape(queues: u16) -> Shape {
    Shape { queues, depth: 4, data_bytes: 128 << 10, event_idx: true, msize: 65536 }
}

fn order(job: Job, scratch: &Scratch) -> Order<'_> {
    // Two messages and a bit; base: where the scratch directory is.
    Order { job, run: 1, block_bytes: 20_000, direct: false, entries: 500, scratch, base: Path::new("") }
}

#[test]
fn every_job_runs_and_leaves_nothing_behind() {
    let parent = tempfile::tempdir().unwrap();
    let jobs: Vec<Job> = Job::value_variants().iter().copied().filter(|job| job.is_in(Protocol::P9Unix)).collect();
    let scratch = Scratch::make(parent.path(), &Amounts { jobs: &jobs, file_bytes: 1 << 20, entries: 500 }).unwrap();
    for (lacks_at, poll) in [(false, false), (true, true)] {
        let path = parent.path().join(format!("s{lacks_at}"));
        let server = start(&path, scratch.path(), 2, Manners { lacks_at, garbles: false });
        let mut session = Session::connect((Protocol::P9Unix, "tree"), &Address::Path(path), shape(2), None).unwrap();
        let mounted = session.mounted();
        assert_eq!((mounted.queues, mounted.depth, mounted.msize()), (2, 4, Some(8192)));
        assert!(matches!(mounted.agreed, Agreed::P9(granted) if granted.has_at != lacks_at));
        for job in &jobs {
            let report = session.run(&order(*job, &scratch), Conditions { poll, ..CONDITIONS }, |_| {});
            let report = report.unwrap_or_else(|error| panic!("{job:?}: {error:#}"));
            assert_eq!(report.bytes, if job.is_data() { report.ops * 20_000 } else { 0 });
            assert_eq!(fs::read_dir(scratch.path().join(WORK)).unwrap().count(), 0, "{job:?}");
        }
        drop(session);
        for tiny in server.join().unwrap() {
            assert_eq!(tiny.fids.len(), 1, "only the root's is left: {:?}", tiny.fids);
            let at = [kind::TUNLINKAT, kind::TRENAMEAT];
            let instead = [kind::TREMOVE, kind::TRENAME];
            let (used, unused) = if lacks_at { (instead, at) } else { (at, instead) };
            assert!(used.iter().all(|kind| tiny.done.contains(kind)), "{:?}", tiny.done);
            assert!(unused.iter().all(|kind| !tiny.done.contains(kind)), "{:?}", tiny.done);
            // All that jobs need in any case, each on every connection.
            let always = [kind::TLOPEN, kind::TLCREATE, kind::TGETATTR, kind::TREADDIR, kind::TMKDIR];
            let data = [kind::TREAD, kind::TWRITE, kind::TWALK, kind::TCLUNK];
            assert!(always.iter().chain(&data).all(|kind| tiny.done.contains(kind)), "{:?}", tiny.done);
        }
    }
}

#[test]
fn wrong_data_and_a_missing_tree_fail_with_what_was_wrong() {
    let parent = tempfile::tempdir().unwrap();
    let amounts = Amounts { jobs: &[Job::ReadRand], file_bytes: 1 << 20, entries: 0 };
    let scratch = Scratch::make(parent.path(), &amounts).unwrap();
    let path = parent.path().join("s");
    let server = start(&path, scratch.path(), 1, Manners { garbles: true, ..Manners::default() });
    let mut session = Session::connect((Protocol::P9Unix, "tree"), &Address::Path(path), shape(1), None).unwrap();
    let error = session.run(&order(Job::ReadRand, &scratch), CONDITIONS, |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("wrong data"), "{error:#}");
    let error = session.run(&order(Job::Tree, &scratch), CONDITIONS, |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("does not have"), "{error:#}");
    drop(session);
    server.join().unwrap();
}
