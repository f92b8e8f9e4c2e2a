//! What signals do: SIGINT and SIGTERM stop the agent, SIGUSR2 re-opens the log file, SIGHUP and SIGUSR1 must not kill it.

use actors::exit::Exit;
use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::telemetry::LogHandle;

/// Installed handlers.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    user_1: Signal,
    user_2: Signal,
}

impl Signals {
    /// Takes over the signals from their default actions.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let handler = |kind| signal(kind).context("unable to install a signal handler");
        Ok(Self {
            interrupt: handler(SignalKind::interrupt())?,
            terminate: handler(SignalKind::terminate())?,
            hangup: handler(SignalKind::hangup())?,
            user_1: handler(SignalKind::user_defined1())?,
            user_2: handler(SignalKind::user_defined2())?,
        })
    }

    /// Returns when the agent is to end: nothing for a signal, an [`Exit`] when an actor asked for it. Later signals change nothing.
    pub(crate) async fn until_stopped(
        &mut self,
        log: &LogHandle,
        exits: &mut UnboundedReceiver<Exit>,
    ) -> Option<Exit> {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return None,
                _ = self.terminate.recv() => return None,
                exit = exits.recv() => return exit.or_else(|| Some(Exit { code: crate::system::ACTOR_DIED, reason: "the attestor is gone".into() })),
                _ = self.user_2.recv() => {
                    if let Err(error) = log.reopen() {
                        tracing::error!(%error, "Unable to re-open the log file");
                    }
                }
                _ = self.hangup.recv() => tracing::warn!("SIGHUP: this build does not reload its configuration yet"),
                _ = self.user_1.recv() => tracing::info!("SIGUSR1: no plugin reads a data file"),
            }
        }
    }
}
