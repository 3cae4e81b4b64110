//! What a child writes to standard error, line by line behind its name: the logs of all processes come out of one `up`.

use std::{
    io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write},
    time::Duration,
};

use tokio::sync::oneshot;

/// A longer line is cut into several.
const LINE_MAX: u64 = 64 << 10;
/// What has inherited the pipe may outlive the child.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The log of one child, copied on a thread of its own until its end, so that nothing here keeps a child from writing.
#[derive(Debug)]
pub struct ChildLog(oneshot::Receiver<()>);

impl ChildLog {
    /// The log, and what is to be the child's standard error.
    ///
    /// # Errors
    /// When there is no pipe or no thread for it.
    pub fn begin(name: &str) -> io::Result<(Self, PipeWriter)> {
        let (from, to) = io::pipe()?;
        let (tell, ended) = oneshot::channel();
        let name = name.to_owned();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            copy(&name, from, io::stderr);
            // Nobody waits for it any more.
            let _ = tell.send(());
        })?;
        Ok((Self(ended), to))
    }

    /// Waits, behind the end of the child, until all that it wrote has been copied.
    pub async fn ended(self) {
        let _ = tokio::time::timeout(END_WITHIN, self.0).await;
    }
}

/// Each line is one write, so that those of several children do not mix.
fn copy<W: Write>(name: &str, from: PipeReader, to: impl Fn() -> W) {
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    loop {
        line.clear();
        line.extend_from_slice(format!("[{name}] ").as_bytes());
        match from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        // A log that nobody can read must not stop the child.
        let _ = to().write_all(&line);
    }
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
        copy("shard pods", from, || seen.clone());
        let lines: Vec<Vec<u8>> = seen.0.lock().unwrap().clone();
        let expected: [&[u8]; 4] = [
            b"[shard pods] one\n",
            b"[shard pods] \n",
            b"[shard pods] what is \xff\n",
            b"[shard pods] the last\n",
        ];
        assert_eq!(lines, expected);
    }
}
