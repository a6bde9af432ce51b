//! Reservations by way of `qemu-pr-helper`, which may do what this daemon must not (QEMU's `docs/interop/pr-helper.rst`): a command goes with
//! the device's descriptor, one at a time.

use crate::ffi::Ended;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sendmsg,
};
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Bytes of a CDB as it is sent.
const CDB_BYTES: usize = 16;
/// Bytes of sense data in an answer.
const SENSE_BYTES: usize = 96;
/// Most bytes of a parameter list or of what is read.
pub(crate) const DATA_BYTES_MAX: usize = 8192;
/// How long a command may take, with all that goes before and behind it: a target that looks after its paths takes its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// A helper, by its socket.
#[derive(Debug)]
pub(crate) struct Helper {
    path: PathBuf,
    connection: Mutex<Option<UnixStream>>,
}

/// What became of a command.
#[derive(Debug)]
pub(crate) enum Helped {
    /// It has ended, and has read this.
    Ended(Ended, Vec<u8>),
    /// Another command is with the helper, which does one at a time: no thread but that one's waits for it.
    Busy,
    /// There is nobody who could do it.
    Away(io::Error),
    /// It was sent, and has no answer.
    Unknown(io::Error),
}

impl Helper {
    /// Connects to it.
    ///
    /// # Errors
    /// Nobody is there, or none that speaks so.
    pub(crate) fn connect(path: &Path) -> io::Result<Helper> {
        let stream = greet(path, Instant::now() + PATIENCE)?;
        Ok(Helper { path: path.to_owned(), connection: Mutex::new(Some(stream)) })
    }

    /// One that is connected to when it is needed.
    pub(crate) fn later(path: &Path) -> Helper {
        Helper { path: path.to_owned(), connection: Mutex::new(None) }
    }

    /// Has a command performed on a device, and waits for its end. `list` is what goes with PERSISTENT RESERVE OUT; `None`: PERSISTENT RESERVE
    /// IN.
    pub(crate) fn perform(&self, device: impl AsFd, cdb: &[u8], list: Option<&[u8]>) -> Helped {
        let mut connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Helped::Busy,
        };
        let by = Instant::now() + PATIENCE;
        // It may have been started anew since the last command, which is seen when the next one is sent.
        for is_last in [connection.is_none(), true] {
            let stream = match connection.take().map_or_else(|| greet(&self.path, by), Ok) {
                Ok(stream) => stream,
                Err(error) => return Helped::Away(error),
            };
            match send(&stream, device.as_fd(), cdb, list, by) {
                Ok(()) => {}
                Err(_) if !is_last => continue,
                Err(error) => return Helped::Away(error),
            }
            return match answer(&stream, by) {
                Ok((ended, data)) => {
                    *connection = Some(stream);
                    Helped::Ended(ended, data)
                }
                // Whoever hangs up before it has read has done nothing, but that cannot be known.
                Err(error) => Helped::Unknown(error),
            };
        }
        unreachable!("the second try is the last")
    }
}

fn greet(path: &Path, by: Instant) -> io::Result<UnixStream> {
    // A helper that takes no connections keeps whoever waits for that.
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    let mut features = [0; 4];
    receive(&stream, &mut features, by)?;
    // None is defined.
    (&stream).write_all(&[0; 4])?;
    Ok(stream)
}

/// Fills `bytes`, by then.
fn receive(mut stream: &UnixStream, bytes: &mut [u8], by: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = by.saturating_duration_since(Instant::now());
        // None would be no bound.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut bytes[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => filled += more,
        }
    }
    Ok(())
}

fn send(
    mut stream: &UnixStream,
    device: BorrowedFd<'_>,
    cdb: &[u8],
    list: Option<&[u8]>,
    by: Instant,
) -> io::Result<()> {
    let left = by.saturating_duration_since(Instant::now());
    stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
    let mut padded = [0; CDB_BYTES];
    let len = cdb.len().min(CDB_BYTES);
    padded[..len].copy_from_slice(&cdb[..len]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let devices = [device];
    control.push(SendAncillaryMessage::ScmRights(&devices));
    let sent = sendmsg(stream, &[IoSlice::new(&padded)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&padded[sent..])?;
    stream.write_all(list.unwrap_or_default())
}

fn answer(stream: &UnixStream, by: Instant) -> io::Result<(Ended, Vec<u8>)> {
    let mut head = [0; 8 + SENSE_BYTES];
    receive(stream, &mut head, by)?;
    let [status, bytes] = [0, 4].map(|at| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let status = u8::try_from(status).map_err(|_| wrong("its answer has no SCSI status"))?;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= DATA_BYTES_MAX);
    let mut data = vec![0; bytes.ok_or_else(|| wrong("its answer is too long"))?];
    receive(stream, &mut data, by)?;
    let sense = &head[8..];
    // Fixed or descriptor format: the eighth byte says how many follow (SPC-5, "Sense data").
    let len = if sense[0] == 0 { 0 } else { (8 + usize::from(sense[7])).min(SENSE_BYTES) };
    let ended = Ended { status, host_status: 0, sense: sense[..len].to_vec(), moved_bytes: data.len() as u64 };
    Ok((ended, data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    /// A helper that answers as it is told, once for each connection's list.
    fn helper(listener: UnixListener, lives: Vec<Vec<Reaction>>) -> JoinHandle<Vec<(Vec<u8>, Vec<u8>)>> {
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            for life in lives {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&[0; 4]).unwrap();
                let mut features = [9; 4];
                stream.read_exact(&mut features).unwrap();
                assert_eq!(features, [0; 4]);
                for reaction in life {
                    let mut cdb = vec![0; CDB_BYTES];
                    stream.read_exact(&mut cdb).unwrap();
                    let mut list = vec![0; if cdb[0] == 0x5f { usize::from(cdb[8]) } else { 0 }];
                    stream.read_exact(&mut list).unwrap();
                    seen.push((cdb, list));
                    match reaction {
                        Reaction::Answer(status, sense, data) => {
                            let mut answer =
                                [u32::from(status).to_be_bytes(), (data.len() as u32).to_be_bytes()].concat();
                            answer.extend(sense);
                            answer.resize(8 + SENSE_BYTES, 0);
                            stream.write_all(&[answer, data].concat()).unwrap();
                        }
                        Reaction::Raw(bytes) => stream.write_all(&bytes).unwrap(),
                    }
                }
            }
            seen
        })
    }

    enum Reaction {
        Answer(u8, Vec<u8>, Vec<u8>),
        Raw(Vec<u8>),
    }

    #[test]
    fn a_command_goes_with_its_list_and_comes_back_with_its_data() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pr.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let sense = vec![0x70, 0, 0x05, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x26, 0, 0, 0, 0, 0];
        let there = helper(
            listener,
            vec![
                vec![Reaction::Answer(0, vec![], vec![1, 2, 3]), Reaction::Answer(2, sense.clone(), vec![])],
                vec![Reaction::Answer(0x18, vec![], vec![])],
            ],
        );
        let (helper, device) = (Helper::connect(&path).unwrap(), tempfile::tempfile().unwrap());
        let read = [0x5e, 0, 0, 0, 0, 0, 0, 0x20, 0, 0];
        let write = [0x5f, 1, 0, 0, 0, 0, 0, 0, 24, 0];
        let Helped::Ended(ended, data) = helper.perform(&device, &read, None) else { panic!() };
        assert_eq!((ended.status, ended.sense.len(), data), (0, 0, vec![1, 2, 3]));
        let Helped::Ended(ended, data) = helper.perform(&device, &write, Some(&[7; 24])) else { panic!() };
        assert_eq!((ended.status, ended.sense, data.len()), (2, sense, 0));
        // It ends and is there again: nobody is told, where the sending fails at least.
        let mut outcome = helper.perform(&device, &write, Some(&[8; 24]));
        if let Helped::Unknown(_) = outcome {
            outcome = helper.perform(&device, &write, Some(&[8; 24]));
        }
        let Helped::Ended(ended, _) = outcome else { panic!("{outcome:?}") };
        assert_eq!(ended.status, 0x18);
        let seen = there.join().unwrap();
        assert_eq!(seen[0].0[..10], read);
        assert_eq!(seen[1], ([&write[..], &[0; 6]].concat(), vec![7; 24]));
        assert_eq!(seen.last().unwrap().1, [8; 24]);
        // Now there is nobody.
        assert!(matches!(helper.perform(&device, &read, None), Helped::Away(_) | Helped::Unknown(_)));
        assert!(matches!(helper.perform(&device, &read, None), Helped::Away(_)));
    }

    #[test]
    fn an_answer_that_cannot_be_is_none() {
        let long = [0, 0, 0, 0, 0, 0, 0x20, 1].into_iter().chain([0; SENSE_BYTES]).collect();
        let status = [0, 0, 1, 0, 0, 0, 0, 0].into_iter().chain([0; SENSE_BYTES]).collect();
        for answer in [vec![0; 50], long, status] {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("pr.sock");
            let there = helper(UnixListener::bind(&path).unwrap(), vec![vec![Reaction::Raw(answer)]]);
            let (helper, device) = (Helper::connect(&path).unwrap(), tempfile::tempfile().unwrap());
            let outcome = helper.perform(&device, &[0x5e, 0, 0, 0, 0, 0, 0, 8, 0, 0], None);
            assert!(matches!(outcome, Helped::Unknown(_)), "{outcome:?}");
            there.join().unwrap();
        }
    }

    #[test]
    fn a_helper_that_does_not_answer_keeps_one_command_and_no_other() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pr.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let there = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[0; 4]).unwrap();
            let mut asked = [0; 4 + CDB_BYTES];
            stream.read_exact(&mut asked).unwrap();
            let _ = held.recv();
        });
        let helper = Helper::connect(&path).unwrap();
        let read = [0x5e, 0, 0, 0, 0, 0, 0, 8, 0, 0];
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (tell, helper) = (tell.clone(), &helper);
                scope.spawn(move || tell.send(helper.perform(tempfile::tempfile().unwrap(), &read, None)).unwrap());
            }
            assert!(matches!(told.recv().unwrap(), Helped::Busy), "whoever came later");
            drop(hold);
            assert!(matches!(told.recv().unwrap(), Helped::Unknown(_)));
        });
        there.join().unwrap();
    }
}
