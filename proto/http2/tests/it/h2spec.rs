//! Every case of h2spec, which `tests/peers/install h2spec` builds. Where it cannot be built, the test says why and checks
//! nothing.

use std::{io::Write, path::Path, process::Stdio, time::Duration};

use kindred_http2::Limits;
use tokio::process::Command;

/// The program, or why there is none.
async fn installed() -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/install");
    let output = Command::new(script).arg("h2spec").output().await.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let path = text.split_whitespace().nth(1).map(str::to_owned);
    path.filter(|_| output.status.success())
        .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Prints past the test harness, which keeps what `println!` prints of a test that passes.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "h2spec: {what}");
}

#[test]
fn h2spec_finds_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let program = match installed().await {
            Ok(program) => program,
            Err(why) => return say(&format!("NOT RUN: {why}")),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("the loopback is there");
        let port = listener.local_addr().expect("it is bound").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(crate::echo::serve(stream, Limits::default()));
            }
        });
        let run =
            Command::new(program).arg(port.to_string()).stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(Duration::from_secs(300), run).await.expect("it ends in time");
        let output = output.expect("it can be run");
        let text = String::from_utf8_lossy(&output.stdout);
        let result = text.lines().find(|line| line.contains(" tests, ")).unwrap_or("no result");
        say(result);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    });
}
