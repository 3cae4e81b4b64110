//! The lines of a log, as text and as JSON.

use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::Process;

/// The fields that every line of JSON has. A message's own field of such a name gets an underscore behind it.
const OWN: [&str; 6] = ["time", "level", "process", "name", "target", "message"];

/// Text, with the process in front.
pub(super) struct Text {
    front: String,
    rest: Format,
}

impl Text {
    pub(super) fn new(front: String) -> Self {
        Self { front, rest: Format::default() }
    }
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(&self.front)?;
        self.rest.format_event(context, writer, event)
    }
}

/// One object a line.
pub(super) struct Json(pub(super) Process);

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let of = event.metadata();
        let mut object = begun(of.level().as_str(), self.0.kind, self.0.name.as_deref());
        object.push("target", &Value::from(of.target()));
        object.push("message", &Value::from(fields.message));
        // The store of a message is that which it is about; a shard's own is in `name`.
        for (name, value) in &fields.others {
            match OWN.contains(name) {
                true => object.push(&format!("{name}_"), value),
                false => object.push(name, value),
            }
        }
        writeln!(writer, "{}", object.end())
    }
}

/// A line of JSON that no message of this process's log is: an error with which a program ends, or a line of another
/// process.
#[must_use]
pub fn line(level: &str, process: &str, name: Option<&str>, message: &str) -> String {
    let mut object = begun(level, process, name);
    object.push("message", &Value::from(message));
    object.end()
}

fn begun(level: &str, process: &str, name: Option<&str>) -> Object {
    let mut time = String::new();
    // Writing into a String cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let mut object = Object::default();
    object.push("time", &Value::from(time));
    object.push("level", &Value::from(level));
    object.push("process", &Value::from(process));
    if let Some(name) = name {
        object.push("name", &Value::from(name));
    }
    object
}

/// An object with its fields in the order in which they came.
#[derive(Default)]
struct Object(String);

impl Object {
    fn push(&mut self, name: &str, value: &Value) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0 += &format!("{}:{value}", Value::from(name));
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// The fields of a message.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn note(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            (name, value) => self.others.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.note(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.note(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.note(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.note(field, Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.note(field, Value::from(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.note(field, Value::from(format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Kept {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn log() {
        tracing::warn!(store = "pods", slot = 4, up = false, error = %"a \"quoted\"\nline", "it is away");
        tracing::info!(name = "another", other = ?Some(1), "{} of {}", 1, 2);
    }

    fn of_pods() -> Process {
        Process { kind: "shard", name: Some("pods".to_owned()) }
    }

    #[test]
    fn each_line_of_json_is_one_object_that_names_the_process() {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::fmt().event_format(Json(of_pods())).with_writer(kept.clone());
        tracing::subscriber::with_default(subscriber.finish(), log);
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &mut lines {
            let time = line.as_object_mut().unwrap().remove("time").unwrap();
            assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        }
        let target = "kindred_transport::logging::lines::tests";
        let expected = [
            json!({ "level": "WARN", "process": "shard", "name": "pods", "target": target, "message": "it is away",
                    "store": "pods", "slot": 4, "up": false, "error": "a \"quoted\"\nline" }),
            json!({ "level": "INFO", "process": "shard", "name": "pods", "target": target, "message": "1 of 2",
                    "name_": "another", "other": "Some(1)" }),
        ];
        assert_eq!(lines, expected);
        assert!(text.starts_with("{\"time\":"), "{text}");
    }

    #[test]
    fn each_line_of_text_begins_with_the_process() {
        let (kept, front) = (Kept::default(), of_pods().front());
        let log_of = tracing_subscriber::fmt().with_ansi(false).with_writer(kept.clone());
        tracing::subscriber::with_default(log_of.event_format(Text::new(front)).finish(), log);
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("[shard pods] 2"), "{first}");
        assert!(
            first.contains("WARN kindred_transport") && first.contains("it is away store=\"pods\""),
            "{first}"
        );
    }

    #[test]
    fn a_line_of_another_process_is_json_whatever_is_in_it() {
        let text = line("ERROR", "router", None, "panicked at \u{7}\n\"x\"");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((value["message"].as_str(), value.get("name")), (Some("panicked at \u{7}\n\"x\""), None));
        assert_eq!(text.lines().count(), 1);
    }
}
