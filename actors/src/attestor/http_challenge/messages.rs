//! The JSON of `http_challenge`, its one path, and the names that servers take. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde::{Deserialize, Serialize};

/// Length of the nonce in bytes.
const NONCE_BYTES: usize = 32;
/// Largest challenge in bytes; an honest one has about 60.
const MAX_CHALLENGE_BYTES: usize = 4096;
/// Longest name of a host in bytes (RFC 1035 2.3.4).
const MAX_HOSTNAME_BYTES: usize = 253;
/// Longest name of an agent in bytes.
const MAX_AGENTNAME_BYTES: usize = 32;

#[derive(Serialize)]
struct Payload<'a> {
    hostname: &'a str,
    agentname: &'a str,
    port: u16,
}

#[derive(Deserialize)]
struct Challenge {
    nonce: String,
}

/// The first message.
pub(super) fn payload(hostname: &str, agentname: &str, port: u16) -> Vec<u8> {
    let payload = Payload {
        hostname,
        agentname,
        port,
    };
    serde_json::to_vec(&payload).expect("the message consists of strings and a number")
}

/// The nonce as the server wants it back: padded base64url.
pub(super) fn challenge(json: &[u8]) -> Result<String, String> {
    if json.len() > MAX_CHALLENGE_BYTES {
        return Err(format!("larger than {MAX_CHALLENGE_BYTES} bytes"));
    }
    let challenge: Challenge =
        serde_json::from_slice(json).map_err(|error| format!("malformed: {error}"))?;
    let nonce = URL_SAFE
        .decode(&challenge.nonce)
        .map_err(|_| "the nonce is not base64url".to_owned())?;
    if nonce.len() != NONCE_BYTES {
        return Err(format!(
            "the nonce has {} bytes instead of {NONCE_BYTES}",
            nonce.len()
        ));
    }
    Ok(challenge.nonce)
}

/// Where the server fetches the nonce.
pub(super) fn path(agentname: &str) -> String {
    format!("/.well-known/spiffe/nodeattestor/http_challenge/{agentname}/challenge")
}

/// Refuses what no server takes as the name of a host.
pub(super) fn check_hostname(hostname: &str) -> Result<(), String> {
    let reason = if hostname.is_empty() {
        "it is empty"
    } else if hostname.len() > MAX_HOSTNAME_BYTES {
        "it is longer than 253 bytes"
    } else if hostname == "localhost" {
        "every host has that name"
    } else if hostname.contains(['/', ':']) {
        "it must be a name or an IPv4 address, without slash or colon"
    } else if hostname.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "it has a space or control character"
    } else {
        return Ok(());
    };
    Err(format!("hostname {hostname:?} cannot be used: {reason}"))
}

/// Refuses what no server takes as the name of an agent. Servers differ: v1.13.3 has a narrower pattern than later ones, but takes
/// underscores.
pub(super) fn check_agentname(agentname: &str) -> Result<(), String> {
    let may_begin = |c: char| c.is_ascii_alphabetic() || c == '_';
    let may_follow = |c: char| may_begin(c) || c.is_ascii_digit() || c == '-';
    let reason = if agentname.len() > MAX_AGENTNAME_BYTES {
        "it is longer than 32 bytes"
    } else if !agentname.starts_with(may_begin) || !agentname.chars().all(may_follow) {
        "it must be a letter, then letters, digits, hyphens or underscores"
    } else {
        return Ok(());
    };
    Err(format!("agentname {agentname:?} cannot be used: {reason}"))
}
