//! Which extended attribute of the host stands for which of the client: the rules of `--xattrmap`.
//!
//! A rule is `:type:scope:key:prepend:`; its first character is its separator, and white space may stand between rules. Of
//! a name that the client uses, the first rule whose scope is `client` or `all` and whose key is a prefix of the name
//! decides; of a name in the host's list, the first whose scope is `server` or `all` and whose prepend is a prefix of it.
//! `prefix` puts prepend in front, or takes it away; `ok` passes the name on; `bad` and `unsupported` refuse it, and hide
//! it from lists. `:map:key:prepend:`, the last rule if there is one, stands for the rules that move the names under key,
//! or all, below prepend and let nobody around it.

use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::str::FromStr;

/// Why a set of rules was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum XattrMapError {
    /// an xattrmap without a rule changes nothing: write `:ok:all:::`, or leave the option away
    Empty,
    /// rule {number} of the xattrmap, `{rule}`, does not end: write `:type:scope:key:prepend:`, the last separator included
    Unfinished {
        /// Which rule, from 1.
        number: usize,
        /// From its beginning to the end of the text.
        rule: String,
    },
    /// rule {number} of the xattrmap: `{word}` is no type; use prefix, ok, bad, unsupported or map
    Type {
        /// Which rule, from 1.
        number: usize,
        /// What stands where the type should.
        word: String,
    },
    /// rule {number} of the xattrmap: `{word}` is no scope; use client, server or all
    Scope {
        /// Which rule, from 1.
        number: usize,
        /// What stands where the scope should.
        word: String,
    },
    /// rule {0} of the xattrmap is a `map`, which decides about every name: let it be the last rule
    AfterMap(usize),
    /// the xattrmap says nothing about some names of the {0}: end it with `:bad:all:::`, or `:ok:all:::`
    Open(&'static str),
    /// rule {0} of the xattrmap holds a NUL, which no attribute's name can
    Nul(usize),
}

/// What a rule does with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Prefix,
    Ok,
    Bad,
    Unsupported,
}

/// One rule. A name of a side that the rule is not for meets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    action: Action,
    client: bool,
    server: bool,
    key: Vec<u8>,
    prepend: Vec<u8>,
}

impl Rule {
    fn all(action: Action, key: &str, prepend: &str) -> Rule {
        Rule { action, client: true, server: true, key: key.into(), prepend: prepend.into() }
    }
}

/// Translates names of extended attributes. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrMap {
    /// Empty for the map that changes nothing; otherwise some rule meets every name.
    rules: Vec<Rule>,
}

impl FromStr for XattrMap {
    type Err = XattrMapError;

    fn from_str(text: &str) -> Result<XattrMap, XattrMapError> {
        let mut rest = text.trim();
        let mut rules = Vec::new();
        let mut number = 0;
        while let Some(separator) = rest.chars().next() {
            number += 1;
            let whole = rest;
            let mut fields = rest[separator.len_utf8()..].split(separator);
            let unfinished = || XattrMapError::Unfinished { number, rule: whole.to_owned() };
            // What `split` yields last has no separator behind it: a field is finished when another one follows it.
            let mut taken = separator.len_utf8();
            let mut field = || {
                let field = fields.next().ok_or_else(unfinished)?;
                taken += field.len() + separator.len_utf8();
                if taken > whole.len() { Err(unfinished()) } else { Ok(field) }
            };
            let word = field()?;
            let action = match word {
                "prefix" => Some(Action::Prefix),
                "ok" => Some(Action::Ok),
                "bad" => Some(Action::Bad),
                "unsupported" => Some(Action::Unsupported),
                "map" => None,
                _ => return Err(XattrMapError::Type { number, word: word.to_owned() }),
            };
            if let Some(action) = action {
                let (client, server) = match field()? {
                    "client" => (true, false),
                    "server" => (false, true),
                    "all" => (true, true),
                    word => return Err(XattrMapError::Scope { number, word: word.to_owned() }),
                };
                rules.push(Rule { action, client, server, key: field()?.into(), prepend: field()?.into() });
            } else {
                expand(&mut rules, field()?, field()?);
            }
            if whole[..taken].contains('\0') {
                return Err(XattrMapError::Nul(number));
            }
            rest = whole[taken..].trim_start();
            if action.is_none() && !rest.is_empty() {
                return Err(XattrMapError::AfterMap(number));
            }
        }
        if rules.is_empty() {
            return Err(XattrMapError::Empty);
        }
        // A name that no rule meets would have no answer: only a rule with an empty prefix meets every name.
        if !rules.iter().any(|rule| rule.client && rule.key.is_empty()) {
            return Err(XattrMapError::Open("client"));
        }
        if !rules.iter().any(|rule| rule.server && rule.prepend.is_empty()) {
            return Err(XattrMapError::Open("server"));
        }
        Ok(XattrMap { rules })
    }
}

/// The rules that `:map:key:prepend:` stands for.
fn expand(rules: &mut Vec<Rule>, key: &str, prepend: &str) {
    rules.push(Rule::all(Action::Prefix, key, prepend));
    if key.is_empty() {
        rules.push(Rule::all(Action::Bad, "", ""));
        return;
    }
    // Neither may the client use the names below prepend directly, nor shall it see the host's own names below key.
    rules.push(Rule::all(Action::Bad, prepend, key));
    rules.push(Rule::all(Action::Ok, "", ""));
}

impl XattrMap {
    /// True when every name stands for itself.
    #[must_use]
    #[inline]
    pub fn is_identity(&self) -> bool {
        self.rules.is_empty()
    }

    /// The host's name for a name that the client used.
    ///
    /// # Errors
    /// `EPERM` for a `bad` name, `EOPNOTSUPP` for an `unsupported` one.
    pub fn to_host<'a>(&self, name: &'a CStr) -> Result<Cow<'a, CStr>, Errno> {
        let bytes = name.to_bytes();
        let Some(rule) = self.rules.iter().find(|rule| rule.client && bytes.starts_with(&rule.key)) else {
            return Ok(Cow::Borrowed(name));
        };
        match rule.action {
            Action::Ok => Ok(Cow::Borrowed(name)),
            Action::Prefix => {
                let long = [rule.prepend.as_slice(), bytes].concat();
                // Neither half holds a NUL: the rules were looked through, and the name is a C string.
                CString::new(long).map(Cow::Owned).map_err(|_| Errno::INVAL)
            }
            Action::Bad => Err(Errno::PERM),
            Action::Unsupported => Err(Errno::OPNOTSUPP),
        }
    }

    /// The client's name for a name in the host's list, or nothing when the client shall not see it.
    #[must_use]
    pub fn to_guest<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let Some(rule) = self.rules.iter().find(|rule| rule.server && name.starts_with(&rule.prepend)) else {
            return Some(name);
        };
        match rule.action {
            Action::Ok => Some(name),
            // A host's attribute that is called exactly as the prefix has no name left.
            Action::Prefix => name.get(rule.prepend.len()..).filter(|rest| !rest.is_empty()),
            Action::Bad | Action::Unsupported => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(text: &str) -> XattrMap {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn to_host(map: &XattrMap, name: &str) -> Result<String, Errno> {
        let name = CString::new(name).unwrap();
        map.to_host(&name).map(|name| name.to_str().unwrap().to_owned())
    }

    fn to_guest(map: &XattrMap, name: &str) -> Option<String> {
        map.to_guest(name.as_bytes()).map(|name| String::from_utf8(name.to_vec()).unwrap())
    }

    #[test]
    fn everything_below_one_prefix() {
        for rules in [":prefix:all::user.virtiofs.::bad:all:::", ":map::user.virtiofs.:", "  :map::user.virtiofs.: \n"]
        {
            let map = map(rules);
            assert_eq!(to_host(&map, "trusted.a").as_deref(), Ok("user.virtiofs.trusted.a"));
            assert_eq!(to_host(&map, "user.virtiofs.b").as_deref(), Ok("user.virtiofs.user.virtiofs.b"));
            assert_eq!(to_guest(&map, "user.virtiofs.trusted.a").as_deref(), Some("trusted.a"));
            assert_eq!(to_guest(&map, "security.selinux"), None);
            assert_eq!(to_guest(&map, "user.virtiofs."), None);
        }
    }

    #[test]
    fn one_namespace_below_a_prefix() {
        let long =
            "/prefix/all/trusted./user.virtiofs./\n /bad/server//trusted./\n\t/bad/client/user.virtiofs.//  /ok/all///";
        for rules in [long, "/map/trusted./user.virtiofs./"] {
            let map = map(rules);
            assert_eq!(to_host(&map, "trusted.a").as_deref(), Ok("user.virtiofs.trusted.a"));
            assert_eq!(to_host(&map, "user.virtiofs.trusted.a"), Err(Errno::PERM));
            assert_eq!(to_host(&map, "user.b").as_deref(), Ok("user.b"));
            assert_eq!(to_guest(&map, "user.virtiofs.trusted.a").as_deref(), Some("trusted.a"));
            assert_eq!(to_guest(&map, "trusted.a"), None);
            assert_eq!(to_guest(&map, "user.b").as_deref(), Some("user.b"));
        }
    }

    #[test]
    fn refused_names_say_how() {
        let map = map("xbadxallxsecurity.xsecurity.x:unsupported:all:system.posix_acl_:system.posix_acl_::ok:all:::");
        assert_eq!(to_host(&map, "security.capability"), Err(Errno::PERM));
        assert_eq!(to_host(&map, "system.posix_acl_access"), Err(Errno::OPNOTSUPP));
        assert_eq!(to_guest(&map, "security.selinux"), None);
        assert_eq!(to_guest(&map, "system.posix_acl_default"), None);
        assert_eq!(to_host(&map, "user.a").as_deref(), Ok("user.a"));
    }

    #[test]
    fn the_default_is_the_identity() {
        let map = XattrMap::default();
        assert!(map.is_identity());
        assert_eq!(to_host(&map, "security.capability").as_deref(), Ok("security.capability"));
        assert_eq!(to_guest(&map, "trusted.a").as_deref(), Some("trusted.a"));
    }

    #[test]
    fn errors_name_the_rule_and_the_fix() {
        use XattrMapError as E;
        let unfinished = |number, rule: &str| E::Unfinished { number, rule: rule.to_owned() };
        for (text, expected) in [
            ("", E::Empty),
            (" \n", E::Empty),
            (":", unfinished(1, ":")),
            (":ok", unfinished(1, ":ok")),
            (":ok:all:::ok:all::", unfinished(2, "ok:all::")),
            (":prefix:all:trusted.:user.vm.", unfinished(1, ":prefix:all:trusted.:user.vm.")),
            (":ok:all::: :bad:all:x/", unfinished(2, ":bad:all:x/")),
            (":okay:all:::", E::Type { number: 1, word: "okay".to_owned() }),
            (":ok:guest:::", E::Scope { number: 1, word: "guest".to_owned() }),
            (":map::user.x.::ok:all:::", E::AfterMap(1)),
            (":prefix:all::user.x.:", E::Open("server")),
            (":ok:server:::", E::Open("client")),
            (":ok:all:a\0:::ok:all:::", E::Nul(1)),
        ] {
            assert_eq!(text.parse::<XattrMap>().expect_err(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_mapped_name_comes_back(key in "[a-z]{0,4}", prepend in "[a-z]{1,6}\\.", name in "[a-z]{1,8}") {
            let map = map(&format!(":map:{key}:{prepend}:"));
            let name = CString::new(format!("{key}{name}")).unwrap();
            let host = map.to_host(&name).unwrap();
            prop_assert_eq!(map.to_guest(host.to_bytes()), Some(name.to_bytes()));
        }

        #[test]
        fn names_below_the_prefix_are_reached_by_the_map_alone(name in "[a-z.]{1,12}") {
            // What the client reaches below the prefix it named below the key, and what it sees it can also reach.
            let map = map(":map:trusted.:user.vm.:");
            let client = CString::new(name.clone()).unwrap();
            if let Ok(host) = map.to_host(&client) {
                prop_assert_eq!(host.to_bytes().starts_with(b"user.vm."), name.starts_with("trusted."));
            }
            if let Some(seen) = map.to_guest(name.as_bytes()) {
                prop_assert!(!name.starts_with("trusted."));
                prop_assert_eq!(seen.len() < name.len(), name.starts_with("user.vm."));
            }
        }

        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,40}", name in "[^\0]{0,20}") {
            if let Ok(map) = text.parse::<XattrMap>() {
                let name = CString::new(name).unwrap();
                let _ = map.to_host(&name);
                let _ = map.to_guest(name.to_bytes());
            }
        }
    }
}
