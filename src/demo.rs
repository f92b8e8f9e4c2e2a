//! `demo`: a server, this agent and a workload in one process, on a temporary directory that is gone afterwards.
//!
//! The agent is the real one: it reads an `agent.conf`, its actors are started by `system.rs`, it attests over TLS and answers on
//! its socket; the workload is the client of `api fetch`. Whatever is told was measured or received in this run. What is
//! set up is in `stage.rs`, the workload in `workload.rs`, how it is told in `narrator.rs`.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use actors::attestor::trust::web::Web;
use actors::clock::Clock;
use actors::proxy::Proxies;
use anyhow::{anyhow, bail};

mod narrator;
mod stage;
mod workload;

use narrator::{Narrator, Style};
use stage::Stage;
use workload::{Credential, Workload};

use crate::cli::{FAILURE, Output, SUCCESS, Surroundings};
use crate::signal::Signals;
use crate::system::{self, Agent, Host};

/// Where this process looks itself up as a workload.
const PROC_ROOT: &str = "/proc";
/// All steps together: with the start and the end of it all it stays under 30 s.
const TIME_LIMIT: Duration = Duration::from_secs(25);
/// How often the server is asked whether the agent has attested.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How often a terminal shows what is left of the certificates.
const METER_INTERVAL: Duration = Duration::from_millis(200);

/// What the demo is to do besides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Stay up after the last step, until a signal.
    pub(crate) keep: bool,
    /// Show the agent's log between the lines instead of keeping it in a file.
    pub(crate) is_verbose: bool,
}

/// Runs the demo; the exit code.
pub(crate) fn run(options: Options, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    let has_colour_veto =
        (surroundings.variable)("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_terminal = std::io::stdout().is_terminal();
    let style = Style {
        has_colour: is_terminal && !has_colour_veto,
        has_meter: is_terminal && !options.is_verbose,
    };
    let mut narrator = Narrator::new(output, style, surroundings.clock.clone());
    match perform(options, surroundings, &mut narrator) {
        Ok(()) => SUCCESS,
        Err(error) => {
            narrator.fail(&error);
            FAILURE
        }
    }
}

/// The whole demo. The stage is taken down after the actors have ended, so that none of them still writes to it.
fn perform(
    options: Options,
    surroundings: &Surroundings<'_>,
    narrator: &mut Narrator<'_>,
) -> anyhow::Result<()> {
    let (stage, played) = system::on_actor_system(async {
        // Before there is anything to clean up.
        let mut signals = Signals::install()?;
        let stage = Stage::set_up(options, surroundings, narrator)?;
        let played = play(&stage, options, &mut signals, narrator).await;
        anyhow::Ok((stage, played))
    })?;
    let played = played.map_err(|error| match stage.last_error_in_log() {
        Some(line) => anyhow!("{error:#}; last error in the agent's log: {line}"),
        None => error,
    });
    stage.take_down()?;
    played?;
    narrator.step("done", "agent and server stopped, directory removed");
    Ok(())
}

/// Starts the agent, tells the story, and ends the agent whatever came of it.
async fn play(
    stage: &Stage,
    options: Options,
    signals: &mut Signals,
    narrator: &mut Narrator<'_>,
) -> anyhow::Result<()> {
    let host = Host {
        proc_root: PathBuf::from(PROC_ROOT),
        web: Web::from_environment(&|_| None, stage.clock.clone()),
        // The server is in this process.
        proxies: Proxies::default(),
    };
    let mut agent = Agent::start(&stage.config, &host)?;
    let told = tokio::select! {
        told = tokio::time::timeout(TIME_LIMIT, tell(stage, narrator)) => told,
        ended = agent.until_ended(signals, &stage.log) => {
            agent.stop().await;
            return match ended {
                None if options.keep => Ok(()),
                None => Err(anyhow!("stopped by a signal before the end")),
                Some(exit) => Err(anyhow!("the agent ended: {}", exit.reason)),
            };
        }
    };
    let mut outcome = told.unwrap_or_else(|_| {
        let seconds = TIME_LIMIT.as_secs();
        Err(anyhow!("{} within {seconds} s", narrator.missing()))
    });
    if outcome.is_ok() && options.keep {
        narrator.invite(stage);
        if let Some(exit) = agent.until_ended(signals, &stage.log).await {
            outcome = Err(anyhow!("the agent ended: {}", exit.reason));
        }
        narrator.gap();
        narrator.step("server", stage.tally());
    }
    agent.stop().await;
    outcome
}

/// Attestation, the first identities, and their renewal.
async fn tell(stage: &Stage, narrator: &mut Narrator<'_>) -> anyhow::Result<()> {
    narrator.step(
        "agent",
        format_args!("started, listens on {}", stage.public_socket_url()),
    );

    narrator.waits_for("no attestation");
    let agent = until_attested(stage).await;
    narrator.step(
        "attested",
        format_args!("by {}, the agent is", agent.attestation_type),
    );
    narrator.detail(agent.id);

    narrator.waits_for("no identity");
    let mut workload = Workload::connect(stage.public_socket(), stage.clock.clone()).await?;
    let credentials = workload.next().await?;
    let (came, registered) = (credentials.len(), stage.workloads());
    if came != registered {
        bail!("{came} identities came for {registered} workloads");
    }
    narrator.step(
        "fetched",
        format_args!("{came} X.509-SVIDs over the socket, each with its key and its bundle"),
    );
    for credential in &credentials {
        narrator.credential(credential);
    }
    watch_renewals(credentials, &mut workload, &stage.clock, narrator).await?;
    narrator.step("server", stage.tally());
    Ok(())
}

/// The agent as the server knows it, as soon as it does.
async fn until_attested(stage: &Stage) -> devserver::AgentRecord {
    loop {
        if let Some(agent) = stage.control().agents().pop() {
            return agent;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Tells of every renewal, until none of the first certificates is in use.
async fn watch_renewals(
    first: Vec<Credential>,
    workload: &mut Workload,
    clock: &Clock,
    narrator: &mut Narrator<'_>,
) -> anyhow::Result<()> {
    narrator.waits_for("no renewal of every identity");
    if let Some(credential) = first.first() {
        let half = credential.lifetime().as_secs() / 2;
        narrator.step(
            "waiting",
            format_args!("for new ones at half of each life, about {half} s before its end;"),
        );
        narrator.detail("the workload keeps its stream open");
    }
    let mut current = first.clone();
    let mut meter = tokio::time::interval(METER_INTERVAL);
    while first.iter().any(|old| current.contains(old)) {
        tokio::select! {
            next = workload.next() => {
                let next = next?;
                for (old, new) in workload::renewals(&current, &next) {
                    narrator.renewal(old, new, workload.answers());
                }
                current = next;
            }
            _ = meter.tick() => narrator.meter(&current, clock.wall()),
        }
    }
    Ok(())
}
