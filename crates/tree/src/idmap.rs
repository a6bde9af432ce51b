//! Which host id stands for which id of the client: the rules of `--translate-uid` and `--translate-gid`.

use rustix::io::Errno;
use std::str::FromStr;

/// One rule, written `type:from:to:count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdRule {
    /// `guest:guest:host:count`: a range of the client's ids, one to one, when the client names an id.
    Guest {
        /// First id of the client.
        guest: u32,
        /// First id of the host.
        host: u32,
        /// How many.
        count: u32,
    },
}

/// Why a rule, or a set of them, was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum IdRuleError {
    /// `{0}` is no rule: write `map:GUEST:HOST:COUNT`
    Form(String),
}

impl FromStr for IdRule {
    type Err = IdRuleError;

    fn from_str(text: &str) -> Result<IdRule, IdRuleError> {
        Err(IdRuleError::Form(text.to_owned()))
    }
}

/// Translates user ids, or group ids, between the client and the host. The default changes nothing.
#[derive(Clone, Debug, Default)]
pub struct IdMap {}

impl IdMap {
    /// The map that these rules describe. Ids that no rule names stand for themselves.
    ///
    /// # Errors
    /// When two rules speak about one id, or a range has no end.
    pub fn new(_rules: &[IdRule]) -> Result<IdMap, IdRuleError> {
        Ok(IdMap {})
    }

    /// True when every id stands for itself.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        true
    }

    /// The host's id for an id that the client named.
    ///
    /// # Errors
    /// `EPERM` for an id that a rule forbids.
    pub fn to_host(&self, guest: u32) -> Result<u32, Errno> {
        Ok(guest)
    }

    /// The id that the client shall see for an id of the host.
    #[must_use]
    pub fn to_guest(&self, host: u32) -> u32 {
        host
    }
}
