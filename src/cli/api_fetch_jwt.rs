//! `api fetch jwt`: a token for an audience, and the keys to check such tokens with.

use actors::wire::Inbox;
use proto::workload::{JwtBundlesRequest, JwtBundlesResponse, JwtsvidRequest, JwtsvidResponse};

use super::client::{self, CallError};
use super::flags::{Flag, Flags, Format, Kind};
use super::{Output, Surroundings, json};
use crate::cli;
use crate::telemetry::escape::{printable, printable_lines};

static AUDIENCE: Flag = Flag::new(
    "audience",
    Kind::Text,
    "Who the token is for; several are separated by commas",
);
static SPIFFE_ID: Flag = Flag::new(
    "spiffeID",
    Kind::Text,
    "The identity to ask for, of several",
);
static FORMAT: Flag = Flag::new("format", Kind::Output, "Older name of output");

pub(super) const FLAGS: &[&Flag] = &[
    &AUDIENCE,
    &FORMAT,
    &cli::INSTANCE,
    &cli::OUTPUT,
    &cli::SOCKET_PATH,
    &SPIFFE_ID,
    &cli::TIMEOUT,
];

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    cli::finish(fetch_and_show(flags, surroundings), output)
}

fn fetch_and_show(flags: &Flags, surroundings: &Surroundings<'_>) -> anyhow::Result<String> {
    let audience: Vec<String> = flags
        .text("audience")
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    anyhow::ensure!(
        audience.iter().all(|name| !name.is_empty()),
        "audience must be specified"
    );
    let request = JwtsvidRequest {
        audience,
        spiffe_id: flags.text("spiffeID").to_owned(),
    };
    let socket = cli::public_socket(flags, surroundings)?;
    let limit = flags.time_limit("timeout");
    let (bundles, svids) = cli::block_on(async {
        let bundles = client::within(limit, first_bundles(&socket)).await?;
        let svids = client::unary(&socket, limit, FETCH_JWT_SVID, request).await?;
        Ok::<_, CallError>((bundles, svids.into_inner()))
    })?;
    Ok(match flags.format() {
        Format::Json => json::to_line(&json::jwt(&svids, &bundles)),
        Format::Pretty => render(&svids, &bundles),
    })
}

const FETCH_JWT_BUNDLES: &str = "/SpiffeWorkloadAPI/FetchJWTBundles";
const FETCH_JWT_SVID: &str = "/SpiffeWorkloadAPI/FetchJWTSVID";

async fn first_bundles(socket: &str) -> Result<JwtBundlesResponse, CallError> {
    let wire = client::connect(socket).await?;
    let request = client::request(JwtBundlesRequest {});
    let mut stream: Inbox<JwtBundlesResponse> =
        wire.server_streaming(FETCH_JWT_BUNDLES, request).await?;
    stream.message().await?.ok_or_else(CallError::ended)
}

fn render(svids: &JwtsvidResponse, bundles: &JwtBundlesResponse) -> String {
    let mut parts = Vec::new();
    for svid in &svids.svids {
        let id = printable(&svid.spiffe_id);
        parts.push(format!("token({id}):\n\t{}\n", printable(&svid.svid)));
        if !svid.hint.is_empty() {
            parts.push(format!("hint({id}):\n\t{}\n", printable(&svid.hint)));
        }
    }
    let mut named: Vec<_> = bundles.bundles.iter().collect();
    named.sort();
    for (trust_domain, keys) in named {
        let keys = printable_lines(&String::from_utf8_lossy(keys));
        parts.push(format!("bundle({}):\n\t{keys}\n", printable(trust_domain)));
    }
    parts.concat()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proto::workload::Jwtsvid;

    use super::*;

    #[test]
    fn tokens_hints_and_bundles_are_shown_in_order() {
        let svid = |path: &str, hint: &str| Jwtsvid {
            spiffe_id: format!("spiffe://td/{path}"),
            svid: format!("token-of-{path}"),
            hint: hint.to_owned(),
        };
        let svids = JwtsvidResponse {
            svids: vec![svid("a", "in\u{1b}ner"), svid("b", "")],
        };
        let bundle = |name: &str| (name.to_owned(), b"{\n\"keys\": []}".to_vec().into());
        let bundles = JwtBundlesResponse {
            bundles: HashMap::from([bundle("spiffe://z"), bundle("spiffe://td")]),
        };

        assert_eq!(
            render(&svids, &bundles),
            "token(spiffe://td/a):\n\ttoken-of-a\nhint(spiffe://td/a):\n\tin\\x1bner\ntoken(spiffe://td/b):\n\ttoken-of-b\n\
             bundle(spiffe://td):\n\t{\n\"keys\": []}\nbundle(spiffe://z):\n\t{\n\"keys\": []}\n"
        );
    }
}
