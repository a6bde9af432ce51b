//! What is known of records that are kept beside names, in a tree that goes on in another program.

use super::known::{Known, Name};
use super::record::Record;
use crate::handover::descriptors::{Incoming, Outgoing};
use crate::handover::error::AdoptError;
use crate::handover::form::{NameForm, NodeForm, RecordForm};
use crate::ids::Node;
use crate::node::Inode;
use crate::table::Table;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;

impl Known {
    /// What is known, and the directories of names that the client has forgotten.
    pub(crate) fn hand_over(&self, table: &Table, out: &mut Outgoing) -> (Vec<RecordForm>, Vec<NodeForm>) {
        let mut strays: BTreeMap<Node, Arc<Inode>> = BTreeMap::new();
        let mut records = Vec::new();
        for (node, record, names) in self.all() {
            let Record { uid, gid, mode, rdev } = record;
            let names = names.into_iter().map(|Name { dir, name }| {
                let number = dir.node;
                if table.get(number).is_err() {
                    strays.insert(number, dir);
                }
                NameForm { dir: number, name: name.into_bytes() }
            });
            records.push(RecordForm { node, uid, gid, mode, rdev, names: names.collect() });
        }
        let strays = strays.values().map(|inode| table.node_form(inode, out)).collect();
        (records, strays)
    }

    /// Knows again what another program has handed over.
    pub(crate) fn adopt(
        &self,
        records: Vec<RecordForm>,
        strays: &[NodeForm],
        table: &Table,
        incoming: &mut Incoming,
    ) -> Result<(), AdoptError> {
        let mut forgotten: BTreeMap<Node, Arc<Inode>> = BTreeMap::new();
        for form in strays {
            let path = form.path.map(|place| incoming.take(place)).transpose()?;
            forgotten.insert(form.node, table.node_again(form, incoming.mount(form.mount)?, path));
        }
        for RecordForm { node, uid, gid, mode, rdev, names } in records {
            let names = names.into_iter().map(|NameForm { dir, name }| {
                let there = table.get(dir).ok().or_else(|| forgotten.get(&dir).cloned());
                let name = CString::new(name).map_err(|_| AdoptError::Name(dir))?;
                Ok(Name { dir: there.ok_or(AdoptError::Name(dir))?, name })
            });
            self.know_again(node, Record { uid, gid, mode, rdev }, names.collect::<Result<_, AdoptError>>()?);
        }
        Ok(())
    }
}
