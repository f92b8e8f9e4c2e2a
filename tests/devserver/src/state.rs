//! Everything the server knows, behind one lock that is never held across an await.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use proto::spire::api::types;
use tokio::sync::watch;

use crate::authorize::AgentRecord;
use crate::ca::{Authorities, Leaf, NOT_BEFORE_CUSHION, Signer};
use crate::certificate::{Issuer, Serial};
use crate::clock::{self, Seconds};
use crate::entries::{self, Entries};
use crate::generations::Generations;
use crate::jwt::JwtAuthority;
use crate::script::{Call, Script, SvidTwist};
use crate::settings::Settings;
use crate::transport::{Network, Phase};

/// What the RPCs and the control handle share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Wakes whoever waits for a call or a phase.
    changed: Condvar,
    /// What the network does to connections.
    pub(crate) network: watch::Sender<Network>,
    /// The phase that is asked for.
    pub(crate) wanted: watch::Sender<Phase>,
}

impl Shared {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            network: watch::Sender::new(Network::default()),
            wanted: watch::Sender::new(Phase::Serving),
        }
    }

    /// The state. A panic of another holder leaves it usable: every change is complete in itself.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down a call and returns its number.
    pub(crate) fn record(&self, call: Call) -> usize {
        let mut state = self.state();
        state.script.calls.push(call);
        let number = state.script.calls.len() - 1;
        drop(state);
        self.changed.notify_all();
        number
    }

    /// Says which phase the server has reached.
    pub(crate) fn reached(&self, phase: Phase) {
        self.state().phase = phase;
        self.changed.notify_all();
    }

    /// Blocks until `is_met` or the deadline; true if it was met.
    pub(crate) fn wait(
        &self,
        at_most: std::time::Duration,
        is_met: impl Fn(&State) -> bool,
    ) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), at_most, |state| !is_met(state))
            .unwrap_or_else(PoisonError::into_inner);
        is_met(&state)
    }
}

/// The state of a server.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) authorities: Authorities,
    pub(crate) jwt_authorities: Generations<JwtAuthority>,
    pub(crate) agents: BTreeMap<String, AgentRecord>,
    /// Join tokens with their end.
    pub(crate) join_tokens: BTreeMap<String, Seconds>,
    pub(crate) entries: Entries,
    pub(crate) script: Script,
    pub(crate) phase: Phase,
    pub(crate) connections: u64,
    pub(crate) next_attestation: Option<tokio::time::Instant>,
    /// Raised by every change of the bundle.
    pub(crate) bundle_sequence: u64,
}

/// An X.509-SVID to be signed.
#[derive(Clone, Debug)]
pub(crate) struct SvidRequest {
    /// The encoded `SubjectPublicKeyInfo` of the holder.
    pub(crate) public_key: Vec<u8>,
    /// The path of the SPIFFE ID.
    pub(crate) path: String,
    pub(crate) dns_names: Vec<String>,
    pub(crate) ttl: Seconds,
    /// How long it has already lived.
    pub(crate) age: Seconds,
    pub(crate) hint: String,
}

/// A signed X.509-SVID, or none where the script says so.
#[derive(Clone, Debug)]
pub(crate) struct SignedSvid {
    pub(crate) svid: Option<types::X509svid>,
    pub(crate) serial: Serial,
    pub(crate) not_after: Seconds,
}

impl State {
    pub(crate) fn new(settings: Settings) -> Self {
        let now = clock::unix_now(settings.clock_offset);
        Self {
            authorities: Authorities::new(
                &settings.trust_domain,
                settings.ca_ttl,
                settings.with_intermediate,
                now,
            ),
            jwt_authorities: Generations::new(JwtAuthority::generate(now + settings.ca_ttl)),
            settings,
            agents: BTreeMap::new(),
            join_tokens: BTreeMap::new(),
            entries: Entries::default(),
            script: Script::default(),
            phase: Phase::Stopped,
            connections: 0,
            next_attestation: None,
            bundle_sequence: 1,
        }
    }

    /// The server's Unix time.
    pub(crate) fn now(&self) -> Seconds {
        clock::unix_now(self.settings.clock_offset)
    }

    /// The SPIFFE ID of a path in the trust domain.
    pub(crate) fn id_text(&self, path: &str) -> String {
        entries::id_text(&self.settings.trust_domain, path)
    }

    /// Signs an X.509-SVID, wrongly if `twist` says so.
    pub(crate) fn sign_svid(&self, request: SvidRequest, twist: Option<SvidTwist>) -> SignedSvid {
        let now = self.now();
        let ttl = match twist {
            Some(SvidTwist::Lifetime(lifetime)) => lifetime,
            _ => request.ttl,
        };
        let path = match twist {
            Some(SvidTwist::WrongId) => "/not-yours".to_owned(),
            _ => request.path,
        };
        let public_key = match twist {
            Some(SvidTwist::WrongKey) => Issuer::generate(Vec::new()).public_key(),
            _ => request.public_key,
        };
        let signer = match twist {
            Some(SvidTwist::ForeignAuthority) => Signer::Foreign,
            Some(SvidTwist::Generation(number)) => Signer::Generation(number),
            _ => Signer::Active,
        };
        let mut leaf = Leaf {
            public_key,
            uris: vec![self.id_text(&path)],
            dns_names: request.dns_names,
            not_before: now - NOT_BEFORE_CUSHION - request.age,
            not_after: now + ttl,
        };
        if twist == Some(SvidTwist::NoUri) {
            leaf.uris.clear();
            leaf.dns_names = vec!["no-uri.test".to_owned()];
        }
        let issued = self.authorities.issue(signer, leaf);
        let cert_chain = match twist {
            Some(SvidTwist::EmptyChain) => Vec::new(),
            Some(SvidTwist::GarbageChain) => vec![b"garbage".to_vec()],
            _ => issued.chain,
        };
        let svid = types::X509svid {
            cert_chain,
            id: Some(entries::spiffe_id(&self.settings.trust_domain, &path)),
            expires_at: issued.not_after,
            hint: request.hint,
        };
        SignedSvid {
            svid: (twist != Some(SvidTwist::Missing)).then_some(svid),
            serial: issued.serial,
            not_after: issued.not_after,
        }
    }

    /// The bundle of the trust domain as it stands, without what is scripted.
    pub(crate) fn bundle(&self, only: Option<&[usize]>) -> types::Bundle {
        types::Bundle {
            trust_domain: self.settings.trust_domain.clone(),
            x509_authorities: self.authorities.bundle(only),
            jwt_authorities: crate::jwt::bundle(&self.jwt_authorities),
            refresh_hint: self.settings.refresh_hint,
            sequence_number: self.bundle_sequence,
            wit_authorities: Vec::new(),
        }
    }
}
