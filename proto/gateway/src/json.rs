//! Messages as JSON, as etcd reads and writes them: names as in the protocol, 64-bit integers as strings, bytes in base64,
//! no fields that have their default. Unknown fields are ignored.

use std::collections::HashSet;
use std::fmt;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use prost::Message as _;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::de::{Deserialize, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Deserializer;
use serde_json::value::RawValue;
use tonic::Status;

/// How much larger a message may be as JSON: four thirds for base64, and names around it.
pub const GROWTH_MAX: usize = 2;

/// Reads a message. Nothing at all is an empty message; what follows it is ignored.
///
/// # Errors
/// `InvalidArgument` when this is no such message.
pub fn read(of: MessageDescriptor, json: &[u8]) -> Result<Bytes, Status> {
    if json.iter().all(u8::is_ascii_whitespace) {
        return Ok(Bytes::new());
    }
    Deserializer::from_slice(json).into_iter::<Unique>().next().transpose().map_err(|error| bad(&error))?;
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut json = Deserializer::from_slice(json);
    let message =
        DynamicMessage::deserialize_with_options(of, &mut json, &options).map_err(|error| bad(&error))?;
    Ok(message.encode_to_vec().into())
}

/// A value in which no object names a field twice, as etcd wants it: by one of its two names each time.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self, A::Error> {
        while values.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = fields.next_key::<String>()? {
            // `range_end` and `rangeEnd` are one field.
            if !seen.insert(name.replace('_', "").to_ascii_lowercase()) {
                return Err(A::Error::custom(format_args!("duplicate field {name:?}")));
            }
            fields.next_value::<Self>()?;
        }
        Ok(self)
    }
}

/// What is wrong with a request. An end in the middle is told in etcd's words.
fn bad(error: &serde_json::Error) -> Status {
    Status::invalid_argument(if error.is_eof() { "unexpected EOF".to_owned() } else { error.to_string() })
}

/// Writes a message.
///
/// # Errors
/// When the bytes are no such message.
pub fn write(of: MessageDescriptor, message: &[u8]) -> Result<String, Status> {
    let failed =
        |error: &dyn std::fmt::Display| Status::internal(format!("the answer cannot be written: {error}"));
    let message = DynamicMessage::decode(of, message).map_err(|error| failed(&error))?;
    let mut text = Vec::new();
    let mut json = serde_json::Serializer::new(&mut text);
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(true)
        .skip_default_fields(true);
    message.serialize_with_options(&mut json, &options).map_err(|error| failed(&error))?;
    String::from_utf8(text).map_err(|error| failed(&error))
}

/// The values that come one after another in a body.
pub struct Values {
    body: BodyDataStream,
    arrived: BytesMut,
    bytes_max: usize,
    broke_off: bool,
}

impl Values {
    /// A value may have so many bytes.
    #[must_use]
    pub fn new(body: Body, bytes_max: usize) -> Self {
        Self { body: body.into_data_stream(), arrived: BytesMut::new(), bytes_max, broke_off: false }
    }

    /// The next value; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        loop {
            match self.ready() {
                Ok(Some(value)) => return Some(Ok(value)),
                Ok(None) => {}
                Err(error) => return Some(Err(bad(&error))),
            }
            match self.body.next().await {
                Some(Ok(more)) if self.arrived.len() + more.len() <= self.bytes_max => {
                    self.arrived.extend_from_slice(&more);
                }
                Some(Ok(_)) => return Some(Err(Status::invalid_argument("the message is too large"))),
                Some(Err(error)) => {
                    self.broke_off = true;
                    return Some(Err(Status::invalid_argument(error.to_string())));
                }
                None if self.arrived.iter().all(u8::is_ascii_whitespace) => return None,
                None => return Some(Err(Status::invalid_argument("unexpected EOF"))),
            }
        }
    }

    /// Tells whether the client was gone before the body was whole.
    #[must_use]
    pub fn broke_off(&self) -> bool {
        self.broke_off
    }

    /// A value that has arrived as a whole.
    fn ready(&mut self) -> Result<Option<Bytes>, serde_json::Error> {
        let mut values = Deserializer::from_slice(&self.arrived).into_iter::<Box<RawValue>>();
        let value = match values.next() {
            None => return Ok(None),
            Some(Err(error)) if error.is_eof() => return Ok(None),
            Some(value) => Bytes::from(value?.get().to_owned()),
        };
        let end = values.byte_offset();
        let _ = self.arrived.split_to(end);
        Ok(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;

    /// A field that is named twice had the last of its values; etcd refuses such a request.
    #[test]
    fn f62_a_field_is_named_once() {
        let pool = DescriptorPool::decode(kindred_proto::DESCRIPTORS).unwrap();
        let put = pool.get_message_by_name("etcdserverpb.PutRequest").unwrap();
        for json in [
            r#"{"key":"YQ==","key":"Yg==","value":"eA=="}"#,
            r#"{"key":"YQ==","prev_kv":true,"prevKv":true}"#,
            r#"{"key":"YQ==","later":[{"a":1,"a":2}]}"#,
        ] {
            let refused = read(put.clone(), json.as_bytes()).unwrap_err();
            assert!(refused.message().starts_with("duplicate field "), "{}", refused.message());
        }
        for json in [r#"{"key":"YQ==","value":null,"later":{"key":1.5}} {"key":"YQ=="}"#, "{}", " "] {
            read(put.clone(), json.as_bytes()).unwrap();
        }
    }
}
