//! What things cost: the calibration.

/// Costs in nanoseconds, and what machines share.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// A worker's request, but for its data.
    pub request_ns: f64,
    /// A request's data: a copy, or what a target does instead.
    pub data_ns: f64,
    /// A turn of a worker that has work: looking at its rings, publishing, clocks.
    pub turn_ns: f64,
    /// Requests that are answered before the driver is shown them.
    pub publish: u32,
    /// Waking a client that sleeps: the worker's share.
    pub notify_ns: f64,
    /// From an event to when a sleeper runs on an idle processor. Where none is idle it waits for one instead.
    pub wake_ns: f64,
    /// What going to sleep takes: work that comes meanwhile is seen, and nobody is woken for it.
    pub sleep_ns: f64,
    /// How long a worker polls before it sleeps.
    pub poll_ns: f64,
    /// A client's request: making it, and taking its answer.
    pub client_request_ns: f64,
    /// A client's system call for a submission of one or more requests, and for the answers it takes at once.
    pub client_call_ns: f64,
    /// What a client's request costs more while its ring's worker is on another processor: lines that travel.
    pub line_ns: f64,
    /// Kicking a worker that sleeps: the client's share, a leave of the guest included.
    pub kick_ns: f64,
    /// Another thread on the same processor.
    pub switch_ns: f64,
    /// How long a thread keeps a processor that others wait for.
    pub slice_ns: f64,
    /// A move of a ring: on each of the two workers.
    pub move_ns: f64,
    /// Workers of a node that copy at full speed together; more share that.
    pub streams: f64,
    /// What every other worker that runs adds to a request: locks and lines that all of them share.
    pub crowd_ns: f64,
    /// What data costs where the guest's memory is another node's.
    pub remote: f64,
    /// What everything costs while the core's other thread runs.
    pub sibling: f64,
}

/// What a SCSI command takes more of a worker than a request of virtio-blk, and of a client: chosen within the 60 to 120 ns that
/// `docs/scsi.md` has measured of both together, not fitted. `simulator validate PROGRAM scsi` says how good the choice is.
const SCSI_REQUEST_NS: f64 = 80.0;
const SCSI_CLIENT_NS: f64 = 20.0;

impl Costs {
    /// Virtual disks that copy nothing (`null`), measured where `docs/results/simulator.md` says.
    #[must_use]
    pub fn here() -> Costs {
        Costs {
            request_ns: 55.0,
            data_ns: 0.0,
            turn_ns: 600.0,
            publish: 16,
            notify_ns: 800.0,
            wake_ns: 2_000.0,
            sleep_ns: 1_500.0,
            poll_ns: 0.0,
            client_request_ns: 72.0,
            client_call_ns: 300.0,
            line_ns: 80.0,
            kick_ns: 800.0,
            switch_ns: 300.0,
            slice_ns: 3_000_000.0,
            move_ns: 20_000.0,
            streams: 8.0,
            crowd_ns: 0.0,
            remote: 1.5,
            sibling: 1.6,
        }
    }

    /// The same with disks in memory: each request is a copy of 4 KiB between two mappings that no cache holds.
    #[must_use]
    pub fn memory() -> Costs {
        Costs { data_ns: 600.0, client_request_ns: 160.0, ..Costs::here() }
    }

    /// The same behind a SCSI device: what a command costs beside a request of virtio-blk, to be taken apart and answered, on either side.
    /// That is all that a device is here: rings of both kinds have the same turns, and share nothing with other rings while nobody
    /// changes a unit.
    #[must_use]
    pub fn over_scsi(self) -> Costs {
        Costs {
            request_ns: self.request_ns + SCSI_REQUEST_NS,
            client_request_ns: self.client_request_ns + SCSI_CLIENT_NS,
            ..self
        }
    }

    /// The vhost note's machine, which is not described there: fitted to eight of its figures, and kept for the other ones. A request
    /// of its target takes 1.9 µs of a worker, and a turn 3.4: a worker of the kernel queues work for each kick and sleeps behind it.
    #[must_use]
    pub fn vhost_note() -> Costs {
        Costs {
            request_ns: 1_900.0,
            data_ns: 0.0,
            turn_ns: 3_400.0,
            publish: 64,
            notify_ns: 400.0,
            wake_ns: 4_000.0,
            sleep_ns: 1_000.0,
            poll_ns: 0.0,
            client_request_ns: 800.0,
            client_call_ns: 4_000.0,
            kick_ns: 1_000.0,
            crowd_ns: 200.0,
            line_ns: 0.0,
            ..Costs::here()
        }
    }
}
