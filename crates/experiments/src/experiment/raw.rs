//! An experiment as a person writes it, after its axes were multiplied: every field that may be left out, and numbers that may
//! come out of a placeholder.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Table;

use super::{DropCaches, Medium, Order, Place, Quick, Server};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExperiment {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) claim: String,
    pub(super) source: String,
    #[serde(default = "rounds")]
    pub(super) rounds: u32,
    #[serde(default)]
    pub(super) order: Order,
    #[serde(default = "time_s")]
    pub(super) time_s: f64,
    #[serde(default = "warm_up_s")]
    pub(super) warm_up_s: f64,
    #[serde(default)]
    pub(super) drop_caches: DropCaches,
    pub(super) baseline: String,
    #[serde(default)]
    pub(super) quick: Quick,
    #[serde(default)]
    pub(super) defaults: RawDefaults,
    #[serde(default)]
    pub(super) configurations: Vec<Table>,
    #[serde(default)]
    pub(super) workloads: Vec<Table>,
    pub(super) published: Option<RawPublished>,
}

fn rounds() -> u32 {
    3
}

fn time_s() -> f64 {
    5.0
}

fn warm_up_s() -> f64 {
    1.0
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDefaults {
    #[serde(default)]
    pub(super) configurations: Table,
    #[serde(default)]
    pub(super) workloads: Table,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfiguration {
    pub(super) name: Option<Text>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, Text>,
    pub(super) baseline: Option<String>,
    pub(super) place: Option<Place>,
    pub(super) server: Option<Server>,
    pub(super) data: Option<RawData>,
    #[serde(default)]
    pub(super) guest: RawGuest,
    pub(super) unsupported: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawData {
    pub(super) medium: Medium,
    #[serde(default)]
    pub(super) files: Option<Number>,
    pub(super) size_mib: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawGuest {
    pub(super) processors: Option<Number>,
    pub(super) memory_mib: Option<Number>,
    pub(super) queues: Option<Number>,
    #[serde(default)]
    pub(super) mount: String,
    pub(super) one_node: Option<Flag>,
    pub(super) instruction_clock: Option<Flag>,
    pub(super) reserve: Option<Flag>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorkload {
    pub(super) name: Option<Text>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, Text>,
    #[serde(default)]
    pub(super) fio: BTreeMap<String, Text>,
    pub(super) files: Option<Number>,
    pub(super) own_files: Option<Number>,
    #[serde(default)]
    pub(super) frontend: BTreeMap<String, Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPublished {
    pub(super) source: String,
    pub(super) baseline: String,
    pub(super) unit: String,
    pub(super) file: String,
    #[serde(default)]
    pub(super) columns: RawColumns,
    #[serde(default)]
    pub(super) configurations: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(super) workloads: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawColumns {
    pub(super) configuration: Vec<String>,
    pub(super) workload: Vec<String>,
    pub(super) value: String,
}

impl Default for RawColumns {
    fn default() -> Self {
        Self { configuration: vec!["config".into()], workload: vec!["workload".into()], value: "value".into() }
    }
}

/// A text, or something that has an obvious one.
#[derive(Debug)]
pub(super) struct Text(pub(super) String);

/// A whole number, or a text that is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(pub(super) u64);

/// True or false, or a text that is; the empty text is false.
#[derive(Debug)]
pub(super) struct Flag(pub(super) bool);

impl FromStr for Text {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for Number {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse().map(Self).map_err(|_| ())
    }
}

impl FromStr for Flag {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "true" => Ok(Self(true)),
            "false" | "" => Ok(Self(false)),
            _ => Err(()),
        }
    }
}

/// What is expected, for people.
trait Expected: FromStr {
    const EXPECTED: &'static str;
}

impl Expected for Text {
    const EXPECTED: &'static str = "a text, a number, true or false";
}

impl Expected for Number {
    const EXPECTED: &'static str = "a whole number, or a text that is one, such as \"4\"";
}

impl Expected for Flag {
    const EXPECTED: &'static str = "true or false";
}

/// Reads a scalar by its text.
struct Scalar<T>(PhantomData<T>);

impl<T: Expected> Visitor<'_> for Scalar<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        number.to_string().parse().map_err(|_| E::invalid_value(Unexpected::Float(number), &self))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<T, E> {
        flag.to_string().parse().map_err(|_| E::invalid_value(Unexpected::Bool(flag), &self))
    }
}

macro_rules! by_its_text {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Scalar(PhantomData))
            }
        }
    )*};
}
by_its_text!(Text Number Flag);

/// Values of axes, each of which may be written as a number.
pub(super) fn axes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    let axes = BTreeMap::<String, Vec<Text>>::deserialize(deserializer)?;
    Ok(axes.into_iter().map(|(axis, values)| (axis, values.into_iter().map(|Text(value)| value).collect())).collect())
}
