//! Parses the model from YAML, and from JSON, which is a subset of YAML.

use serde::de::DeserializeOwned;

use crate::model::{DataPartitionConfig, KindredConfig};

/// The configuration that `kindred up` uses by default.
pub const DEFAULT_CONFIG: &str = include_str!("default.yaml");

/// A parse error and its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Counts from 1; 0 if unknown.
    pub line: u64,
    /// Counts from 1; 0 if unknown.
    pub column: u64,
    pub message: String,
}

/// Parses a whole configuration.
///
/// # Errors
/// When the text is neither YAML nor JSON, or has other fields or types than the model.
pub fn parse_config(text: &str) -> Result<KindredConfig, ParseError> {
    parse(text)
}

/// Parses one `DataPartitionConfig`.
///
/// # Errors
/// When the text is neither YAML nor JSON, or has other fields or types than the model.
pub fn parse_partition(text: &str) -> Result<DataPartitionConfig, ParseError> {
    parse(text)
}

/// Parses an object of any type.
///
/// # Errors
/// When the text is neither YAML nor JSON, or has other fields or types than the object.
pub fn parse_object<T: DeserializeOwned>(text: &str) -> Result<T, ParseError> {
    parse(text)
}

/// Writes an object as YAML.
///
/// # Errors
/// When YAML cannot represent the object, such as a map with keys that are not strings.
pub fn to_yaml<T: serde::Serialize>(object: &T) -> Result<String, String> {
    serde_saphyr::to_string(object).map_err(|error| error.to_string())
}

/// Wraps the YAML library, which nothing outside this file uses.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ParseError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
        // Drop the source snippet, which is meant for terminals; line and column are reported separately.
        let message = error.without_snippet().to_string();
        let message = match message.strip_suffix(&format!(" at line {line}, column {column}")) {
            Some(bare) => bare.to_owned(),
            None => message,
        };
        ParseError { line, column, message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StoreType;

    #[test]
    fn yaml_and_json_are_the_same() {
        let yaml = "
etcdPrefix: /registry
default: main
stores:
- {name: main, slot: 1, endpoints: ['http://[::1]:2379']}
- name: old
  type: etcd
partitions:
- apiVersion: v1
  kind: DataPartitionConfig
  metadata: {name: pods-1}
  resource: pods
  rangeEnd: n
  isRangeEndValid: true
  serviceGroupId: old
";
        let config = parse_config(yaml).unwrap();
        assert_eq!(config.stores[1].store_type, StoreType::Etcd);
        assert_eq!(config.partitions[0].range_end, "n");
        let json = serde_json::to_string_pretty(&config).unwrap();
        assert!(json.contains(r#""isRangeEndValid": true"#), "{json}");
        assert_eq!(parse_config(&json), Ok(config.clone()));
        let partition = serde_json::to_string(&config.partitions[0]).unwrap();
        assert_eq!(parse_partition(&partition).as_ref(), Ok(&config.partitions[0]));
    }

    #[test]
    fn errors_say_where() {
        for (text, line, word) in [
            ("default: a\nstores: []\nfoo: 1\n", 3, "foo"),
            ("default: a\nstores:\n- {name: a, slot: x}\n", 3, "u32"),
            ("default: a\nstores:\n- {name: a, type: disk}\n", 3, "disk"),
            ("default: a\ndefault: b\nstores: []\n", 2, "default"),
            ("default: [\n", 1, ""),
            ("{\"default\": \"a\",\n \"stores\": [}\n", 2, ""),
            ("stores: []\n", 1, "default"),
        ] {
            let error = parse_config(text).unwrap_err();
            assert!(error.line == line && error.message.contains(word), "{text:?}: {error}");
        }
    }
}
