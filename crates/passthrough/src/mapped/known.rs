//! What the tree knows of the records of nodes where they are kept beside names: the record, and under which names it is.
//!
//! A client asks by node, and what it asks about may have been renamed, or have no name any more. What somebody else writes
//! to a metadata file is seen with the next look-up of its name.

use super::record::Record;
use crate::ids::Node;
use crate::node::Inode;
use crate::sync::{Numbers, read, write};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, RwLock};

/// How many parts the map has. A power of two.
const SHARDS: usize = 16;

/// How many names of an inode are remembered: the latest.
const NAMES_MAX: usize = 8;

/// A name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) dir: Arc<Inode>,
    pub(crate) name: CString,
}

impl Name {
    fn is(&self, dir: &Inode, name: &CStr) -> bool {
        self.dir.key == dir.key && self.name.as_c_str() == name
    }
}

#[derive(Debug, Default)]
struct Kept {
    record: Record,
    names: Vec<Name>,
}

impl Kept {
    fn add(&mut self, dir: &Arc<Inode>, name: &CStr) -> Option<Name> {
        let forgotten = (self.names.len() == NAMES_MAX).then(|| self.names.remove(0));
        self.names.push(Name { dir: Arc::clone(dir), name: name.to_owned() });
        forgotten
    }

    fn take(&mut self, dir: &Inode, name: &CStr) -> Option<Name> {
        let at = self.names.iter().position(|known| known.is(dir, name))?;
        Some(self.names.remove(at))
    }
}

type Shard = RwLock<HashMap<Node, Kept, Numbers>>;

/// The records of the nodes that the client knows. What a call drops, it drops without the lock: a directory may be closed
/// with it.
#[derive(Debug, Default)]
pub(crate) struct Known([Shard; SHARDS]);

impl Known {
    fn shard(&self, node: Node) -> &Shard {
        // The remainder is below the length.
        &self.0[node as usize % SHARDS]
    }

    /// What is recorded of a node.
    pub(crate) fn record(&self, node: Node) -> Record {
        read(self.shard(node)).get(&node).map_or_else(Record::default, |kept| kept.record)
    }

    /// Under which names, the latest first.
    pub(crate) fn names(&self, node: Node) -> Vec<Name> {
        read(self.shard(node)).get(&node).map_or_else(Vec::new, |kept| kept.names.iter().rev().cloned().collect())
    }

    /// A node was found, under this name if it has one, with this record.
    pub(crate) fn found(&self, node: Node, name: Option<(&Arc<Inode>, &CStr)>, record: Record) {
        let mut map = write(self.shard(node));
        let kept = map.entry(node).or_default();
        kept.record = record;
        let is_latest =
            |&(dir, name): &(&Arc<Inode>, &CStr)| kept.names.last().is_some_and(|known| known.is(dir, name));
        let news = name.filter(|name| !is_latest(name));
        let dropped = news.map(|(dir, name)| (kept.take(dir, name), kept.add(dir, name)));
        drop(map);
        drop(dropped);
    }

    /// What is recorded of a node has changed.
    pub(crate) fn changed(&self, node: Node, record: Record) {
        if let Some(kept) = write(self.shard(node)).get_mut(&node) {
            kept.record = record;
        }
    }

    /// A name of a node is gone.
    pub(crate) fn lost(&self, node: Node, dir: &Inode, name: &CStr) {
        let dropped = write(self.shard(node)).get_mut(&node).and_then(|kept| kept.take(dir, name));
        drop(dropped);
    }

    /// A name of a node has become another.
    pub(crate) fn moved(&self, node: Node, from: (&Arc<Inode>, &CStr), to: (&Arc<Inode>, &CStr)) {
        let mut map = write(self.shard(node));
        let dropped = map.get_mut(&node).map(|kept| {
            let before = (kept.take(from.0, from.1), kept.take(to.0, to.1));
            (before, kept.add(to.0, to.1))
        });
        drop(map);
        drop(dropped);
    }

    /// The client has forgotten a node.
    pub(crate) fn forget(&self, node: Node) {
        let mut map = write(self.shard(node));
        let dropped = map.remove(&node);
        if map.capacity() > 256 && map.len() < map.capacity() / 4 {
            let capacity = map.len() * 2;
            map.shrink_to(capacity);
        }
        drop(map);
        drop(dropped);
    }

    /// The client is gone.
    pub(crate) fn clear(&self) {
        for shard in &self.0 {
            drop(std::mem::take(&mut *write(shard)));
        }
    }

    /// All that is known: nodes with their records and names, the latest last.
    pub(crate) fn all(&self) -> Vec<(Node, Record, Vec<Name>)> {
        let mut all = Vec::new();
        for shard in &self.0 {
            all.extend(read(shard).iter().map(|(&node, kept)| (node, kept.record, kept.names.clone())));
        }
        all
    }

    /// What another program knew of a node.
    pub(crate) fn know_again(&self, node: Node, record: Record, mut names: Vec<Name>) {
        names.truncate(NAMES_MAX);
        write(self.shard(node)).insert(node, Kept { record, names });
    }

    /// How many nodes something is known of.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|shard| read(shard).len()).sum()
    }
}
