//! Reads a document as a type, and reports all fields that do not fit the type at once. serde stops at the first.
//!
//! A document that serde refuses is compared with the JSON schema that is derived from the same type. Fields that are
//! unknown, missing or of another type are reported with their paths and lines.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::errors::Errors;
use crate::kind::nearest;
use crate::parse::{ParseError, parse_object};
use crate::validate::FieldError;

/// The most errors that are reported of one document.
const ERRORS_MAX: usize = 100;
/// The deepest nesting that is compared. No type of ours is deeper.
const DEPTH_MAX: usize = 32;

/// A document that was read as far as it fits the type.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading<T> {
    /// The document without the fields that do not fit; `None` if a required one does not.
    pub value: Option<T>,
    /// The fields that do not fit.
    pub errors: Errors<FieldError>,
}

impl<T> Reading<T> {
    /// The document, if all of it fits.
    ///
    /// # Errors
    /// All fields that do not fit.
    pub fn whole(self) -> Result<T, Errors<FieldError>> {
        match self.value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(self.errors),
        }
    }

    /// Adds errors of the meaning of the document. Errors of an object that lacks fields, because they do not fit, may be due
    /// to that and are left out.
    pub fn add(&mut self, meaning: impl IntoIterator<Item = FieldError>) {
        let objects: Vec<String> = self.errors.iter().map(|error| parent(&error.path).to_owned()).collect();
        let due = |error: &FieldError| {
            objects.iter().any(|object| {
                let within = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
                !object.is_empty() && error.path.strip_prefix(object.as_str()).is_some_and(within)
            })
        };
        self.errors.extend(meaning.into_iter().filter(|error| !due(error)).collect::<Vec<_>>());
    }
}

/// The path of the object that a field is in.
fn parent(path: &str) -> &str {
    path.rfind('.').map_or("", |at| &path[..at])
}

/// Reads a document in YAML or JSON.
///
/// # Errors
/// When it is neither.
pub fn read<T: DeserializeOwned + JsonSchema>(text: &str) -> Result<Reading<T>, ParseError> {
    let first = match parse_object(text) {
        Ok(value) => return Ok(Reading { value: Some(value), errors: Errors::default() }),
        Err(error) => error,
    };
    let document: Value = parse_object(text)?;
    let mut reading = read_value(document);
    if reading.errors.is_empty() {
        // The schema allows what the type does not: a number that is too large, for example.
        return Err(first);
    }
    let lines: Option<Lines> = parse_object(text).ok().filter(|_| text.trim_end().contains('\n'));
    if let Some(lines) = lines {
        let located = std::mem::take(&mut reading.errors).into_iter().map(|error| {
            let line = lines.line_of(&error.path);
            let message =
                line.map_or_else(|| error.message.clone(), |line| format!("line {line}: {}", error.message));
            FieldError { message, ..error }
        });
        reading.errors = located.collect();
    }
    Ok(reading)
}

/// Reads a document that was parsed already. Errors of the schema alone are reported: if there are none and no value, the
/// type refused a value.
#[must_use]
pub fn read_value<T: DeserializeOwned + JsonSchema>(mut document: Value) -> Reading<T> {
    if let Ok(value) = T::deserialize(&document) {
        return Reading { value: Some(value), errors: Errors::default() };
    }
    let schema = schemars::schema_for!(T).to_value();
    let mut comparing = Comparing { defs: &schema["$defs"], errors: Errors::default() };
    comparing.compare(&schema, &mut document, "", 0);
    Reading { value: serde_json::from_value(document).ok(), errors: comparing.errors }
}

struct Comparing<'s> {
    defs: &'s Value,
    errors: Errors<FieldError>,
}

impl Comparing<'_> {
    /// Compares a value, and takes what does not fit out of it. False if the value itself does not fit.
    fn compare(&mut self, schema: &Value, value: &mut Value, path: &str, depth: usize) -> bool {
        if depth > DEPTH_MAX || self.errors.len() >= ERRORS_MAX {
            return true;
        }
        if let Some(name) = schema["$ref"].as_str().and_then(|at| at.strip_prefix("#/$defs/")) {
            let defs = self.defs;
            return self.compare(&defs[name], value, path, depth + 1);
        }
        if let Some(any) = schema["anyOf"].as_array() {
            let fits_nothing = |of: &&Value| of["type"] == "null";
            return match any.iter().find(|of| !fits_nothing(of)) {
                Some(of) if !value.is_null() => self.compare(of, value, path, depth + 1),
                _ => true,
            };
        }
        let words = words(schema);
        if !words.is_empty() {
            let fits = value.as_str().is_some_and(|text| words.contains(&text));
            if !fits {
                let shown = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
                self.push(path, format!("{} is none of {shown}", shown_value(value)), "write one of them");
            }
            return fits;
        }
        let types = types(schema);
        if !types.is_empty() && !types.iter().any(|name| is(value, name)) {
            let wanted = types.iter().filter(|name| **name != "null").map(|name| shown_type(name));
            let wanted = wanted.collect::<Vec<_>>().join(" or ");
            self.push(
                path,
                format!("{} is no {wanted}", shown_value(value)),
                format!("write {}", article(&wanted)),
            );
            return false;
        }
        let least =
            schema["minimum"].as_f64().filter(|least| value.as_f64().is_some_and(|number| number < *least));
        if let Some(least) = least {
            self.push(path, format!("{value} is less than {least}"), format!("write {least} or more"));
            return false;
        }
        match value {
            Value::Object(fields) => self.fields(schema, fields, path, depth),
            Value::Array(items) => {
                let mut fits = true;
                for (at, item) in items.iter_mut().enumerate() {
                    fits &= self.compare(&schema["items"], item, &format!("{path}[{at}]"), depth + 1);
                }
                fits
            }
            _ => true,
        }
    }

    fn fields(&mut self, schema: &Value, fields: &mut Map<String, Value>, path: &str, depth: usize) -> bool {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let known = schema["properties"].as_object();
        let (mut fits, mut drop) = (true, Vec::new());
        for (name, value) in fields.iter_mut() {
            match (known.and_then(|known| known.get(name)), &schema["additionalProperties"]) {
                (Some(of), _) => {
                    if !self.compare(of, value, &below(name), depth + 1) {
                        fits &= !required.contains(&name.as_str());
                        drop.push(name.clone());
                    }
                }
                (None, Value::Bool(false)) => {
                    let names: Vec<&str> =
                        known.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                    let what_to_do = match nearest(name, &names) {
                        Some(near) => format!("did you mean {near}?"),
                        None => format!("there are {}", names.join(", ")),
                    };
                    self.push(&below(name), "there is no such field", what_to_do);
                    drop.push(name.clone());
                }
                (None, of @ Value::Object(_)) => {
                    if !self.compare(of, value, &below(name), depth + 1) {
                        drop.push(name.clone());
                    }
                }
                (None, _) => {}
            }
        }
        for name in required.into_iter().filter(|name| !fields.contains_key(*name)) {
            self.push(&below(name), "it is missing", "add it");
            fits = false;
        }
        for name in &drop {
            fields.remove(name);
        }
        fits
    }

    fn push(&mut self, path: &str, message: impl Into<String>, what_to_do: impl Into<String>) {
        let path = if path.is_empty() { "document" } else { path };
        self.errors.push(FieldError {
            path: path.to_owned(),
            message: message.into(),
            what_to_do: what_to_do.into(),
        });
    }
}

/// The words of an enum.
fn words(schema: &Value) -> Vec<&str> {
    let listed = schema["enum"].as_array().into_iter().flatten();
    let said = schema["oneOf"].as_array().into_iter().flatten().flat_map(|of| {
        let listed = of["enum"].as_array().into_iter().flatten();
        std::iter::once(&of["const"]).chain(listed)
    });
    listed.chain(said).filter_map(Value::as_str).collect()
}

fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

fn shown_type(name: &str) -> &str {
    match name {
        "boolean" => "true or false",
        "string" => "text",
        "integer" => "whole number",
        "array" => "list",
        "object" => "object with fields",
        other => other,
    }
}

fn article(wanted: &str) -> String {
    match wanted {
        "text" | "true or false" => wanted.to_owned(),
        _ if wanted.starts_with('o') => format!("an {wanted}"),
        _ => format!("a {wanted}"),
    }
}

/// A value as far as it fits into a message.
fn shown_value(value: &Value) -> String {
    const LONG: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(LONG) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Where the values of a document are.
#[derive(Debug)]
struct Lines(serde_saphyr::Spanned<Node>);

#[derive(Debug)]
enum Node {
    Fields(Vec<(String, serde_saphyr::Spanned<Self>)>),
    Items(Vec<serde_saphyr::Spanned<Self>>),
    Scalar,
}

impl Lines {
    /// The line of a field, or of the object in which it is missing.
    fn line_of(&self, path: &str) -> Option<u64> {
        let mut at = &self.0;
        for part in path.split(['.', '[']).map(|part| part.trim_end_matches(']')) {
            let below = match &at.value {
                Node::Fields(fields) => fields.iter().find(|(name, _)| name == part).map(|(_, below)| below),
                Node::Items(items) => part.parse::<usize>().ok().and_then(|at| items.get(at)),
                Node::Scalar => None,
            };
            match below {
                Some(below) => at = below,
                None => break,
            }
        }
        Some(at.referenced.line()).filter(|line| *line > 0)
    }
}

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_saphyr::Spanned::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfNode)
    }
}

struct OfNode;

impl<'de> Visitor<'de> for OfNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Fields(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::Items(items))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{DataPartitionConfig, KindredConfig};
    use crate::parse::DEFAULT_CONFIG;

    fn said<T: DeserializeOwned + JsonSchema>(text: &str) -> Vec<String> {
        read::<T>(text).unwrap().errors.iter().map(ToString::to_string).collect()
    }

    const FIVE: &str = "\
default: a
stores:
- {name: a, slot: 1, colour: red}
- name: b
  slot: x
- {name: c, type: disk, endpoints: http://h}
partitions:
- {metadata: {name: p}, resource: pods, serviceGroupID: a}
- {metadata: {}, resource: [pods], serviceGroupId: a}
";

    #[test]
    fn all_fields_that_do_not_fit_are_told_with_their_lines() {
        let expected = [
            "partitions[0].serviceGroupID: line 8: there is no such field; did you mean serviceGroupId?",
            "partitions[1].metadata.name: line 9: it is missing; add it",
            "partitions[1].resource: line 9: [\"pods\"] is no text; write text",
            "stores[0].colour: line 3: there is no such field; there are adopting, endpoints, name, slot, standby, type",
            "stores[1].slot: line 5: \"x\" is no whole number; write a whole number",
            "stores[2].endpoints: line 6: \"http://h\" is no list; write a list",
            "stores[2].type: line 6: \"disk\" is none of \"shard\", \"etcd\"; write one of them",
        ];
        assert_eq!(said::<KindredConfig>(FIVE), expected);
        let json = serde_json::to_string(&parse_object::<Value>(FIVE).unwrap()).unwrap();
        let without_lines = expected.map(|error| {
            let (path, rest) = error.split_once(": line ").unwrap();
            format!("{path}: {}", rest.split_once(": ").unwrap().1)
        });
        assert_eq!(said::<KindredConfig>(&json), without_lines);
    }

    #[test]
    fn what_fits_is_read_and_its_meaning_is_told_too() {
        let text = FIVE.replace("metadata: {}, resource: [pods]", "metadata: {name: q}, resource: pods");
        let mut reading = read::<KindredConfig>(&text).unwrap();
        let value = reading.value.clone().unwrap();
        assert_eq!((value.stores.len(), value.stores[1].slot, value.partitions.len()), (3, None, 2));
        let before = reading.errors.len();
        let error = |path: &str| FieldError {
            path: path.to_owned(),
            message: "m".to_owned(),
            what_to_do: "w".to_owned(),
        };
        // Stores and the first partition lack what was wrong with them.
        reading.add(
            ["default", "partitions[0].serviceGroupId", "partitions[1].resource", "stores[1]"].map(error),
        );
        let added: Vec<_> = reading.errors[before..].iter().map(|error| error.path.as_str()).collect();
        assert_eq!(added, ["default", "partitions[1].resource"]);
        assert!(reading.whole().is_err());
    }

    #[test]
    fn what_is_no_document_is_told_by_its_place() {
        assert_eq!(read::<KindredConfig>("default: [\n").unwrap_err().line, 1);
        // The schema says nothing of the largest number.
        let large = "default: a\nstores:\n- {name: a, slot: 99999999999}\n";
        assert_eq!(read::<KindredConfig>(large).unwrap_err().line, 3);
        assert_eq!(
            said::<KindredConfig>("[]"),
            ["document: [] is no object with fields; write an object with fields"]
        );
        assert_eq!(said::<DataPartitionConfig>("null").len(), 1);
        let below = said::<KindredConfig>("default: a\nstores: [{name: a, slot: -1}]\n");
        assert_eq!(below, ["stores[0].slot: line 2: -1 is less than 0; write 0 or more"]);
    }

    #[test]
    fn what_fits_has_no_errors() {
        let reading = read::<KindredConfig>(DEFAULT_CONFIG).unwrap();
        assert_eq!(reading.errors, Errors::default());
        assert_eq!(reading.whole().unwrap().stores.len(), 5);
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z]{0,5}".prop_map(Value::from),
        ];
        let name = prop_oneof![
            Just("stores"),
            Just("default"),
            Just("partitions"),
            Just("metadata"),
            Just("name"),
            Just("ring"),
            Just("slot"),
            Just("standby"),
            Just("endpoints"),
            Just("up"),
            Just("shard"),
            Just("x"),
        ];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever serde refuses has an error, and what is left without the errors is what serde takes.
        #[test]
        fn every_document_is_read_or_has_errors(document in values()) {
            let reading = read_value::<KindredConfig>(document.clone());
            let fits = serde_json::from_value::<KindredConfig>(document.clone()).is_ok();
            prop_assert_eq!(fits, reading.errors.is_empty() && reading.value.is_some());
            prop_assert!(fits || !reading.errors.is_empty() || has_large_number(&document));
        }
    }

    /// Numbers that fit the schema's type and not serde's: the schema has no upper end for them.
    fn has_large_number(value: &Value) -> bool {
        match value {
            Value::Number(number) => number.as_u64().is_none_or(|number| number > u64::from(u32::MAX)),
            Value::Array(items) => items.iter().any(has_large_number),
            Value::Object(fields) => fields.values().any(has_large_number),
            _ => false,
        }
    }
}
