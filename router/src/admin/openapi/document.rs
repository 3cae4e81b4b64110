//! Writes an OpenAPI document: operations with their parameters, bodies and answers.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::a;

pub(super) const SCHEMAS: &str = "#/components/schemas/";

/// The document while it is written.
pub(super) struct Document {
    paths: Map<String, Value>,
    answers: SchemaGenerator,
    bodies: SchemaGenerator,
}

/// An operation while it is written.
pub(super) struct Operation<'d> {
    document: &'d mut Document,
    path: String,
    method: &'static str,
}

impl Document {
    pub(super) fn new() -> Self {
        let settings = |settings: SchemaSettings| {
            settings.with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            paths: Map::new(),
            answers: settings(SchemaSettings::draft2020_12().for_serialize()).into_generator(),
            bodies: settings(SchemaSettings::draft2020_12().for_deserialize()).into_generator(),
        }
    }

    pub(super) fn get(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("get", path, summary)
    }

    pub(super) fn post(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("post", path, summary)
    }

    pub(super) fn put(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("put", path, summary)
    }

    pub(super) fn delete(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("delete", path, summary)
    }

    pub(super) fn operation(&mut self, method: &'static str, path: &str, summary: &str) -> Operation<'_> {
        let words = path.split('/').map(|part| part.trim_matches(['{', '}'])).filter(|part| !part.is_empty());
        let id = std::iter::once(method).chain(words).collect::<Vec<_>>().join("-");
        let of_path = self.paths.entry(path).or_insert_with(|| json!({}));
        of_path[method] = json!({ "operationId": id, "summary": summary, "parameters": [], "responses": {} });
        let operation = Operation { document: self, path: path.to_owned(), method };
        // Probes have answers for those whom the port does not know as well.
        if path.starts_with("/api") || path.starts_with("/openapi") {
            operation.errors(&[401, 403])
        } else {
            operation
        }
    }

    pub(super) fn end(mut self) -> Value {
        let mut schemas = self.answers.take_definitions(true);
        let mut bodies = Value::Object(self.bodies.take_definitions(true));
        // A type that is both written and shown has two schemas: fields that may be left out are always shown.
        let both: Vec<String> = bodies
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, schema)| schemas.get(*name).is_some_and(|shown| shown != *schema))
            .map(|(name, _)| name.clone())
            .collect();
        let mut paths = Value::Object(self.paths);
        for name in &both {
            let (from, to) = (format!("{SCHEMAS}{name}"), format!("{SCHEMAS}{name}Written"));
            rename(&mut bodies, &from, &to);
            for_bodies(&mut paths, &mut |body| rename(body, &from, &to));
        }
        if let Value::Object(bodies) = bodies {
            for (name, schema) in bodies {
                let name = if both.contains(&name) { format!("{name}Written") } else { name };
                schemas.insert(name, schema);
            }
        }
        let mut schemas = Value::Object(schemas);
        as_written(&mut schemas);
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "kindred's admin API", "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
                "description": "The admin port of a router. Who may do what there is in docs/threat-model.md. Bodies may be YAML, and \
                                answers are, where they are asked for with Accept: application/yaml.",
            },
            "security": [{}, { "token": [] }, { "certificate": [] }],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "token": { "type": "http", "scheme": "bearer" }, "certificate": { "type": "mutualTLS" },
                },
            },
        })
    }
}

impl Operation<'_> {
    pub(super) fn value(&mut self) -> &mut Value {
        &mut self.document.paths[&self.path][self.method]
    }

    pub(super) fn parameter(mut self, parameter: Value) -> Self {
        if let Some(parameters) = self.value()["parameters"].as_array_mut() {
            parameters.push(parameter);
        }
        self
    }

    pub(super) fn query(self, name: &str, what: &str) -> Self {
        self.parameter(
            json!({ "name": name, "in": "query", "description": what, "schema": { "type": "string" } }),
        )
    }

    /// The options of everything that may begin moves.
    pub(super) fn of_change(self) -> Self {
        let what = "`All`: only show what would be done.";
        let dry = json!({ "name": "dryRun", "in": "query", "description": what, "schema": { "enum": ["", "All"] } });
        let what = "`true`: moves to a stock etcd may delete the keys that it has where they go.";
        let values = ["", "true", "false"];
        self.parameter(dry).parameter(
            json!({ "name": "deleteItsKeys", "in": "query", "description": what, "schema": { "enum": values } }),
        )
    }

    pub(super) fn in_path(self, name: &str, what: &str) -> Self {
        let schema = json!({ "type": "string" });
        self.parameter(
            json!({ "name": name, "in": "path", "required": true, "description": what, "schema": schema }),
        )
    }

    pub(super) fn in_path_of(self, name: &str, what: &str, values: &[&str]) -> Self {
        let schema = json!({ "type": "string", "enum": values });
        self.parameter(
            json!({ "name": name, "in": "path", "required": true, "description": what, "schema": schema }),
        )
    }

    pub(super) fn deprecated(mut self, deprecated: bool) -> Self {
        if deprecated {
            self.value()["deprecated"] = json!(true);
        }
        self
    }

    pub(super) fn body<T: JsonSchema>(mut self) -> Self {
        let schema = self.document.bodies.subschema_for::<T>().to_value();
        self.value()["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": schema }, "application/yaml": { "schema": schema } },
        });
        self
    }

    /// Adds a form of the answer with this code.
    pub(super) fn form(mut self, code: u16, what: &str, media: &str, schema: Value) -> Self {
        let response = &mut self.value()["responses"][code.to_string()];
        if response.is_null() {
            *response = json!({ "description": what });
        }
        let shown = &mut response["content"][media]["schema"];
        *shown = match shown.take() {
            Value::Null => schema,
            Value::Object(mut several) if several.contains_key("anyOf") => {
                if let Some(Value::Array(all)) = several.get_mut("anyOf") {
                    all.push(schema);
                }
                Value::Object(several)
            }
            one => json!({ "anyOf": [one, schema] }),
        };
        self
    }

    pub(super) fn answer<T: JsonSchema>(self, code: u16, what: &str) -> Self {
        let schema = self.document.answers.subschema_for::<T>().to_value();
        self.form(code, what, "application/json", schema)
    }

    pub(super) fn answer_or_table<T: JsonSchema>(self, code: u16, what: &str) -> Self {
        self.answer::<T>(code, what).answer::<a::Table>(code, what)
    }

    pub(super) fn stream<T: JsonSchema>(self, code: u16) -> Self {
        let schema = self.document.answers.subschema_for::<T>().to_value();
        self.form(code, "the events", "application/json;stream=watch", schema)
    }

    /// An answer with one object a line.
    pub(super) fn lines<T: JsonSchema>(self, code: u16, what: &str) -> Self {
        let schema = self.document.answers.subschema_for::<T>().to_value();
        self.form(code, what, "application/x-ndjson", schema)
    }

    pub(super) fn events(self, code: u16, what: &str) -> Self {
        self.form(code, what, "text/event-stream", json!({ "type": "string" }))
    }

    pub(super) fn text(self, code: u16, what: &str) -> Self {
        self.form(code, what, "text/plain", json!({ "type": "string" }))
    }

    pub(super) fn anything(self, code: u16, what: &str) -> Self {
        self.form(code, what, "application/json", json!({ "type": "object" }))
    }

    pub(super) fn errors(mut self, codes: &[u16]) -> Self {
        for code in codes {
            let what = match code {
                400 => "the request cannot be understood",
                401 => "the port does not know who asks",
                403 => "who asks may not do this",
                404 => "there is no such object",
                409 => "it contradicts what is there or under way",
                410 => "the version is too old: list again",
                422 => "fields are wrong: each has a cause",
                501 => "this router has no meta store, or a store is too old",
                _ => "the meta store or a store cannot be used",
            };
            self = self.answer::<a::Status>(*code, what);
        }
        self
    }
}

/// Renames what `$ref`s name.
fn rename(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(at) if name == "$ref" && at == from => to.clone_into(at),
                    value => rename(value, from, to),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, from, to)),
        _ => {}
    }
}

fn for_bodies(paths: &mut Value, change: &mut impl FnMut(&mut Value)) {
    let operations = paths.as_object_mut().into_iter().flat_map(Map::values_mut);
    let operations = operations.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    operations.filter_map(|operation| operation.get_mut("requestBody")).for_each(change);
}

/// Writes the names of fields in descriptions as they are written in documents.
fn as_written(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(text) if name == "description" => *text = camel(text),
                    value => as_written(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(as_written),
        _ => {}
    }
}

/// A description with its names in backquotes in camel case, and without the brackets of Rust's links.
fn camel(text: &str) -> String {
    let text = text.replace("[`", "`").replace("`]", "`");
    let parts = text.split('`').enumerate().map(|(at, part)| {
        let is_name = at % 2 == 1 && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if !is_name {
            return part.to_owned();
        }
        let mut words = part.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |name, word| {
            let (head, tail) = word.split_at(word.len().min(1));
            name + &head.to_ascii_uppercase() + tail
        })
    });
    parts.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_name_fields_as_documents_do() {
        assert_eq!(
            camel("with `range_start`, or [`Durability`], `--a_b`"),
            "with `rangeStart`, or `Durability`, `--a_b`"
        );
    }
}
