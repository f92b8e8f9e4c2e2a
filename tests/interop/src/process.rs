//! A child process with its output in a file; it ends with the value.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::{seconds, wait_for};

/// A running child. Its standard output and error go to one log file, which later processes of the same name continue.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
    log_start: usize,
    /// When it was executed.
    pub started: Instant,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let log_start = fs::read(log).map_or(0, |text| text.len());
        let open = || -> File {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(log)
                .expect("the log can be written")
        };

        let started = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            child,
            log: log.to_owned(),
            log_start,
            started,
        }
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The status with which it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// All that it has printed so far.
    pub fn text(&self) -> String {
        let all = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(all.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    /// Asks it to stop (SIGTERM) and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        wait_for(
            &format!("the end of {}", self.log.display()),
            seconds(15),
            || self.ended(),
        )
    }

    /// Kills it at once (SIGKILL).
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a child can be waited for");
    }

    fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            kill_process(self.pid(), signal).expect("a child that is not reaped can be signalled");
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The variables by which a machine sends its programs through proxies: what a test runs goes straight unless the test says otherwise.
const PROXY_VARIABLES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// A command that goes through no proxy. It sees `hosts` in place of `/etc/hosts`, where one is given: in a mount namespace, which without root needs a user namespace,
/// in which every uid of the test is 0.
pub fn command(binary: &Path, hosts: Option<&Path>) -> Command {
    let mut command = Command::new(hosts.map_or(binary, |_| Path::new("unshare")));
    for variable in PROXY_VARIABLES {
        command.env_remove(variable);
    }
    let Some(hosts) = hosts else {
        return command;
    };
    if !rustix::process::getuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args([
            "--mount",
            "sh",
            "-c",
            r#"mount --bind "$0" /etc/hosts && exec "$@""#,
        ])
        .arg(hosts)
        .arg(binary);
    command
}

/// Runs a command to its end and gives its standard output; panics with all it printed if it fails.
pub fn run(command: &mut Command) -> String {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
