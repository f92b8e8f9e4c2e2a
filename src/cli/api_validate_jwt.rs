//! `api validate jwt`: has the agent check a token.

use proto::workload::{ValidateJwtsvidRequest, ValidateJwtsvidResponse};
use tonic::Code;

use super::client::{self, CallError};
use super::flags::{Flag, Flags, Format, Kind};
use super::{Output, Surroundings, json};
use crate::cli;
use crate::telemetry::escape::printable;

static AUDIENCE: Flag = Flag::new("audience", Kind::Text, "Who the token must be for");
static SVID: Flag = Flag::new("svid", Kind::Text, "The token");

pub(super) const FLAGS: &[&Flag] = &[
    &AUDIENCE,
    &cli::INSTANCE,
    &cli::OUTPUT,
    &cli::SOCKET_PATH,
    &SVID,
    &cli::TIMEOUT,
];

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    cli::finish(validate_and_show(flags, surroundings), output)
}

fn validate_and_show(flags: &Flags, surroundings: &Surroundings<'_>) -> anyhow::Result<String> {
    let (audience, svid) = (
        flags.text("audience").to_owned(),
        flags.text("svid").to_owned(),
    );
    anyhow::ensure!(!audience.is_empty(), "audience must be specified");
    anyhow::ensure!(!svid.is_empty(), "svid must be specified");
    let socket = cli::public_socket(flags, surroundings)?;
    let request = ValidateJwtsvidRequest { audience, svid };
    let limit = flags.time_limit("timeout");
    let answer = cli::block_on(client::unary(&socket, limit, VALIDATE_JWT_SVID, request));
    let answer = answer.map_err(|error| anyhow::Error::msg(describe(&error)))?;
    let answer: ValidateJwtsvidResponse = answer.into_inner();
    Ok(match flags.format() {
        Format::Json => json::to_line(&json::validated(&answer)),
        Format::Pretty => render(&answer),
    })
}

const VALIDATE_JWT_SVID: &str = "/SpiffeWorkloadAPI/ValidateJWTSVID";

/// The agent says "invalid argument" of the token; anything else is trouble of its own.
fn describe(error: &CallError) -> String {
    if error.0.code() == Code::InvalidArgument {
        format!("SVID is not valid: {}", printable(error.0.message()))
    } else {
        format!("unable to validate JWT SVID: {error}")
    }
}

fn render(answer: &ValidateJwtsvidResponse) -> String {
    let id = printable(&answer.spiffe_id);
    format!(
        "SVID is valid.\nSPIFFE ID : {id}\nClaims    : {}\n",
        json::claims(answer)
    )
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn a_bad_token_and_other_trouble_read_differently() {
        let bad = CallError(Status::invalid_argument("token has expired"));
        let trouble = CallError(Status::unavailable("later"));

        assert_eq!(describe(&bad), "SVID is not valid: token has expired");
        assert_eq!(
            describe(&trouble),
            "unable to validate JWT SVID: rpc error: code = Unavailable desc = later"
        );
    }

    #[test]
    fn a_valid_token_is_shown_with_its_claims() {
        let answer = ValidateJwtsvidResponse {
            spiffe_id: "spiffe://td/w".to_owned(),
            claims: None,
        };

        assert_eq!(
            render(&answer),
            "SVID is valid.\nSPIFFE ID : spiffe://td/w\nClaims    : {}\n"
        );
    }
}
