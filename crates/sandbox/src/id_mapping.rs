//! The ids of a user namespace: `--uid-map` and `--gid-map`.

use std::fmt;
use std::str::FromStr;

/// A range of ids of the namespace and the ids outside that they stand for, written `:namespace:host:count:` with any
/// character that is neither letter nor digit in the colon's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMapping {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// Why a mapping was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum IdMappingError {
    /// `{0}` is no range of ids: write `:NAMESPACE-ID:HOST-ID:COUNT:`, the separators at both ends included
    Form(String),
    /// `{mapping}`: `{word}` is no id; write a number from 0 to 4294967295
    Number {
        /// The mapping.
        mapping: String,
        /// What stands where the number should.
        word: String,
    },
}

impl FromStr for IdMapping {
    type Err = IdMappingError;

    fn from_str(text: &str) -> Result<IdMapping, IdMappingError> {
        let form = || IdMappingError::Form(text.to_owned());
        let separator = text.chars().next().filter(|c| !c.is_alphanumeric()).ok_or_else(form)?;
        let inner = text.strip_prefix(separator).and_then(|rest| rest.strip_suffix(separator)).ok_or_else(form)?;
        let number = |word: &str| {
            word.parse().map_err(|_| IdMappingError::Number { mapping: text.to_owned(), word: word.to_owned() })
        };
        let numbers = inner.split(separator).map(number).collect::<Result<Vec<u32>, _>>()?;
        match numbers.as_slice() {
            &[inside, outside, count] => Ok(IdMapping { inside, outside, count }),
            _ => Err(form()),
        }
    }
}

impl fmt::Display for IdMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ":{}:{}:{}:", self.inside, self.outside, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_name_the_mapping_and_the_fix() {
        for (text, part) in [
            ("", "is no range of ids"),
            (":", "is no range of ids"),
            ("0:1:2", "is no range of ids"),
            (":0:1:2", "is no range of ids"),
            (":0:1:", "is no range of ids"),
            (":0:1:2:3:", "is no range of ids"),
            (":0:1:two:", "`two` is no id"),
            ("::1:2:", "`` is no id"),
            (":0:1:4294967296:", "`4294967296` is no id"),
        ] {
            let error = text.parse::<IdMapping>().expect_err(text).to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
        assert_eq!("/0/100000/65536/".parse(), Ok(IdMapping { inside: 0, outside: 100_000, count: 65536 }));
    }

    proptest! {
        #[test]
        fn mappings_are_read_as_they_are_written(inside: u32, outside: u32, count: u32) {
            let mapping = IdMapping { inside, outside, count };
            prop_assert_eq!(mapping.to_string().parse::<IdMapping>(), Ok(mapping));
        }

        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,20}") {
            let _ = text.parse::<IdMapping>();
        }
    }
}
