//! The demo's workload: one stream of the Workload API, read with the client of `api fetch`.

use std::time::{Duration, SystemTime};

use actors::clock::Clock;
use anyhow::Context as _;
use proto::workload::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use proto::workload::{X509svidRequest, X509svidResponse};
use tonic::Streaming;

use crate::cli::client::{self, CallError};
use crate::cli::identities;

/// A workload that keeps its one stream open.
#[derive(Debug)]
pub(super) struct Workload {
    stream: Streaming<X509svidResponse>,
    answers: usize,
    clock: Clock,
}

/// What a person wants to see of an X.509-SVID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Credential {
    pub(super) id: String,
    /// The leaf's serial number, lower-case hex.
    pub(super) serial: String,
    /// Servers date it a little back.
    pub(super) valid_from: SystemTime,
    pub(super) expires_at: SystemTime,
}

impl Workload {
    /// Calls `FetchX509SVID`; before the agent is ready the stream waits.
    pub(super) async fn connect(socket: &str, clock: Clock) -> anyhow::Result<Self> {
        let channel = client::connect(socket).await?;
        let answer = SpiffeWorkloadApiClient::new(channel)
            .fetch_x509svid(client::request(X509svidRequest {}))
            .await
            .map_err(CallError::from)?;
        Ok(Self {
            stream: answer.into_inner(),
            answers: 0,
            clock,
        })
    }

    /// The next answer of the stream: every SVID has its key and leads to its bundle. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> anyhow::Result<Vec<Credential>> {
        let message = self.stream.message().await.map_err(CallError::from)?;
        let answer = message.ok_or_else(CallError::ended)?;
        self.answers += 1;
        let now = self.clock.wall();
        let identities = identities::read(&answer, now).context("the agent's answer is no good")?;
        let credentials = identities.iter().map(|identity| Credential {
            id: identity.svid.id.to_string(),
            serial: identity.svid.leaf().serial_hex(),
            valid_from: identity.svid.leaf().not_before(),
            expires_at: identity.svid.not_after(),
        });
        Ok(credentials.collect())
    }

    /// How many answers the stream has brought.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }
}

impl Credential {
    /// How long the certificate was made to live, the back-dating included.
    pub(super) fn lifetime(&self) -> Duration {
        let whole = self.expires_at.duration_since(self.valid_from);
        whole.unwrap_or_default()
    }

    /// What is left of it.
    pub(super) fn left(&self, now: SystemTime) -> Duration {
        self.expires_at.duration_since(now).unwrap_or_default()
    }
}

/// Every identity whose certificate is another one than before: the old one, then the new one.
pub(super) fn renewals<'a>(
    before: &'a [Credential],
    after: &'a [Credential],
) -> Vec<(&'a Credential, &'a Credential)> {
    let pair = |new: &'a Credential| {
        let old = before.iter().find(|old| old.id == new.id)?;
        (old.serial != new.serial).then_some((old, new))
    };
    after.iter().filter_map(pair).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use actors::clock::from_unix_seconds;

    use super::*;

    /// A credential that ends that many seconds after 2026-01-02 15:04:05 UTC, and was made to live for 30.
    pub(in crate::demo) fn credential(name: &str, serial: &str, ends: i64) -> Credential {
        let expires_at = from_unix_seconds(1_767_366_245 + ends);
        Credential {
            id: format!("spiffe://demo.test/{name}"),
            serial: serial.to_owned(),
            valid_from: expires_at - Duration::from_secs(30),
            expires_at,
        }
    }

    #[test]
    fn an_identity_is_renewed_when_its_serial_number_changes() {
        let before = [credential("a", "01", 9), credential("b", "02", 9)];
        let after = [
            credential("a", "01", 9),
            credential("b", "03", 20),
            credential("c", "04", 20),
        ];

        let [_, old, ..] = &before;
        let [_, new, ..] = &after;
        assert_eq!(renewals(&before, &after), [(old, new)]);
        assert_eq!(renewals(&before, &before), []);
    }
}
