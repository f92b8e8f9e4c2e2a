//! `debug getinfo`: the state of a running agent, from its admin socket.

use std::time::Duration;

use actors::clock::from_unix_seconds;
use proto::spire::agent::debug::v1::{GetInfoRequest, GetInfoResponse};

use super::client::{self, CallError};
use super::flags::{Flag, Flags, Format};
use super::{Output, Surroundings, json};
use crate::cli;
use crate::config::duration::format_duration;
use crate::telemetry::date::rfc3339_seconds;
use crate::telemetry::escape::printable;

const GET_INFO: &str = "/spire.agent.debug.v1.Debug/GetInfo";

pub(super) const FLAGS: &[&Flag] = &[&cli::OUTPUT, &cli::ADMIN_SOCKET_PATH];

pub(super) fn run(flags: &Flags, _: &Surroundings<'_>, output: &mut Output) -> u8 {
    let answer = cli::block_on(get_info(flags.text("socketPath")));
    let text = answer.map(|answer| match flags.format() {
        Format::Json => json::to_line(&json::info(&answer)),
        Format::Pretty => render(&answer),
    });
    cli::finish(text.map_err(|error| format!("Error: {error}")), output)
}

async fn get_info(socket: &str) -> Result<GetInfoResponse, CallError> {
    let limit = Some(client::ADMIN_TIME_LIMIT);
    let answer = client::unary(socket, limit, GET_INFO, GetInfoRequest {}).await?;
    Ok(answer.into_inner())
}

fn render(answer: &GetInfoResponse) -> String {
    let uptime = Duration::from_secs(u64::try_from(answer.uptime).unwrap_or_default());
    let last_sync = match answer.last_sync_success {
        0 => "(never)".to_owned(),
        seconds => rfc3339_seconds(from_unix_seconds(seconds)),
    };
    let lines = [
        ("Uptime:", format_duration(uptime)),
        ("Last Sync Success:", last_sync),
        (
            "Cached X.509 SVIDs:",
            answer.cached_x509_svids_count.to_string(),
        ),
        (
            "Cached JWT SVIDs:",
            answer.cached_jwt_svids_count.to_string(),
        ),
        (
            "Cached SVID Store X.509 SVIDs:",
            answer.cached_svidstore_x509_svids_count.to_string(),
        ),
    ];
    let mut parts = vec!["Agent Debug Info:\n".to_owned()];
    parts.extend(lines.map(|(name, value)| format!("  {name:<32} {value}\n")));
    if !answer.svid_chain.is_empty() {
        parts.push("  SVID Chain:\n".to_owned());
    }
    for (index, certificate) in answer.svid_chain.iter().enumerate() {
        let id = certificate.id.as_ref();
        let id = id.map(|id| format!("spiffe://{}{}", id.trust_domain, id.path));
        let id = printable(&id.unwrap_or_else(|| "(none)".to_owned()));
        let subject = printable(&certificate.subject);
        let expires_at = rfc3339_seconds(from_unix_seconds(certificate.expires_at));
        parts.push(format!(
            "    [{index}] SPIFFE ID:  {id}\n        Subject:    {subject}\n        Expires At: {expires_at}\n"
        ));
    }
    parts.concat()
}

#[cfg(test)]
mod tests {
    use proto::spire::agent::debug::v1::get_info_response::Cert;
    use proto::spire::api::types::Spiffeid;

    use super::*;

    #[test]
    fn the_state_of_an_agent_reads_as_the_reference_shows_it() {
        let id = Spiffeid {
            trust_domain: "example.org".to_owned(),
            path: "/spire/agent/x".to_owned(),
        };
        let leaf = Cert {
            id: Some(id),
            expires_at: 1_705_406_400,
            subject: "CN=agent".to_owned(),
        };
        let answer = GetInfoResponse {
            svid_chain: vec![leaf],
            uptime: 42,
            last_sync_success: 1_705_320_000,
            cached_x509_svids_count: 3,
            cached_jwt_svids_count: 1,
            ..GetInfoResponse::default()
        };

        assert_eq!(
            render(&answer),
            "Agent Debug Info:
  Uptime:                          42s
  Last Sync Success:               2024-01-15T12:00:00Z
  Cached X.509 SVIDs:              3
  Cached JWT SVIDs:                1
  Cached SVID Store X.509 SVIDs:   0
  SVID Chain:
    [0] SPIFFE ID:  spiffe://example.org/spire/agent/x
        Subject:    CN=agent
        Expires At: 2024-01-16T12:00:00Z
"
        );
    }

    #[test]
    fn an_agent_without_a_sync_says_never() {
        assert!(
            render(&GetInfoResponse::default())
                .contains("  Last Sync Success:               (never)\n")
        );
    }
}
