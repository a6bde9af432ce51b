//! The thirty jobs, by what virtiofs-tests published: five patterns, three engines, one file or
//! four. Blocks of 4 KiB, and 16 requests at once where the engine can.

/// Where a job reads and writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Pattern {
    SeqRead,
    RandRead,
    SeqWrite,
    RandWrite,
    /// Three reads to one write.
    RandRw,
}

/// How it asks for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Engine {
    Psync,
    Libaio,
    Mmap,
}

/// One job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pattern: Pattern,
    engine: Engine,
    files: u32,
}

/// Files of a `multi` job, each with a process of its own.
pub(crate) const FILES: u32 = 4;

/// All of them.
pub(crate) fn all() -> Vec<Job> {
    let mut jobs = Vec::new();
    for pattern in [Pattern::SeqRead, Pattern::RandRead, Pattern::SeqWrite, Pattern::RandWrite, Pattern::RandRw] {
        for engine in [Engine::Psync, Engine::Libaio, Engine::Mmap] {
            for files in [1, FILES] {
                jobs.push(Job { pattern, engine, files });
            }
        }
    }
    jobs
}

/// The name of a file, from 1 on.
pub(crate) fn file(number: u32) -> String {
    format!("fio-file{number}")
}

impl Job {
    /// As it was published, for example `randread-libaio-multi`.
    pub(crate) fn name(&self) -> String {
        let pattern = match self.pattern {
            Pattern::SeqRead => "seqread",
            Pattern::RandRead => "randread",
            Pattern::SeqWrite => "seqwrite",
            Pattern::RandWrite => "randwrite",
            Pattern::RandRw => "randrw",
        };
        let files = if self.files == 1 { "" } else { "-multi" };
        format!("{pattern}-{}{files}", self.engine_name())
    }

    /// Its description for fio: files of `mebibytes` in the working directory, at most `seconds`.
    pub(crate) fn description(&self, mebibytes: u32, seconds: u32) -> String {
        let mut text = format!(
            "[global]\nbs=4k\nsize={mebibytes}m\nruntime={seconds}\ngroup_reporting=1\ninvalidate=1\nioengine={}\n",
            self.engine_name()
        );
        text += match self.pattern {
            Pattern::SeqRead => "rw=read\n",
            Pattern::RandRead => "rw=randread\n",
            Pattern::SeqWrite => "rw=write\n",
            Pattern::RandWrite => "rw=randwrite\n",
            Pattern::RandRw => "rw=randrw\nrwmixread=75\n",
        };
        // Writes are made durable along the way, as the published jobs do.
        let writes = matches!(self.pattern, Pattern::SeqWrite | Pattern::RandWrite);
        text += match (self.engine, writes) {
            (Engine::Libaio, true) => "direct=1\niodepth=16\nfsync=32768\n",
            (Engine::Libaio, false) => "direct=1\niodepth=16\n",
            (Engine::Psync | Engine::Mmap, true) => "fsync=128\n",
            (Engine::Psync | Engine::Mmap, false) => "",
        };
        for number in 1..=self.files {
            text += &format!("[{}]\nfilename={}\n", self.name(), file(number));
        }
        text
    }

    fn engine_name(&self) -> &'static str {
        match self.engine {
            Engine::Psync => "psync",
            Engine::Libaio => "libaio",
            Engine::Mmap => "mmap",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_thirty_of_different_names() {
        let names: BTreeSet<String> = all().iter().map(Job::name).collect();
        assert_eq!(names.len(), 30);
        assert!(names.contains("seqwrite-mmap-multi") && names.contains("randrw-psync"), "{names:?}");
    }

    #[test]
    fn a_multi_job_has_a_section_a_file() {
        for job in all() {
            let sections = job.description(64, 3).matches("filename=").count();
            assert_eq!(sections, if job.name().ends_with("-multi") { 4 } else { 1 }, "{}", job.name());
        }
    }

    #[test]
    fn only_libaio_passes_the_page_cache_by() {
        for job in all() {
            let description = job.description(64, 3);
            assert_eq!(description.contains("direct=1"), job.name().contains("libaio"), "{description}");
            let writes_only = job.name().contains("write");
            assert_eq!(description.contains("fsync="), writes_only, "{description}");
        }
    }
}
