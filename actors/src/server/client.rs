//! The real server client: tonic's generated clients over connections of our own. Owns the one shared mTLS connection and
//! the connection of the last attestation. What is said on them is in
//! [`super::calls`] and [`super::attest`]; what failures mean is decided in [`super::status`].

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proto::spire::api::server::agent::v1::{AgentX509svidParams, RenewAgentRequest};
use proto::spire::api::server::svid::v1::{BatchNewX509svidRequest, NewX509svidParams};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use super::address::{AddressError, ServerAddress};
use super::attest::{self, AttestLimits};
use super::calls::{self, Call, get_bundle, get_federated_bundle, sign};
use super::connect::{Connection, Dialer};
use super::entries::SyncLimits;
use super::link::{LinkLimits, Patience, PingLimits};
use super::route::{ConnectLimits, Route};
use super::status::Failure;
use super::{Attestation, Reply, ServerApi, ServerError, SigningRefusal, SigningRequest};
use crate::attestor::node::Proof;
use crate::bundle::Bundle;
use crate::clock::Clock;
use crate::credentials::{CredentialsReader, ServerTrust};
use crate::entry::{EntrySync, KnownEntries};
use crate::proxy::{Proxies, ProxyError};
use crate::random::Random;
use crate::spiffe_id::{SpiffeId, TrustDomain};
use crate::svid::{Certificate, X509Svid};

/// What the client is given.
#[derive(Debug)]
pub struct ClientConfig {
    /// Name or address of the server; IPv6 with or without brackets.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// The agent's trust domain: the server must be that domain's.
    pub trust_domain: TrustDomain,
    /// The agent's identity and trust anchors, read at each handshake.
    pub credentials: CredentialsReader,
    /// What certificates are checked against.
    pub clock: Clock,
    /// Orders the server's addresses at each connection.
    pub random: Random,
    /// `SyncAuthorizedEntries` (true) or `GetAuthorizedEntries` (false).
    pub use_sync_authorized_entries: bool,
    /// The proxies of the environment.
    pub proxies: Proxies,
    /// Whether a connection must use a post-quantum key exchange.
    pub require_pq_kem: bool,
}

/// The client of one server.
#[derive(Debug)]
pub struct ServerClient {
    dialer: Dialer,
    limits: Limits,
    trust_domain: TrustDomain,
    credentials: CredentialsReader,
    use_sync_authorized_entries: bool,
    /// The connection that all calls with credentials share.
    shared: RefCell<Option<Rc<Slot>>>,
    /// The connection of the last attestation, for the one call that follows it.
    attested: RefCell<Option<Connection>>,
}

/// How long things may take, and how much may come.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connect: ConnectLimits,
    link: LinkLimits,
    attest: AttestLimits,
    sync: SyncLimits,
    /// One call, from dialling to its last byte.
    call: Duration,
}

/// A place for one connection, filled by the first call that needs it while others wait.
#[derive(Debug)]
struct Slot {
    svid: Arc<X509Svid>,
    connection: OnceCell<Rc<Connection>>,
}

/// One try of a call; what it brings goes past it.
type Attempt<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// Which calls may be made again when the connection broke under them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Asking twice is as good as asking once.
    Always,
    /// Only if the server surely did nothing about it.
    IfNotProcessed,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: ConnectLimits {
                resolve: seconds(10),
                connect: seconds(5),
                head_start: Duration::from_millis(250),
                tunnel: seconds(15),
                handshake: seconds(15),
            },
            link: LinkLimits {
                idle: seconds(30),
                farewell: seconds(1),
                // A dead connection is noticed after 15 s in all.
                call: PingLimits {
                    after: seconds(10),
                    answer: seconds(5),
                },
                queue: PingLimits {
                    after: seconds(30),
                    answer: seconds(15),
                },
            },
            attest: AttestLimits {
                queue: Duration::from_mins(10),
                challenge: seconds(30),
                first_byte: seconds(15),
            },
            sync: SyncLimits::default(),
            call: seconds(30),
        }
    }
}

/// Why no server can be reached by these settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// The address leads nowhere.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The proxy that is to be asked cannot be.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl ServerClient {
    /// Makes a client; nothing is dialled before the first call. Fails if the address can lead nowhere.
    #[expect(
        clippy::new_ret_no_self,
        reason = "everybody else knows the port alone"
    )]
    pub fn new(config: ClientConfig) -> Result<Rc<dyn ServerApi>, NoWay> {
        Ok(Rc::new(Self::with_limits(config, Limits::default())?))
    }

    fn with_limits(config: ClientConfig, limits: Limits) -> Result<Self, NoWay> {
        let server_id = SpiffeId::of_server(&config.trust_domain);
        let address = ServerAddress::parse(&config.address, config.port)?;
        let route = Route::new(address, &config.proxies, limits.connect, config.random)?;
        Ok(Self {
            dialer: Dialer::new(
                route,
                server_id,
                config.clock,
                config.require_pq_kem,
                (limits.connect.handshake, limits.link),
            ),
            limits,
            trust_domain: config.trust_domain,
            credentials: config.credentials,
            use_sync_authorized_entries: config.use_sync_authorized_entries,
            shared: RefCell::new(None),
            attested: RefCell::new(None),
        })
    }

    /// Makes a call over the shared connection: dials where needed, gives up in time, and makes a call once more that the
    /// end of an older connection cut off or that the server did not look at.
    async fn call<T>(
        &self,
        name: &'static str,
        repeat: Repeat,
        work: impl AsyncFn(Call) -> Result<T, Failure>,
    ) -> Result<T, ServerError> {
        let answer = RefCell::new(None);
        let work = |call| -> Attempt<'_> {
            Box::pin(async {
                let given = work(call).await?;
                answer.replace(Some(given));
                Ok(())
            })
        };
        self.call_erased(name, repeat, &work).await?;
        Ok(answer.take().expect("a call that succeeded has an answer"))
    }

    /// [`Self::call`] for all kinds of answers: its code exists once.
    async fn call_erased<'a>(
        &self,
        name: &'static str,
        repeat: Repeat,
        work: &dyn Fn(Call) -> Attempt<'a>,
    ) -> Result<(), ServerError> {
        let deadline = Instant::now() + self.limits.call;
        let mut may_repeat = true;
        loop {
            let (connection, is_new) =
                timeout_at(deadline, self.connection())
                    .await
                    .unwrap_or(Err(ServerError::TimedOut {
                        call: name,
                        limit: self.limits.call,
                    }))?;
            let failure = match self.run(&connection, deadline, work).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            if failure.is_of_the_connection() {
                self.forget(&connection);
            }
            let again = may_repeat
                && failure.is_break()
                && (failure.was_not_processed() || (!is_new && repeat == Repeat::Always));
            if !again {
                return Err(failure.into_error(name, self.dialer.peer(), connection.alert()));
            }
            may_repeat = false;
        }
    }

    /// One try over one connection, which ends the call when its peer is gone.
    async fn run<'a>(
        &self,
        connection: &Connection,
        deadline: Instant,
        work: &dyn Fn(Call) -> Attempt<'a>,
    ) -> Result<(), Failure> {
        let _need = connection.needed(Patience::Call);
        let call = Call {
            wire: connection.wire(),
            deadline,
        };
        timeout_at(deadline, work(call))
            .await
            .unwrap_or(Err(Failure::Late(self.limits.call)))
    }

    /// The shared connection, and whether it was opened just now. Opened with the newest credentials; one that was opened
    /// with older ones is left to the calls that run on it.
    async fn connection(&self) -> Result<(Rc<Connection>, bool), ServerError> {
        let credentials = self
            .credentials
            .borrow()
            .clone()
            .ok_or(ServerError::NotAttested)?;
        let slot = self.slot(&credentials.svid);
        let mut is_new = false;
        let connection = slot
            .connection
            .get_or_try_init(async || {
                is_new = true;
                if self.dialer.is_full() {
                    // What is kept for convenience must not keep out what is needed.
                    drop(self.attested.take());
                }
                let trust = ServerTrust::Bundle(Arc::clone(&credentials.bundle));
                self.dialer
                    .dial(trust, Some(&credentials.svid))
                    .await
                    .map(Rc::new)
            })
            .await?;
        Ok((Rc::clone(connection), is_new))
    }

    fn slot(&self, svid: &Arc<X509Svid>) -> Rc<Slot> {
        let mut shared = self.shared.borrow_mut();
        if let Some(slot) = &*shared
            && slot.svid.leaf() == svid.leaf()
            && slot
                .connection
                .get()
                .is_none_or(|connection| connection.is_usable())
        {
            return Rc::clone(slot);
        }
        let slot = Rc::new(Slot {
            svid: Arc::clone(svid),
            connection: OnceCell::new(),
        });
        *shared = Some(Rc::clone(&slot));
        slot
    }

    fn forget(&self, connection: &Rc<Connection>) {
        let mut shared = self.shared.borrow_mut();
        if shared
            .as_ref()
            .and_then(|slot| slot.connection.get())
            .is_some_and(|held| Rc::ptr_eq(held, connection))
        {
            *shared = None;
        }
    }

    /// `GetBundle` after an attestation, over its connection while that stands, else over another without certificate.
    async fn bundle_without_credentials(&self, trust: ServerTrust) -> Result<Bundle, ServerError> {
        let deadline = Instant::now() + self.limits.call;
        let answer = RefCell::new(None);
        let work = |call| -> Attempt<'_> {
            Box::pin(async {
                let bundle = get_bundle(call, &self.trust_domain).await?;
                answer.replace(Some(bundle));
                Ok(())
            })
        };
        let failed = |failure: Failure, connection: &Connection| {
            failure.into_error("GetBundle", self.dialer.peer(), connection.alert())
        };
        let given = || answer.take().expect("a call that succeeded has an answer");
        let kept = self.attested.borrow_mut().take();
        if let Some(connection) = kept.filter(Connection::is_usable) {
            match self.run(&connection, deadline, &work).await {
                Ok(()) => return Ok(given()),
                Err(failure) if failure.is_break() => {}
                Err(failure) => return Err(failed(failure, &connection)),
            }
        }
        let connection = timeout_at(deadline, self.dialer.dial(trust, None))
            .await
            .unwrap_or(Err(ServerError::TimedOut {
                call: "GetBundle",
                limit: self.limits.call,
            }))?;
        match self.run(&connection, deadline, &work).await {
            Ok(()) => Ok(given()),
            Err(failure) => Err(failed(failure, &connection)),
        }
    }
}

impl ServerApi for ServerClient {
    fn attest(
        self: Rc<Self>,
        trust: ServerTrust,
        proof: Box<dyn Proof>,
        csr: Vec<u8>,
    ) -> Reply<Attestation> {
        Box::pin(async move {
            drop(self.attested.take());
            let connection = self.dialer.dial(trust, None).await?;
            match attest::attest(&connection, self.limits.attest, proof, csr).await {
                Ok(attestation) => {
                    self.attested.replace(Some(connection));
                    Ok(attestation)
                }
                Err(failure) => {
                    let error =
                        failure.into_error("AttestAgent", self.dialer.peer(), connection.alert());
                    connection.sever();
                    Err(error)
                }
            }
        })
    }

    fn bootstrap_bundle(self: Rc<Self>, trust: ServerTrust) -> Reply<Bundle> {
        Box::pin(async move { self.bundle_without_credentials(trust).await })
    }

    fn renew(self: Rc<Self>, csr: Vec<u8>) -> Reply<Vec<Certificate>> {
        Box::pin(async move {
            let message = RenewAgentRequest {
                params: Some(AgentX509svidParams { csr }),
            };
            let work = async |call| calls::renew(call, &message).await;
            self.call("RenewAgent", Repeat::IfNotProcessed, work).await
        })
    }

    fn sync_entries(self: Rc<Self>, known: KnownEntries) -> Reply<EntrySync> {
        Box::pin(async move {
            if self.use_sync_authorized_entries {
                let work = async |call| {
                    calls::sync_entries(call, &known, &self.trust_domain, self.limits.sync).await
                };
                self.call("SyncAuthorizedEntries", Repeat::Always, work)
                    .await
            } else {
                let work = async |call| calls::all_entries(call, &self.trust_domain).await;
                self.call("GetAuthorizedEntries", Repeat::Always, work)
                    .await
            }
        })
    }

    fn bundle(self: Rc<Self>) -> Reply<Bundle> {
        Box::pin(async move {
            self.call("GetBundle", Repeat::Always, async |call| {
                get_bundle(call, &self.trust_domain).await
            })
            .await
        })
    }

    fn federated_bundle(self: Rc<Self>, trust_domain: TrustDomain) -> Reply<Option<Bundle>> {
        Box::pin(async move {
            let work = async |call| get_federated_bundle(call, &trust_domain).await;
            self.call("GetFederatedBundle", Repeat::Always, work).await
        })
    }

    fn sign_x509(
        self: Rc<Self>,
        requests: Vec<SigningRequest>,
    ) -> Reply<Vec<Result<Vec<Certificate>, SigningRefusal>>> {
        Box::pin(async move {
            // The server refuses an empty list.
            if requests.is_empty() {
                return Ok(Vec::new());
            }
            let params: Vec<_> = requests
                .into_iter()
                .map(|request| NewX509svidParams {
                    entry_id: request.entry_id.to_string(),
                    csr: request.csr,
                })
                .collect();
            let message = BatchNewX509svidRequest { params };
            self.call("BatchNewX509SVID", Repeat::Always, async |call| {
                sign(call, &message).await
            })
            .await
        })
    }

    fn disconnect(&self) {
        drop(self.shared.take());
        drop(self.attested.take());
    }
}

#[cfg(test)]
mod tests;
