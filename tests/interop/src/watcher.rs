//! Clients in other processes that follow the Workload API through a foreign SDK.

use std::path::Path;
use std::process::Command;

use crate::process::Process;
use crate::tools;
use crate::update::Update;

/// A foreign SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// The newest go-spiffe.
    Go,
    /// go-spiffe 2.3.
    GoOldest,
    /// The Python `spiffe` package.
    Python,
    /// The Rust `spiffe` crate.
    Rust,
}

impl Sdk {
    /// Every SDK that is tried.
    pub const ALL: [Self; 4] = [Self::Go, Self::GoOldest, Self::Python, Self::Rust];
}

/// One watching client.
#[derive(Debug)]
pub struct Watcher {
    process: Process,
    /// What it is made with.
    pub sdk: Sdk,
}

impl Watcher {
    /// Starts a client on an agent's socket; `rust_client` is the path of this crate's `watch` binary.
    pub fn start(sdk: Sdk, socket: &Path, log_folder: &Path, rust_client: &Path) -> Self {
        let mut command = match sdk {
            Sdk::Go => Command::new(tools::made("bin/watch-go")),
            Sdk::GoOldest => Command::new(tools::made("bin/watch-go-oldest")),
            Sdk::Rust => Command::new(rust_client),
            Sdk::Python => {
                let mut python = Command::new(tools::made("venv/bin/python"));
                python.arg(tools::sources().join("clients/watch.py"));
                python
            }
        };
        let process = Process::start(
            command.arg(socket),
            &log_folder.join(format!("watch-{sdk:?}.log")),
        );
        Self { process, sdk }
    }

    /// Every update so far, errors included.
    pub fn updates(&self) -> Vec<Update> {
        let text = self.process.text();
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        complete
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The different serial numbers seen for one SPIFFE ID path's end, in order.
    pub fn serials(&self, path: &str) -> Vec<String> {
        let mut serials = Vec::new();
        for identity in self
            .updates()
            .into_iter()
            .flat_map(|update| update.identities)
        {
            if identity.id.ends_with(&format!("/{path}")) && !serials.contains(&identity.serial) {
                serials.push(identity.serial);
            }
        }
        serials
    }

    /// The errors it has reported.
    pub fn errors(&self) -> Vec<String> {
        self.updates()
            .into_iter()
            .map(|update| update.error)
            .filter(|error| !error.is_empty())
            .collect()
    }

    /// All that it printed, for a failure's message.
    pub fn text(&self) -> String {
        self.process.text()
    }
}
