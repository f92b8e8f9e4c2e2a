//! The handle with which a test or the demo plays the server's operator, its adversary and its witness.

use std::sync::Arc;
use std::time::Duration;

use proto::spire::api::server::entry::v1::EntryRevision;
use proto::spire::api::types;

use crate::authorize::AgentRecord;
use crate::certificate::{self, hex, random_bytes};
use crate::clock::Seconds;
use crate::entries::Entry;
use crate::jwt::JwtAuthority;
use crate::script::{AttestTwist, Call, Fault, FederatedBundle, JwtTwist, SignTwist, SvidTwist};
use crate::settings::Settings;
use crate::state::{Shared, State};
use crate::transport::{ConnectionFault, Network, Phase};

/// How long a stop, a start or an end may take.
const PHASE_DEADLINE: Duration = Duration::from_secs(10);

/// Controls one server from any thread. Clones control the same server.
#[derive(Clone, Debug)]
pub struct Control {
    shared: Arc<Shared>,
}

/// Settings, entries, tokens and agents: what an operator does.
impl Control {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Changes the settings; the next handshake or call sees it.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.shared.state().settings);
    }

    /// Adds an entry with revision 0; one of the same ID is replaced by it, as if deleted and made anew.
    pub fn add_entry(&self, entry: Entry) {
        let mut state = self.shared.state();
        let now = state.now();
        state.entries.add(entry, now);
    }

    /// Changes an entry and raises its revision. False if there is no such entry.
    pub fn update_entry(&self, id: &str, change: impl FnOnce(&mut Entry)) -> bool {
        self.shared.state().entries.update(id, change)
    }

    /// Removes an entry. False if there is no such entry.
    pub fn remove_entry(&self, id: &str) -> bool {
        self.shared.state().entries.remove(id)
    }

    /// All entries, by ID.
    pub fn entries(&self) -> Vec<Entry> {
        let state = self.shared.state();
        state
            .entries
            .all()
            .map(|stored| stored.entry.clone())
            .collect()
    }

    /// Makes a join token that lives for `ttl` seconds.
    pub fn create_join_token(&self, ttl: Seconds) -> String {
        let random: [u8; 16] = random_bytes();
        let token = hex(&random);
        let mut state = self.shared.state();
        let ends_at = state.now() + ttl;
        state.join_tokens.insert(token.clone(), ends_at);
        token
    }

    /// All attested agents, by SPIFFE ID.
    pub fn agents(&self) -> Vec<AgentRecord> {
        self.shared.state().agents.values().cloned().collect()
    }

    /// Forgets an agent, which may attest again. False if it is unknown.
    pub fn evict_agent(&self, id: &str) -> bool {
        self.shared.state().agents.remove(id).is_some()
    }

    /// Bans an agent. False if it is unknown.
    pub fn ban_agent(&self, id: &str) -> bool {
        let mut state = self.shared.state();
        state
            .agents
            .get_mut(id)
            .map(|agent| agent.is_banned = true)
            .is_some()
    }
}

/// Authorities and bundles.
impl Control {
    /// Adds an X.509 authority to the bundle and returns its number; number 0 was made at the start.
    pub fn prepare_x509_authority(&self) -> usize {
        self.change_bundle(|state| {
            let now = state.now();
            state
                .authorities
                .prepare(state.settings.ca_ttl, state.settings.with_intermediate, now)
        })
    }

    /// Lets X.509 authority `number` sign from now on. False if there is none of that number.
    pub fn activate_x509_authority(&self, number: usize) -> bool {
        self.shared.state().authorities.generations.activate(number)
    }

    /// Marks X.509 authority `number` as tainted. False if there is none of that number.
    pub fn taint_x509_authority(&self, number: usize) -> bool {
        self.change_bundle(|state| state.authorities.generations.taint(number))
    }

    /// Takes X.509 authority `number` out of the bundle and refuses its clients. False if there is none.
    pub fn revoke_x509_authority(&self, number: usize) -> bool {
        self.change_bundle(|state| state.authorities.generations.revoke(number))
    }

    /// Adds a JWT key to the bundle and returns its number; number 0 was made at the start.
    pub fn prepare_jwt_authority(&self) -> usize {
        self.change_bundle(|state| {
            let expires_at = state.now() + state.settings.ca_ttl;
            state
                .jwt_authorities
                .prepare(JwtAuthority::generate(expires_at))
        })
    }

    /// Lets JWT key `number` sign from now on. False if there is none of that number.
    pub fn activate_jwt_authority(&self, number: usize) -> bool {
        self.shared.state().jwt_authorities.activate(number)
    }

    /// Marks JWT key `number` as tainted. False if there is none of that number.
    pub fn taint_jwt_authority(&self, number: usize) -> bool {
        self.change_bundle(|state| state.jwt_authorities.taint(number))
    }

    /// Takes JWT key `number` out of the bundle. False if there is none of that number.
    pub fn revoke_jwt_authority(&self, number: usize) -> bool {
        self.change_bundle(|state| state.jwt_authorities.revoke(number))
    }

    /// The bundle as it stands, without what is scripted.
    pub fn bundle(&self) -> types::Bundle {
        self.shared.state().bundle(None)
    }

    /// The X.509 authorities of the bundle as PEM.
    pub fn bundle_pem(&self) -> String {
        let authorities = self.bundle().x509_authorities;
        authorities
            .iter()
            .map(|authority| certificate::pem("CERTIFICATE", &authority.asn1))
            .collect()
    }

    /// Answers `GetFederatedBundle` for `trust_domain`; with `None` it is `NOT_FOUND` again.
    pub fn set_federated_bundle(&self, trust_domain: &str, bundle: Option<FederatedBundle>) {
        let federated = &mut self.shared.state().script.federated;
        match bundle {
            Some(bundle) => federated.insert(trust_domain.to_owned(), bundle),
            None => federated.remove(trust_domain),
        };
    }

    /// Adds bytes to the X.509 authorities of `GetBundle`, DER or not.
    pub fn add_bundle_authority(&self, asn1: Vec<u8>) {
        self.change_bundle(|state| {
            let authority = types::X509Certificate {
                asn1,
                tainted: false,
            };
            state.script.extra_authorities.push(authority);
        });
    }

    /// Shows these generations of the CA in turn, one list at each `GetBundle`; an empty cycle ends that.
    pub fn cycle_bundles(&self, cycle: Vec<Vec<usize>>) {
        let mut state = self.shared.state();
        state.script.bundle_cycle = cycle;
        state.script.bundle_cycle_position = 0;
    }

    fn change_bundle<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.shared.state();
        state.bundle_sequence += 1;
        change(&mut state)
    }
}

/// Faults and twists.
impl Control {
    /// Adds a fault; see [`Fault`] for the order in which they apply.
    pub fn add_fault(&self, fault: Fault) {
        self.shared.state().script.faults.push(fault);
    }

    /// Removes all faults of RPCs.
    pub fn clear_faults(&self) {
        self.shared.state().script.faults.clear();
    }

    /// Lets attestations go wrong until `None` is set.
    pub fn twist_attestation(&self, twist: Option<AttestTwist>) {
        self.shared.state().script.attest = twist;
    }

    /// Lets renewals of agent SVIDs go wrong until `None` is set.
    pub fn twist_renewal(&self, twist: Option<SvidTwist>) {
        self.shared.state().script.renew = twist;
    }

    /// Lets the X.509-SVID of an entry go wrong until `None` is set.
    pub fn twist_signing(&self, entry_id: &str, twist: Option<SignTwist>) {
        let sign = &mut self.shared.state().script.sign;
        match twist {
            Some(twist) => sign.insert(entry_id.to_owned(), twist),
            None => sign.remove(entry_id),
        };
    }

    /// Lets JWT-SVIDs of an entry go wrong until `None` is set.
    pub fn twist_jwt(&self, entry_id: &str, twist: Option<JwtTwist>) {
        let jwt = &mut self.shared.state().script.jwt;
        match twist {
            Some(twist) => jwt.insert(entry_id.to_owned(), twist),
            None => jwt.remove(entry_id),
        };
    }

    /// Sends these entries after the real ones, as they are, valid or not.
    pub fn set_raw_entries(&self, entries: Vec<types::Entry>) {
        self.shared.state().script.raw_entries = entries;
    }

    /// Sends these revisions after the real ones, as they are, valid or not.
    pub fn set_raw_revisions(&self, revisions: Vec<EntryRevision>) {
        self.shared.state().script.raw_revisions = revisions;
    }

    /// Leaves these entries out when a sync asks for them in full, though their revisions were listed.
    pub fn set_vanished_entries(&self, ids: &[&str]) {
        self.shared.state().script.vanished = ids.iter().map(|&id| id.to_owned()).collect();
    }

    /// What happens to new connections from now on.
    pub fn set_connection_fault(&self, fault: ConnectionFault) {
        self.change_network(|network| network.new_connections = fault);
    }

    /// Freezes or thaws the open connections: neither side hears of it.
    pub fn freeze_connections(&self, is_frozen: bool) {
        self.change_network(|network| network.is_frozen = is_frozen);
    }

    /// Sends a GOAWAY on every open connection; running calls may finish.
    pub fn go_away(&self) {
        self.change_network(|network| network.go_aways += 1);
    }

    /// Ends every open connection at once.
    pub fn close_connections(&self) {
        self.change_network(|network| network.closes += 1);
    }

    fn change_network(&self, change: impl FnOnce(&mut Network)) {
        self.shared.network.send_modify(change);
    }
}

/// Counters.
impl Control {
    /// All calls so far, in the order of arrival.
    pub fn all_calls(&self) -> Vec<Call> {
        self.shared.state().script.calls.clone()
    }

    /// The calls of one RPC so far; see [`rpc`](crate::rpc) for the names.
    pub fn calls(&self, rpc: &str) -> Vec<Call> {
        let state = self.shared.state();
        state
            .script
            .calls
            .iter()
            .filter(|call| call.rpc == rpc)
            .cloned()
            .collect()
    }

    /// How often one RPC was called so far.
    pub fn count(&self, rpc: &str) -> usize {
        count(&self.shared.state(), rpc)
    }

    /// Forgets all calls so far.
    pub fn clear_calls(&self) {
        self.shared.state().script.calls.clear();
    }

    /// Blocks until an RPC has been called `at_least` times; false at the deadline. Not for a thread whose runtime must
    /// make the calls: poll [`Control::count`] there.
    pub fn wait_for_calls(&self, rpc: &str, at_least: usize, deadline: Duration) -> bool {
        self.shared
            .wait(deadline, |state| count(state, rpc) >= at_least)
    }

    /// How many connections have finished their TLS handshake so far.
    pub fn connections(&self) -> u64 {
        self.shared.state().connections
    }

    /// Why TLS handshakes have failed, in order.
    pub fn handshake_failures(&self) -> Vec<String> {
        self.shared.state().script.handshake_failures.clone()
    }
}

/// The server as a whole.
impl Control {
    /// Closes the port and all connections; returns when that is done. All state stays.
    pub fn stop(&self) -> bool {
        self.enter(Phase::Stopped)
    }

    /// Serves again on the same port after [`Control::stop`]; returns when the port is open, false if it is taken.
    pub fn start(&self) -> bool {
        self.enter(Phase::Serving)
    }

    /// Stops and starts.
    pub fn restart(&self) -> bool {
        self.stop() && self.start()
    }

    pub(crate) fn end(&self) -> bool {
        self.enter(Phase::Ended)
    }

    fn enter(&self, phase: Phase) -> bool {
        self.shared.wanted.send_replace(phase);
        self.shared
            .wait(PHASE_DEADLINE, |state| state.phase == phase)
    }
}

fn count(state: &State, rpc: &str) -> usize {
    state
        .script
        .calls
        .iter()
        .filter(|call| call.rpc == rpc)
        .count()
}
