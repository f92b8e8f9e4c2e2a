//! An agent: the one under test or the Go one, on the same kind of configuration file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use spiffe::WorkloadApiError;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use crate::agent_options::AgentOptions;
use crate::process::{self, Process};
use crate::update::Update;
use crate::{TRUST_DOMAIN, api, seconds, tools, wait_for};

/// An agent with a data directory and sockets of its own.
#[derive(Debug)]
pub struct Agent {
    dir: PathBuf,
    /// Its SPIFFE ID.
    pub id: String,
    options: AgentOptions,
    process: Option<Process>,
}

impl Agent {
    /// Writes the configuration of an agent; starts nothing.
    pub fn configure(dir: &Path, options: AgentOptions) -> Self {
        for folder in ["data", "public", "admin"] {
            fs::create_dir_all(dir.join(folder)).expect("the folder can be made");
        }
        let agent = Self {
            dir: dir.to_owned(),
            id: options.id.clone(),
            options,
            process: None,
        };
        agent.write_configuration();
        agent
    }

    /// Changes the options for the next start.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut AgentOptions)) {
        change(&mut self.options);
        self.write_configuration();
    }

    fn write_configuration(&self) {
        fs::write(self.dir.join("agent.conf"), self.options.text(&self.dir))
            .expect("the configuration can be written");
    }

    /// Starts the agent under test and waits until it answers callers.
    pub fn start(&mut self) {
        self.start_binary(&tools::agent());
    }

    /// Starts the Go agent on the same configuration and data, and waits until it answers callers.
    pub fn start_go(&mut self) {
        self.start_binary(&tools::go_agent());
    }

    /// Starts any agent binary and waits until it answers callers, if only with a refusal.
    pub fn start_binary(&mut self, binary: &Path) {
        self.launch(binary);
        wait_for("the agent answers", seconds(30), || {
            assert!(self.alive(), "the agent ended:\n{}", self.log());
            answered(&self.fetch()).then_some(())
        });
    }

    /// Starts any agent binary and waits for nothing.
    pub fn launch(&mut self, binary: &Path) {
        let mut command = process::command(binary, self.options.hosts.as_deref());
        command
            .args(["run", "-config"])
            .arg(self.dir.join("agent.conf"))
            .args(&self.options.flags)
            .envs(self.options.environment.iter().cloned());
        self.process = Some(Process::start(&mut command, &self.dir.join("agent.log")));
    }

    /// Stops the process in order; it must end with exit code 0.
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("a started agent");
        let status = process.stop();
        assert!(
            status.success(),
            "the agent ended with {status}:\n{}",
            process.text()
        );
    }

    /// Waits until the process ends by itself, and gives its exit code.
    pub fn wait_end(&mut self, limit: Duration) -> Option<i32> {
        let process = self.process.as_mut().expect("a started agent");
        wait_for("the agent ends", limit, || process.ended()).code()
    }

    /// Waits until the running process has logged this.
    pub fn wait_log(&mut self, text: &str, limit: Duration) {
        wait_for(&format!("the agent logs {text:?}"), limit, || {
            let found = self.log().contains(text);
            assert!(found || self.alive(), "the agent ended:\n{}", self.log());
            found.then_some(())
        });
    }

    /// The running process.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("a started agent")
    }

    /// Whether the process still runs.
    pub fn alive(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| process.ended().is_none())
    }

    /// What the running process has logged.
    pub fn log(&self) -> String {
        self.process().text()
    }

    /// Path of the Workload API socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("public/api.sock")
    }

    /// What the Workload API gives to this process now.
    pub fn fetch(&self) -> Result<Update, WorkloadApiError> {
        api::fetch(&self.socket())
    }

    /// Waits until this process is served exactly these paths, and gives the identities.
    pub fn wait_served(&self, paths: &[&str]) -> Update {
        let mut expected: Vec<String> = paths
            .iter()
            .map(|path| format!("spiffe://{TRUST_DOMAIN}/{path}"))
            .collect();
        expected.sort();
        wait_for(&format!("{paths:?} are served"), seconds(30), || {
            self.fetch().ok().filter(|update| update.ids() == expected)
        })
    }

    /// Serial number (lower-case hex) of the agent SVID on disk.
    pub fn stored_serial(&self) -> Option<String> {
        self.stored(|svid| svid.serial.to_str_radix(16))
    }

    /// End of validity of the agent SVID on disk, Unix seconds.
    pub fn stored_not_after(&self) -> Option<i64> {
        self.stored(|svid| svid.validity().not_after.timestamp())
    }

    /// SPIFFE ID of the agent SVID on disk.
    pub fn stored_id(&self) -> Option<String> {
        self.stored(|svid| {
            let names = svid.subject_alternative_name().ok()??;
            names
                .value
                .general_names
                .iter()
                .find_map(|name| match name {
                    GeneralName::URI(id) => Some((*id).to_owned()),
                    _ => None,
                })
        })?
    }

    /// How many authorities the trust bundle on disk has.
    pub fn stored_authorities(&self) -> usize {
        let stored = self.state();
        let bundle = stored.as_ref().and_then(|state| state["bundle"].as_array());
        bundle.map_or(0, Vec::len)
    }

    fn state(&self) -> Option<Value> {
        let text = fs::read(self.dir.join("data/agent-data.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn stored<T>(&self, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
        let stored = self.state()?;
        let pem = STANDARD.decode(stored["svid"][0].as_str()?).ok()?;
        let (_, block) = parse_x509_pem(&pem).ok()?;
        Some(look(&block.parse_x509().ok()?))
    }
}

/// Whether a Workload API answered, be it with a refusal.
pub fn answered(result: &Result<Update, WorkloadApiError>) -> bool {
    matches!(
        result,
        Ok(_) | Err(WorkloadApiError::PermissionDenied(_) | WorkloadApiError::NoIdentityIssued)
    )
}
