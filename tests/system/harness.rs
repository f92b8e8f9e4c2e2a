//! A server, the agents that are started against it, and patience.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use devserver::{Control, DevServer, Entry, KeyKind, NodeCa, NodeFiles, Settings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::Status;

use crate::client::{self, Stream, Update};

/// The trust domain of every server.
pub(crate) const DOMAIN: &str = "domain.test";

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_edge-agent");

/// How long anything ordinary may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// How often a state is looked at: five times a second.
const STEP: Duration = Duration::from_millis(200);

/// A server with a node CA, and the folder of its agents.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) server: DevServer,
    pub(crate) control: Control,
    pub(crate) nodes: NodeCa,
    directory: TempDir,
}

/// What an agent is configured with; the rest is the same for all.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Path of the bundle file; without one the server is not verified at first.
    pub(crate) bundle: Option<PathBuf>,
    /// Whether keys are kept on disk.
    pub(crate) keeps_keys: bool,
    pub(crate) node: NodeFiles,
    /// The node attestor, in place of `x509pop` with the files of the node.
    pub(crate) way_in: Option<&'static str>,
    /// Further settings of the agent.
    pub(crate) settings: String,
    /// Further arguments on the command line.
    pub(crate) arguments: Vec<String>,
    pub(crate) socket: PathBuf,
    pub(crate) sync_interval: &'static str,
    /// Settings of the unix workload attestor.
    pub(crate) unix: &'static str,
}

/// An agent with a data directory of its own; its process ends with the value.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) options: Options,
    directory: PathBuf,
    port: u16,
    process: Option<Child>,
}

/// The state of an agent on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The chain as base64 of PEM.
    pub(crate) svid: Vec<String>,
    /// The authorities as PEM, one after the other.
    pub(crate) bundle: String,
}

impl World {
    /// A server with the settings that tests share.
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    /// A server whose settings are changed before it starts.
    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let nodes = NodeCa::new();
        let mut settings = Settings::new(DOMAIN);
        settings.x509pop.roots_pem = nodes.root_pem();
        change(&mut settings);
        let server = DevServer::start(settings).expect("a free port");
        let control = server.control();
        Self {
            server,
            control,
            nodes,
            directory: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    /// An agent that is not started yet and syncs every second.
    pub(crate) fn agent(&self) -> Agent {
        self.agent_of("node", KeyKind::EcP256)
    }

    /// An agent under a name of its own, with a node key of this kind.
    pub(crate) fn agent_of(&self, name: &str, kind: KeyKind) -> Agent {
        let directory = self.directory.path().join(name);
        fs::create_dir(&directory).expect("the folder is ours");
        let bundle = directory.join("bundle.pem");
        fs::write(&bundle, self.server.bundle_pem()).expect("the folder is ours");
        let leaf = self.nodes.leaf(name, kind);
        let node = leaf.write(&directory, "node").expect("the folder is ours");
        let options = Options {
            bundle: Some(bundle),
            keeps_keys: true,
            node,
            way_in: None,
            settings: String::new(),
            arguments: Vec::new(),
            socket: directory.join("public/api.sock"),
            sync_interval: "1s",
            unix: "",
        };
        Agent {
            options,
            directory,
            port: self.server.addr().port(),
            process: None,
        }
    }

    /// Adds an entry for this process under an ID that is also its path.
    pub(crate) fn entry(&self, id: &str) {
        self.control.add_entry(own_entry(id));
    }
}

impl Agent {
    /// Starts the process and waits for nothing.
    pub(crate) fn start(&mut self) {
        self.start_as(Command::new(PROGRAM));
    }

    /// Starts the process by a command that takes the program's arguments.
    pub(crate) fn start_as(&mut self, mut command: Command) {
        let config = self.directory.join("agent.conf");
        fs::write(&config, self.config()).expect("the folder is ours");
        command.args(["run", "-config"]).arg(config);
        command.args(&self.options.arguments);
        self.launch(command);
    }

    fn launch(&mut self, mut command: Command) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the folder is ours");
        let errors = log.try_clone().expect("a file can be opened twice");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.process = Some(command.spawn().expect("the program starts"));
    }

    /// Starts the process and waits until these paths are served, in order of their entry IDs.
    pub(crate) fn start_serving(&mut self, paths: &[&str]) -> Update {
        self.start();
        self.wait_served(paths)
    }

    /// Waits until exactly these paths are served.
    pub(crate) fn wait_served(&mut self, paths: &[&str]) -> Update {
        eventually(&format!("{paths:?} are served"), SOON, || {
            assert!(self.is_running(), "the agent has ended");
            self.fetch().ok().filter(|update| update.paths() == paths)
        })
    }

    fn config(&self) -> String {
        let Options {
            bundle,
            keeps_keys,
            node,
            way_in,
            settings,
            socket,
            sync_interval,
            unix,
            ..
        } = &self.options;
        let trust = match bundle {
            Some(path) => format!("trust_bundle_path = \"{}\"", path.display()),
            None => "insecure_bootstrap = true".to_owned(),
        };
        let data = self.data();
        let data = data.display();
        let keys = if *keeps_keys {
            format!("KeyManager \"disk\" {{ plugin_data {{ directory = \"{data}\" }} }}")
        } else {
            "KeyManager \"memory\" { plugin_data {} }".to_owned()
        };
        let x509pop = format!(
            r#"NodeAttestor "x509pop" {{
    plugin_data {{
      private_key_path = "{key}"
      certificate_path = "{certificate}"
    }}
  }}"#,
            key = node.private_key.display(),
            certificate = node.certificate.display(),
        );
        let attestor = way_in.unwrap_or(&x509pop);
        format!(
            r#"agent {{
  data_dir = "{data}"
  log_level = "DEBUG"
  server_address = "127.0.0.1"
  server_port = {port}
  socket_path = "{socket}"
  admin_socket_path = "{admin}"
  {trust}
  trust_domain = "{DOMAIN}"
  {settings}
  experimental {{ sync_interval = "{sync_interval}" }}
}}
plugins {{
  {keys}
  {attestor}
  WorkloadAttestor "unix" {{ plugin_data {{ {unix} }} }}
}}
"#,
            port = self.port,
            socket = socket.display(),
            admin = self.admin_socket().display(),
        )
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.options.socket
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.directory.join("admin/admin.sock")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("agent.log")
    }

    /// What the processes of this agent have written.
    pub(crate) fn log(&self) -> String {
        let text = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits until the log has this text `count` times.
    pub(crate) fn wait_logged(&self, text: &str, count: usize) {
        eventually(&format!("{text:?} is logged"), SOON, || {
            (self.log().matches(text).count() >= count).then_some(())
        });
    }

    /// Waits until the socket is there.
    pub(crate) fn wait_socket(&self) {
        let socket = self.socket();
        eventually("the socket is there", SOON, || {
            socket.exists().then_some(())
        });
    }

    /// What the Workload API gives to this process now.
    pub(crate) fn fetch(&self) -> Result<Update, Status> {
        client::fetch(self.socket())
    }

    /// A stream that stays open.
    pub(crate) fn stream(&self) -> Stream {
        Stream::open(self.socket())
    }

    /// A command of the program against the public socket.
    pub(crate) fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(words).arg("-socketPath").arg(self.socket());
        command.output().expect("the program starts")
    }

    /// The agent's state on disk; none before it is written, or after it is gone.
    pub(crate) fn stored(&self) -> Option<Stored> {
        let text = fs::read(self.data().join("agent-data.json")).ok()?;
        let state: Value =
            serde_json::from_slice(&text).expect("the state is JSON at every instant");
        let texts = |key: &str| -> Vec<String> {
            let list = state[key].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let pem = |text: &String| {
            let bytes = STANDARD.decode(text).expect("base64");
            String::from_utf8(bytes).expect("PEM is text")
        };
        Some(Stored {
            svid: texts("svid"),
            bundle: texts("bundle").iter().map(pem).collect(),
        })
    }

    /// Whether an agent SVID is on disk.
    pub(crate) fn has_stored_svid(&self) -> bool {
        self.stored().is_some_and(|stored| !stored.svid.is_empty())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.ended().is_none()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let process = self.process.as_mut().expect("a started agent");
        process.try_wait().expect("a child can be waited for")
    }

    /// Waits for the end of the process, and gives its exit code.
    pub(crate) fn wait_ended(&mut self, limit: Duration) -> Option<i32> {
        eventually("the agent ends", limit, || self.ended()).code()
    }

    /// Asks the process to end, and gives its exit code and the time it took.
    pub(crate) fn stop_with(&mut self, signal: Signal) -> (Option<i32>, Duration) {
        let start = Instant::now();
        self.signal(signal);
        (self.wait_ended(SOON), start.elapsed())
    }

    /// Ends the process in order.
    pub(crate) fn stop(&mut self) {
        let (code, _) = self.stop_with(Signal::TERM);
        assert_eq!(code, Some(0), "the agent did not stop in order");
    }

    /// Ends the process at once.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait_ended(SOON);
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.process.as_ref().expect("a started agent"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a child that is not reaped can be signalled");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let ended: io::Result<_> = process.kill().and_then(|()| process.wait());
            drop(ended);
        }
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.directory.display(), self.log());
        }
    }
}

/// An entry for this process whose path is its ID.
pub(crate) fn own_entry(id: &str) -> Entry {
    let uid = rustix::process::getuid().as_raw();
    Entry::new(id, &format!("/{id}"), &[&format!("unix:uid:{uid}")])
}

/// Looks until there is something, at most for `limit`.
pub(crate) fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(STEP);
    }
}

/// Looks again and again for this long: the look panics at what must not be.
pub(crate) fn throughout(time: Duration, mut look: impl FnMut()) {
    let start = Instant::now();
    while start.elapsed() < time {
        look();
        std::thread::sleep(STEP);
    }
}

/// Seconds.
pub(crate) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
