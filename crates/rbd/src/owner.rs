//! What the owner of a lock has written down with the image: which process of which machine it is.
//!
//! The cluster knows an owner by its address, and takes half a minute to see that it is gone. Whoever comes next on the same machine knows
//! at once: a process number and the time at which it began, in the same name space of process numbers and the same boot of the machine, are
//! one process. Of any other machine, and of a container that is not this one, nothing is concluded.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;

/// A process that has, or had, the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The lock's owner as the cluster names it.
    address: String,
    process: Process,
}

/// A process, and where it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    boot: String,
    /// Of process numbers.
    name_space: String,
    /// Of times since the boot, which are another's in another one. Nothing where the kernel has none, and unknown in the first form.
    time_space: Option<String>,
    number: u32,
    /// When it began, in the kernel's ticks since the boot.
    begun: u64,
}

/// What stands for no name space.
const NO_SPACE: &str = "-";

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is this process.
    Here,
    /// It is another process of this machine, which lives.
    Lives(u32),
    /// It was a process of this machine, or the program that this one has taken the place of.
    Gone(u32),
    /// It is elsewhere, or none of ours.
    Unknown,
}

impl Owner {
    /// This process, which has the lock by this address.
    pub(crate) fn here(address: &str) -> Option<Owner> {
        Some(Owner { address: address.to_owned(), process: Process::here()? })
    }

    /// As it is written down.
    pub(crate) fn write(&self) -> String {
        let Process { boot, name_space, time_space, number, begun } = &self.process;
        let time_space = time_space.as_deref().unwrap_or(NO_SPACE);
        format!("2 {boot} {name_space} {time_space} {number} {begun} {}", self.address)
    }

    fn read(text: &str) -> Option<Owner> {
        let mut words = text.split(' ');
        let form = words.next()?;
        let (boot, name_space) = (words.next()?.to_owned(), words.next()?.to_owned());
        let time_space = match form {
            "1" => None,
            "2" => Some(words.next()?.to_owned()),
            _ => return None,
        };
        let (number, begun) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let address = words.next()?.to_owned();
        Some(Owner { address, process: Process { boot, name_space, time_space, number, begun } })
    }
}

impl Fate {
    /// Of the owner at `address`, by what is written down. `is_held`: this program has a lock by that address.
    pub(crate) fn of(address: &str, written: Option<&str>, is_held: bool) -> Fate {
        let owner = written.and_then(Owner::read).filter(|owner| owner.address == address);
        if is_held {
            return Fate::Here;
        }
        let (Some(Owner { process, .. }), Some(here)) = (owner, Process::here()) else { return Fate::Unknown };
        if (&process.boot, &process.name_space) != (&here.boot, &here.name_space) {
            return Fate::Unknown;
        }
        // The time at which a process began is told by the clock of whoever asks.
        if process.time_space.is_some() && process.time_space != here.time_space {
            return Fate::Unknown;
        }
        match look(process.number) {
            // What had the lock was the program before this one.
            _ if process.number == here.number => Fate::Gone(process.number),
            Seen::Lives(begun) if begun == process.begun => Fate::Lives(process.number),
            Seen::Lives(_) | Seen::Gone => Fate::Gone(process.number),
            Seen::Hidden => Fate::Unknown,
        }
    }
}

impl Process {
    fn here() -> Option<Process> {
        // What is mounted there may be of another name space of process numbers.
        let is_ours = fs::read_link("/proc/self").ok()?.to_str()?.parse() == Ok(std::process::id());
        if !is_ours {
            return None;
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let name_space = fs::read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned();
        let time_space = fs::read_link("/proc/self/ns/time");
        let time_space = time_space.ok().and_then(|link| link.into_os_string().into_string().ok());
        let time_space = Some(time_space.unwrap_or_else(|| NO_SPACE.to_owned()));
        let number = std::process::id();
        let Seen::Lives(begun) = look(number) else { return None };
        Some(Process { boot, name_space, time_space, number, begun })
    }
}

/// What is seen of a process.
enum Seen {
    /// It began then, in the kernel's ticks since the boot.
    Lives(u64),
    /// There is none of this number, or only what its parent has not asked for yet.
    Gone,
    /// There is one, of which no more can be seen (`hidepid`, proc(5)).
    Hidden,
}

fn look(number: u32) -> Seen {
    match fs::read_to_string(format!("/proc/{number}/stat")) {
        Ok(text) => read_stat(&text).unwrap_or(Seen::Hidden),
        Err(_) => {
            let process = i32::try_from(number).ok().and_then(Pid::from_raw);
            let answer = process.map_or(Err(Errno::SRCH), test_kill_process);
            if answer == Err(Errno::SRCH) { Seen::Gone } else { Seen::Hidden }
        }
    }
}

/// By proc_pid_stat(5): the state is the third field, and the time the twenty-second.
fn read_stat(text: &str) -> Option<Seen> {
    // The name of the program, in parentheses, may have any character; what follows has none of them.
    let (_, behind) = text.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    match *fields.first()? {
        "Z" | "X" => Some(Seen::Gone),
        _ => fields.get(19)?.parse().ok().map(Seen::Lives),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const ADDRESS: &str = "127.0.0.1:0/1";

    fn written(change: impl FnOnce(&mut Process)) -> String {
        let mut owner = Owner::here(ADDRESS).unwrap();
        change(&mut owner.process);
        owner.write()
    }

    fn time_space() -> String {
        Process::here().unwrap().time_space.unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let owner = Owner::here(ADDRESS).unwrap();
        assert_eq!(Owner::read(&owner.write()), Some(owner));
        // The first form.
        let Process { boot, name_space, time_space, number, begun } =
            Owner::read("1 a b 3 4 127.0.0.1:0/1").unwrap().process;
        assert_eq!((&*boot, &*name_space, time_space, number, begun), ("a", "b", None, 3, 4));
        for text in ["", "1", "3 a b c 1 1 d", "1 a b x 1 c", "1 a b 1 1", "2 a b c 1 1"] {
            assert_eq!(Owner::read(text), None, "{text}");
        }
    }

    #[test]
    fn the_living_are_told_from_the_dead() {
        let fate = |text: &str| Fate::of(ADDRESS, Some(text), false);
        assert_eq!(Fate::of(ADDRESS, Some(&written(|_| {})), true), Fate::Here);
        assert_eq!(Fate::of(ADDRESS, None, true), Fate::Here);
        // This process was another program then.
        assert_eq!(fate(&written(|_| {})), Fate::Gone(std::process::id()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let number = child.id();
        let Seen::Lives(begun) = look(number) else { panic!("it sleeps") };
        let text = written(|process| (process.number, process.begun) = (number, begun));
        assert_eq!(fate(&text), Fate::Lives(number));
        let first_form = written(|process| (process.number, process.begun) = (number, begun));
        let first_form = first_form.replacen('2', "1", 1).replacen(&format!(" {}", time_space()), "", 1);
        assert_eq!(fate(&first_form), Fate::Lives(number));
        child.kill().unwrap();
        while fate(&text) == Fate::Lives(number) {
            std::thread::yield_now();
        }
        // Before anybody has asked how it ended, and after.
        assert_eq!(fate(&text), Fate::Gone(number));
        child.wait().unwrap();
        assert_eq!(fate(&text), Fate::Gone(number));
        // Another process has its number by now.
        assert_eq!(fate(&written(|process| process.begun += 1)), Fate::Gone(std::process::id()));
    }

    #[test]
    fn of_others_nothing_is_concluded() {
        let text = written(|_| {});
        assert_eq!(Fate::of("127.0.0.1:0/2", Some(&text), false), Fate::Unknown);
        assert_eq!(Fate::of(ADDRESS, None, false), Fate::Unknown);
        let elsewhen = |process: &mut Process| process.time_space = Some("time:[1]".to_owned());
        for text in [
            written(|process| process.boot.push('x')),
            written(|process| process.name_space.push('x')),
            written(elsewhen),
            // Whose beginning is another here.
            written(|process| {
                elsewhen(process);
                process.begun += 1;
            }),
        ] {
            assert_eq!(Fate::of(ADDRESS, Some(&text), false), Fate::Unknown);
        }
    }
}
