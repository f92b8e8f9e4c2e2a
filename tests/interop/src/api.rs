//! The Workload API through the Rust `spiffe` crate.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use spiffe::{WorkloadApiClient, WorkloadApiError};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::update::Update;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// One client that fetches again and again over one connection.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    client: WorkloadApiClient,
}

impl Client {
    /// Connects to the socket.
    pub fn connect(socket: &Path) -> Result<Self, WorkloadApiError> {
        let runtime = runtime();
        let client = runtime.block_on(WorkloadApiClient::connect_to(endpoint(socket)))?;
        Ok(Self { runtime, client })
    }

    /// The first message of a new stream.
    pub fn fetch(&self) -> Result<Update, WorkloadApiError> {
        let answer = self
            .runtime
            .block_on(async { timeout(ANSWER_LIMIT, self.client.fetch_x509_context()).await });
        answer
            .unwrap_or(Err(WorkloadApiError::EmptyResponse))
            .map(|context| Update::of(&context))
    }
}

/// One fetch over a connection of its own.
pub fn fetch(socket: &Path) -> Result<Update, WorkloadApiError> {
    Client::connect(socket)?.fetch()
}

/// Follows one stream to its end and hands on every update.
pub fn watch(socket: &Path, mut update: impl FnMut(Update)) -> Result<(), WorkloadApiError> {
    runtime().block_on(async {
        let client = WorkloadApiClient::connect_to(endpoint(socket)).await?;
        let mut stream = client.stream_x509_contexts().await?;
        while let Some(context) = stream.next().await {
            update(Update::of(&context?));
        }
        Ok(())
    })
}

fn endpoint(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
}
