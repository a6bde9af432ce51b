//! The parts of OpenAPI 3.1 that the daemon's document uses. Anything else is an error: a page leaves nothing out in silence.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Number, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    /// Version of OpenAPI.
    #[serde(rename = "openapi")]
    _version: String,
    pub(super) info: Info,
    #[serde(rename = "servers")]
    _servers: Value,
    pub(super) paths: BTreeMap<String, Path>,
    pub(super) components: Components,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Info {
    pub(super) title: String,
    pub(super) description: String,
    pub(super) version: String,
}

/// The calls of one path, in the order in which pages have them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Path {
    get: Option<Call>,
    post: Option<Call>,
    put: Option<Call>,
    patch: Option<Call>,
    delete: Option<Call>,
}

impl Path {
    /// Each with its method.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&'static str, &Call)> {
        let all = [
            ("GET", &self.get),
            ("POST", &self.post),
            ("PUT", &self.put),
            ("PATCH", &self.patch),
            ("DELETE", &self.delete),
        ];
        all.into_iter().filter_map(|(method, call)| Some((method, call.as_ref()?)))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Call {
    pub(super) tags: Vec<String>,
    pub(super) summary: String,
    #[serde(default)]
    pub(super) description: String,
    pub(super) operation_id: String,
    #[serde(default)]
    pub(super) parameters: Vec<Parameter>,
    pub(super) request_body: Option<Body>,
    pub(super) responses: BTreeMap<String, Answer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameter {
    pub(super) name: String,
    #[serde(rename = "in")]
    pub(super) place: String,
    #[serde(default)]
    pub(super) description: String,
    #[serde(default)]
    pub(super) required: bool,
    pub(super) schema: Schema,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    pub(super) content: BTreeMap<String, Media>,
    #[serde(default)]
    pub(super) required: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    pub(super) description: String,
    #[serde(default)]
    pub(super) content: BTreeMap<String, Media>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Media {
    /// Of a document that describes itself there is none.
    #[serde(default)]
    pub(super) schema: Schema,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Components {
    pub(super) schemas: BTreeMap<String, Schema>,
}

/// A JSON Schema.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Schema {
    #[serde(rename = "$ref")]
    pub(super) reference: Option<String>,
    #[serde(rename = "type")]
    pub(super) kinds: Kinds,
    /// Says how wide a number is; the least and the largest value say more.
    #[serde(rename = "format")]
    _format: String,
    pub(super) description: String,
    pub(super) minimum: Option<Number>,
    pub(super) maximum: Option<Number>,
    pub(super) pattern: Option<String>,
    pub(super) examples: Vec<Value>,
    #[serde(rename = "enum")]
    pub(super) values: Vec<Value>,
    pub(super) required: Vec<String>,
    pub(super) properties: BTreeMap<String, Schema>,
    pub(super) items: Option<Box<Schema>>,
    pub(super) one_of: Vec<Schema>,
    pub(super) all_of: Vec<Schema>,
    pub(super) additional_properties: Option<Additional>,
    /// Names are text in any case.
    #[serde(rename = "propertyNames")]
    _names: Option<Value>,
}

impl Schema {
    /// Whether it says nothing.
    pub(super) fn is_unknown(&self) -> bool {
        self.reference.is_none() && self.kinds.main().is_none() && self.one_of.is_empty() && self.all_of.is_empty()
    }
}

/// One type, or several.
#[derive(Default, Deserialize)]
#[serde(untagged)]
pub(super) enum Kinds {
    #[default]
    Any,
    One(String),
    Several(Vec<String>),
}

impl Kinds {
    /// But for null.
    pub(super) fn main(&self) -> Option<&str> {
        match self {
            Kinds::Any => None,
            Kinds::One(kind) => Some(kind),
            Kinds::Several(kinds) => kinds.iter().find(|kind| *kind != "null").map(String::as_str),
        }
    }

    pub(super) fn with_null(&self) -> bool {
        matches!(self, Kinds::Several(kinds) if kinds.iter().any(|kind| kind == "null"))
    }
}

/// What an object may hold beside its properties.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Additional {
    /// Anything, or nothing.
    Any(bool),
    Of(Box<Schema>),
}
