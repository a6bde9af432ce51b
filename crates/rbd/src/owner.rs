//! What the owner of a lock has written down with the image: which process of which machine it is.
//!
//! The cluster knows an owner by its address, and takes half a minute to see that it is gone. Whoever comes next on the same machine knows
//! at once: a process number and the time at which it began, in the same name space of process numbers and the same boot of the machine, are
//! one process. Of any other machine, and of a container that is not this one, nothing is concluded.

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
    number: u32,
    /// When it began, in the kernel's ticks since the boot.
    begun: u64,
}

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is this process.
    Here,
    /// It is another process of this machine, which lives.
    Lives(u32),
    /// It was a process of this machine.
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
        let Process { boot, name_space, number, begun } = &self.process;
        format!("1 {boot} {name_space} {number} {begun} {}", self.address)
    }

    fn read(text: &str) -> Option<Owner> {
        let mut words = text.split(' ');
        if words.next() != Some("1") {
            return None;
        }
        let (boot, name_space) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (number, begun) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let address = words.next()?.to_owned();
        Some(Owner { address, process: Process { boot, name_space, number, begun } })
    }
}

impl Fate {
    /// Of the owner at `address`, by what is written down.
    pub(crate) fn of(address: &str, written: Option<&str>) -> Fate {
        let owner = written.and_then(Owner::read).filter(|owner| owner.address == address);
        let (Some(Owner { process, .. }), Some(here)) = (owner, Process::here()) else { return Fate::Unknown };
        if process == here {
            return Fate::Here;
        }
        if (&process.boot, &process.name_space) != (&here.boot, &here.name_space) {
            return Fate::Unknown;
        }
        match begun(process.number) {
            Some(begun) if begun == process.begun => Fate::Lives(process.number),
            _ => Fate::Gone(process.number),
        }
    }
}

impl Process {
    fn here() -> Option<Process> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let name_space = fs::read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned();
        let number = std::process::id();
        Some(Process { boot, name_space, number, begun: begun(number)? })
    }
}

/// When the process of this number began; `None` where there is none, or only what is left of one.
fn begun(number: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name of the program, in parentheses, may have any character; what follows has none of them.
    let (_, behind) = text.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    // proc_pid_stat(5): the state is the third field, and the time the twenty-second.
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    fields.get(19)?.parse().ok()
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

    #[test]
    fn what_is_written_is_read() {
        let owner = Owner::here(ADDRESS).unwrap();
        assert_eq!(Owner::read(&owner.write()), Some(owner));
        for text in ["", "1", "2 a b 1 1 c", "1 a b x 1 c", "1 a b 1 1"] {
            assert_eq!(Owner::read(text), None, "{text}");
        }
    }

    #[test]
    fn the_living_are_told_from_the_dead() {
        let fate = |text: &str| Fate::of(ADDRESS, Some(text));
        assert_eq!(fate(&written(|_| {})), Fate::Here);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let number = child.id();
        let text = written(|process| (process.number, process.begun) = (number, begun(number).unwrap()));
        assert_eq!(fate(&text), Fate::Lives(number));
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
        assert_eq!(Fate::of("127.0.0.1:0/2", Some(&text)), Fate::Unknown);
        assert_eq!(Fate::of(ADDRESS, None), Fate::Unknown);
        for text in [written(|process| process.boot.push('x')), written(|process| process.name_space.push('x'))] {
            assert_eq!(Fate::of(ADDRESS, Some(&text)), Fate::Unknown);
        }
    }
}
