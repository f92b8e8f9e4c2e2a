//! Listeners, callers and the local services. Owns the public and the admin socket and every connection on them.
//! Takes [`Drain`] and [`EndStreams`]. Asks for the caller's selectors ([`AttestWorkload`]), for what they entitle to
//! ([`Subscribe`]) and for numbers ([`DescribeCache`]).
//!
//! A service is no actor: each method is decode, ask, encode. Decisions are in the pure files [`entitlement`],
//! [`denials`], [`jwks`], [`caps`] and [`authority`]; gRPC codes are in [`status`] alone.

mod accept;
pub mod authority;
pub mod authority_io;
mod caller;
mod caps;
mod census;
mod debug_api;
mod denials;
mod entitlement;
mod guard;
mod health;
mod jwks;
mod request_body;
mod routes;
pub mod sockets;
mod stage;
mod status;
#[cfg(test)]
mod tests;
mod updates;
mod workload_api;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::dev::MessageResponse;
use actix::{Actor, Context, Handler, Message, Recipient, ResponseFuture};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cache::{DescribeCache, Subscribe};
use crate::clock::Clock;
use crate::credentials::CredentialsReader;
use crate::readiness::ReadinessReader;
use crate::selectors::AttestWorkload;
use accept::Door;
use caller::Gate;
use census::Census;
use debug_api::DebugApi;
use health::HealthApi;
use routes::Routes;
use sockets::LocalListener;
use stage::Stage;
use workload_api::WorkloadApi;

pub use caps::raise_descriptor_limit;
pub use guard::polling_rpc;

/// How long open calls and connections get to end at shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Serves the local APIs.
#[derive(Debug)]
pub struct Endpoint {
    stage: watch::Sender<Stage>,
    census: Rc<Census>,
    doors: Vec<(LocalListener, Rc<Door>)>,
    accepting: Vec<JoinHandle<()>>,
}

/// What is served, and within which bounds.
#[derive(Debug, Clone)]
pub struct EndpointConfig {
    /// Whether the SPIFFE Workload API is on the public socket (`disable_workload_api` is not set).
    pub serve_workload_api: bool,
    /// Whether callers without an identity get the own bundle (`allow_unauthenticated_verifiers`).
    pub allow_unauthenticated_verifiers: bool,
    /// How many descriptors the process may open: the answer of [`raise_descriptor_limit`].
    pub descriptor_limit: u64,
}

/// The sockets, bound by [`sockets`] before anything else starts (design D1).
#[derive(Debug, Default)]
pub struct Sockets {
    /// For workloads.
    pub public: Option<LocalListener>,
    /// For operators.
    pub admin: Option<LocalListener>,
}

/// Whom the endpoint asks.
#[derive(Debug, Clone)]
pub struct Services {
    /// Finds a caller's selectors.
    pub selectors: Recipient<AttestWorkload>,
    /// Says what selectors entitle to.
    pub cache: Recipient<Subscribe>,
    /// Counts what is cached.
    pub facts: Recipient<DescribeCache>,
    /// Whether the agent can answer.
    pub readiness: ReadinessReader,
    /// The agent's own identity.
    pub credentials: CredentialsReader,
    /// By which certificates are valid.
    pub clock: Clock,
}

/// Stop serving: listeners close, then streams end with UNAVAILABLE, then connections. Answered within about 2 s.
#[derive(Debug, Message)]
#[rtype(result = "Drained")]
pub struct Drain;

/// End every open call with `PERMISSION_DENIED`: the agent is banned (design D5). Connections stay.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct EndStreams {
    /// What the callers are told.
    pub text: String,
}

/// Answer to [`Drain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, MessageResponse)]
pub struct Drained {
    /// Connections that had to be cut.
    pub cut: usize,
}

impl Endpoint {
    /// Puts the services together. They are reachable once the actor has started.
    pub fn new(config: &EndpointConfig, sockets: Sockets, services: Services) -> Self {
        let (stage, stage_reader) = watch::channel(Stage::Serving);
        let census = Rc::new(Census::new(caps::Caps::for_descriptors(
            config.descriptor_limit,
        )));
        let gate = Arc::new(Gate::new(&services, stage_reader));
        let workload_api = config.serve_workload_api.then(|| {
            Arc::new(WorkloadApi::new(
                Arc::clone(&gate),
                config.allow_unauthenticated_verifiers,
            ))
        });
        let public = Routes::Public {
            workload_api,
            health: Arc::new(HealthApi::new(services.readiness.clone())),
        };
        let admin = Routes::Admin {
            debug: Arc::new(DebugApi::new(services)),
        };
        let door = |routes| Rc::new(Door::new(routes, Arc::clone(&gate), Rc::clone(&census)));
        let doors = [(sockets.public, public), (sockets.admin, admin)]
            .into_iter()
            .filter_map(|(listener, routes)| Some((listener?, door(routes))))
            .collect();
        Self {
            stage,
            census,
            doors,
            accepting: Vec::new(),
        }
    }
}

impl Actor for Endpoint {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        for (listener, door) in self.doors.drain(..) {
            door.announce(listener.path());
            self.accepting
                .push(tokio::task::spawn_local(accept::serve(listener, door)));
        }
    }
}

impl Handler<Drain> for Endpoint {
    type Result = ResponseFuture<Drained>;

    fn handle(&mut self, _: Drain, _: &mut Self::Context) -> Self::Result {
        tracing::info!("Stopping agent APIs");
        let accepting = std::mem::take(&mut self.accepting);
        self.doors.clear();
        let (stage, census) = (self.stage.clone(), Rc::clone(&self.census));
        Box::pin(async move {
            for task in &accepting {
                task.abort();
            }
            // A listener and its file go with its task: nobody connects to an agent that has begun to refuse.
            for task in accepting {
                if task.await.is_err_and(|error| error.is_panic()) {
                    tracing::error!("accept loop had panicked");
                }
            }
            stage.send_replace(Stage::Draining);
            let in_time = tokio::time::timeout(DRAIN_LIMIT, census.emptied()).await;
            let cut = if in_time.is_ok() { 0 } else { census.open() };
            stage.send_replace(Stage::Closed);
            if cut > 0 {
                tracing::warn!(connections = cut, "local connections did not end in time");
            }
            Drained { cut }
        })
    }
}

impl Handler<EndStreams> for Endpoint {
    type Result = ();

    fn handle(&mut self, message: EndStreams, _: &mut Self::Context) {
        self.stage.send_if_modified(|stage| {
            let serving = matches!(stage, Stage::Serving | Stage::Revoked(_));
            if serving {
                *stage = Stage::Revoked(message.text.into());
            }
            serving
        });
    }
}
