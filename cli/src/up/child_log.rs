//! Copies a child's standard error line by line, prefixed with its name, so that one `up` prints the logs of all
//! processes. With `--log-format json` a child's lines name it themselves, and what it prints beside its log becomes a line
//! of JSON too.

use std::{
    io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write},
    time::Duration,
};

use kindred_transport::logging::{self, Format};
use tokio::sync::oneshot;

/// Longer lines are split.
const LINE_MAX: u64 = 64 << 10;
/// How long to wait for the end of the log, because a process that inherited the pipe may outlive the child.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The log of a child. A separate thread copies it to its end, so that nothing blocks the child's writes.
#[derive(Debug)]
pub struct ChildLog(oneshot::Receiver<()>);

impl ChildLog {
    /// Returns the log, and the pipe to use as the child's standard error.
    ///
    /// # Errors
    /// When the pipe or the thread cannot be created.
    pub fn begin(name: &str) -> io::Result<(Self, PipeWriter)> {
        let (from, to) = io::pipe()?;
        let (tell, ended) = oneshot::channel();
        let name = name.to_owned();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            copy(&name, logging::format(), from, io::stderr);
            // The receiver may be gone.
            let _ = tell.send(());
        })?;
        Ok((Self(ended), to))
    }

    /// Waits until everything that the ended child wrote has been copied, up to a time limit.
    pub async fn ended(self) {
        let _ = tokio::time::timeout(END_WITHIN, self.0).await;
    }
}

/// Copies each line with one write, so that lines of several children do not mix.
fn copy<W: Write>(name: &str, format: Format, from: PipeReader, to: impl Fn() -> W) {
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    let front = match format {
        Format::Text => format!("[{name}] "),
        Format::Json => String::new(),
    };
    loop {
        line.clear();
        line.extend_from_slice(front.as_bytes());
        match from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if format == Format::Json && !is_object(&line) {
            let (process, name) =
                name.split_once(' ').map_or((name, None), |(one, other)| (one, Some(other)));
            let text = String::from_utf8_lossy(&line);
            line = logging::line("ERROR", process, name, text.trim_end_matches('\n')).into_bytes();
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        // A failing standard error must not block the child.
        let _ = to().write_all(&line);
    }
}

fn is_object(line: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn f43_each_line_of_a_child_says_whose_it_is() {
        let (from, mut to) = io::pipe().unwrap();
        to.write_all(b"one\n\nwhat is \xff\nthe last").unwrap();
        drop(to);
        let seen = Seen::default();
        copy("shard pods", Format::Text, from, || seen.clone());
        let lines: Vec<Vec<u8>> = seen.0.lock().unwrap().clone();
        let expected: [&[u8]; 4] = [
            b"[shard pods] one\n",
            b"[shard pods] \n",
            b"[shard pods] what is \xff\n",
            b"[shard pods] the last\n",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn every_line_of_a_json_log_is_json() {
        let (from, mut to) = io::pipe().unwrap();
        to.write_all(b"{\"level\":\"INFO\"}\nthread 'main' panicked: \xff\n{\"cut\n[1]\n").unwrap();
        drop(to);
        let seen = Seen::default();
        copy("shard pods", Format::Json, from, || seen.clone());
        let lines: Vec<Vec<u8>> = seen.0.lock().unwrap().clone();
        assert_eq!(lines[0], b"{\"level\":\"INFO\"}\n", "as it came");
        let others = lines[1..].iter().map(|line| serde_json::from_slice::<serde_json::Value>(line).unwrap());
        let said: Vec<_> = others
            .map(|line| {
                assert_eq!((&line["process"], &line["name"]), (&"shard".into(), &"pods".into()));
                line["message"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(said, ["thread 'main' panicked: \u{fffd}", "{\"cut", "[1]"]);
    }
}
