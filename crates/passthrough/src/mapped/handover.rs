//! What is known of records that are kept beside names, in a tree that goes on in another program.

use super::Mapped;
use super::known::{Known, Name};
use super::record::Record;
use crate::handover::{AdoptError, Incoming, NameForm, NodeForm, Outgoing, RecordForm};
use crate::node::Inode;
use crate::tree::{Node, Tree};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::sync::Arc;

impl Tree {
    fn known(&self) -> Option<&Known> {
        self.mapped.as_deref().and_then(|mapped: &Mapped| mapped.files.as_ref())
    }

    /// What is known, and the directories of names that the client has forgotten.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn hand_records_over(&self, out: &mut Outgoing) -> io::Result<(Vec<RecordForm>, Vec<NodeForm>)> {
        let mut strays: BTreeMap<Node, Arc<Inode>> = BTreeMap::new();
        let mut records = Vec::new();
        for (node, record, names) in self.known().map_or_else(Vec::new, Known::all) {
            let Record { uid, gid, mode, rdev } = record;
            let names = names.into_iter().map(|Name { dir, name }| {
                let number = dir.node;
                if self.table.get(number).is_err() {
                    strays.insert(number, dir);
                }
                NameForm { dir: number, name: name.into_bytes() }
            });
            records.push(RecordForm { node, uid, gid, mode, rdev, names: names.collect() });
        }
        let strays = strays.values().map(|inode| self.table.node_form(inode, out)).collect::<io::Result<_>>()?;
        Ok((records, strays))
    }

    /// Knows again what another program has handed over.
    pub(crate) fn adopt_records(
        &self,
        records: Vec<RecordForm>,
        strays: &[NodeForm],
        incoming: &mut Incoming,
    ) -> Result<(), AdoptError> {
        let Some(known) = self.known() else { return Ok(()) };
        let mut forgotten: BTreeMap<Node, Arc<Inode>> = BTreeMap::new();
        for form in strays {
            let path = form.path.map(|place| incoming.take(place)).transpose()?;
            forgotten.insert(form.node, self.table.node_again(form, incoming.mount(form.mount)?, path));
        }
        for RecordForm { node, uid, gid, mode, rdev, names } in records {
            let names = names.into_iter().map(|NameForm { dir, name }| {
                let there = self.table.get(dir).ok().or_else(|| forgotten.get(&dir).cloned());
                let name = CString::new(name).map_err(|_| AdoptError::Name(dir))?;
                Ok(Name { dir: there.ok_or(AdoptError::Name(dir))?, name })
            });
            known.adopt(node, Record { uid, gid, mode, rdev }, names.collect::<Result<_, AdoptError>>()?);
        }
        Ok(())
    }
}
