//! A workload as one configuration meets it.

use super::placeholder::{OF_CONFIGURATION, fill};
use super::{Configuration, Options, Workload};

impl Workload {
    /// This load on `configuration`: every `{c.axis}` and `{c.axis.key}` of its options is the configuration's, and an option
    /// that comes out empty is left out.
    ///
    /// What the configuration does not have stays as it is; [`read`](super::read) refuses an experiment where that could
    /// happen.
    #[must_use]
    pub fn for_configuration(&self, configuration: &Configuration) -> Workload {
        Workload {
            fio: options(&self.fio, configuration),
            frontend: options(&self.frontend, configuration),
            ..self.clone()
        }
    }
}

impl Configuration {
    /// What `{c.name}` stands for here.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.labels.get(name).or_else(|| self.values.get(name)).map(String::as_str)
    }
}

fn options(options: &Options, configuration: &Configuration) -> Options {
    let filled = options.iter().map(|(name, text)| {
        let value = fill(text, |placeholder| {
            let ours = placeholder.strip_prefix(OF_CONFIGURATION).and_then(|name| configuration.value(name));
            Ok(ours.map_or_else(|| format!("{{{placeholder}}}"), str::to_owned))
        });
        (name.clone(), value.unwrap_or_else(|_| text.clone()))
    });
    filled.filter(|(_, value)| !value.is_empty()).collect()
}
