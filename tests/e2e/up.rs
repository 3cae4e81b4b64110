//! `kindred up` and other commands as processes: their logs, their ports, and readers of their output that go away.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_tests::{
    process::our_binary,
    scenario::{self, report, wait_for},
    servers::Up,
};

const LIMIT: Duration = Duration::from_secs(120);
const LOG_WITHIN: Duration = Duration::from_secs(30);
const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n";

fn kindred(words: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(our_binary("kindred")?);
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

/// Runs a command whose standard output nobody reads.
fn unread(words: &[&str]) -> anyhow::Result<Output> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let child = kindred(words)?.stdout(writer).stderr(Stdio::piped()).spawn()?;
    Ok(child.wait_with_output()?)
}

fn config(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("one.yaml");
    fs::write(&path, CONFIG)?;
    Ok(format!("--config={}", path.display()))
}

#[test]
fn f43_the_log_of_an_up_names_the_process_of_each_line() {
    scenario::run("f43_the_log_of_an_up_names_the_process_of_each_line", LIMIT, |dir| async move {
        let mut up = Up::start(&dir, "up", &[config(&dir)?]).await?;
        let log = dir.join("up.err.log");
        let names = ["[meta store] ", "[shard main] ", "[router] "];
        wait_for("a line of each process", LOG_WITHIN, || async {
            let text = fs::read_to_string(&log)?;
            let said = |name: &&str| text.lines().any(|line| line.starts_with(*name));
            Ok(names.iter().all(said).then_some(()))
        })
        .await?;
        up.process.stop().await?;
        let text = fs::read_to_string(&log)?;
        for line in text.lines() {
            let of_a_child = names.iter().any(|name| line.starts_with(name));
            ensure!(of_a_child || line.contains(" kindred::up"), "whose is it: {line}");
        }
        report(&format!("e2e f43 lines={}", text.lines().count()));
        Ok(())
    });
}

#[test]
fn every_line_of_a_json_log_is_an_object_that_names_its_process() {
    scenario::run("every_line_of_a_json_log_is_an_object_that_names_its_process", LIMIT, |dir| async move {
        let flags = [config(&dir)?, "--log-format=json".to_owned()];
        let mut up = Up::start(&dir, "up", &flags).await?;
        let log = dir.join("up.err.log");
        let processes = [("shard", "meta"), ("shard", "main"), ("router", "router")];
        let read = || -> anyhow::Result<Vec<serde_json::Value>> {
            let text = fs::read_to_string(&log)?;
            // The last line may be on its way.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let parsed =
                whole.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned()));
            parsed.collect()
        };
        wait_for("a line of each process", LOG_WITHIN, || async {
            let lines = read()?;
            let said = |(process, name): &(&str, &str)| {
                lines.iter().any(|line| line["process"] == *process && line["name"] == *name)
            };
            Ok(processes.iter().all(said).then_some(()))
        })
        .await?;
        // What a process prints beside its log is a line of JSON too.
        let killed = up.shard_pid("main")?.to_string();
        ensure!(Command::new("kill").args(["-KILL", &killed]).status()?.success());
        wait_for("the end of a shard in the log", LOG_WITHIN, || async {
            let ended = |line: &serde_json::Value| {
                line["process"] == "up"
                    && line["message"].as_str().is_some_and(|text| text.contains("shard main ended"))
            };
            Ok(read()?.iter().any(ended).then_some(()))
        })
        .await?;
        up.process.stop().await?;
        for line in read()? {
            for field in ["time", "level", "process", "message"] {
                ensure!(line[field].is_string(), "{field}: {line}");
            }
        }
        Ok(())
    });
}

#[test]
fn flags_of_processes_come_from_the_file_and_what_is_wrong_is_told_at_once() {
    scenario::run("flags_of_processes", LIMIT, |dir| async move {
        let file = dir.join("flags.yaml");
        let path = format!("--config={}", file.display());
        let wrong = format!(
            "{CONFIG}up:\n  shard: {{listen: 'x', no-such: 1}}\n  router: {{data-dir: d, threads: 2}}\n  stores: {{nix: {{threads: 2}}}}\n"
        );
        fs::write(&file, wrong)?;
        let folder = format!("--data-dir={}", dir.join("wrong").display());
        let refused =
            kindred(&["up", &path, &folder, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"])?.output()?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(!refused.status.success());
        for field in [
            "up.shard.listen: `kindred up` gives",
            "up.shard.no-such: ",
            "up.router.data-dir: ",
            "up.router.threads: ",
            "up.stores.nix: ",
        ] {
            ensure!(said.contains(field), "{field}: {said}");
        }
        // Values are checked by the processes' own parsers, before any process starts.
        for (section, field) in [
            ("shard: {max-txn-ops: many}", "up.shard"),
            ("shard: {quota: x}", "up.shard"),
            ("stores: {main: {max-txn-ops: many}}", "up.stores.main"),
            ("router: {reverse-window: soon}", "up.router"),
            ("meta: {checkpoint-bytes: -1}", "up.meta"),
        ] {
            fs::write(&file, format!("{CONFIG}up:\n  {section}\n"))?;
            let refused =
                kindred(&["up", &path, &folder, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"])?.output()?;
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            ensure!(!refused.status.success() && said.contains(&format!("{field}: ")), "{section}: {said}");
            ensure!(!dir.join("wrong/meta").exists(), "a process was started");
        }
        fs::write(
            &file,
            format!(
                "{CONFIG}up:\n  shard: {{max-txn-ops: 256, threads: 2}}\n  stores: {{main: {{max-txn-ops: 512}}}}\n"
            ),
        )?;
        let up = Up::start(&dir, "up", &[path]).await?;
        let words = fs::read_to_string(format!("/proc/{}/cmdline", up.shard_pid("main")?))?;
        let words: Vec<&str> = words.split('\0').collect();
        ensure!(words.contains(&"--max-txn-ops=512") && words.contains(&"--threads=2"), "{words:?}");
        report("e2e up flags");
        Ok(())
    });
}

#[test]
fn all_that_is_wrong_with_a_file_is_told_at_once() {
    scenario::run("all_that_is_wrong_with_a_file", LIMIT, |dir| async move {
        let file = dir.join("wrong.yaml");
        let text = "default: nope\nstores:\n- {name: a, slot: 1, colour: red}\n- {name: b, slot: x}\n- {name: c, slot: 5000}\n\
                    partitions:\n- {metadata: {name: p}, resource: pdos, serviceGroupId: a}\n- {metadata: {name: q}, resource: pods, serviceGroupID: a}\n";
        let errors = [
            "stores[0].colour: ",
            "stores[1].slot: ",
            "stores[2].slot: slot 5000",
            "default: there is no store \"nope\"",
            "partitions[0].resource: Kubernetes has no \"pdos\"",
            "partitions[1].serviceGroupID: ",
        ];
        let path = file.display().to_string();
        fs::write(&file, text)?;
        let folder = format!("--data-dir={}", dir.join("x").display());
        let up = ["up", "--config", &path, &folder, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"];
        let router = ["router", "--config", &path, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"];
        for words in [&up[..], &router[..]] {
            let refused = kindred(words)?.output()?;
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            ensure!(!refused.status.success());
            for error in errors {
                ensure!(said.contains(error), "kindred {}: {error}: {said}", words[0]);
            }
        }
        Ok(())
    });
}

#[test]
fn f43_a_second_up_on_the_same_ports_leaves_nothing_behind() {
    scenario::run("f43_a_second_up_on_the_same_ports_leaves_nothing_behind", LIMIT, |dir| async move {
        let up = Up::start(&dir, "up", &[config(&dir)?]).await?;
        let other = dir.join("other");
        let folder = format!("--data-dir={}", other.display());
        for (taken, free) in [("--listen", "--admin"), ("--admin", "--listen")] {
            let address = if taken == "--listen" { &up.address } else { &up.admin };
            let second = kindred(&["up", taken, address, free, "127.0.0.1:0", &folder])?.output()?;
            let said = String::from_utf8_lossy(&second.stderr).into_owned();
            ensure!(!second.status.success(), "{said}");
            ensure!(said.contains(&format!("{taken}: cannot listen on {address}")), "{said}");
            ensure!(!other.exists(), "{} was made", other.display());
        }
        // In the same folder the error names the running `kindred up`, not the ports.
        let folder = format!("--data-dir={}", up.data_dir.display());
        let again = kindred(&["up", "--listen", &up.address, "--admin", &up.admin, &folder])?.output()?;
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        ensure!(!again.status.success() && said.contains("another `kindred up` is running there"), "{said}");
        Ok(())
    });
}

#[test]
fn f43_a_reader_that_has_gone_ends_a_command_quietly() {
    scenario::run("f43_a_reader_that_has_gone_ends_a_command_quietly", LIMIT, |dir| async move {
        let up = Up::start(&dir, "up", &[config(&dir)?]).await?;
        let admin = format!("http://{}", up.admin);
        let commands: [&[&str]; 15] = [
            &["completion", "bash"],
            &["version"],
            &["version", "--router", &admin],
            &["get", "--admin", &admin],
            &["get", "moves", "-o", "json", "--admin", &admin],
            &["get", "partitions", "--admin", &admin],
            &["verify", "--admin", &admin],
            &["completion", "zsh"],
            &["--help"],
            &["up", "--help"],
            &["health", "--admin", &admin],
            &["status", "--admin", &admin],
            &["get", "servicegroups", "--admin", &admin],
            &["store", "list", "-o", "yaml", "--admin", &admin],
            &["reconcile", "--admin", &admin],
        ];
        for words in commands {
            let ended = unread(words).with_context(|| format!("kindred {words:?}"))?;
            let said = String::from_utf8_lossy(&ended.stderr);
            ensure!(ended.status.success() && said.is_empty(), "kindred {words:?}: {}, {said}", ended.status);
        }
        Ok(())
    });
}
