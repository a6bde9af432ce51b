//! Small values that are written as text (`adaptive=50`, `10G`, `0-3,5`): one grammar for the command line, the
//! configuration file and the API.

use thiserror::Error;

/// A value that does not follow its grammar: says what was found and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{found}` is not {expected}")]
pub struct ParseError {
    /// What was written.
    pub found: String,
    /// What may be written, with an example.
    pub expected: &'static str,
}

impl ParseError {
    /// `found` was written where `expected` should have been.
    pub fn new(found: &str, expected: &'static str) -> Self {
        // What a person wrote is repeated in an error line and in logs: keep it short.
        Self { found: found.chars().take(64).collect(), expected }
    }
}

/// Gives a type with `FromStr` and `Display` its serde and OpenAPI forms as a JSON string.
///
/// With `or integer` a bare number is read as well (it is parsed as its decimal text), because people write
/// `workers = 4` and `size = 1048576` in a configuration file.
#[macro_export]
macro_rules! text_value {
    (@deserialize $name:ident, $expected:literal, integer) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
    (@deserialize $name:ident, $expected:literal, string) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    };
    ($name:ident, $form:ident, $expected:literal, $pattern:literal, $example:literal) => {
        $crate::text_value!(@deserialize $name, $expected, $form);

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let text = utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::Type::String)
                    .description(Some(concat!("Text: ", $expected, ".")))
                    .pattern(Some($pattern))
                    .examples([$example]);
                text.into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}
pub(crate) use text_value;
