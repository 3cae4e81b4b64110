//! The real `etcdctl`, command by command.

use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl::Etcdctl,
    scenario::{self, report, wait_for},
    servers::Up,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::e2e::Server;

const LIMIT: Duration = Duration::from_secs(120);
const LINE_LIMIT: Duration = Duration::from_secs(120);

#[test]
fn etcdctl_reads_and_writes() {
    scenario::run("etcdctl_reads_and_writes", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let etcdctl = Etcdctl::new(server.address());
        let mut commands = 0;
        for name in ["a/1", "a/2", "b/1"] {
            let key = format!("/registry/pods/{name}");
            ensure!(etcdctl.ok(&["put", &key, &format!("value of {name}")]).await?.trim() == "OK");
            commands += 1;
        }
        let all = ["get", "--prefix", "/registry/pods/"];
        let expectations: [(&[&str], &str); 8] = [
            (&["get", "/registry/pods/a/1"], "/registry/pods/a/1\nvalue of a/1\n"),
            (&["get", "/registry/pods/a/1", "--print-value-only"], "value of a/1\n"),
            (&["get", "/registry/pods/none"], ""),
            (
                &[all[0], all[1], all[2], "--keys-only"],
                "/registry/pods/a/1\n\n/registry/pods/a/2\n\n/registry/pods/b/1\n\n",
            ),
            (&[all[0], all[1], all[2], "--limit=1", "--print-value-only"], "value of a/1\n"),
            (
                &[
                    all[0],
                    all[1],
                    all[2],
                    "--order=DESCEND",
                    "--sort-by=KEY",
                    "--limit=1",
                    "--print-value-only",
                ],
                "value of b/1\n",
            ),
            (
                &["get", "/registry/pods/a/", "/registry/pods/b/", "--print-value-only"],
                "value of a/1\nvalue of a/2\n",
            ),
            (&["get", "/registry/pods/b/", "--from-key", "--print-value-only"], "value of b/1\n"),
        ];
        for (command, expected) in expectations {
            let answer = etcdctl.ok(command).await?;
            ensure!(answer == expected, "etcdctl {command:?}: {answer:?}, expected {expected:?}");
            commands += 1;
        }
        let fields =
            etcdctl.ok(&["get", "/registry/pods/", "--prefix", "--count-only", "-w", "fields"]).await?;
        ensure!(fields.contains("\"Count\" : 3"), "{fields}");
        let before = etcdctl.json(&["get", "/registry/pods/a/1"]).await?;
        let revision = before["kvs"][0]["mod_revision"].as_i64().context("mod_revision")?;
        etcdctl.ok(&["put", "/registry/pods/a/1", "new"]).await?;
        let old = etcdctl
            .ok(&["get", "/registry/pods/a/1", &format!("--rev={revision}"), "--print-value-only"])
            .await?;
        ensure!(old == "value of a/1\n", "the value at an old revision: {old}");
        let previous = etcdctl.ok(&["put", "--prev-kv", "/registry/pods/a/1", "newer"]).await?;
        ensure!(previous.contains("new"), "{previous}");

        let current = etcdctl.json(&["get", "/registry/pods/a/1"]).await?["header"]["revision"].as_i64();
        let current = current.context("header")?.to_string();
        ensure!(etcdctl.ok(&["compaction", &current]).await?.starts_with("compacted revision"));
        let compacted = etcdctl
            .output(&["get", "/registry/pods/a/1", &format!("--rev={revision}")], "")
            .await?
            .failed()?;
        ensure!(compacted.contains("required revision has been compacted"), "{compacted}");
        let again = etcdctl.output(&["compaction", "1"], "").await?.failed()?;
        ensure!(again.contains("required revision has been compacted"), "{again}");

        ensure!(etcdctl.ok(&["del", "/registry/pods/a/", "--prefix"]).await?.trim() == "2");
        ensure!(etcdctl.ok(&["del", "/registry/pods/none"]).await?.trim() == "0");
        report(&format!("e2e etcdctl_reads_and_writes commands={}", commands + 11));
        Ok(())
    });
}

#[test]
fn etcdctl_transactions() {
    scenario::run("etcdctl_transactions", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let etcdctl = Etcdctl::new(server.address());
        let key = "/registry/pods/a/1";
        let create = format!("mod(\"{key}\") = \"0\"\n\nput {key} first\n\nget {key}\n\n");
        let created = etcdctl.output(&["txn", "-i"], &create).await?.ok()?;
        ensure!(created.contains("SUCCESS") && created.contains("OK"), "{created}");
        let refused = etcdctl.output(&["txn", "-i"], &create).await?.ok()?;
        ensure!(refused.contains("FAILURE") && refused.contains("first"), "{refused}");
        let compare = format!(
            "value(\"{key}\") = \"first\"\nversion(\"{key}\") > \"0\"\n\nput {key} second\nget {key}\n\n\n"
        );
        let updated = etcdctl.output(&["txn", "-i"], &compare).await?.ok()?;
        ensure!(updated.contains("SUCCESS") && updated.contains("second"), "{updated}");
        let duplicate = format!("\nput {key} 1\nput {key} 2\n\n\n");
        let error = etcdctl.output(&["txn", "-i"], &duplicate).await?.failed()?;
        ensure!(error.contains("duplicate key given in txn request"), "{error}");
        report("e2e etcdctl_transactions txns=4");
        Ok(())
    });
}

#[test]
fn etcdctl_watches() {
    scenario::run("etcdctl_watches", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let etcdctl = Etcdctl::new(server.address());
        etcdctl.ok(&["put", "/registry/pods/a/0", "before"]).await?;
        let header = etcdctl.json(&["get", "/registry/pods/a/0"]).await?;
        let revision = header["kvs"][0]["mod_revision"].as_i64().context("mod_revision")?;
        // The watch starts at a past revision, so it does not matter when it is established.
        let mut child = etcdctl.start(&[
            "watch",
            "/registry/pods/",
            "--prefix",
            "--prev-kv",
            &format!("--rev={revision}"),
        ])?;
        let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
        etcdctl.ok(&["put", "/registry/pods/a/1", "one"]).await?;
        etcdctl.ok(&["put", "/registry/pods/a/1", "two"]).await?;
        etcdctl.ok(&["put", "/registry/minions/n", "elsewhere"]).await?;
        etcdctl.ok(&["del", "/registry/pods/a/1"]).await?;
        let expected = [
            "PUT",
            "/registry/pods/a/0",
            "before",
            "PUT",
            "/registry/pods/a/1",
            "one",
            "PUT",
            "/registry/pods/a/1",
            "one",
            "/registry/pods/a/1",
            "two",
            "DELETE",
            "/registry/pods/a/1",
            "two",
            "/registry/pods/a/1",
        ];
        for (index, expected) in expected.iter().enumerate() {
            let line = tokio::time::timeout(LINE_LIMIT, lines.next_line()).await;
            let line = line.with_context(|| format!("line {index}, expected {expected}"))??;
            ensure!(line.as_deref() == Some(*expected), "line {index}: {line:?}, expected {expected}");
        }
        child.kill().await?;
        report(&format!("e2e etcdctl_watches lines={}", expected.len()));
        Ok(())
    });
}

#[test]
fn etcdctl_maintenance() {
    scenario::run("etcdctl_maintenance", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let etcdctl = Etcdctl::new(server.address());
        etcdctl.ok(&["put", "/registry/pods/a/1", "one"]).await?;
        let status = etcdctl.json(&["endpoint", "status"]).await?;
        let version = status[0]["Status"]["version"].as_str().context("version")?;
        ensure!(version.starts_with("3.7."), "version {version}");
        ensure!(status[0]["Status"]["dbSize"].as_i64().unwrap_or(0) > 0, "{status}");
        let health = etcdctl.json(&["endpoint", "health"]).await?;
        ensure!(health[0]["health"].as_bool() == Some(true), "{health}");
        let hash = etcdctl.json(&["endpoint", "hashkv"]).await?;
        ensure!(hash[0]["HashKV"]["hash"].is_number(), "{hash}");
        let members = etcdctl.json(&["member", "list"]).await?;
        let members = members["members"].as_array().context("members")?;
        ensure!(!members.is_empty() && members[0]["clientURLs"].is_array(), "{members:?}");
        ensure!(etcdctl.ok(&["alarm", "list"]).await?.trim().is_empty());
        etcdctl.ok(&["defrag"]).await?;
        report("e2e etcdctl_maintenance commands=7");
        Ok(())
    });
}

/// Each router listed itself alone, and each said that it is the leader.
#[test]
fn f61_all_routers_are_members_and_one_of_them_is_the_leader() {
    scenario::run("etcdctl_members", LIMIT, |dir| async move {
        let up = Up::start(&dir, "kindred", &["--routers=2".to_owned()]).await?;
        let addresses = up.addresses("listen")?;
        for address in &addresses {
            let etcdctl = Etcdctl::new(address);
            let members = wait_for("both routers in the list", LIMIT, || async {
                let members = etcdctl.json(&["member", "list"]).await?;
                let members = members["members"].as_array().context("members")?.clone();
                Ok((members.len() == 2).then_some(members))
            })
            .await?;
            for address in &addresses {
                let url = format!("http://{address}");
                let found = members.iter().filter(|member| member["clientURLs"][0] == url.as_str());
                ensure!(found.count() == 1, "{url}: {members:?}");
            }
            let each = etcdctl.json(&["endpoint", "status", "--cluster"]).await?;
            let each = each.as_array().context("endpoints")?;
            let leaders =
                each.iter().filter(|one| one["Status"]["leader"] == one["Status"]["header"]["member_id"]);
            ensure!(each.len() == 2 && leaders.count() == 1, "{each:?}");
        }
        Ok(())
    });
}
