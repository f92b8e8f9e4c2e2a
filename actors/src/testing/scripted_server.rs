//! A server that answers what a test says, signs with a real authority, and keeps a log of calls by the virtual clock.

#![expect(
    clippy::missing_panics_doc,
    reason = "a test that misuses its tools is to panic"
)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::certificates::Ca;
use crate::attestor::node::{Answer, Evidence, EvidenceError, NodeAttestor, Proof};
use crate::bundle::Bundle;
use crate::clock::Clock;
use crate::credentials::ServerTrust;
use crate::entry::{Entry, EntryId, EntrySync, EntryVersion, KnownEntries};
use crate::selector::{Selector, SelectorSet};
use crate::server::{Attestation, Reply, ServerApi, ServerError, SigningRefusal, SigningRequest};
use crate::spiffe_id::{SpiffeId, TrustDomain};
use crate::svid::Certificate;

/// The trust domain of every test.
pub const TRUST_DOMAIN: &str = "domain.test";
/// Servers back-date certificates by this.
const BACK_DATED: Duration = Duration::from_secs(10);

/// One RPC, as the log names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// `AttestAgent`.
    Attest,
    /// `RenewAgent`.
    Renew,
    /// `SyncAuthorizedEntries`.
    Sync,
    /// `GetBundle`, by an attested agent or not.
    Bundle,
    /// `GetFederatedBundle`.
    FederatedBundle,
    /// `BatchNewX509SVID`.
    Sign,
}

/// What a call that is to fail is answered with, and how often.
#[derive(Debug, Clone)]
struct Fault {
    error: ServerError,
    times: usize,
}

/// The server. Shared as `Rc`; everything can be changed while agents talk to it.
pub struct ScriptedServer {
    ca: RefCell<Ca>,
    bundle: RefCell<Option<Bundle>>,
    entries: RefCell<Vec<Arc<Entry>>>,
    federated: RefCell<HashMap<TrustDomain, Bundle>>,
    faults: RefCell<HashMap<Call, Fault>>,
    refused_entries: RefCell<Vec<EntryId>>,
    fails_at: RefCell<Option<EntryId>>,
    log: RefCell<Vec<(Call, Duration)>>,
    batches: RefCell<Vec<usize>>,
    /// Life of workload SVIDs from now on.
    pub svid_ttl: Cell<Duration>,
    /// Life of agent SVIDs from now on.
    pub agent_ttl: Cell<Duration>,
    /// How long a renewal takes.
    pub renewal_takes: Cell<Duration>,
    /// How long an attestation takes.
    pub attestation_takes: Cell<Duration>,
    /// Whether agents renew by attesting again.
    pub reattestable: Cell<bool>,
    /// Workload SVIDs name this ID instead of the entry's.
    pub wrong_id: RefCell<Option<String>>,
    clock: Clock,
}

impl ScriptedServer {
    /// A server without entries that signs for an hour.
    pub fn new(clock: &Clock) -> Rc<Self> {
        Rc::new(Self {
            ca: RefCell::new(Ca::new(clock.wall())),
            bundle: RefCell::default(),
            entries: RefCell::default(),
            federated: RefCell::default(),
            faults: RefCell::default(),
            refused_entries: RefCell::default(),
            fails_at: RefCell::default(),
            log: RefCell::default(),
            batches: RefCell::default(),
            svid_ttl: Cell::new(Duration::from_hours(1)),
            agent_ttl: Cell::new(Duration::from_hours(1)),
            renewal_takes: Cell::default(),
            attestation_takes: Cell::default(),
            reattestable: Cell::new(true),
            wrong_id: RefCell::default(),
            clock: clock.clone(),
        })
    }

    /// Replaces all entries.
    pub fn set_entries(&self, entries: impl IntoIterator<Item = Entry>) {
        *self.entries.borrow_mut() = entries.into_iter().map(Arc::new).collect();
    }

    /// A new authority signs from now on; `told` = whether the bundle names it already.
    pub fn rotate_authority(&self, told: bool) {
        let old = self.current_bundle();
        let ca = Ca::new(self.clock.wall());
        *self.bundle.borrow_mut() = Some(if told { ca.bundle(TRUST_DOMAIN) } else { old });
        *self.ca.borrow_mut() = ca;
    }

    /// Another authority signs and is told of from now on; the one before is handed back.
    pub fn swap_authority(&self, ca: Ca) -> Ca {
        *self.bundle.borrow_mut() = None;
        self.ca.replace(ca)
    }

    /// The bundle names the current authority again.
    pub fn publish_authority(&self) {
        *self.bundle.borrow_mut() = None;
    }

    /// The bundle of another trust domain; none = `NOT_FOUND`.
    pub fn set_federated(&self, bundle: Bundle) {
        self.federated
            .borrow_mut()
            .insert(bundle.trust_domain.clone(), bundle);
    }

    /// Answers a call with an error, so many times.
    pub fn fail(&self, call: Call, error: ServerError, times: usize) {
        self.faults
            .borrow_mut()
            .insert(call, Fault { error, times });
    }

    /// Answers everything again.
    pub fn mend(&self) {
        self.faults.borrow_mut().clear();
    }

    /// Signs for these entries no more.
    pub fn refuse_to_sign(&self, ids: &[&str]) {
        *self.refused_entries.borrow_mut() = ids.iter().map(|id| entry_id(id)).collect();
    }

    /// Fails as a whole at every signing call that asks for this entry.
    pub fn fail_at(&self, id: Option<&str>) {
        *self.fails_at.borrow_mut() = id.map(entry_id);
    }

    /// When a call was made, by the boot clock.
    pub fn times(&self, call: Call) -> Vec<Duration> {
        self.log
            .borrow()
            .iter()
            .filter(|(logged, _)| *logged == call)
            .map(|(_, at)| *at)
            .collect()
    }

    /// How often a call was made.
    pub fn count(&self, call: Call) -> usize {
        self.times(call).len()
    }

    /// How many SVIDs each signing call asked for.
    pub fn batches(&self) -> Vec<usize> {
        self.batches.borrow().clone()
    }

    /// The bundle as callers get it.
    pub fn current_bundle(&self) -> Bundle {
        self.bundle
            .borrow()
            .clone()
            .unwrap_or_else(|| self.ca.borrow().bundle(TRUST_DOMAIN))
    }

    fn is_trusted_by(&self, trust: &ServerTrust) -> bool {
        let ca = self.ca.borrow();
        match trust {
            ServerTrust::Insecure => true,
            ServerTrust::Bundle(bundle) => bundle
                .x509_authorities()
                .iter()
                .any(|authority| authority.certificate == *ca.certificate()),
        }
    }

    fn enter(&self, call: Call) -> Result<(), ServerError> {
        self.log.borrow_mut().push((call, self.clock.now().boot));
        let mut faults = self.faults.borrow_mut();
        match faults.get_mut(&call) {
            Some(fault) if fault.times > 0 => {
                fault.times -= 1;
                Err(fault.error.clone())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn issue(&self, csr: &[u8], id: &str, ttl: Duration) -> Vec<Certificate> {
        let now = self.clock.wall();
        self.ca
            .borrow()
            .chain_for_request(csr, id, now - BACK_DATED, now + ttl)
    }

    fn sign(&self, request: &SigningRequest) -> Result<Vec<Certificate>, SigningRefusal> {
        let entries = self.entries.borrow();
        let entry = entries.iter().find(|entry| entry.id == request.entry_id);
        match entry.filter(|entry| !self.refused_entries.borrow().contains(&entry.id)) {
            Some(entry) => {
                let id = self
                    .wrong_id
                    .borrow()
                    .clone()
                    .unwrap_or_else(|| entry.spiffe_id.to_string());
                Ok(self.issue(&request.csr, &id, self.svid_ttl.get()))
            }
            None => Err(SigningRefusal {
                code: tonic::Code::NotFound,
                message: "entry not found or not authorized".into(),
            }),
        }
    }
}

impl ServerApi for ScriptedServer {
    fn attest(
        self: Rc<Self>,
        trust: ServerTrust,
        _: Box<dyn Proof>,
        csr: Vec<u8>,
    ) -> Reply<Attestation> {
        if !self.is_trusted_by(&trust) {
            return Box::pin(ready(Err(ServerError::UnknownAuthority {
                peer: "server.test:8081".into(),
            })));
        }
        let answer = self.enter(Call::Attest).map(|()| Attestation {
            chain: self.issue(
                &csr,
                "spiffe://domain.test/spire/agent/test/node",
                self.agent_ttl.get(),
            ),
            reattestable: self.reattestable.get(),
        });
        Box::pin(async move {
            tokio::time::sleep(self.attestation_takes.get()).await;
            answer
        })
    }

    fn bootstrap_bundle(self: Rc<Self>, _: ServerTrust) -> Reply<Bundle> {
        self.bundle()
    }

    fn renew(self: Rc<Self>, csr: Vec<u8>) -> Reply<Vec<Certificate>> {
        let answer = self.enter(Call::Renew).map(|()| {
            self.issue(
                &csr,
                "spiffe://domain.test/spire/agent/test/node",
                self.agent_ttl.get(),
            )
        });
        Box::pin(async move {
            tokio::time::sleep(self.renewal_takes.get()).await;
            answer
        })
    }

    fn sync_entries(self: Rc<Self>, known: KnownEntries) -> Reply<EntrySync> {
        let answer = self.enter(Call::Sync).map(|()| {
            let entries = self.entries.borrow();
            EntrySync {
                changed: entries
                    .iter()
                    .filter(|entry| known.get(&entry.id) != Some(&entry.version))
                    .cloned()
                    .collect(),
                present: entries.iter().map(|entry| entry.id.clone()).collect(),
                skipped: Vec::new(),
            }
        });
        Box::pin(ready(answer))
    }

    fn bundle(self: Rc<Self>) -> Reply<Bundle> {
        Box::pin(ready(
            self.enter(Call::Bundle).map(|()| self.current_bundle()),
        ))
    }

    fn federated_bundle(self: Rc<Self>, trust_domain: TrustDomain) -> Reply<Option<Bundle>> {
        Box::pin(ready(
            self.enter(Call::FederatedBundle)
                .map(|()| self.federated.borrow().get(&trust_domain).cloned()),
        ))
    }

    fn sign_x509(
        self: Rc<Self>,
        requests: Vec<SigningRequest>,
    ) -> Reply<Vec<Result<Vec<Certificate>, SigningRefusal>>> {
        self.batches.borrow_mut().push(requests.len());
        let fails_at = self.fails_at.borrow();
        let is_upset = |request: &SigningRequest| Some(&request.entry_id) == fails_at.as_ref();
        if requests.iter().any(is_upset) {
            return Box::pin(ready(Err(ServerError::Status {
                call: "BatchNewX509SVID",
                code: tonic::Code::Internal,
                message: "told to fail".into(),
                reason: None,
            })));
        }
        let answer = self
            .enter(Call::Sign)
            .map(|()| requests.iter().map(|request| self.sign(request)).collect());
        Box::pin(ready(answer))
    }

    fn disconnect(&self) {}
}

impl fmt::Debug for ScriptedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedServer")
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

/// A way in that the scripted server believes without a question.
#[derive(Debug)]
pub struct TrustedNode;

#[derive(Debug)]
struct TrustedProof;

impl NodeAttestor for TrustedNode {
    fn name(&self) -> &'static str {
        "test"
    }

    fn may_attest_again(&self) -> bool {
        true
    }

    fn prepare(self: Rc<Self>) -> Evidence {
        Box::pin(ready(Ok(Box::new(TrustedProof) as Box<dyn Proof>)))
    }
}

impl Proof for TrustedProof {
    fn attestor_name(&self) -> &'static str {
        "test"
    }

    fn payload(&self) -> Vec<u8> {
        b"trust me".to_vec()
    }

    fn respond<'a>(&'a mut self, _: &'a [u8]) -> Answer<'a> {
        Box::pin(ready(Err(EvidenceError::Challenge(
            "nobody challenges this node".into(),
        ))))
    }
}

/// An error that passes by itself.
pub fn unavailable() -> ServerError {
    ServerError::Unreachable {
        peer: "127.0.0.1:8081".into(),
        reason: "told to fail".into(),
    }
}

/// An entry ID.
pub fn entry_id(id: &str) -> EntryId {
    EntryId::new(id).expect("tests name their entries")
}

/// An entry `id` that grants `/id` to `unix:uid:<uid>`.
pub fn entry(id: &str, uid: u32) -> Entry {
    let trust_domain = TrustDomain::parse(TRUST_DOMAIN).expect("a valid name");
    Entry {
        id: entry_id(id),
        spiffe_id: SpiffeId::from_parts(&trust_domain, &format!("/{id}"))
            .expect("tests name valid paths"),
        selectors: uid_selectors(uid),
        federates_with: Vec::new(),
        version: EntryVersion {
            revision: 0,
            created_at: 1,
        },
        hint: String::new(),
        admin: false,
        downstream: false,
        store_svid: false,
        disable_x509_svid_prefetch: false,
        jwt_svid_include_jti: false,
    }
}

/// The selectors `unix:uid:<uid>`.
pub fn uid_selectors(uid: u32) -> SelectorSet {
    std::iter::once(Selector::new("unix", &format!("uid:{uid}")).expect("a valid selector"))
        .collect()
}
