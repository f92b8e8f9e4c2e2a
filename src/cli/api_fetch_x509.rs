//! `api fetch [x509]`: the first answer of `FetchX509SVID`, shown, written to files, or as JSON.

use std::path::Path;

use proto::workload::X509svidResponse;
use tokio::time::Instant;

use super::client::{self, CallError};
use super::flags::{Flag, Flags, Format, Kind};
use super::{Output, Surroundings, credential_files, identities, json};
use crate::cli;

static SILENT: Flag = Flag::new("silent", Kind::Bool, "Print nothing but errors");
static WRITE: Flag = Flag::new(
    "write",
    Kind::Text,
    "Directory to write SVIDs, keys and bundles to",
);

pub(super) const FLAGS: &[&Flag] = &[
    &cli::INSTANCE,
    &cli::OUTPUT,
    &SILENT,
    &cli::SOCKET_PATH,
    &cli::TIMEOUT,
    &WRITE,
];

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    let text = fetch_and_show(flags, surroundings, output);
    cli::finish(text, output)
}

fn fetch_and_show(
    flags: &Flags,
    surroundings: &Surroundings<'_>,
    output: &mut Output,
) -> anyhow::Result<String> {
    let socket = cli::public_socket(flags, surroundings)?;
    let (answer, waited) = cli::block_on(async {
        let start = Instant::now();
        let answer = client::within(flags.time_limit("timeout"), first_answer(&socket)).await;
        answer.map(|answer| (answer, start.elapsed()))
    })?;
    if flags.format() == Format::Json {
        return Ok(json::to_line(&json::x509(&answer)));
    }
    let identities = identities::read(&answer, surroundings.clock.wall())?;
    if !flags.is_set("silent") {
        output.print(&identities::render(&identities, waited, true));
    }
    if let Some(directory) = flags
        .given("write")
        .filter(|directory| !directory.is_empty())
    {
        let say = |line: &str| output.print(line);
        credential_files::write_all(Path::new(directory), &identities, say)?;
    }
    Ok(String::new())
}

async fn first_answer(socket: &str) -> Result<X509svidResponse, CallError> {
    let mut stream = client::x509_svids(socket).await?;
    stream.message().await?.ok_or_else(CallError::ended)
}
