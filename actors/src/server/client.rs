//! The real server client: tonic's generated clients over connections of our own. Owns the one shared mTLS connection and
//! the connection of the last attestation. What answers mean is decided in [`super::entries`] and [`super::status`].

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proto::spire::api::server::agent::v1::agent_client::AgentClient;
use proto::spire::api::server::agent::v1::{AgentX509svidParams, RenewAgentRequest};
use proto::spire::api::server::bundle::v1::bundle_client::BundleClient;
use proto::spire::api::server::bundle::v1::{GetBundleRequest, GetFederatedBundleRequest};
use proto::spire::api::server::entry::v1::entry_client::EntryClient;
use proto::spire::api::server::entry::v1::{
    GetAuthorizedEntriesRequest, SyncAuthorizedEntriesRequest,
};
use proto::spire::api::server::svid::v1::svid_client::SvidClient;
use proto::spire::api::server::svid::v1::{
    BatchNewX509svidRequest, NewX509svidParams, batch_new_x509svid_response,
};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

use super::attest::{self, AttestLimits, chain_of, parse_chain};
use super::connect::{ConnectLimits, Connection, Dialer};
use super::entries::{self, Exchange, Next, SyncLimits};
use super::link::LinkLimits;
use super::status::{Failure, clean};
use super::wire::Wire;
use super::{Attestation, Reply, ServerApi, ServerError, SigningRefusal, SigningRequest};
use crate::attestor::node::Proof;
use crate::bundle::Bundle;
use crate::clock::Clock;
use crate::credentials::{CredentialsReader, ServerTrust};
use crate::entry::{EntrySync, KnownEntries};
use crate::random::Random;
use crate::spiffe_id::{SpiffeId, TrustDomain};
use crate::svid::{Certificate, X509Svid};

/// How long the server may take to end a stream after its last message.
const FAREWELL: Duration = Duration::from_secs(2);

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
    /// Silence within a call.
    silence: Duration,
}

/// A place for one connection, filled by the first call that needs it while others wait.
#[derive(Debug)]
struct Slot {
    svid: Arc<X509Svid>,
    connection: OnceCell<Rc<Connection>>,
}

/// Which calls may be made again when the connection broke under them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Asking twice is as good as asking once.
    Always,
    /// Only if the request never left.
    IfNotSent,
}

/// What a call works with.
struct Call {
    wire: Wire,
    deadline: Instant,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: ConnectLimits {
                resolve: seconds(10),
                connect: seconds(5),
                handshake: seconds(15),
            },
            link: LinkLimits {
                idle: seconds(30),
                before_ping: seconds(30),
                ping_answer: seconds(15),
            },
            attest: AttestLimits {
                queue: Duration::from_mins(10),
                challenge: seconds(30),
                first_byte: seconds(15),
            },
            sync: SyncLimits::default(),
            call: seconds(30),
            silence: seconds(15),
        }
    }
}

impl ServerClient {
    /// Makes a client; nothing is dialled before the first call.
    #[expect(
        clippy::new_ret_no_self,
        reason = "everybody else knows the port alone"
    )]
    pub fn new(config: ClientConfig) -> Rc<dyn ServerApi> {
        Rc::new(Self::with_limits(config, Limits::default()))
    }

    fn with_limits(config: ClientConfig, limits: Limits) -> Self {
        let server_id = SpiffeId::of_server(&config.trust_domain);
        let address = (config.address.as_str(), config.port);
        Self {
            dialer: Dialer::new(
                address,
                server_id,
                config.clock,
                config.random,
                (limits.connect, limits.link),
            ),
            limits,
            trust_domain: config.trust_domain,
            credentials: config.credentials,
            use_sync_authorized_entries: config.use_sync_authorized_entries,
            shared: RefCell::new(None),
            attested: RefCell::new(None),
        }
    }

    /// Makes a call over the shared connection: dials where needed, gives up in time, and makes a call once more that the
    /// end of an older connection cut off.
    async fn call<T>(
        &self,
        name: &'static str,
        repeat: Repeat,
        work: impl AsyncFn(Call) -> Result<T, Failure>,
    ) -> Result<T, ServerError> {
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
            let failure = match self.run(&connection, deadline, &work).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if failure.is_of_the_connection() {
                self.forget(&connection);
            }
            let again = may_repeat
                && !is_new
                && failure.is_break()
                && (repeat == Repeat::Always || failure.was_not_sent());
            if !again {
                return Err(failure.into_error(name, self.dialer.peer(), connection.alert()));
            }
            may_repeat = false;
        }
    }

    /// One try over one connection. A connection that falls silent is cut: whatever else runs on it is lost as well.
    async fn run<T>(
        &self,
        connection: &Connection,
        deadline: Instant,
        work: &impl AsyncFn(Call) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _need = connection.needed(false);
        let call = Call {
            wire: connection.wire(),
            deadline,
        };
        tokio::select! {
            biased;
            outcome = work(call) => outcome,
            () = connection.silence(self.limits.silence) => {
                connection.sever();
                Err(Failure::Silent(self.limits.silence))
            }
            () = tokio::time::sleep_until(deadline) => Err(Failure::Late(self.limits.call)),
        }
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
        let work = async |call: Call| get_bundle(call, &self.trust_domain).await;
        let kept = self.attested.borrow_mut().take();
        if let Some(connection) = kept.filter(Connection::is_usable) {
            match self.run(&connection, deadline, &work).await {
                Err(failure) if failure.is_break() => {}
                outcome => {
                    return outcome.map_err(|failure| {
                        failure.into_error("GetBundle", self.dialer.peer(), connection.alert())
                    });
                }
            }
        }
        let connection = timeout_at(deadline, self.dialer.dial(trust, None))
            .await
            .unwrap_or(Err(ServerError::TimedOut {
                call: "GetBundle",
                limit: self.limits.call,
            }))?;
        self.run(&connection, deadline, &work)
            .await
            .map_err(|failure| {
                failure.into_error("GetBundle", self.dialer.peer(), connection.alert())
            })
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
            self.call("RenewAgent", Repeat::IfNotSent, async |call| {
                let request = call.request(message.clone());
                chain_of(
                    AgentClient::new(call.wire)
                        .renew_agent(request)
                        .await?
                        .into_inner()
                        .svid,
                )
            })
            .await
        })
    }

    fn sync_entries(self: Rc<Self>, known: KnownEntries) -> Reply<EntrySync> {
        Box::pin(async move {
            if self.use_sync_authorized_entries {
                let work = async |call| {
                    sync_entries(call, &known, &self.trust_domain, self.limits.sync).await
                };
                self.call("SyncAuthorizedEntries", Repeat::Always, work)
                    .await
            } else {
                let work = async |call| all_entries(call, &self.trust_domain).await;
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

impl Call {
    /// A request that tells the server how much time is left.
    fn request<M>(&self, message: M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.deadline.saturating_duration_since(Instant::now()));
        request
    }
}

async fn get_bundle(call: Call, own: &TrustDomain) -> Result<Bundle, Failure> {
    let request = call.request(GetBundleRequest { output_mask: None });
    let message = BundleClient::new(call.wire)
        .get_bundle(request)
        .await?
        .into_inner();
    Bundle::from_proto(message, own)
        .map_err(|error| Failure::Malformed(format!("an unusable bundle: {error}")))
}

async fn get_federated_bundle(
    call: Call,
    trust_domain: &TrustDomain,
) -> Result<Option<Bundle>, Failure> {
    let request = call.request(GetFederatedBundleRequest {
        trust_domain: trust_domain.name().to_owned(),
        output_mask: None,
    });
    let message = match BundleClient::new(call.wire)
        .get_federated_bundle(request)
        .await
    {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
        Err(status) => return Err(status.into()),
    };
    match Bundle::from_proto(message, trust_domain) {
        Ok(bundle) => Ok(Some(bundle)),
        Err(error) => Err(Failure::Malformed(format!(
            "an unusable bundle of {trust_domain}: {error}"
        ))),
    }
}

async fn sync_entries(
    call: Call,
    known: &KnownEntries,
    own: &TrustDomain,
    limits: SyncLimits,
) -> Result<EntrySync, Failure> {
    let (requests, request_stream) = mpsc::channel(1);
    let request = call.request(ReceiverStream::new(request_stream));
    // A failure to send is no reason: the status that ended the stream comes when reading.
    drop(
        requests
            .send(SyncAuthorizedEntriesRequest {
                output_mask: Some(entries::MASK),
                ids: Vec::new(),
            })
            .await,
    );
    let mut stream = EntryClient::new(call.wire)
        .sync_authorized_entries(request)
        .await?
        .into_inner();
    let mut exchange = Exchange::new(known, own, limits);
    loop {
        let message = stream
            .message()
            .await?
            .ok_or_else(|| Failure::Malformed("too few entries".to_owned()))?;
        match exchange.receive(message).map_err(Failure::Malformed)? {
            Next::Receive => {}
            Next::Request(ids) => drop(
                requests
                    .send(SyncAuthorizedEntriesRequest {
                        output_mask: None,
                        ids,
                    })
                    .await,
            ),
            Next::Done => break,
        }
    }
    drop(requests);
    match timeout(FAREWELL, stream.message()).await {
        Ok(Err(status)) => Err(status.into()),
        Ok(Ok(Some(_))) => Err(Failure::Malformed("more than it was asked for".to_owned())),
        Ok(Ok(None)) | Err(_) => Ok(exchange.finish()),
    }
}

async fn all_entries(call: Call, own: &TrustDomain) -> Result<EntrySync, Failure> {
    let request = call.request(GetAuthorizedEntriesRequest {
        output_mask: Some(entries::MASK),
    });
    let message = EntryClient::new(call.wire)
        .get_authorized_entries(request)
        .await?
        .into_inner();
    Ok(entries::complete_list(message.entries, own))
}

async fn sign(
    call: Call,
    message: &BatchNewX509svidRequest,
) -> Result<Vec<Result<Vec<Certificate>, SigningRefusal>>, Failure> {
    let request = call.request(message.clone());
    let results = SvidClient::new(call.wire)
        .batch_new_x509svid(request)
        .await?
        .into_inner()
        .results;
    if results.len() != message.params.len() {
        return Err(Failure::Malformed(format!(
            "{} results to {} requests",
            results.len(),
            message.params.len()
        )));
    }
    Ok(results.into_iter().map(outcome).collect())
}

fn outcome(
    result: batch_new_x509svid_response::Result,
) -> Result<Vec<Certificate>, SigningRefusal> {
    let status = result.status.unwrap_or_default();
    let code = tonic::Code::from_i32(status.code);
    if code != tonic::Code::Ok {
        return Err(SigningRefusal {
            code,
            message: clean(&status.message),
        });
    }
    let damaged = |problem: &str| SigningRefusal {
        code: tonic::Code::DataLoss,
        message: format!("unusable SVID: {problem}"),
    };
    let svid = result.svid.ok_or_else(|| damaged("there is none"))?;
    parse_chain(&svid).map_err(|problem| damaged(&problem))
}

#[cfg(test)]
mod tests;
