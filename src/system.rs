//! The only file that starts actors. Read downwards it says what starts, in which order, on which thread, and how the process ends.
//!
//! | order | actor | thread | given |
//! |---|---|---|---|
//! | 1 | `Store` | its own (`SyncArbiter`), so that fsync blocks nobody | where state is kept |
//! | 2 | `Cache` | the one of all others | – |
//! | 3 | `Selectors` | same | the workload attestors |
//! | 4 | `Endpoint` | same | bound sockets, `Selectors`, `Cache` |
//! | 5 | `Synchronizer` | same | server client, `Cache` |
//! | 6 | `Ban` | same | `Cache`, `Endpoint`; withdraws all identities before a banned agent ends |
//! | 7 | `Attestor` | same | way in, server client, `Store`, `Synchronizer`, `Ban`; begins at once |
//!
//! Receivers start first. Two cycles are closed by messages: `ReportMissing` (cache → synchronizer) and `ReportTo` (synchronizer → attestor).
//! No actor is restarted: a panic ends the process with exit code 70 ([`actors::panics`]), the service manager starts it again, and the
//! state on disk makes that invisible but for a reconnect.

mod way_in;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler, SyncArbiter};
use actors::attestor::node::NodeAttestor;
use actors::attestor::rebootstrap::{RebootstrapConfig, RebootstrapMode};
use actors::attestor::trust::web::Web;
use actors::attestor::trust::{BundleSources, PinnedSource};
use actors::attestor::{Attestor, AttestorConfig, AttestorTools, Banned, Settle};
use actors::cache::{Cache, Forget, ReportMissing};
use actors::clock::Clock;
use actors::endpoint::sockets::{self, LocalListener};
use actors::endpoint::{Drain, EndStreams, Endpoint, EndpointConfig, Services, Sockets};
use actors::exit::Exit;
use actors::proxy::Proxies;
use actors::random::Random;
use actors::readiness::{ReadinessWriter, out_of_reach, readiness};
use actors::selectors::unix::{UnixAttestor, UnixConfig};
use actors::selectors::{Selectors, WorkloadAttestor};
use actors::server::ServerApi;
use actors::server::client::{ClientConfig, ServerClient};
use actors::spiffe_id::TrustDomain;
use actors::store::{Store, StoreConfig, StoreHandle};
use actors::synchronizer::round::CacheHandle;
use actors::synchronizer::{ReportTo, Synchronizer, SynchronizerConfig};
use anyhow::{Context as _, anyhow, bail};
use tokio::sync::{mpsc, watch};

use crate::config::{self, Config};
use crate::signal::Signals;
use crate::telemetry::LogHandle;

/// Exit code when an actor died.
pub(crate) const ACTOR_DIED: u8 = 70;
/// Blocking threads: name resolution, the node's files, key generation. Hashing has threads of its own.
const BLOCKING_THREADS: usize = 4;
const BLOCKING_STACK_BYTES: usize = 512 * 1024;
/// How long shutdown waits for the endpoint and the attestor.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(2500);

/// What the agent takes from the machine beside its configuration.
#[derive(Debug)]
pub(crate) struct Host {
    /// Where the unix attestor looks processes up.
    pub(crate) proc_root: PathBuf,
    /// How https is spoken here.
    pub(crate) web: Web,
    /// What leads to the server.
    pub(crate) proxies: Proxies,
}

/// Runs the agent until a signal or an actor ends it; the exit code.
pub(crate) fn run(config: &Config, log: &LogHandle, host: &Host) -> u8 {
    let code = on_actor_system(serve(config, log, host));
    code.unwrap_or_else(|error| {
        tracing::error!(error = format!("{error:#}"), "Agent crashed");
        1
    })
}

/// Runs a future on the one thread of all actors but the store; they end with it.
pub(crate) fn on_actor_system<T>(future: impl Future<Output = T>) -> T {
    actors::panics::install(ACTOR_DIED);
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_stack_size(BLOCKING_STACK_BYTES)
            .build()
            .expect("a runtime on the current thread can be made")
    };
    let system = actix::System::with_tokio_rt(runtime);
    let outcome = system.block_on(future);
    // Dropping the runtime would wait for a name lookup under way: an exit must not hang on those.
    std::mem::forget(system);
    outcome
}

/// Everything between the start and the end of the agent.
async fn serve(config: &Config, log: &LogHandle, host: &Host) -> anyhow::Result<u8> {
    let mut signals = Signals::install()?;
    let mut agent = Agent::start(config, host)?;
    let ended = agent.until_ended(&mut signals, log).await;
    agent.stop().await;
    Ok(conclude(ended))
}

/// An agent whose actors run.
#[derive(Debug)]
pub(crate) struct Agent {
    started: Started,
    exits: mpsc::UnboundedReceiver<Exit>,
    exit_if_unreachable_for: Option<Duration>,
}

/// What the end of the agent has to do with.
#[derive(Debug)]
struct Started {
    endpoint: Addr<Endpoint>,
    attestor: Addr<Attestor>,
    server: Rc<dyn ServerApi>,
    readiness: ReadinessWriter,
}

impl Agent {
    /// Binds the sockets and starts the actors; attestation begins at once. Only inside [`on_actor_system`].
    pub(crate) fn start(config: &Config, host: &Host) -> anyhow::Result<Self> {
        tracing::info!(data_dir = %config.data_dir.display(), version = env!("CARGO_PKG_VERSION"), "Starting agent");
        let descriptor_limit = actors::endpoint::raise_descriptor_limit();
        let sockets = bind_sockets(config)?;
        let node = way_in::way_in(config)?;
        let attestors = workload_attestors(config, &host.proc_root, &Clock::system())?;
        let (exit, exits) = mpsc::unbounded_channel();
        let sources = bundle_sources(config, host.web.clone());
        let proxies = host.proxies.clone();
        let ways = (node, attestors, sources);
        let started = start_actors(config, (sockets, proxies), ways, descriptor_limit, exit)?;
        Ok(Self {
            started,
            exits,
            exit_if_unreachable_for: config.edge.exit_if_unreachable_for,
        })
    }

    /// Returns when the agent is to end: nothing for a signal, an [`Exit`] when an actor asked for it.
    pub(crate) async fn until_ended(
        &mut self,
        signals: &mut Signals,
        log: &LogHandle,
    ) -> Option<Exit> {
        let limit = self.exit_if_unreachable_for;
        tokio::select! {
            ended = signals.until_stopped(log, &mut self.exits) => ended,
            exit = cut_off(&self.started, limit) => Some(exit),
        }
    }

    /// Ends the agent in order.
    pub(crate) async fn stop(self) {
        let Started {
            endpoint, attestor, ..
        } = &self.started;
        tokio::join!(drain(endpoint), settle(attestor));
    }
}

/// Sockets come first, in the order of workload-side 1.2: until the agent is ready callers wait instead of failing (design D1).
fn bind_sockets(config: &Config) -> anyhow::Result<Sockets> {
    let public =
        (!config.disable_workload_api || !config.disable_sds_api).then_some(&config.socket_path);
    if let Some(path) = public {
        sockets::prepare_public_directory(path)?;
    }
    sockets::raise_umask();
    if let Some(path) = &config.admin_socket_path {
        sockets::prepare_private_directory(path)?;
    }
    Ok(Sockets {
        public: public
            .map(|path| bind(path, sockets::bind_public))
            .transpose()?,
        admin: config
            .admin_socket_path
            .as_ref()
            .map(|path| bind(path, sockets::bind_admin))
            .transpose()?,
    })
}

fn bind(
    path: &Path,
    bind: fn(&Path) -> Result<LocalListener, sockets::SocketError>,
) -> anyhow::Result<LocalListener> {
    Ok(bind(path)?)
}

fn start_actors(
    config: &Config,
    (sockets, proxies): (Sockets, Proxies),
    (node, workload_attestors, bundle_sources): (
        Rc<dyn NodeAttestor>,
        Vec<Rc<dyn WorkloadAttestor>>,
        BundleSources,
    ),
    descriptor_limit: u64,
    exit: mpsc::UnboundedSender<Exit>,
) -> anyhow::Result<Started> {
    let trust_domain = TrustDomain::parse(&config.trust_domain)
        .map_err(|error| anyhow!("trust_domain {error}"))?;
    let clock = Clock::system();
    let mut random = Random::from_entropy();
    let (credentials, credentials_reader) = watch::channel(None);
    let (readiness, readiness_reader) = readiness();

    let store_config = StoreConfig {
        data_dir: config.data_dir.clone(),
        keys_dir: keys_dir(config)?,
    };
    let store_clock = clock.clone();
    let store = SyncArbiter::start(1, move || {
        Store::new(store_config.clone(), store_clock.clone())
    });

    let cache = Cache::new(
        trust_domain.clone(),
        config.x509_svid_cache_max_size,
        clock.clone(),
    )
    .start();

    let selectors = Selectors::new(workload_attestors, clock.clone()).start();

    let endpoint_config = EndpointConfig {
        serve_workload_api: !config.disable_workload_api,
        allow_unauthenticated_verifiers: config.allow_unauthenticated_verifiers,
        descriptor_limit,
    };
    let services = Services {
        selectors: selectors.recipient(),
        cache: cache.clone().recipient(),
        facts: cache.clone().recipient(),
        readiness: readiness_reader,
        credentials: credentials_reader.clone(),
        clock: clock.clone(),
    };
    let endpoint = Endpoint::new(&endpoint_config, sockets, services).start();

    let server = ServerClient::new(ClientConfig {
        address: config.server_address.clone(),
        port: config.server_port,
        trust_domain: trust_domain.clone(),
        credentials: credentials_reader.clone(),
        clock: clock.clone(),
        random: random.fork(),
        use_sync_authorized_entries: config.experimental.use_sync_authorized_entries,
        proxies,
        require_pq_kem: config.experimental.require_pq_kem,
    })?;
    let synchronizer_config = SynchronizerConfig {
        trust_domain: trust_domain.clone(),
        sync_interval: config.sync_interval,
        key_type: key_type(config.workload_key_type),
        availability_target: config.availability_target,
    };
    let synchronizer = Synchronizer::new(
        synchronizer_config,
        Rc::clone(&server),
        CacheHandle::of(&cache),
        credentials_reader,
        Arc::clone(&readiness),
        (clock.clone(), random.fork()),
    )
    .start();

    let banned = Ban {
        cache: cache.clone(),
        endpoint: endpoint.clone(),
    }
    .start();
    let attestor_config = AttestorConfig {
        trust_domain,
        server_address: config.server_address.clone(),
        server_port: config.server_port,
        bundle_sources,
        rebootstrap: rebootstrap(config),
        availability_target: config.availability_target,
        arrival_spread: config.edge.arrival_spread,
    };
    let tools = AttestorTools {
        node,
        server: Rc::clone(&server),
        store: StoreHandle::of(&store),
        synchronizer: synchronizer.clone().recipient(),
        cache: cache.clone().recipient(),
        banned: banned.recipient(),
        credentials,
        readiness: Arc::clone(&readiness),
        exit,
        clock,
        random,
    };
    let attestor = Attestor::new(attestor_config, tools).start();

    close_cycles(&cache, &synchronizer, &attestor)?;
    Ok(Started {
        endpoint,
        attestor,
        server,
        readiness,
    })
}

/// Returns once the server has been away for as long as the agent is to bear it; never without a limit (design D2).
async fn cut_off(started: &Started, limit: Option<Duration>) -> Exit {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    let ask = async || Rc::clone(&started.server).bundle().await.map(drop);
    let readiness = Arc::clone(&started.readiness);
    out_of_reach(readiness, limit, Clock::system(), ask).await;
    let limit = humantime::format_duration(limit);
    Exit {
        code: 1,
        reason: format!("server was out of reach for {limit} (exit_if_unreachable_for)"),
    }
}

fn close_cycles(
    cache: &Addr<Cache>,
    synchronizer: &Addr<Synchronizer>,
    attestor: &Addr<Attestor>,
) -> anyhow::Result<()> {
    let report_to = ReportTo {
        rejected: attestor.clone().recipient(),
        accepted: attestor.clone().recipient(),
        unknown: attestor.clone().recipient(),
        bundle: attestor.clone().recipient(),
    };
    synchronizer
        .try_send(report_to)
        .context("the synchronizer has just been started")?;
    cache
        .try_send(ReportMissing(synchronizer.clone().recipient()))
        .context("the cache has just been started")?;
    Ok(())
}

/// Withdraws every identity before a banned agent ends (design D5). An actor of its own, so that the attestor knows neither cache nor endpoint.
struct Ban {
    cache: Addr<Cache>,
    endpoint: Addr<Endpoint>,
}

impl Actor for Ban {
    type Context = Context<Self>;
}

impl Handler<Banned> for Ban {
    type Result = ();

    fn handle(&mut self, _: Banned, _: &mut Self::Context) {
        // Both mailboxes have room for what happens once in a life; if one is gone the process is ending already.
        if self.cache.try_send(Forget).is_err()
            || self
                .endpoint
                .try_send(EndStreams {
                    text: "agent is banned".into(),
                })
                .is_err()
        {
            tracing::warn!("identities could not be withdrawn in order");
        }
    }
}

fn keys_dir(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    match &config.key_manager {
        config::KeyManager::Memory => Ok(None),
        config::KeyManager::Disk { directory } => Ok(Some(directory.clone())),
        config::KeyManager::Other(_) => {
            bail!("the configured key manager is not available in this build yet")
        }
    }
}

fn workload_attestors(
    config: &Config,
    proc_root: &Path,
    clock: &Clock,
) -> anyhow::Result<Vec<Rc<dyn WorkloadAttestor>>> {
    let mut attestors: Vec<Rc<dyn WorkloadAttestor>> = Vec::new();
    for attestor in &config.workload_attestors {
        if let config::WorkloadAttestor::Unix {
            discover_workload_path,
            workload_size_limit,
        } = attestor
        {
            let unix = UnixConfig {
                discover_workload_path: *discover_workload_path,
                workload_size_limit: *workload_size_limit,
                proc_root: proc_root.to_owned(),
            };
            attestors.push(Rc::new(UnixAttestor::new(unix, clock.clone())));
        }
    }
    if attestors.is_empty() {
        bail!("none of the configured workload attestors is available in this build yet");
    }
    Ok(attestors)
}

/// The classic source is asked first.
fn bundle_sources(config: &Config, web: Web) -> BundleSources {
    let classic = config.trust_bundle.iter().cloned();
    let listed = config.edge.trust_bundle_sources.iter().cloned();
    let all = classic.map(PinnedSource::unpinned).chain(listed);
    BundleSources::new(all.collect(), web)
}

fn rebootstrap(config: &Config) -> RebootstrapConfig {
    RebootstrapConfig {
        mode: match config.rebootstrap.mode {
            config::RebootstrapMode::Never => RebootstrapMode::Never,
            config::RebootstrapMode::Auto => RebootstrapMode::Auto,
            config::RebootstrapMode::Always => RebootstrapMode::Always,
        },
        delay: config.rebootstrap.delay,
    }
}

fn key_type(kind: config::KeyType) -> actors::keys::KeyType {
    match kind {
        config::KeyType::EcP256 => actors::keys::KeyType::EcP256,
        config::KeyType::EcP384 => actors::keys::KeyType::EcP384,
        config::KeyType::Rsa2048 => actors::keys::KeyType::Rsa2048,
    }
}

/// Shutdown flows against the arrows: callers are told first.
async fn drain(endpoint: &Addr<Endpoint>) {
    match tokio::time::timeout(SHUTDOWN_LIMIT, endpoint.send(Drain)).await {
        Ok(Ok(drained)) if drained.cut > 0 => {
            tracing::warn!(connections = drained.cut, "connections had to be cut");
        }
        Ok(Ok(_)) => {}
        Ok(Err(_)) => tracing::warn!("endpoint was gone already"),
        Err(_) => tracing::warn!("endpoint did not drain in time"),
    }
}

/// An SVID that the server grants only once is not left on the way. An attestor that is gone has nothing to wait for.
async fn settle(attestor: &Addr<Attestor>) {
    let settled = tokio::time::timeout(SHUTDOWN_LIMIT, attestor.send(Settle)).await;
    if settled.is_err() {
        tracing::warn!("an attestation was under way and could not be waited for any longer");
    }
}

fn conclude(ended: Option<Exit>) -> u8 {
    match ended {
        None => {
            tracing::info!("Agent stopped gracefully");
            0
        }
        Some(Exit { code, reason }) => {
            tracing::error!(error = reason, "Agent crashed");
            code
        }
    }
}
