//! The SPIFFE Workload API. Each method: security header, arguments, who calls, what that entitles to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use proto::workload as api;
use proto::workload::spiffe_workload_api_server::SpiffeWorkloadApi;
use tonic::{Request, Response, Status};

use crate::bundle::Bundle;
use crate::cache::view::{Identity, View, Waiting, WorkloadUpdate};
use crate::selector::SelectorSet;
use crate::spiffe_id::SpiffeId;

use super::caller::{Caller, Gate};
use super::entitlement::{self, Served};
use super::jwks;
use super::stage;
use super::status::Refusal;
use super::updates::{Answers, Next, Subscription, Updates};

const SECURITY_HEADER: &str = "workload.spiffe.io";
const NO_JWT_SVIDS: &str = "JWT-SVIDs are not served by this build";
const NO_WIT_SVIDS: &str = "fetching WIT-SVIDs is not implemented";
const NO_WIT_BUNDLES: &str = "fetching WIT bundles is not implemented";

/// The service behind the public socket.
#[derive(Debug)]
pub(super) struct WorkloadApi {
    gate: Arc<Gate>,
    allow_unauthenticated_verifiers: bool,
}

/// `FetchX509SVID` on one stream.
#[derive(Debug, Default)]
pub(super) struct X509Svids {
    sent: Option<(Served, Arc<WorkloadUpdate>)>,
}

/// `FetchX509Bundles` on one stream.
#[derive(Debug)]
pub(super) struct X509Bundles {
    allow_strangers: bool,
    sent: Option<Vec<Arc<Bundle>>>,
}

/// `FetchJWTBundles` on one stream.
#[derive(Debug)]
pub(super) struct JwtBundles {
    allow_strangers: bool,
    sent: Option<HashMap<String, Bytes>>,
}

impl WorkloadApi {
    /// The service behind a gate.
    pub(super) fn new(gate: Arc<Gate>, allow_unauthenticated_verifiers: bool) -> Self {
        Self {
            gate,
            allow_unauthenticated_verifiers,
        }
    }

    /// Opens a stream of what `answers` makes of the caller's view.
    async fn open<A: Answers, R>(
        &self,
        request: &Request<R>,
        answers: A,
    ) -> Result<Response<Updates<A>>, Status> {
        let caller = admit(request)?;
        let mut stage = self.gate.stage();
        let view = stage::unless_ended(&mut stage, async {
            let selectors = self.gate.attest(&caller).await?;
            self.gate.subscribe(selectors).await
        })
        .await?;
        let gate = Arc::clone(&self.gate);
        Ok(Response::new(
            Subscription {
                gate,
                caller,
                view,
                stage,
                answers,
            }
            .into(),
        ))
    }

    async fn attest(&self, caller: &Caller) -> Result<SelectorSet, Refusal> {
        stage::unless_ended(&mut self.gate.stage(), self.gate.attest(caller)).await
    }

    /// The caller's identities that a token may be asked for, filtered by the ID it wants.
    async fn identities(
        &self,
        caller: &Caller,
        wanted: Option<&SpiffeId>,
    ) -> Result<Vec<Identity>, Refusal> {
        let update = stage::unless_ended(&mut self.gate.stage(), async {
            let selectors = self.gate.attest(caller).await?;
            self.gate
                .current(self.gate.subscribe(selectors).await?)
                .await
        })
        .await?;
        let (mut identities, _) = entitlement::filter_hints(update.identities.clone());
        identities.retain(|identity| wanted.is_none_or(|id| *id == identity.entry.spiffe_id));
        Ok(identities)
    }
}

#[tonic::async_trait]
impl SpiffeWorkloadApi for WorkloadApi {
    type FetchX509SVIDStream = Updates<X509Svids>;
    type FetchX509BundlesStream = Updates<X509Bundles>;
    type FetchJWTBundlesStream = Updates<JwtBundles>;
    type FetchWITSVIDStream = tokio_stream::Empty<Result<api::WitsvidResponse, Status>>;
    type FetchWITBundlesStream = tokio_stream::Empty<Result<api::WitBundlesResponse, Status>>;

    async fn fetch_x509svid(
        &self,
        request: Request<api::X509svidRequest>,
    ) -> Result<Response<Self::FetchX509SVIDStream>, Status> {
        self.open(&request, X509Svids::default()).await
    }

    async fn fetch_x509_bundles(
        &self,
        request: Request<api::X509BundlesRequest>,
    ) -> Result<Response<Self::FetchX509BundlesStream>, Status> {
        let allow_strangers = self.allow_unauthenticated_verifiers;
        self.open(
            &request,
            X509Bundles {
                allow_strangers,
                sent: None,
            },
        )
        .await
    }

    async fn fetch_jwtsvid(
        &self,
        request: Request<api::JwtsvidRequest>,
    ) -> Result<Response<api::JwtsvidResponse>, Status> {
        let caller = admit(&request)?;
        let asked = request.into_inner();
        if asked.audience.is_empty() {
            return Err(Refusal::NoAudience.into());
        }
        let wanted = match asked.spiffe_id.as_str() {
            "" => None,
            text => Some(SpiffeId::parse(text).map_err(Refusal::RequestedId)?),
        };
        if self.identities(&caller, wanted.as_ref()).await?.is_empty() {
            self.gate.log_no_identity(&caller, "FetchJWTSVID");
            return Err(Refusal::NoIdentity.into());
        }
        Err(Refusal::Unimplemented(NO_JWT_SVIDS).into())
    }

    async fn fetch_jwt_bundles(
        &self,
        request: Request<api::JwtBundlesRequest>,
    ) -> Result<Response<Self::FetchJWTBundlesStream>, Status> {
        let allow_strangers = self.allow_unauthenticated_verifiers;
        self.open(
            &request,
            JwtBundles {
                allow_strangers,
                sent: None,
            },
        )
        .await
    }

    async fn validate_jwtsvid(
        &self,
        request: Request<api::ValidateJwtsvidRequest>,
    ) -> Result<Response<api::ValidateJwtsvidResponse>, Status> {
        let caller = admit(&request)?;
        let asked = request.get_ref();
        if asked.audience.is_empty() {
            return Err(Refusal::NoAudience.into());
        }
        if asked.svid.is_empty() {
            return Err(Refusal::NoSvid.into());
        }
        self.attest(&caller).await?;
        Err(Refusal::Unimplemented(NO_JWT_SVIDS).into())
    }

    async fn fetch_witsvid(
        &self,
        request: Request<api::WitsvidRequest>,
    ) -> Result<Response<Self::FetchWITSVIDStream>, Status> {
        admit(&request)?;
        Err(Refusal::Unimplemented(NO_WIT_SVIDS).into())
    }

    async fn fetch_wit_bundles(
        &self,
        request: Request<api::WitBundlesRequest>,
    ) -> Result<Response<Self::FetchWITBundlesStream>, Status> {
        admit(&request)?;
        Err(Refusal::Unimplemented(NO_WIT_BUNDLES).into())
    }
}

/// Checks the security header: exactly one value, exactly `true` (Workload Endpoint 6.1). Says who calls.
fn admit<R>(request: &Request<R>) -> Result<Arc<Caller>, Refusal> {
    let mut values = request.metadata().get_all(SECURITY_HEADER).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if value.as_encoded_bytes() == b"true" => {}
        _ => return Err(Refusal::SecurityHeader),
    }
    request.extensions().get().cloned().ok_or(Refusal::Fault)
}

impl Answers for X509Svids {
    type Message = api::X509svidResponse;
    const METHOD: &'static str = "FetchX509SVID";

    fn next(&mut self, view: &View, now: SystemTime) -> Next<Self::Message> {
        let update = match view {
            View::Waiting(waiting) => return wait(*waiting, self.sent.is_none()),
            View::Ready(update) if update.identities.is_empty() => {
                return Next::End(Refusal::NoIdentity);
            }
            View::Ready(update) => update,
        };
        let served = entitlement::served(update, now);
        if served.identities.is_empty() {
            return match served.recheck {
                None => wait(Waiting::Expired, self.sent.is_none()),
                nap => Next::Wait(nap),
            };
        }
        if let Some((before, sent)) = &self.sent
            && entitlement::same_x509_svids(
                (&before.identities, sent),
                (&served.identities, update),
            )
        {
            return Next::Wait(served.recheck);
        }
        let message = x509_message(&served.identities, update);
        self.sent = Some((served, Arc::clone(update)));
        Next::Send(message)
    }

    fn log_sent(&self, gate: &Gate, caller: &Caller, now: SystemTime) {
        let Some((served, _)) = &self.sent else {
            return;
        };
        for Identity { entry, .. } in &served.repeated_hints {
            gate.log_repeated_hint(caller, &entry.hint, entry.id.as_str());
        }
        let (pid, count) = (caller.peer.pid, served.identities.len());
        for Identity { entry, svid } in &served.identities {
            let ttl = svid
                .not_after()
                .duration_since(now)
                .unwrap_or_default()
                .as_secs_f64();
            tracing::debug!(
                service = "WorkloadAPI", method = Self::METHOD, pid, spiffe_id = %entry.spiffe_id, count, ttl, registered = true,
                "Fetched X.509 SVID"
            );
        }
    }
}

impl Answers for X509Bundles {
    type Message = api::X509BundlesResponse;
    const METHOD: &'static str = "FetchX509Bundles";

    fn next(&mut self, view: &View, _: SystemTime) -> Next<Self::Message> {
        let bundles = match bundles(view, self.allow_strangers, self.sent.is_none()) {
            Ok(bundles) => bundles,
            Err(next) => return next,
        };
        if self
            .sent
            .as_ref()
            .is_some_and(|sent| entitlement::same_x509_bundles(sent, &bundles))
        {
            return Next::Wait(None);
        }
        let message = api::X509BundlesResponse {
            crl: Vec::new(),
            bundles: bundles.iter().map(|bundle| x509_pair(bundle)).collect(),
        };
        self.sent = Some(bundles);
        Next::Send(message)
    }
}

impl Answers for JwtBundles {
    type Message = api::JwtBundlesResponse;
    const METHOD: &'static str = "FetchJWTBundles";

    fn next(&mut self, view: &View, _: SystemTime) -> Next<Self::Message> {
        let bundles = match bundles(view, self.allow_strangers, self.sent.is_none()) {
            Ok(bundles) => bundles,
            Err(next) => return next,
        };
        let pair = |bundle: &Arc<Bundle>| {
            Ok((
                bundle.trust_domain.id_string(),
                jwks::write(&bundle.jwt_authorities)?.into(),
            ))
        };
        match bundles
            .iter()
            .map(pair)
            .collect::<Result<HashMap<_, Bytes>, jwks::JwksError>>()
        {
            Err(error) => Next::End(Refusal::Serialization(error.to_string())),
            Ok(bundles) if self.sent.as_ref() == Some(&bundles) => Next::Wait(None),
            Ok(bundles) => {
                self.sent = Some(bundles.clone());
                Next::Send(api::JwtBundlesResponse { bundles })
            }
        }
    }
}

/// The bundles for a caller, or what follows if there are none to be sent.
fn bundles<M>(
    view: &View,
    allow_strangers: bool,
    is_first: bool,
) -> Result<Vec<Arc<Bundle>>, Next<M>> {
    match view {
        View::Waiting(waiting) => Err(wait(*waiting, is_first)),
        View::Ready(update) if update.identities.is_empty() && !allow_strangers => {
            Err(Next::End(Refusal::NoIdentity))
        }
        View::Ready(update) => Ok(entitlement::bundles(update)),
    }
}

/// Streams wait, except that a new one is told at once when everything has expired (design D6).
fn wait<M>(waiting: Waiting, is_first: bool) -> Next<M> {
    match waiting {
        Waiting::Expired if is_first => Next::End(Refusal::Waiting(waiting)),
        Waiting::FirstSync | Waiting::Signing | Waiting::Expired => Next::Wait(None),
    }
}

fn x509_message(identities: &[Identity], update: &WorkloadUpdate) -> api::X509svidResponse {
    let svid = |Identity { entry, svid }: &Identity| api::X509svid {
        spiffe_id: entry.spiffe_id.to_string(),
        x509_svid: svid.chain_der().clone(),
        x509_svid_key: svid.key.expose_pkcs8_shared(),
        bundle: update.bundle.x509_der().clone(),
        hint: entry.hint.clone(),
    };
    api::X509svidResponse {
        svids: identities.iter().map(svid).collect(),
        crl: Vec::new(),
        federated_bundles: update
            .federated
            .values()
            .map(|bundle| x509_pair(bundle))
            .collect(),
    }
}

fn x509_pair(bundle: &Bundle) -> (String, Bytes) {
    (bundle.trust_domain.id_string(), bundle.x509_der().clone())
}
