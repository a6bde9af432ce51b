//! Which host id stands for which id of the client: the rules of `--translate-uid` and `--translate-gid`.
//!
//! The two directions are two tables. A rule fills one of them, `map` both, and an id that no rule names stands for itself.
//! Nothing demands that one direction undoes the other: that is what makes squashing possible.

use rustix::io::Errno;
use std::fmt;
use std::str::FromStr;

/// One rule, written `type:from:to:count`. The separator is the character after the type, one for the whole rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdRule {
    /// `guest:guest:host:count`: ids that the client names, one to one.
    Guest {
        /// First id of the client.
        guest: u32,
        /// First id of the host.
        host: u32,
        /// How many.
        count: u32,
    },
    /// `host:host:guest:count`: ids that the client is shown, one to one.
    Host {
        /// First id of the host.
        host: u32,
        /// First id of the client.
        guest: u32,
        /// How many.
        count: u32,
    },
    /// `squash-guest:guest:host:count`: ids that the client names, all to one.
    SquashGuest {
        /// First id of the client.
        guest: u32,
        /// The one id of the host.
        host: u32,
        /// How many ids of the client.
        count: u32,
    },
    /// `squash-host:host:guest:count`: ids that the client is shown, all to one.
    SquashHost {
        /// First id of the host.
        host: u32,
        /// The one id of the client.
        guest: u32,
        /// How many ids of the host.
        count: u32,
    },
    /// `forbid-guest:guest:count`: ids that the client may not name.
    ForbidGuest {
        /// First id of the client.
        guest: u32,
        /// How many.
        count: u32,
    },
    /// `map:guest:host:count`: one to one, both ways.
    Map {
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
    /// `{rule}`: `{word}` is no type of rule; use guest, host, squash-guest, squash-host, forbid-guest or map
    Type {
        /// The rule.
        rule: String,
        /// What stands where the type should.
        word: String,
    },
    /// `{rule}` is incomplete or too long: write `{form}`
    Form {
        /// The rule.
        rule: String,
        /// How a rule of this type is written.
        form: &'static str,
    },
    /// `{rule}`: `{word}` is no id; write a number from 0 to 4294967295
    Number {
        /// The rule.
        rule: String,
        /// What stands where the number should.
        word: String,
    },
    /// `{0}` goes beyond the last id: let first id and count add up to at most 4294967296
    Range(IdRule),
    /// `{rule}` and `{earlier}` speak about the same ids in the same direction: let their ranges end before they meet
    Overlap {
        /// The later rule.
        rule: IdRule,
        /// The earlier one.
        earlier: IdRule,
    },
}

impl fmt::Display for IdRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            IdRule::Guest { guest, host, count } => write!(f, "guest:{guest}:{host}:{count}"),
            IdRule::Host { host, guest, count } => write!(f, "host:{host}:{guest}:{count}"),
            IdRule::SquashGuest { guest, host, count } => write!(f, "squash-guest:{guest}:{host}:{count}"),
            IdRule::SquashHost { host, guest, count } => write!(f, "squash-host:{host}:{guest}:{count}"),
            IdRule::ForbidGuest { guest, count } => write!(f, "forbid-guest:{guest}:{count}"),
            IdRule::Map { guest, host, count } => write!(f, "map:{guest}:{host}:{count}"),
        }
    }
}

impl FromStr for IdRule {
    type Err = IdRuleError;

    fn from_str(text: &str) -> Result<IdRule, IdRuleError> {
        let rule = || text.to_owned();
        let separated = text.char_indices().find(|(_, c)| !c.is_alphanumeric() && *c != '-' && *c != '_');
        let (word, numbers) = match separated {
            Some((at, separator)) => (&text[..at], text[at + separator.len_utf8()..].split(separator).collect()),
            None => (text, Vec::new()),
        };
        let word = word.to_ascii_lowercase();
        let form = match word.as_str() {
            "guest" => "guest:GUEST:HOST:COUNT",
            "host" => "host:HOST:GUEST:COUNT",
            "squash-guest" => "squash-guest:GUEST:HOST:COUNT",
            "squash-host" => "squash-host:HOST:GUEST:COUNT",
            "forbid-guest" => "forbid-guest:GUEST:COUNT",
            "map" => "map:GUEST:HOST:COUNT",
            _ => return Err(IdRuleError::Type { rule: rule(), word }),
        };
        let number = |digits: &&str| {
            digits.parse().map_err(|_| IdRuleError::Number { rule: rule(), word: (*digits).to_owned() })
        };
        let numbers = numbers.iter().map(number).collect::<Result<Vec<u32>, _>>()?;
        match (word.as_str(), numbers.as_slice()) {
            ("guest", &[guest, host, count]) => Ok(IdRule::Guest { guest, host, count }),
            ("host", &[host, guest, count]) => Ok(IdRule::Host { host, guest, count }),
            ("squash-guest", &[guest, host, count]) => Ok(IdRule::SquashGuest { guest, host, count }),
            ("squash-host", &[host, guest, count]) => Ok(IdRule::SquashHost { host, guest, count }),
            ("forbid-guest", &[guest, count]) => Ok(IdRule::ForbidGuest { guest, count }),
            ("map", &[guest, host, count]) => Ok(IdRule::Map { guest, host, count }),
            _ => Err(IdRuleError::Form { rule: rule(), form }),
        }
    }
}

/// What becomes of the ids of a range.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// One to one, from this id on.
    From(u32),
    /// All this id.
    One(u32),
    /// None: `EPERM`.
    Forbidden,
}

/// A range of ids and what becomes of them.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    last: u32,
    target: Target,
    rule: IdRule,
}

impl Range {
    /// Nothing for one of no ids.
    fn new(rule: IdRule, first: u32, count: u32, target: Target) -> Result<Option<Range>, IdRuleError> {
        let Some(span) = count.checked_sub(1) else { return Ok(None) };
        let last = first.checked_add(span).ok_or(IdRuleError::Range(rule))?;
        if let Target::From(base) = target {
            base.checked_add(span).ok_or(IdRuleError::Range(rule))?;
        }
        Ok(Some(Range { first, last, target, rule }))
    }
}

/// Ranges in order, none of which meets another.
#[derive(Clone, Debug, Default)]
struct Table(Vec<Range>);

impl Table {
    fn add(&mut self, range: Option<Range>) -> Result<(), IdRuleError> {
        let Some(range) = range else { return Ok(()) };
        let at = self.0.partition_point(|other| other.last < range.first);
        if let Some(other) = self.0.get(at).filter(|other| other.first <= range.last) {
            return Err(IdRuleError::Overlap { rule: range.rule, earlier: other.rule });
        }
        self.0.insert(at, range);
        Ok(())
    }

    /// Nothing for an id that is forbidden.
    fn translate(&self, id: u32) -> Option<u32> {
        let at = self.0.partition_point(|range| range.last < id);
        let Some(range) = self.0.get(at).filter(|range| range.first <= id) else { return Some(id) };
        match range.target {
            // `Range::new` has seen that the whole range fits behind the base.
            Target::From(base) => Some(base.wrapping_add(id.wrapping_sub(range.first))),
            Target::One(one) => Some(one),
            Target::Forbidden => None,
        }
    }
}

/// Translates user ids, or group ids, between the client and the host. The default changes nothing.
#[derive(Clone, Debug, Default)]
pub struct IdMap {
    to_host: Table,
    to_guest: Table,
}

impl IdMap {
    /// The map that these rules describe. Ids that no rule names stand for themselves.
    ///
    /// # Errors
    /// When two rules speak about one id in one direction, or a range goes beyond the last id.
    pub fn new(rules: &[IdRule]) -> Result<IdMap, IdRuleError> {
        let mut map = IdMap::default();
        for &rule in rules {
            match rule {
                IdRule::Guest { guest, host, count } => {
                    map.to_host.add(Range::new(rule, guest, count, Target::From(host))?)?;
                }
                IdRule::Host { host, guest, count } => {
                    map.to_guest.add(Range::new(rule, host, count, Target::From(guest))?)?;
                }
                IdRule::SquashGuest { guest, host, count } => {
                    map.to_host.add(Range::new(rule, guest, count, Target::One(host))?)?;
                }
                IdRule::SquashHost { host, guest, count } => {
                    map.to_guest.add(Range::new(rule, host, count, Target::One(guest))?)?;
                }
                IdRule::ForbidGuest { guest, count } => {
                    map.to_host.add(Range::new(rule, guest, count, Target::Forbidden)?)?;
                }
                IdRule::Map { guest, host, count } => {
                    map.to_host.add(Range::new(rule, guest, count, Target::From(host))?)?;
                    map.to_guest.add(Range::new(rule, host, count, Target::From(guest))?)?;
                }
            }
        }
        Ok(map)
    }

    /// True when every id stands for itself.
    #[must_use]
    #[inline]
    pub fn is_identity(&self) -> bool {
        self.to_host.0.is_empty() && self.to_guest.0.is_empty()
    }

    /// The host's id for an id that the client named.
    ///
    /// # Errors
    /// `EPERM` for an id that a rule forbids.
    #[inline]
    pub fn to_host(&self, guest: u32) -> Result<u32, Errno> {
        if self.to_host.0.is_empty() {
            return Ok(guest);
        }
        self.to_host.translate(guest).ok_or(Errno::PERM)
    }

    /// The id that the client shall see for an id of the host.
    #[must_use]
    #[inline]
    pub fn to_guest(&self, host: u32) -> u32 {
        if self.to_guest.0.is_empty() {
            return host;
        }
        // No rule forbids in this direction.
        self.to_guest.translate(host).unwrap_or(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(rules: &[&str]) -> Result<IdMap, IdRuleError> {
        IdMap::new(&rules.iter().map(|rule| rule.parse()).collect::<Result<Vec<IdRule>, _>>()?)
    }

    #[test]
    fn rules_do_what_their_names_say() {
        let ids = map(&["guest:1000:2000:10", "squash-guest:0:65534:1000", "forbid-guest:5000:2", "host:2000:1000:10"]);
        let ids = ids.unwrap();
        assert_eq!(ids.to_host(1000), Ok(2000));
        assert_eq!(ids.to_host(1009), Ok(2009));
        assert_eq!(ids.to_host(1010), Ok(1010));
        assert_eq!(ids.to_host(0), Ok(65534));
        assert_eq!(ids.to_host(999), Ok(65534));
        assert_eq!(ids.to_host(5000), Err(Errno::PERM));
        assert_eq!(ids.to_host(5001), Err(Errno::PERM));
        assert_eq!(ids.to_host(5002), Ok(5002));
        assert_eq!(ids.to_guest(2005), 1005);
        assert_eq!(ids.to_guest(65534), 65534);
        let ids = map(&["squash-host:100:7:50", "map:0:100000:65536"]).unwrap();
        assert_eq!(ids.to_guest(149), 7);
        assert_eq!(ids.to_guest(150), 150);
        assert_eq!((ids.to_host(33), ids.to_guest(100_033)), (Ok(100_033), 33));
    }

    #[test]
    fn the_default_is_the_identity() {
        let ids = IdMap::default();
        assert!(ids.is_identity());
        assert_eq!((ids.to_host(u32::MAX), ids.to_guest(u32::MAX)), (Ok(u32::MAX), u32::MAX));
        assert!(!map(&["host:0:1:1"]).unwrap().is_identity());
    }

    #[test]
    fn the_whole_range_of_ids_can_be_squashed() {
        let ids = map(&["squash-guest:1:1000:4294967295"]).unwrap();
        assert_eq!((ids.to_host(0), ids.to_host(1), ids.to_host(u32::MAX)), (Ok(0), Ok(1000), Ok(1000)));
    }

    /// As Incus writes them in front of a range that begins at 0.
    #[test]
    fn a_rule_of_no_ids_says_nothing() {
        let ids = map(&["forbid-guest:0:0", "map:0:1000:10", "map:5:2000:0", "guest:4294967295:0:0"]).unwrap();
        assert_eq!((ids.to_host(0), ids.to_host(5), ids.to_host(u32::MAX)), (Ok(1000), Ok(1005), Ok(u32::MAX)));
        assert!(map(&["forbid-guest:0:0"]).unwrap().is_identity());
    }

    #[test]
    fn other_separators_and_capitals_are_read() {
        assert_eq!("MAP/1/2/3".parse(), Ok(IdRule::Map { guest: 1, host: 2, count: 3 }));
        assert_eq!("forbid-guest,1,2".parse(), Ok(IdRule::ForbidGuest { guest: 1, count: 2 }));
    }

    #[test]
    fn errors_name_the_rule_and_the_fix() {
        for (text, part) in [
            ("", "is no type of rule"),
            ("guest", "write `guest:GUEST:HOST:COUNT`"),
            ("both:1:2:3", "`both` is no type"),
            ("map:1:2", "write `map:GUEST:HOST:COUNT`"),
            ("forbid-guest:1:2:3", "write `forbid-guest:GUEST:COUNT`"),
            ("map:1:2:-3", "`-3` is no id"),
            ("map:1:2:4294967296", "`4294967296` is no id"),
            ("map:1:2:3:", "`` is no id"),
            ("map:4294967295:2:2", "beyond the last id"),
            ("map:2:4294967295:2", "beyond the last id"),
        ] {
            let error = map(&[text]).expect_err(text).to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
        let error = map(&["guest:10:0:10", "map:1:1:9", "forbid-guest:9:2"]).expect_err("overlap").to_string();
        assert!(error.starts_with("`forbid-guest:9:2` and `map:1:1:9`"), "{error}");
    }

    fn any_rule() -> impl Strategy<Value = IdRule> {
        (0..6, 0..60u32, 0..60u32, 0..8u32).prop_map(|(kind, a, b, count)| match kind {
            0 => IdRule::Guest { guest: a, host: b, count },
            1 => IdRule::Host { host: a, guest: b, count },
            2 => IdRule::SquashGuest { guest: a, host: b, count },
            3 => IdRule::SquashHost { host: a, guest: b, count },
            4 => IdRule::ForbidGuest { guest: a, count },
            _ => IdRule::Map { guest: a, host: b, count },
        })
    }

    /// What the first rule that speaks about the id says: right because accepted rules never overlap.
    fn model_to_host(rules: &[IdRule], id: u32) -> Option<u32> {
        for rule in rules {
            let (first, count, to) = match *rule {
                IdRule::Guest { guest, host, count } | IdRule::Map { guest, host, count } => {
                    (guest, count, Some(host + id.wrapping_sub(guest).min(count)))
                }
                IdRule::SquashGuest { guest, host, count } => (guest, count, Some(host)),
                IdRule::ForbidGuest { guest, count } => (guest, count, None),
                IdRule::Host { .. } | IdRule::SquashHost { .. } => continue,
            };
            if (first..first + count).contains(&id) {
                return to;
            }
        }
        Some(id)
    }

    proptest! {
        #[test]
        fn tables_agree_with_reading_the_rules(rules in prop::collection::vec(any_rule(), 0..6)) {
            let overlaps = |pick: fn(&IdRule) -> Option<(u32, u32)>| {
                let ranges: Vec<_> = rules.iter().filter_map(pick).filter(|range| range.1 > 0).collect();
                ranges.iter().enumerate().any(|(i, a)| ranges[..i].iter().any(|b| a.0 < b.0 + b.1 && b.0 < a.0 + a.1))
            };
            let guests = overlaps(|rule| match *rule {
                IdRule::Guest { guest, count, .. } | IdRule::SquashGuest { guest, count, .. }
                | IdRule::ForbidGuest { guest, count } | IdRule::Map { guest, count, .. } => Some((guest, count)),
                _ => None,
            });
            let hosts = overlaps(|rule| match *rule {
                IdRule::Host { host, count, .. } | IdRule::SquashHost { host, count, .. }
                | IdRule::Map { host, count, .. } => Some((host, count)),
                _ => None,
            });
            let map = IdMap::new(&rules);
            prop_assert_eq!(map.is_err(), guests || hosts);
            if let Ok(map) = map {
                for id in 0..80 {
                    prop_assert_eq!(map.to_host(id).ok(), model_to_host(&rules, id));
                }
            }
        }

        #[test]
        fn mapped_ids_come_back(guest in 0..u32::MAX - 1000, host in 0..u32::MAX - 1000, count in 1..1000u32, at in 0..1000u32) {
            let map = IdMap::new(&[IdRule::Map { guest, host, count }]).unwrap();
            let id = guest + at % count;
            prop_assert_eq!(map.to_guest(map.to_host(id).unwrap()), id);
        }

        #[test]
        fn rules_are_read_as_they_are_written(rule in any_rule()) {
            prop_assert_eq!(rule.to_string().parse::<IdRule>(), Ok(rule));
        }

        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,20}") {
            let _ = text.parse::<IdRule>();
        }
    }
}
