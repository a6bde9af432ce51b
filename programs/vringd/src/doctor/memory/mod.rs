//! Memory: what the kernel promises, what volumes keep in it, and in which pages guests have theirs.

pub(super) mod read;

use super::finding::{About, Area, Finding, Level};
use super::limits::Demand;
use crate::out::size;
use std::path::PathBuf;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// `vm.overcommit_memory`: 2 promises no more than there is.
    pub(super) overcommit: Option<u32>,
    /// `vm.max_map_count`.
    pub(super) maps_max: Option<u64>,
    /// The choice in `shmem_enabled` of transparent huge pages, for memory that is shared with a daemon.
    pub(super) shared_pages: Option<String>,
    /// Free huge pages of the usual size, and their size, in bytes.
    pub(super) huge: (u64, u64),
    /// `MemAvailable`, or what the control group has left if that is less, in bytes.
    pub(super) available_bytes: Option<u64>,
    /// `SwapTotal`, in bytes.
    pub(super) swap_bytes: u64,
    /// Memory files that volumes and logs would have.
    pub(super) files: Vec<MemoryFile>,
    /// Storages in huge pages: whose, and how many bytes.
    pub(super) in_huge: Vec<(String, u64)>,
    /// What storages may keep in memory, in bytes: unwritten data, tables, memory disks.
    pub(super) storages_bytes: u64,
    /// Directories that are served, and disks that guests connect to: there is guest memory.
    pub(super) guests: usize,
}

/// The memory file of a volume or a log, on tmpfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryFile {
    pub(super) subject: String,
    /// Where; nowhere for memory that ends with the process.
    pub(super) path: Option<PathBuf>,
    /// It has its memory already.
    pub(super) is_there: bool,
    /// Its data alone, in bytes; records come on top.
    pub(super) bytes: u64,
    /// The file system that it is to be on: a number, and the bytes that are free there.
    pub(super) place: Option<(u64, u64)>,
}

/// What is wrong with it.
pub(super) fn findings(facts: &Facts, demand: &Demand) -> Vec<Finding> {
    let mut found = files(facts);
    found.extend(huge(facts));
    found.extend(kernel(facts, demand));
    found
}

/// Each tmpfs gets what its files need together: a memory file has all of it from the start.
fn files(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut places: Vec<(u64, u64, u64)> = Vec::new();
    for file in &facts.files {
        let about = About::new(Area::Memory, &file.subject);
        let Some(path) = &file.path else {
            let cost = "a killed daemon loses what guests have written and not flushed, which guests that live on do not expect";
            found.push(
                about.costs(Level::Note, "memory-file", "has no memory file", cost).fix("memory_file = \"auto\""),
            );
            continue;
        };
        let (path, bytes) = (path.display(), size(file.bytes));
        let Some((place, free)) = file.place.filter(|_| !file.is_there) else {
            found.push(about.good("memory-file", format_args!("{path}, {bytes}")));
            continue;
        };
        let before: u64 = places.iter().filter(|(other, ..)| *other == place).map(|(.., bytes)| bytes).sum();
        places.push((place, free, file.bytes));
        let left = free.saturating_sub(before);
        found.push(if file.bytes > left {
            let seen =
                format!("its memory file, {path}, takes {bytes} and more, and there are {} left for it", size(left));
            let cost = "`vringd serve` does not start: all of the file is reserved at the start";
            about.costs(Level::Fails, "memory-file", seen, cost).fix(format_args!(
                "dirty_memory = \"{}M\"    # or more room: mount -o remount,size=SIZE {}",
                (left >> 21).max(1),
                file.path
                    .as_deref()
                    .and_then(|path| path.parent())
                    .unwrap_or(std::path::Path::new("/dev/shm"))
                    .display()
            ))
        } else {
            about.good("memory-file", format_args!("{path}, {bytes} of {} that are free", size(left)))
        });
    }
    if facts.files.iter().any(|file| file.path.is_some()) {
        let machine = About::machine(Area::Memory);
        found.push(match facts.swap_bytes {
            0 => machine.good("swap", "there is no swap: memory files stay in memory"),
            bytes => machine.costs(
                Level::Note,
                "swap",
                format_args!("{} of swap, and memory files on tmpfs may go there", size(bytes)),
                "reads of what was written lately may wait for the swap device, where memory is short",
            ),
        });
    }
    found
}

fn huge(facts: &Facts) -> Vec<Finding> {
    let (mut free, page) = facts.huge;
    let of = facts.in_huge.iter().map(|(subject, bytes)| {
        let about = About::new(Area::Memory, subject);
        let takes = bytes.next_multiple_of(page.max(1));
        let seen = format!("takes {} in huge pages, of which {} are free", size(takes), size(free));
        if takes > free {
            let pages = takes.div_ceil(page.max(1));
            let cost = "`vringd serve` does not start";
            return about.costs(Level::Fails, "huge-pages", seen, cost).fix(format_args!(
                "sysctl vm.nr_hugepages={pages}    # and as many more as others use, or leave `hugepages` out"
            ));
        }
        free -= takes;
        about.good("huge-pages", seen)
    });
    of.collect()
}

fn kernel(facts: &Facts, demand: &Demand) -> Vec<Finding> {
    let machine = About::machine(Area::Memory);
    let mut found = Vec::new();
    found.extend(facts.overcommit.map(|mode| {
        match mode {
            2 => machine
                .costs(
                    Level::Degraded,
                    "overcommit",
                    "vm.overcommit_memory is 2: what is mapped counts before it is used",
                    "memory disks, maps of volumes and threads' stacks may be refused while there is memory",
                )
                .fix("sysctl vm.overcommit_memory=0"),
            mode => machine.good("overcommit", format_args!("vm.overcommit_memory is {mode}")),
        }
    }));
    found.extend(facts.maps_max.map(|most| {
        let maps = demand.guests.maps;
        let seen =
            format!("vm.max_map_count is {most}, and some {maps} mappings are needed with a guest on each export");
        match maps > most {
            true => machine
                .costs(
                    Level::Degraded,
                    "map-count",
                    seen,
                    "guests that connect last are refused: their memory cannot be mapped",
                )
                .fix(format_args!("sysctl vm.max_map_count={}", (maps * 2).next_power_of_two())),
            false => machine.good("map-count", seen),
        }
    }));
    found.extend(facts.shared_pages.as_deref().filter(|_| facts.guests > 0).map(|choice| {
        let seen = format!("transparent huge pages of shared memory: {choice}");
        match ["never", "deny"].contains(&choice) {
            true => machine
                .costs(
                    Level::Note,
                    "shared-huge-pages",
                    seen,
                    "guests' memory is in small pages, unless it is on hugetlbfs: more TLB misses",
                )
                .fix("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled    # QEMU asks for them"),
            false => machine.good("shared-huge-pages", seen),
        }
    }));
    found.extend(facts.available_bytes.map(|available| {
        let (takes, available) = (facts.storages_bytes, available);
        let seen = format!("disks may keep {} in memory, and {} are available", size(takes), size(available));
        match takes > available {
            true => machine
                .costs(
                    Level::Degraded,
                    "available",
                    seen,
                    "memory runs out once guests write much: the kernel kills somebody",
                )
                .fix("dirty_memory = \"64M\"    # of each volume and log, and a smaller table_memory of images"),
            false => machine.good("available", seen),
        }
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::limits::demand::Needs;

    fn level(facts: &Facts, check: &str) -> Vec<Level> {
        let demand = Demand { guests: Needs { maps: 1000, ..Needs::default() }, ..Demand::default() };
        findings(facts, &demand)
            .into_iter()
            .filter(|finding| finding.check == check)
            .map(|finding| finding.level)
            .collect()
    }

    fn file(bytes: u64, place: u64) -> MemoryFile {
        let path = Some("/dev/shm/m".into());
        MemoryFile { subject: "export a".into(), path, is_there: false, bytes, place: Some((place, 100 << 20)) }
    }

    #[test]
    fn files_on_one_tmpfs_share_its_room() {
        let m = |megabytes: u64| megabytes << 20;
        let of = |files| level(&Facts { files, ..Facts::default() }, "memory-file");
        assert_eq!(of(vec![file(m(60), 1), file(m(60), 1)]), [Level::Good, Level::Fails]);
        assert_eq!(of(vec![file(m(60), 1), file(m(60), 2)]), [Level::Good, Level::Good]);
        assert_eq!(of(vec![MemoryFile { is_there: true, ..file(m(600), 1) }]), [Level::Good], "it has its memory");
        assert_eq!(of(vec![MemoryFile { path: None, place: None, ..file(1, 1) }]), [Level::Note]);
    }

    #[test]
    fn huge_pages_go_to_the_first() {
        let in_huge = vec![("export a".to_owned(), 3 << 20), ("export b".to_owned(), 1)];
        let facts = Facts { huge: (4 << 20, 2 << 20), in_huge, ..Facts::default() };
        assert_eq!(level(&facts, "huge-pages"), [Level::Good, Level::Fails]);
    }

    #[test]
    fn settings_of_the_kernel_cost_what_they_cost() {
        let facts = |overcommit, maps_max, pages: &str| Facts {
            overcommit: Some(overcommit),
            maps_max: Some(maps_max),
            shared_pages: Some(pages.to_owned()),
            guests: 1,
            ..Facts::default()
        };
        for (facts, expected) in [
            (facts(0, 1000, "advise"), [Level::Good; 3]),
            (facts(2, 999, "never"), [Level::Degraded, Level::Degraded, Level::Note]),
        ] {
            let levels = ["overcommit", "map-count", "shared-huge-pages"].map(|check| level(&facts, check)[0]);
            assert_eq!(levels, expected);
        }
        let short = Facts { available_bytes: Some(9), storages_bytes: 10, ..Facts::default() };
        assert_eq!(level(&short, "available"), [Level::Degraded]);
        assert!(level(&Facts { swap_bytes: 1, ..Facts::default() }, "swap").is_empty(), "there is no memory file");
        assert_eq!(level(&Facts { swap_bytes: 1, files: vec![file(1, 1)], ..Facts::default() }, "swap"), [Level::Note]);
    }
}
