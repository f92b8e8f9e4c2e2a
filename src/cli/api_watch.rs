//! `api watch`: prints every X.509 update until it is interrupted, and connects again after each failure.

use std::time::Duration;

use actors::clock::Clock;
use tokio::time::Instant;

use super::client::{self, CallError};
use super::flags::{Flag, Flags};
use super::{FAILURE, Output, Surroundings, identities};
use crate::cli;

/// Wait before the first new try; doubled at each failure in a row.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Longest wait before a new try.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(super) const FLAGS: &[&Flag] = &[&cli::INSTANCE, &cli::SOCKET_PATH];

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    let socket = match cli::public_socket(flags, surroundings) {
        Ok(socket) => socket,
        Err(error) => return cli::finish(Err(error), output),
    };
    cli::block_on(async {
        tokio::select! {
            () = watch(&socket, &surroundings.clock, output) => FAILURE,
            _ = tokio::signal::ctrl_c() => FAILURE,
        }
    })
}

/// Returns when nobody reads the output any more.
async fn watch(socket: &str, clock: &Clock, output: &mut Output) {
    let mut wait = FIRST_WAIT;
    while !output.is_broken() {
        let start = Instant::now();
        let ended = print_updates(socket, clock, output, &mut wait, start).await;
        if let Err(error) = ended {
            output.complain(error);
            tokio::time::sleep(wait).await;
            wait = LONGEST_WAIT.min(wait * 2);
        }
    }
}

/// Prints the updates of one stream; each says how long it took since the one before.
async fn print_updates(
    socket: &str,
    clock: &Clock,
    output: &mut Output,
    wait: &mut Duration,
    mut since: Instant,
) -> Result<(), CallError> {
    let mut stream = client::x509_svids(socket).await?;
    while !output.is_broken() {
        let answer = stream.message().await?.ok_or_else(CallError::ended)?;
        *wait = FIRST_WAIT;
        match identities::read(&answer, clock.wall()) {
            Ok(identities) => {
                output.print(&identities::render(&identities, since.elapsed(), false));
            }
            Err(error) => output.complain(error),
        }
        since = Instant::now();
    }
    Ok(())
}
