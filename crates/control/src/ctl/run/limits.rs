//! `vringd ctl limit` and `vringd ctl group`.

use super::{CtlError, Session, export_target};
use crate::client::segment;
use crate::ctl::limit::{self, GroupCommand, LimitCommand};
use crate::model::{Export, Group, GroupSettings, Limits, Settings};
use hyper::Method;

impl Session<'_> {
    pub(super) fn limit(&mut self, command: &LimitCommand) -> Result<(), CtlError> {
        match command {
            LimitCommand::List => self.show::<Vec<Export>>("/v1/exports", |exports| limit::limits(exports)),
            LimitCommand::Set { name, rates, group, no_group } => {
                let group = if *no_group { Some(String::new()) } else { group.clone() };
                self.set_limits(name, Limits::new(rates.rates(), group))
            }
            LimitCommand::Lift { name } => self.set_limits(name, LimitCommand::nothing()),
        }
    }

    fn set_limits(&mut self, name: &str, limits: Limits) -> Result<(), CtlError> {
        let settings = Settings { limits: Some(limits), ..Settings::default() };
        self.send::<Export>(Method::PATCH, &export_target(name), &settings, |export| {
            limit::limits(std::slice::from_ref(export))
        })
    }

    pub(super) fn group(&mut self, command: &GroupCommand) -> Result<(), CtlError> {
        let target = |name: &str| format!("/v1/groups/{}", segment(name));
        match command {
            GroupCommand::List => self.show::<Vec<Group>>("/v1/groups", |groups| limit::groups(groups)),
            GroupCommand::Show { name } => self.show::<Group>(&target(name), one),
            GroupCommand::Add { name, rates } => self.send(Method::POST, "/v1/groups", &rates.group(name), one),
            GroupCommand::Set { name, rates } => {
                let settings = GroupSettings {
                    iops: rates.iops,
                    burst_requests: rates.burst_requests,
                    bytes_per_second: rates.bytes,
                    burst_bytes: rates.burst_bytes,
                };
                self.send(Method::PATCH, &target(name), &settings, one)
            }
            GroupCommand::Remove { name } => {
                self.order(Method::DELETE, &target(name), &format!("removed group {name}"))
            }
        }
    }
}

fn one(group: &Group) -> String {
    limit::groups(std::slice::from_ref(group))
}
