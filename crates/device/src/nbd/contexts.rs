//! The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.

use super::option::checked_name;
use super::option_error::OptionError;
use super::spec::{NAME_BYTES_MAX, context};
use super::wire::Fields;

/// An export, and queries for its metadata contexts (section "Option types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contexts<'a> {
    /// The export's name, any bytes; empty is the default export.
    pub name: &'a [u8],
    /// Number of queries.
    count: usize,
    /// The queries, each behind the 32 bits of its length; checked.
    queries: &'a [u8],
}

impl<'a> Contexts<'a> {
    /// Layout: name, number of queries (32 bits), queries.
    pub(super) fn decode(data: &'a [u8]) -> Result<Contexts<'a>, OptionError> {
        let mut fields = Fields::new(data);
        let name = fields.take_string().ok_or(OptionError::too_short())?;
        let announced = fields.take_u32().ok_or(OptionError::too_short())?;
        let queries = fields.rest();
        let mut count = 0;
        // Each has at least the bytes of its length: a number that lies ends the loop early.
        for _ in 0..announced {
            let query = fields.take_string().ok_or(OptionError::too_short())?;
            if query.len() > NAME_BYTES_MAX {
                return Err(OptionError::invalid("a query is longer than 4096 bytes"));
            }
            count += 1;
        }
        if !fields.rest().is_empty() {
            return Err(OptionError::trailing());
        }
        Ok(Contexts { name: checked_name(name)?, count, queries })
    }

    /// Whether a list is to have this context: without a query it has everything, and by the name of a namespace all that is in there.
    pub fn list(&self, context: &[u8]) -> bool {
        let is_in = |query: &[u8]| context::NAMESPACES.contains(&query) && context.starts_with(query);
        self.is_empty() || self.queries().any(|query| query == context || is_in(query))
    }

    /// Whether this context is chosen; namespaces are not.
    pub fn choose(&self, context: &[u8]) -> bool {
        self.queries().any(|query| query == context)
    }

    /// Number of queries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no query: a list then has every context, and a choice is one of none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The queries, any bytes, at most [`NAME_BYTES_MAX`] of them each. One that is of no known namespace or finds no context must
    /// be ignored.
    pub fn queries(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut fields = Fields::new(self.queries);
        std::iter::from_fn(move || fields.take_string())
    }
}
