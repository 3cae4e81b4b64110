//! The JSON schema of the API's objects.

use serde_json::{Value, json};

/// The schema of both types of objects.
#[must_use]
pub fn schema() -> Value {
    let text = |what: &str| json!({ "type": "string", "description": what });
    let flag = |what: &str| json!({ "type": "boolean", "default": false, "description": what });
    let metadata = json!({
        "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {
            "name": text("Unique."),
            "resourceVersion": text("An update or delete with it is done only if it is still the object's."),
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {
            "DataPartitionConfig": {
                "type": "object", "additionalProperties": false, "required": ["metadata", "resource"],
                "properties": {
                    "apiVersion": text("v1"), "kind": { "const": "DataPartitionConfig" }, "metadata": metadata,
                    "resource": text("The Kind: pods, leases.coordination.k8s.io, or the prefix of its keys."),
                    "rangeStart": text("First name of the range, namespace/name or name; counts with isRangeStartValid."),
                    "isRangeStartValid": flag("Without it the range is open at its beginning."),
                    "rangeEnd": text("First name behind the range; counts with isRangeEndValid."),
                    "isRangeEndValid": flag("Without it the range is open at its end."),
                    "serviceGroupId": text("The store that serves the range; this or ring."),
                    "ring": {
                        "type": "object", "additionalProperties": false, "required": ["stores"],
                        "description": "The stores that share the range by a hash of the names.",
                        "properties": { "stores": { "type": "array", "minItems": 1, "items": { "type": "string" } } },
                    },
                    "durability": { "enum": ["none", "buffered", "fsync"], "description":
                        "What is kept of an acknowledged write when its shard is killed; one for a Kind. Without it the shard's own default." },
                },
            },
            "ServiceGroup": {
                "type": "object", "additionalProperties": false, "required": ["metadata"],
                "properties": {
                    "apiVersion": text("v1"), "kind": { "const": "ServiceGroup" }, "metadata": metadata,
                    "type": { "enum": ["shard", "etcd"], "default": "shard", "description": "Never changes." },
                    "slot": { "type": "integer", "minimum": 1, "maximum": 1023,
                              "description": "Of a shard; allotted unless given. Never changes." },
                    "endpoints": { "type": "array", "items": { "type": "string" }, "description": "Its client URLs." },
                    "standby": {
                        "type": "object", "additionalProperties": false, "required": ["endpoints"],
                        "description": "The standbys of a shard; without it the shard is the only copy.",
                        "properties": {
                            "endpoints": { "type": "array", "minItems": 1, "maxItems": 2, "items": { "type": "string" },
                                           "description": "Where the standbys listen." },
                            "mode": { "enum": ["sync", "async"], "default": "sync",
                                      "description": "sync: nothing is acknowledged before every standby has it." },
                            "onLoss": { "enum": ["alone", "wait"], "default": "alone",
                                        "description": "What the primary does when a standby in mode sync is lost." },
                        },
                    },
                    "members": { "type": "object", "description": "Shown only: the primary, and who may be promoted." },
                    "state": { "enum": ["active", "draining"], "description": "draining: nothing may name it." },
                    "uuid": { "type": ["string", "null"], "description": "Shown only." },
                    "default": { "type": "boolean", "description": "Shown only: serves keys that no config holds." },
                },
            },
        },
        "oneOf": [{ "$ref": "#/$defs/DataPartitionConfig" }, { "$ref": "#/$defs/ServiceGroup" }],
    })
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};
    use kindred_partition_config::state::ClusterState;

    use super::*;
    use crate::admin::objects::Resource;

    #[test]
    fn every_field_that_is_shown_is_in_the_schema() {
        let config = parse_config(DEFAULT_CONFIG).unwrap();
        let state = ClusterState::bootstrap(&config).unwrap();
        for resource in [Resource::Configs, Resource::Groups] {
            let known = &schema()["$defs"][resource.kind()]["properties"];
            for object in resource.all(&state) {
                for field in object.value.as_object().unwrap().keys() {
                    assert!(known.get(field).is_some(), "{}: {field}", resource.kind());
                }
            }
        }
    }
}
