//! The real stage: stands on this host.

use anyhow::Result;

use super::turns::{Stage, Standing};
use crate::experiment::{Configuration, Experiment, Workload};
use crate::record::Figures;
use crate::stand::{Site, Stand, Trouble};

/// Raises stands on this host.
pub(crate) struct HostStage<'a> {
    pub(crate) site: &'a Site,
    pub(crate) experiment: &'a Experiment,
}

impl Stage for HostStage<'_> {
    fn raise(&mut self, configuration: &Configuration) -> Result<Box<dyn Standing>, Trouble> {
        Ok(Box::new(Stand::start(self.site, self.experiment, configuration)?))
    }
}

impl Standing for Stand {
    fn measure(&mut self, workload: &Workload) -> Result<Figures, Trouble> {
        Stand::measure(self, workload)
    }

    fn is_alive(&mut self) -> bool {
        Stand::is_alive(self)
    }

    fn end(self: Box<Self>) -> Result<()> {
        Stand::end(*self)
    }
}
