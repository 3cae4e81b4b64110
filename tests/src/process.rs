//! One server process. It is started, watched until its ready line, killed by its id, and started again on the same
//! addresses.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use parking_lot::Mutex;

use crate::{ports::Port, scenario::wait_for};

/// How long a server may take to start on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(300);

/// How long a server may take to stop after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// The program to run, and the sign that it is ready.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The log files get this name, which must be unique within a scenario.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// A substring of the line that says that the server is ready, on stdout or stderr.
    pub ready: String,
}

/// The file with the secret of clusters of tests.
pub const CLUSTER_SECRET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cluster-secret");

impl Spec {
    /// A router: `kindred router`.
    ///
    /// # Errors
    /// If kindred is not built.
    pub fn router(name: &str, args: Vec<String>) -> anyhow::Result<Self> {
        Self::ours(name, "router", args)
    }

    /// A shard: `kindred shard`.
    ///
    /// # Errors
    /// If kindred is not built.
    pub fn shard(name: &str, args: Vec<String>) -> anyhow::Result<Self> {
        Self::ours(name, "shard", args)
    }

    /// Routers, and shards of a cluster, know the secret of all clusters of tests, unless they know each other by something
    /// else.
    fn ours(name: &str, command: &str, mut args: Vec<String>) -> anyhow::Result<Self> {
        let has = |flags: &[&str]| flags.iter().any(|flag| args.iter().any(|arg| arg.starts_with(flag)));
        let of_cluster = command == "router" || has(&["--in-cluster"]);
        if of_cluster && !has(&["--cluster-secret-file", "--router-names", "--store-cert-file"]) {
            args.push(format!("--cluster-secret-file={CLUSTER_SECRET}"));
        }
        args.insert(0, command.to_owned());
        let (program, ready) = (our_binary("kindred")?, format!("kindred-{command} ready "));
        Ok(Self { name: name.to_owned(), program, args, env: Vec::new(), ready })
    }
}

/// A server, which is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    dir: PathBuf,
    /// The working directory of the server; `None` for that of the test.
    work_dir: Option<PathBuf>,
    child: Option<Child>,
    guard: Option<Guard>,
    /// The lengths of its two logs at its last start. Only later lines are of the present process.
    offsets: [u64; 2],
    ready_line: String,
    /// The ports at which it listens in all of its starts.
    _ports: Vec<Port>,
}

impl Process {
    /// Starts the server with logs `NAME.out.log` and `NAME.err.log` in `dir`, and waits for its ready line.
    ///
    /// # Errors
    /// If the server cannot be started, ends, or is not ready in time.
    pub async fn start(dir: &Path, spec: Spec) -> anyhow::Result<Self> {
        Self::begin(dir, None, spec).await
    }

    /// Starts a server like [`Process::start`], with `work_dir` as its working directory.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub async fn start_in(dir: &Path, work_dir: &Path, mut spec: Spec) -> anyhow::Result<Self> {
        spec.program = fs::canonicalize(&spec.program)?;
        Self::begin(dir, Some(work_dir.to_owned()), spec).await
    }

    async fn begin(dir: &Path, work_dir: Option<PathBuf>, mut spec: Spec) -> anyhow::Result<Self> {
        let (dir, ready_line) = (dir.to_owned(), String::new());
        let ports = choose_ports(&mut spec.args)?;
        let mut process = Self {
            spec,
            dir,
            work_dir,
            child: None,
            guard: None,
            offsets: [0; 2],
            ready_line,
            _ports: ports,
        };
        process.spawn().await?;
        Ok(process)
    }

    fn logs(&self) -> [PathBuf; 2] {
        [self.log("out"), self.log("err")]
    }

    /// Starts the server again like [`Process::restart`], but does not wait for its ready line. So it may end before it
    /// is ready; [`Process::is_ready`] tells.
    ///
    /// # Errors
    /// If the server cannot be started, or is still running.
    pub fn launch(&mut self) -> anyhow::Result<()> {
        if self.is_running()? {
            bail!("{} is still running", self.spec.name);
        }
        let logs = self.logs();
        let spec = &self.spec;
        for (name, _) in
            spec.env.iter().filter(|(name, value)| name.ends_with("FAILPOINTS") && !value.is_empty())
        {
            has_failpoints(&spec.program, name)?;
        }
        self.offsets = logs.clone().map(|log| fs::metadata(log).map_or(0, |m| m.len()));
        let mut command = Command::new(&spec.program);
        command
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(append(&logs[0])?)
            .stderr(append(&logs[1])?)
            // The server has a process group of its own, so that the interrupt of a test runner does not reach it.
            .process_group(0);
        if let Some(work_dir) = &self.work_dir {
            command.current_dir(work_dir);
        }
        let child = command.spawn().with_context(|| format!("starting {}", spec.program.display()))?;
        self.guard = Some(Guard::of(child.id())?);
        self.child = Some(child);
        Ok(())
    }

    /// Whether the server has printed its ready line since its last start.
    pub fn is_ready(&mut self) -> bool {
        let line = find_line(&self.logs(), &self.offsets, &self.spec.ready);
        let ready = line.is_some();
        self.ready_line = line.unwrap_or_default();
        ready
    }

    async fn spawn(&mut self) -> anyhow::Result<()> {
        self.launch()?;
        let start = Instant::now();
        loop {
            if self.is_ready() {
                return Ok(());
            }
            if let Some(status) = self.try_wait()? {
                bail!("{} ended before it was ready: {status}", self.spec.name);
            }
            if start.elapsed() > READY_LIMIT {
                bail!(
                    "{} not ready after {READY_LIMIT:?}: no line with {:?}",
                    self.spec.name,
                    self.spec.ready
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn log(&self, stream: &str) -> PathBuf {
        self.dir.join(format!("{}.{stream}.log", self.spec.name))
    }

    /// The ready line of the last start.
    #[must_use]
    pub fn ready_line(&self) -> &str {
        &self.ready_line
    }

    /// `value` of `key=value` in the ready line.
    ///
    /// # Errors
    /// If the line does not have the key.
    pub fn ready_field(&self, key: &str) -> anyhow::Result<String> {
        let prefix = format!("{key}=");
        self.ready_line
            .split_whitespace()
            .find_map(|word| word.strip_prefix(&prefix))
            .map(str::to_owned)
            .with_context(|| format!("no {key}= in the ready line {:?}", self.ready_line))
    }

    /// Replaces the value of an argument from the next start on.
    pub fn set_arg(&mut self, flag: &str, value: &str) {
        let inline = format!("{flag}=");
        for index in 0..self.spec.args.len() {
            if self.spec.args[index].starts_with(&inline) {
                self.spec.args[index] = format!("{inline}{value}");
            } else if self.spec.args[index] == flag && index + 1 < self.spec.args.len() {
                value.clone_into(&mut self.spec.args[index + 1]);
            }
        }
    }

    /// Replaces the program from the next start on, as for one of another version.
    pub fn set_program(&mut self, program: PathBuf) {
        self.spec.program = program;
    }

    /// Replaces the environment variables that the server gets beside those of the test, from the next start on.
    pub fn set_env(&mut self, env: Vec<(String, String)>) {
        self.spec.env = env;
    }

    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The exit status of a server that has ended by itself; `None` while it runs.
    ///
    /// # Errors
    /// If the system does not report the status.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.try_wait()
    }

    fn try_wait(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// Whether the server is still running.
    ///
    /// # Errors
    /// If the system does not report the status.
    pub fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.is_some() && self.try_wait()?.is_none())
    }

    /// Kills the server as `kill -9` does, and waits until it has ended.
    ///
    /// # Errors
    /// If the server cannot be killed.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.guard = None;
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Sends SIGTERM and does not wait.
    ///
    /// # Errors
    /// If the server is not running.
    pub fn ask_to_stop(&self) -> anyhow::Result<()> {
        let pid = self.pid().context("not running")?;
        let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status()?;
        if !sent.success() {
            bail!("SIGTERM to {pid} failed");
        }
        Ok(())
    }

    /// Sends SIGTERM, and waits for a clean end.
    ///
    /// # Errors
    /// If the server does not stop in time.
    pub async fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.ask_to_stop()?;
        let name = self.spec.name.clone();
        let mut child = self.child.take().context("not running")?;
        let waited = wait_for(&format!("{name} to stop"), STOP_LIMIT, || {
            let ended = child.try_wait();
            async move { Ok(ended?) }
        })
        .await;
        match waited {
            Err(_) => self.child = Some(child),
            Ok(_) => self.guard = None,
        }
        waited
    }

    /// Starts the server again with the same arguments, as changed by [`Process::set_arg`].
    ///
    /// # Errors
    /// As [`Process::start`], and if the server is still running.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        if self.is_running()? {
            bail!("{} is still running", self.spec.name);
        }
        self.spawn().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that the server has ended already.
        let _ = self.kill();
    }
}

/// Kills a server and its children when the test is killed: it waits for the end of a pipe that only the test holds open. A test
/// that ends as it should takes the guard away before the server.
#[derive(Debug)]
struct Guard(Child);

impl Guard {
    fn of(server: u32) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r _; kill -s KILL -- -$0", &server.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self(command.spawn().context("starting the guard of a server")?))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Replaces port 0 in the flags of kindred's servers by free ports. Several routers of one `kindred up` use consecutive
/// ports from the given one.
fn choose_ports(args: &mut [String]) -> anyhow::Result<Vec<Port>> {
    const FLAGS: [&str; 3] = ["--listen", "--admin", "--admin-listen"];
    let routers = args.iter().find_map(|arg| arg.strip_prefix("--routers="));
    let count = routers.map_or(Ok(1), str::parse).context("--routers")?;
    let mut ports = Vec::new();
    for arg in args {
        let listens = arg.split_once('=').filter(|(flag, _)| FLAGS.contains(flag));
        if listens.is_some_and(|(_, address)| address == "127.0.0.1:0") {
            let found = Port::consecutive(count)?;
            arg.truncate(arg.len() - 1);
            arg.push_str(&found[0].number().to_string());
            ports.extend(found);
        }
    }
    Ok(ports)
}

/// Checks that the program was built with failpoints, and so knows the variable that arms them. The first call reads
/// the whole program, so a scenario that measures how long clients wait calls it before.
///
/// # Errors
/// If the program was built without failpoints, or cannot be read.
pub fn has_failpoints(program: &Path, variable: &str) -> anyhow::Result<()> {
    /// The programs that were checked already, as they are large.
    static KNOWN: Mutex<BTreeSet<(PathBuf, String)>> = Mutex::new(BTreeSet::new());
    let wanted = (program.to_owned(), variable.to_owned());
    // The lock is held while the program is read, so that only one thread reads it.
    let mut known = KNOWN.lock();
    if known.contains(&wanted) {
        return Ok(());
    }
    let content = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    if memchr::memmem::find(&content, variable.as_bytes()).is_none() {
        bail!(
            "{} has no failpoints, for which {variable} is set: this test needs a dev build, not a release build",
            program.display()
        );
    }
    known.insert(wanted);
    Ok(())
}

fn append(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

fn find_line(logs: &[PathBuf], offsets: &[u64], wanted: &str) -> Option<String> {
    logs.iter().zip(offsets).find_map(|(log, offset)| {
        let content = fs::read(log).ok()?;
        let fresh = content.get(usize::try_from(*offset).ok()?..)?;
        // The last line may be incomplete.
        let end = fresh.iter().rposition(|&byte| byte == b'\n')?;
        String::from_utf8_lossy(&fresh[..end]).lines().find(|line| line.contains(wanted)).map(str::to_owned)
    })
}

/// One of kindred's binaries, from `KINDRED_BIN_DIR` or from the target directory of this test.
///
/// # Errors
/// If the binary does not exist.
pub fn our_binary(name: &str) -> anyhow::Result<PathBuf> {
    let dir = match std::env::var_os("KINDRED_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let exe = std::env::current_exe()?;
            let profile = exe.parent().and_then(Path::parent);
            profile.context("the test executable has no target directory")?.to_owned()
        }
    };
    let path = dir.join(name);
    if !path.is_file() {
        bail!(
            "{} does not exist: build it first (`cargo build --workspace --bins`), or set KINDRED_BIN_DIR",
            path.display()
        );
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_without_failpoints_is_not_started_with_one() {
        let dir = tempfile::tempdir().unwrap();
        let spec = |value: &str| Spec {
            name: "release".to_owned(),
            program: PathBuf::from("/bin/echo"),
            args: vec!["ready".to_owned()],
            env: vec![("KINDRED_FAILPOINTS".to_owned(), value.to_owned())],
            ready: "ready".to_owned(),
        };
        let error = Process::start(dir.path(), spec("freeze.before=exit")).await.unwrap_err();
        assert!(error.to_string().contains("needs a dev build"), "{error}");
        Process::start(dir.path(), spec("")).await.unwrap();
    }

    /// The servers of a test that the runner had killed stayed, and took the processor from all later ones.
    #[tokio::test]
    async fn a_server_ends_with_its_test() {
        let mut server = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let Guard(ref mut guard) = Guard::of(server.id()).unwrap();
        // As when this process is killed.
        drop(guard.stdin.take());
        assert!(!server.wait().unwrap().success());
        let mut other = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        drop(Guard::of(other.id()).unwrap());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
