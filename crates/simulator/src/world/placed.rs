//! The policy at work: samples as the daemon would take them, verdicts as it would carry them out.

use super::{Event, World};
use policy::balance::{Cpu, LOOK_NS, Machine, RingLoad, Sample, WorkerLoad};

impl World<'_> {
    pub(super) fn look(&mut self) {
        let Some(mut balance) = self.balance.take() else { return };
        let sample = self.sample();
        if let Some(verdict) = balance.look(&sample) {
            // Workers are there by the next look.
            for place in self.workers.len()..verdict.workers as usize {
                let seat = verdict.seats.get(place - sample.workers.len()).copied();
                self.start_worker(seat.map_or(place % usize::from(self.scenario.host.processors.max(1)), usize::from));
            }
            for it in &verdict.moves {
                self.move_ring(it.ring as usize, it.to as usize);
            }
            self.verdicts.push(verdict);
        }
        self.balance = Some(balance);
        self.at(self.now_ns + LOOK_NS, Event::Look);
    }

    fn sample(&self) -> Sample {
        let host = self.scenario.host;
        let cpu = |cpu: u16| Cpu {
            cpu,
            core: u32::from(cpu / host.threads.max(1)),
            node: self.node(usize::from(cpu)) as u32,
            isolated: false,
        };
        let worker = |(number, it): (usize, &super::WorkerState)| WorkerLoad {
            worker: number as u32,
            shared: true,
            cpu: Some(it.seat as u16),
            busy_ns: it.busy_ns as u64,
            cpu_ns: it.cpu_ns as u64,
        };
        let ring = |(number, it): (usize, &super::ClientState)| RingLoad {
            ring: number as u64,
            export: self.scenario.clients[number].export,
            worker: it.worker as u32,
            pinned: false,
            node: (self.copying.len() > 1).then_some(it.node as u32),
            requests: it.requests,
            // As in the daemon, where nobody measures it.
            busy_ns: None,
        };
        Sample {
            at_ns: self.now_ns,
            workers: self.workers.iter().enumerate().map(worker).collect(),
            rings: self.clients.iter().enumerate().map(ring).collect(),
            machine: Machine { cpus: (0..host.processors).map(cpu).collect(), quota_milli: None, workers_max: 256 },
        }
    }
}
