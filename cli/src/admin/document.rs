//! Files for `apply`, `plan` and `edit`: objects in YAML or JSON, several documents, Lists, or a whole
//! configuration as for `kindred up --config`.

use std::{io::Read as _, path::Path};

use kindred_partition_config::parse;
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
    /// What is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut document = Self::default();
        for (line, part) in parts(text) {
            let value: Value = parse::parse_object(&part).map_err(|error| {
                // Line numbers count from the beginning of the file.
                format!("line {}, column {}: {}", line + error.line as usize, error.column, error.message)
            })?;
            document.take(value).map_err(|error| format!("document at line {}: {error}", line + 1))?;
        }
        if document.items.is_empty() {
            return Err("it has no objects".to_owned());
        }
        Ok(document)
    }

    fn take(&mut self, mut value: Value) -> Result<(), String> {
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        if kind.is_empty() && value.get("partitions").is_some() {
            return self.take_whole(&value);
        }
        if kind == "List" || kind.ends_with("List") {
            let Some(Value::Array(items)) = value.get_mut("items").map(Value::take) else {
                return Err(format!("a {kind} without items"));
            };
            return items.into_iter().try_for_each(|item| self.take(item));
        }
        if !matches!(kind.as_str(), "DataPartitionConfig" | "ServiceGroup") {
            let found = if kind.is_empty() { "no kind".to_owned() } else { format!("kind {kind:?}") };
            return Err(format!("{found}; write kind: DataPartitionConfig, or ServiceGroup for a store"));
        }
        self.items.push(value);
        Ok(())
    }

    /// Takes a configuration file; its stores become service groups.
    fn take_whole(&mut self, value: &Value) -> Result<(), String> {
        let config: kindred_partition_config::model::KindredConfig =
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
        for store in &config.stores {
            let mut group = json!({ "kind": "ServiceGroup", "metadata": { "name": store.name }, "type": store.store_type });
            if let Some(slot) = store.slot {
                group["slot"] = json!(slot);
            }
            if !store.endpoints.is_empty() {
                group["endpoints"] = json!(store.endpoints);
            }
            self.items.push(group);
        }
        for config in &config.partitions {
            let mut object = serde_json::to_value(config).map_err(|error| error.to_string())?;
            object["kind"] = json!("DataPartitionConfig");
            self.items.push(object);
        }
        self.whole = Some(config.default.0);
        Ok(())
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

/// The documents of a YAML stream, each with the number of lines before it. Leaves out documents that are empty or
/// only comments.
fn parts(text: &str) -> Vec<(usize, String)> {
    let mut parts = vec![(0, String::new())];
    for (at, line) in text.lines().enumerate() {
        if line.trim_end() == "---" {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_lists_and_json() {
        let text = "# two\nkind: DataPartitionConfig\nmetadata: {name: a}\nresource: pods\n---\n# nothing\n---\n\
                    kind: List\nitems:\n- {kind: ServiceGroup, metadata: {name: s}}\n\
                    - {kind: DataPartitionConfig, metadata: {name: b}}\n";
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
        assert!(Document::parse("a: 1\n").unwrap_err().contains("no kind; write kind: DataPartitionConfig"));
        assert!(Document::parse("kind: Pod\n").unwrap_err().contains("document at line 1: kind \"Pod\""));
        assert!(Document::parse("# nothing\n").unwrap_err().contains("no objects"));
    }
}
