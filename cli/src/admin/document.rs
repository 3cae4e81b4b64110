//! Files for `apply`, `plan` and `edit`: objects in YAML or JSON, several documents, Lists, or a whole
//! configuration as for `kindred up --config`.

use std::{io::Read as _, path::Path};

use kindred_partition_config::errors::Errors;
use kindred_partition_config::model::{DataPartitionConfig, KindredConfig};
use kindred_partition_config::{parse, shape};
use kindred_router::admin::objects::ServiceGroup;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::failure::Failure;

/// The content of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// The objects to create or update.
    pub items: Vec<Value>,
    /// The default store, if the file is a whole configuration. Configs that it lacks are then deleted.
    pub whole: Option<String>,
}

impl Document {
    /// Reads a file; `-` is standard input.
    ///
    /// # Errors
    /// When it cannot be read or parsed. The message names file and line.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let text = if path.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            std::fs::read_to_string(path)
        };
        let text = text.map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
        Self::parse(&text).map_err(|error| Failure::Usage(format!("{name}: {error}")))
    }

    /// Parses a text.
    ///
    /// # Errors
    /// All that is wrong, with its place; one of several on a line of its own.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (document, errors) = Self::read_all(text);
        match &errors[..] {
            [] if document.items.is_empty() => Err("it has no objects".to_owned()),
            [] => Ok(document),
            [one] => Err(one.clone()),
            several => Err(format!("{} errors{}", several.len(), errors)),
        }
    }

    /// What there is in a text, and all that is wrong with it.
    fn read_all(text: &str) -> (Self, Errors<String>) {
        let (mut document, mut errors) = (Self::default(), Errors::default());
        for (line, part) in parts(text) {
            match parse::parse_object::<Value>(&part) {
                Ok(value) => {
                    document.take(value, &Place { line, text: Some(&part), path: String::new() }, &mut errors)
                }
                // Line numbers count from the beginning of the file.
                Err(error) => errors.push(format!(
                    "line {}, column {}: {}",
                    line + error.line as usize,
                    error.column,
                    error.message
                )),
            }
        }
        (document, errors)
    }

    fn take(&mut self, mut value: Value, at: &Place<'_>, errors: &mut Errors<String>) {
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        if kind.is_empty() && value.get("partitions").is_some() {
            if let Some(config) = at.read::<KindredConfig>(&value, errors) {
                self.take_whole(&config);
            }
            return;
        }
        if kind == "List" || kind.ends_with("List") {
            let Some(Value::Array(items)) = value.get_mut("items").map(Value::take) else {
                return errors.push(at.said(&format!("a {kind} without items")));
            };
            for (number, item) in items.into_iter().enumerate() {
                self.take(item, &at.item(number), errors);
            }
            return;
        }
        let fits = match kind.as_str() {
            "DataPartitionConfig" => at.read::<DataPartitionConfig>(&value, errors).is_some(),
            "ServiceGroup" => at.read::<ServiceGroup>(&value, errors).is_some(),
            _ => {
                let found = if kind.is_empty() { "no kind".to_owned() } else { format!("kind {kind:?}") };
                let message =
                    format!("{found}; write kind: DataPartitionConfig, or ServiceGroup for a store");
                return errors.push(at.said(&message));
            }
        };
        if fits {
            self.items.push(value);
        }
    }

    /// Takes a configuration file; its stores become service groups.
    fn take_whole(&mut self, config: &KindredConfig) {
        for store in &config.stores {
            let mut group = json!({ "kind": "ServiceGroup", "metadata": { "name": store.name }, "type": store.store_type });
            if let Some(slot) = store.slot {
                group["slot"] = json!(slot);
            }
            if !store.endpoints.is_empty() {
                group["endpoints"] = json!(store.endpoints);
            }
            if let Some(standby) = &store.standby {
                group["standby"] = json!(standby);
            }
            self.items.push(group);
        }
        for config in &config.partitions {
            // A struct of strings and flags always serialises.
            let mut object = serde_json::to_value(config).unwrap_or_default();
            object["kind"] = json!("DataPartitionConfig");
            self.items.push(object);
        }
        self.whole = Some(config.default.0.clone());
    }

    /// The body of the API request.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut body = json!({ "items": self.items });
        if let Some(default) = &self.whole {
            body["default"] = json!(default);
            body["prune"] = json!(true);
        }
        body
    }
}

/// Where a document is in a file.
struct Place<'t> {
    /// The number of lines before it.
    line: usize,
    /// Its text; `None` for an item of a list.
    text: Option<&'t str>,
    /// The item of a list that is meant, with a dot behind it.
    path: String,
}

impl Place<'_> {
    fn item(&self, number: usize) -> Self {
        Self { line: self.line, text: None, path: format!("{}items[{number}].", self.path) }
    }

    fn said(&self, what: &str) -> String {
        let path = self.path.strip_suffix('.').map_or_else(String::new, |path| format!("{path}: "));
        format!("document at line {}: {path}{what}", self.line + 1)
    }

    /// Reads an object as its type; `None` after errors were added.
    fn read<T: DeserializeOwned + JsonSchema>(
        &self,
        value: &Value,
        errors: &mut Errors<String>,
    ) -> Option<T> {
        let reading = match self.text {
            // Lines of errors count from the beginning of the file.
            Some(text) => shape::read::<T>(&("\n".repeat(self.line) + text)),
            None => Ok(shape::read_value(value.clone())),
        };
        let wrong = match reading.map(shape::Reading::whole) {
            Ok(Ok(object)) => return Some(object),
            Ok(Err(wrong)) => wrong,
            Err(error) => {
                errors.push(error.to_string());
                return None;
            }
        };
        if wrong.is_empty() {
            let why = serde_json::from_value::<T>(value.clone()).err().map(|error| error.to_string());
            errors.push(self.said(&why.unwrap_or_default()));
        }
        let at = self.line + 1;
        errors.extend(wrong.iter().map(|error| match error.path.as_str() {
            "document" => self.said(&format!("{}; {}", error.message, error.what_to_do)),
            _ => format!("document at line {at}: {}{error}", self.path),
        }));
        None
    }
}

/// The documents of a YAML stream, or of several JSON texts one after another, each with the number of lines before it.
/// Leaves out documents that are empty or only comments.
fn parts(text: &str) -> Vec<(usize, String)> {
    if let Some(parts) = json_parts(text) {
        return parts;
    }
    let mut parts = vec![(0, String::new())];
    for (at, line) in text.lines().enumerate() {
        let marked =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']));
        if let Some(rest) = marked {
            // A document may begin behind its mark. The spaces keep its columns.
            parts.push((at, format!("   {rest}\n")));
        } else if line.trim_end() == "..." {
            parts.push((at + 1, String::new()));
        } else if let Some((_, part)) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    let says =
        |part: &str| part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    parts.retain(|(_, part)| says(part));
    parts
}

/// The JSON texts, if the file has nothing else.
fn json_parts(text: &str) -> Option<Vec<(usize, String)>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    let (mut parts, mut from) = (Vec::new(), 0);
    while let Some(value) = values.next() {
        value.ok()?;
        let to = values.byte_offset();
        let begins = text[from..to].len() - text[from..to].trim_start().len() + from;
        parts.push((text[..begins].matches('\n').count(), text[begins..to].to_owned()));
        from = to;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_lists_and_json() {
        let text = "# two\nkind: DataPartitionConfig\nmetadata: {name: a}\nresource: pods\n---\n# nothing\n---\n\
                    kind: List\nitems:\n- {kind: ServiceGroup, metadata: {name: s}}\n\
                    - {kind: DataPartitionConfig, metadata: {name: b}, resource: pods}\n";
        let document = Document::parse(text).unwrap();
        let names: Vec<_> =
            document.items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!((names, document.whole.clone()), (vec!["a", "s", "b"], None));
        assert_eq!(document.body()["prune"], Value::Null);
        let json = document.items[0].to_string();
        assert_eq!(Document::parse(&json).unwrap().items[0], document.items[0]);
    }

    #[test]
    fn a_whole_configuration_leaves_nothing_else() {
        let document = Document::parse(parse::DEFAULT_CONFIG).unwrap();
        let body = document.body();
        assert_eq!((body["prune"].clone(), body["default"].clone()), (json!(true), json!("default")));
        let groups = document.items.iter().filter(|item| item["kind"] == "ServiceGroup");
        assert!(groups.clone().count() == 5 && groups.clone().all(|group| group.get("endpoints").is_none()));
    }

    #[test]
    fn errors_say_where() {
        let wrong = "kind: ServiceGroup\nmetadata: {name: s}\n---\nkind: [\n";
        assert!(
            Document::parse(wrong).unwrap_err().starts_with("line 4")
                || Document::parse(wrong).unwrap_err().starts_with("line 5")
        );
        let wrong = "kind: ServiceGroup\nmetadata: {name: s}\nslto: 1\n---\nkind: DataPartitionConfig\nmetadata: {}\n\
                     resource: [x]\n---\nkind: Pod\n--- # more\nkind: [\n---\nkind: List\nitems: [{kind: ServiceGroup, slot: x}]\n";
        let errors = Document::parse(wrong).unwrap_err();
        let expected = [
            "7 errors",
            "document at line 1: slto: line 3: there is no such field; did you mean slot?",
            "document at line 4: metadata.name: line 6: it is missing; add it",
            "document at line 4: resource: line 7: [\"x\"] is no text; write text",
            "document at line 8: kind \"Pod\"; write kind: DataPartitionConfig, or ServiceGroup for a store",
            "line 1",
            "document at line 12: items[0].slot: \"x\" is no whole number; write a whole number",
            "document at line 12: items[0].metadata: it is missing; add it",
        ];
        assert_eq!(errors.lines().count(), expected.len(), "{errors}");
        for (said, expected) in errors.lines().zip(expected) {
            assert!(said.trim_start().starts_with(expected), "{said}: {expected}");
        }
        assert!(Document::parse("a: 1\n").unwrap_err().contains("no kind; write kind: DataPartitionConfig"));
        assert!(Document::parse("kind: Pod\n").unwrap_err().contains("document at line 1: kind \"Pod\""));
        assert!(Document::parse("# nothing\n").unwrap_err().contains("no objects"));
    }

    #[test]
    fn several_json_texts_and_documents_behind_their_marks() {
        let names = |text: &str| {
            let items = Document::parse(text).unwrap().items;
            items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let one = |name: &str| json!({ "kind": "ServiceGroup", "metadata": { "name": name } });
        assert_eq!(names(&format!("{}\n{}{}", one("a"), one("b"), one("c"))), ["a", "b", "c"]);
        assert_eq!(names(&serde_json::to_string_pretty(&one("a")).unwrap()), ["a"]);
        assert_eq!(
            names(
                "--- {kind: ServiceGroup, metadata: {name: a}}\n...\n---\n{kind: ServiceGroup, metadata: {name: b}}\n"
            ),
            ["a", "b"]
        );
        assert_eq!(names("{kind: ServiceGroup, metadata: {name: a}}\n"), ["a"], "this is YAML");
        let second = format!("{}\n{{\"kind\": \"ServiceGroup\",\n\"slot\": true}}\n", one("a"));
        let errors = Document::parse(&second).unwrap_err();
        assert!(errors.contains("document at line 2: slot: line 3: true is no whole number"), "{errors}");
        let broken = Document::parse("{\"kind\": \"ServiceGroup\"}\n{\"kind\":\n").unwrap_err();
        assert!(broken.starts_with("line "), "{broken}");
    }

    #[test]
    fn a_whole_configuration_keeps_the_standbys() {
        let text = "default: a\nstores: [{name: a, slot: 1, standby: {endpoints: ['http://h:1'], mode: async}}]\npartitions: []\n";
        let items = Document::parse(text).unwrap().items;
        assert_eq!(
            items[0]["standby"],
            json!({ "endpoints": ["http://h:1"], "mode": "async", "onLoss": "alone" })
        );
    }
}
