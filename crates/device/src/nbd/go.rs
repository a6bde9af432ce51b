//! The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.

use super::option::checked_name;
use super::option_error::OptionError;
use super::wire::Fields;

/// An export, and what the client wants to know of it (section "Option types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Go<'a> {
    /// The export's name, any bytes; empty is the default export.
    pub name: &'a [u8],
    /// 16 bits for each kind of information, as they were sent.
    requests: &'a [[u8; 2]],
}

impl<'a> Go<'a> {
    /// Layout: name, number of requests (16 bits), requests (16 bits each).
    pub(super) fn decode(data: &'a [u8]) -> Result<Go<'a>, OptionError> {
        let mut fields = Fields::new(data);
        let name = fields.take_string().ok_or(OptionError::too_short())?;
        let count = fields.take_u16().ok_or(OptionError::too_short())?;
        let (requests, odd) = fields.rest().as_chunks();
        if requests.len() < usize::from(count) {
            return Err(OptionError::too_short());
        }
        if requests.len() > usize::from(count) || !odd.is_empty() {
            return Err(OptionError::trailing());
        }
        Ok(Go { name: checked_name(name)?, requests })
    }

    /// Whether the client asks for this kind of information; see [`info`](super::spec::info).
    pub fn wants(&self, info: u16) -> bool {
        self.requests.contains(&info.to_be_bytes())
    }
}
