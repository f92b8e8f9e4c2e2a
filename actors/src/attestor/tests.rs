//! The actor in virtual time with a scripted server and a store in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use actix::{Addr, MessageResult};
use tokio::sync::{mpsc, watch};
use tokio::time::{pause, sleep};

use super::rebootstrap::RebootstrapMode;
use super::trust::BundleSource;
use super::*;
use crate::credentials::CredentialsReader;
use crate::exit::Exit;
use crate::keys::PrivateKey;
use crate::readiness::{Phase, ReadinessReader, readiness};
use crate::server::DeniedReason;
use crate::store::{
    DeleteSvid, SaveBootstrap, SaveBundle, SaveKey, SaveSvid, StoreError, StoredIdentity,
};
use crate::svid::Certificate;
use crate::testing::certificates::Ca;
use crate::testing::epoch;
use crate::testing::probe::{Probe, Seen};
use crate::testing::scripted_server::{
    Call, ScriptedServer, TRUST_DOMAIN, TrustedNode, unavailable,
};

mod giving_up;
mod rebootstrapping;
mod rows;
mod stopping;

/// A disk in memory that can be made to fail, and that remembers the order of writes.
#[derive(Debug, Default)]
struct Disk {
    chain: Vec<Certificate>,
    reattestable: bool,
    bundle: Vec<Certificate>,
    keys: BTreeMap<KeySlot, Arc<PrivateKey>>,
    bootstrap: BootstrapState,
    writes: Vec<&'static str>,
    is_full: bool,
}

struct MemoryStore(Arc<Mutex<Disk>>);

impl MemoryStore {
    fn write(&self, what: &'static str, change: impl FnOnce(&mut Disk)) -> Result<(), StoreError> {
        let mut disk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if disk.is_full {
            return Err(StoreError::Io {
                action: "write",
                path: what.into(),
                reason: "no space left on device".into(),
            });
        }
        disk.writes.push(what);
        change(&mut disk);
        Ok(())
    }
}

impl Actor for MemoryStore {
    type Context = Context<Self>;
}

impl Handler<LoadIdentity> for MemoryStore {
    type Result = Result<StoredIdentity, StoreError>;

    fn handle(&mut self, _: LoadIdentity, _: &mut Self::Context) -> Self::Result {
        let disk = self.0.lock().unwrap();
        Ok(StoredIdentity {
            chain: disk.chain.clone(),
            bundle: disk.bundle.clone(),
            reattestable: disk.reattestable,
            keys: disk
                .keys
                .iter()
                .map(|(slot, key)| (*slot, Arc::clone(key)))
                .collect(),
            bootstrap: disk.bootstrap,
            set_aside: Vec::new(),
        })
    }
}

impl Handler<SaveKey> for MemoryStore {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, message: SaveKey, _: &mut Self::Context) -> Self::Result {
        self.write("key", |disk| {
            disk.keys.insert(message.slot, message.key);
        })
    }
}

impl Handler<SaveSvid> for MemoryStore {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, message: SaveSvid, _: &mut Self::Context) -> Self::Result {
        self.write("svid", |disk| {
            (disk.chain, disk.reattestable) = (message.chain, message.reattestable);
            if let Some(bundle) = message.bundle {
                disk.bundle = bundle;
            }
            disk.bootstrap = BootstrapState::succeeded();
        })
    }
}

impl Handler<SaveBundle> for MemoryStore {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, message: SaveBundle, _: &mut Self::Context) -> Self::Result {
        self.write("bundle", |disk| disk.bundle = message.authorities)
    }
}

impl Handler<SaveBootstrap> for MemoryStore {
    type Result = Result<(), StoreError>;

    fn handle(
        &mut self,
        SaveBootstrap(state): SaveBootstrap,
        _: &mut Self::Context,
    ) -> Self::Result {
        self.write("bootstrap", |disk| disk.bootstrap = state)
    }
}

impl Handler<DeleteSvid> for MemoryStore {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, _: DeleteSvid, _: &mut Self::Context) -> Self::Result {
        self.write("delete", |disk| disk.chain.clear())
    }
}

/// Says how long anybody is served.
struct Served(Arc<Mutex<Option<SystemTime>>>);

impl Actor for Served {
    type Context = Context<Self>;
}

impl Handler<LastEnd> for Served {
    type Result = MessageResult<LastEnd>;

    fn handle(&mut self, _: LastEnd, _: &mut Self::Context) -> Self::Result {
        MessageResult(*self.0.lock().unwrap())
    }
}

/// A way in that can be taken once.
#[derive(Debug)]
struct OneTimeNode;

impl NodeAttestor for OneTimeNode {
    fn name(&self) -> &'static str {
        "join_token"
    }

    fn may_attest_again(&self) -> bool {
        false
    }

    fn prepare(self: Rc<Self>) -> node::Evidence {
        Rc::new(TrustedNode).prepare()
    }
}

/// What a test chooses before the start.
struct Setup {
    node: Rc<dyn NodeAttestor>,
    source: BundleSource,
    mode: RebootstrapMode,
    arrival_spread: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            node: Rc::new(TrustedNode),
            source: BundleSource::Insecure,
            mode: RebootstrapMode::Never,
            arrival_spread: Duration::ZERO,
        }
    }
}

struct World {
    served_until: Arc<Mutex<Option<SystemTime>>>,
    server: Rc<ScriptedServer>,
    disk: Arc<Mutex<Disk>>,
    attestor: Addr<Attestor>,
    credentials: CredentialsReader,
    readiness: ReadinessReader,
    attested: Seen<Attested>,
    banned: Seen<Banned>,
    exits: mpsc::UnboundedReceiver<Exit>,
    clock: Clock,
}

fn virtual_clock() -> Clock {
    pause();
    Clock::virtual_from(epoch())
}

fn start(clock: Clock, server: Rc<ScriptedServer>, disk: Disk) -> World {
    start_with(Setup::default(), clock, server, disk)
}

fn start_with(setup: Setup, clock: Clock, server: Rc<ScriptedServer>, disk: Disk) -> World {
    let served_until = Arc::new(Mutex::new(None));
    let cache = Served(Arc::clone(&served_until)).start().recipient();
    let disk = Arc::new(Mutex::new(disk));
    let store = MemoryStore(Arc::clone(&disk)).start();
    let (credentials, credentials_reader) = watch::channel(None);
    let (readiness, readiness_reader) = readiness();
    let (synchronizer, attested) = Probe::start_new();
    let (banned, banned_seen) = Probe::start_new();
    let (exit, exits) = mpsc::unbounded_channel();
    let config = AttestorConfig {
        trust_domain: TrustDomain::parse(TRUST_DOMAIN).unwrap(),
        server_address: "server.test".into(),
        server_port: 8081,
        bundle_sources: setup.source.into(),
        rebootstrap: RebootstrapConfig {
            mode: setup.mode,
            delay: Duration::from_mins(10),
        },
        availability_target: None,
        arrival_spread: setup.arrival_spread,
    };
    let tools = AttestorTools {
        node: setup.node,
        server: Rc::clone(&server) as Rc<dyn ServerApi>,
        store: StoreHandle::of(&store),
        synchronizer,
        cache,
        banned,
        credentials,
        readiness,
        exit,
        clock: clock.clone(),
        random: Random::from_seed(9),
    };
    let attestor = Attestor::new(config, tools).start();
    World {
        served_until,
        server,
        disk,
        attestor,
        credentials: credentials_reader,
        readiness: readiness_reader,
        attested,
        banned: banned_seen,
        exits,
        clock,
    }
}

fn world() -> World {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    start(clock, server, Disk::default())
}

impl World {
    async fn pass(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    fn serial(&self) -> Option<String> {
        self.credentials
            .borrow()
            .as_ref()
            .map(|credentials| credentials.svid.leaf().serial_hex())
    }

    fn stored_serial(&self) -> Option<String> {
        self.disk
            .lock()
            .unwrap()
            .chain
            .first()
            .map(Certificate::serial_hex)
    }

    async fn accept(&self) {
        let serial = self.serial().unwrap();
        self.attestor.send(SvidAccepted { serial }).await.unwrap();
    }

    async fn reject(&self, reason: DeniedReason) {
        let error = ServerError::Status {
            call: "SyncAuthorizedEntries",
            code: tonic::Code::PermissionDenied,
            message: "told to fail".into(),
            reason: Some(reason),
        };
        let serial = self.serial().unwrap();
        self.attestor
            .send(SvidRejected {
                serial,
                disposition: error.disposition(),
                error,
            })
            .await
            .unwrap();
    }
}

#[actix::test]
async fn a_first_start_has_key_bundle_and_svid_on_disk_before_the_svid_is_used() {
    let world = world();

    world.pass(1).await;

    assert_eq!(world.disk.lock().unwrap().writes, ["key", "svid"]);
    assert_eq!(world.serial(), world.stored_serial());
    assert_eq!(world.attested.take().len(), 1);
    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn a_warm_start_attests_nothing() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let svid = Ca::new(clock.wall()).svid(
        "spiffe://domain.test/spire/agent/test/node",
        clock.wall(),
        clock.wall() + Duration::from_hours(1),
    );
    let disk = Disk {
        chain: svid.chain().to_vec(),
        reattestable: true,
        bundle: vec![
            server.current_bundle().x509_authorities()[0]
                .certificate
                .clone(),
        ],
        keys: BTreeMap::from([(KeySlot::B, Arc::clone(&svid.key))]),
        ..Disk::default()
    };

    let world = start(clock, server, disk);
    world.pass(60).await;

    assert_eq!(world.server.count(Call::Attest), 0);
    assert_eq!(world.serial(), Some(svid.leaf().serial_hex()));
    assert_eq!(world.attested.take().len(), 1);
}

#[actix::test]
async fn without_a_server_the_agent_tries_for_ever_with_growing_gaps() {
    let world = world();
    world.server.fail(Call::Attest, unavailable(), usize::MAX);

    world.pass(3600).await;

    let times = world.server.times(Call::Attest);
    let gaps: Vec<f64> = times
        .windows(2)
        .map(|pair| pair[1].checked_sub(pair[0]).unwrap().as_secs_f64())
        .collect();
    assert!(gaps[0] >= 5.0 && gaps[0] < 5.7, "{gaps:?}");
    assert!(
        gaps.windows(2).take(6).all(|pair| pair[1] > pair[0]),
        "{gaps:?}"
    );
    assert!(gaps.iter().all(|gap| *gap < 134.0), "{gaps:?}");
    assert!(times.len() > 25);
    assert!(
        matches!(&world.readiness.borrow().phase, Phase::Attesting(Some(error)) if error.contains("unreachable"))
    );
    let writes = world.disk.lock().unwrap().writes.clone();
    assert_eq!(
        writes.iter().filter(|write| **write == "key").count(),
        1,
        "the pending key is used again by every try"
    );
    assert!(
        writes.len() < 10,
        "an outage does not wear the disk: {writes:?}"
    );
    world.server.mend();
    world.pass(140).await;
    assert!(world.serial().is_some());
}

#[actix::test]
async fn an_agent_svid_is_replaced_at_half_life_in_the_other_slot() {
    let world = world();
    world.server.agent_ttl.set(Duration::from_mins(1));

    world.pass(300).await;

    let attested = world.server.count(Call::Attest);
    assert!((10..=15).contains(&attested), "{attested}");
    assert_eq!(world.disk.lock().unwrap().keys.len(), 2);
    assert_eq!(world.serial(), world.stored_serial());
    let left = world
        .credentials
        .borrow()
        .as_ref()
        .unwrap()
        .svid
        .not_after()
        .duration_since(world.clock.wall())
        .unwrap();
    assert!(left > Duration::from_secs(20), "{left:?}");
}

#[actix::test]
async fn an_agent_that_cannot_attest_again_renews() {
    let world = world();
    world.server.agent_ttl.set(Duration::from_mins(1));
    world.server.reattestable.set(false);

    world.pass(100).await;

    assert_eq!(world.server.count(Call::Attest), 1);
    assert!(world.server.count(Call::Renew) >= 3);
    assert!(!world.credentials.borrow().as_ref().unwrap().reattestable);
}

#[actix::test]
async fn an_outage_longer_than_the_agent_svid_is_survived() {
    let mut world = world();
    world.server.agent_ttl.set(Duration::from_mins(1));
    world.pass(1).await;

    world.server.fail(Call::Attest, unavailable(), usize::MAX);
    world.pass(600).await;
    assert!(
        world.exits.try_recv().is_err(),
        "still up, nine minutes after the end of its SVID"
    );
    world.server.mend();
    world.pass(140).await;

    let left = world
        .credentials
        .borrow()
        .as_ref()
        .unwrap()
        .svid
        .not_after()
        .duration_since(world.clock.wall());
    assert!(left.is_ok());
}

#[actix::test]
async fn an_evicted_agent_attests_again_in_process() {
    let mut world = world();
    world.pass(1).await;
    let before = world.serial();

    world.reject(DeniedReason::AgentNotAttested).await;
    world.pass(1).await;

    assert_eq!(world.server.count(Call::Attest), 2);
    assert_ne!(world.serial(), before);
    assert_eq!(world.serial(), world.stored_serial());
    assert!(world.exits.try_recv().is_err());
}

#[actix::test]
async fn a_rejection_of_an_older_svid_is_moot() {
    let world = world();
    world.pass(1).await;
    let error = unavailable();

    world
        .attestor
        .send(SvidRejected {
            serial: "00".into(),
            disposition: Disposition::Reattest,
            error,
        })
        .await
        .unwrap();
    world.pass(1).await;

    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn a_banned_agent_removes_its_svid_withdraws_identities_and_ends() {
    let mut world = world();
    world.pass(1).await;

    world.reject(DeniedReason::AgentBanned).await;
    world.pass(1).await;

    assert_eq!(world.stored_serial(), None);
    assert_eq!(world.banned.take().len(), 1);
    assert_eq!(world.exits.try_recv().unwrap().code, 1);
}

#[actix::test]
async fn an_agent_that_is_denied_at_its_first_start_ends() {
    let mut world = world();
    let denied = ServerError::Status {
        call: "AttestAgent",
        code: tonic::Code::PermissionDenied,
        message: "certificate verification failed".into(),
        reason: None,
    };
    world.server.fail(Call::Attest, denied, 1);

    world.pass(1).await;

    let exit = world.exits.try_recv().unwrap();
    assert_eq!(exit.code, 1);
    assert!(
        exit.reason.contains("certificate verification failed"),
        "{}",
        exit.reason
    );
}

#[actix::test]
async fn a_full_disk_costs_no_question_before_the_key_is_stored() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let world = start(
        clock,
        server,
        Disk {
            is_full: true,
            ..Disk::default()
        },
    );

    world.pass(30).await;
    assert_eq!(world.server.count(Call::Attest), 0);
    world.disk.lock().unwrap().is_full = false;
    world.pass(60).await;

    assert_eq!(world.serial(), world.stored_serial());
    assert!(world.serial().is_some());
}

#[actix::test]
async fn a_bundle_from_the_server_is_stored_and_published_once() {
    let world = world();
    world.pass(1).await;
    world.server.rotate_authority(true);
    let newer = Arc::new(world.server.current_bundle());

    for _ in 0..3 {
        world
            .attestor
            .send(TrustBundle(Arc::clone(&newer)))
            .await
            .unwrap();
        world.pass(1).await;
    }

    assert_eq!(world.credentials.borrow().as_ref().unwrap().bundle, newer);
    assert_eq!(world.disk.lock().unwrap().writes, ["key", "svid", "bundle"]);
}

#[actix::test]
async fn a_bundle_that_could_not_be_stored_is_written_again_with_the_next_refresh() {
    let world = world();
    world.pass(1).await;
    world.server.rotate_authority(true);
    let newer = Arc::new(world.server.current_bundle());

    world.disk.lock().unwrap().is_full = true;
    world
        .attestor
        .send(TrustBundle(Arc::clone(&newer)))
        .await
        .unwrap();
    world.pass(1).await;
    assert_eq!(world.credentials.borrow().as_ref().unwrap().bundle, newer);
    world.disk.lock().unwrap().is_full = false;
    for _ in 0..3 {
        world
            .attestor
            .send(TrustBundle(Arc::clone(&newer)))
            .await
            .unwrap();
        world.pass(1).await;
    }

    let disk = world.disk.lock().unwrap();
    assert_eq!(disk.writes, ["key", "svid", "bundle"]);
    assert_eq!(disk.bundle[0], newer.x509_authorities()[0].certificate);
}

#[actix::test]
async fn a_stored_svid_without_any_bundle_ends_the_start_instead_of_trusting_anybody() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let svid = Ca::new(clock.wall()).svid(
        "spiffe://domain.test/spire/agent/test/node",
        clock.wall(),
        clock.wall() + Duration::from_hours(1),
    );
    let disk = Disk {
        chain: svid.chain().to_vec(),
        keys: BTreeMap::from([(KeySlot::A, Arc::clone(&svid.key))]),
        ..Disk::default()
    };

    let mut world = start(clock, server, disk);
    world.pass(1).await;

    let exit = world.exits.try_recv().unwrap();
    assert!(
        exit.reason.contains("no bundle in cache"),
        "{}",
        exit.reason
    );
    assert_eq!(
        world.server.count(Call::Attest) + world.server.count(Call::Bundle),
        0
    );
}

#[actix::test]
async fn a_planned_rotation_announces_nothing_and_an_unplanned_one_does() {
    let world = world();
    world.server.agent_ttl.set(Duration::from_mins(1));

    world.pass(200).await;
    assert!(world.server.count(Call::Attest) > 5);
    assert_eq!(world.attested.take().len(), 1, "the first one alone");
    world.reject(DeniedReason::AgentNotActive).await;
    world.pass(1).await;

    assert_eq!(world.attested.take().len(), 1);
}

#[actix::test]
async fn a_server_that_grants_and_rejects_in_a_circle_is_not_asked_without_end() {
    let world = world();
    world.pass(1).await;

    for _ in 0..600 {
        world.reject(DeniedReason::AgentNotActive).await;
        world.pass(1).await;
    }

    let attempts = world.server.count(Call::Attest);
    assert!((5..=14).contains(&attempts), "{attempts} in ten minutes");
}

#[actix::test]
async fn two_agents_with_one_leaf_do_not_attest_in_turn_without_end() {
    let world = world();
    world.pass(1).await;

    for _ in 0..120 {
        world.accept().await;
        world.reject(DeniedReason::AgentNotActive).await;
        world.pass(5).await;
    }

    let attempts = world.server.count(Call::Attest);
    assert!((5..=14).contains(&attempts), "{attempts} in ten minutes");
    world.pass(700).await;
    world.accept().await;
    let attempts = world.server.count(Call::Attest);
    world.reject(DeniedReason::AgentNotActive).await;
    world.pass(1).await;
    assert_eq!(
        world.server.count(Call::Attest),
        attempts + 1,
        "at once again after it has lasted"
    );
}

#[actix::test]
async fn an_attestation_that_was_put_off_is_called_off_when_the_svid_is_accepted() {
    let world = world();
    world.pass(1).await;
    world.reject(DeniedReason::AgentNotActive).await;
    world.pass(1).await;
    let attempts = world.server.count(Call::Attest);

    world.reject(DeniedReason::AgentNotActive).await;
    world.accept().await;
    world.pass(600).await;

    assert_eq!(world.server.count(Call::Attest), attempts);
}

#[actix::test]
async fn an_svid_that_replaces_an_expired_one_is_announced() {
    let world = world();
    world.server.agent_ttl.set(Duration::from_mins(1));
    world.pass(1).await;
    world.attested.take();

    world.server.fail(Call::Attest, unavailable(), usize::MAX);
    world.pass(90).await;
    world.server.mend();
    world.pass(130).await;

    assert_eq!(world.attested.take().len(), 1, "the server is back");
}

#[actix::test]
async fn a_failed_re_attestation_is_tried_again_soon_and_not_at_the_rotation() {
    let world = world();
    world.pass(1).await;
    let before = world.serial();

    world.server.fail(Call::Attest, unavailable(), 2);
    world.reject(DeniedReason::AgentNotAttested).await;
    world.pass(30).await;

    assert_ne!(world.serial(), before);
    assert_eq!(world.server.count(Call::Attest), 4);
}

#[actix::test]
async fn retries_wait_as_long_as_they_say() {
    let world = world();
    world.server.fail(Call::Attest, unavailable(), usize::MAX);

    world.pass(1800).await;

    let times = world.server.times(Call::Attest);
    let gaps: Vec<f64> = times
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]).as_secs_f64())
        .collect();
    assert!(
        gaps[9..].iter().all(|gap| *gap >= 107.0),
        "no nap cuts a gap short: {gaps:?}"
    );
}

#[actix::test]
async fn an_agent_that_may_not_renew_attests() {
    let world = world();
    world.server.reattestable.set(false);
    world.server.agent_ttl.set(Duration::from_mins(1));
    world.pass(1).await;

    let must = ServerError::Status {
        call: "RenewAgent",
        code: tonic::Code::PermissionDenied,
        message: "agent must reattest".into(),
        reason: Some(DeniedReason::AgentMustReattest),
    };
    world.server.fail(Call::Renew, must, 1);
    world.server.reattestable.set(true);
    world.pass(45).await;

    assert_eq!(world.server.count(Call::Renew), 1);
    assert_eq!(world.server.count(Call::Attest), 2);
    assert!(world.credentials.borrow().as_ref().unwrap().reattestable);
}

#[actix::test]
async fn three_alerts_in_a_row_against_the_certificate_lead_to_a_new_one() {
    let world = world();
    world.pass(1).await;
    let alert = || ServerError::CertificateRejected {
        peer: "127.0.0.1:8081".into(),
        reason: "unknown CA".into(),
    };
    let report = async |world: &World| {
        let serial = world.serial().unwrap();
        let (error, disposition) = (alert(), alert().disposition());
        world
            .attestor
            .send(SvidRejected {
                serial,
                disposition,
                error,
            })
            .await
            .unwrap();
        world.pass(1).await;
    };

    report(&world).await;
    report(&world).await;
    assert_eq!(world.server.count(Call::Attest), 1);
    report(&world).await;

    assert_eq!(world.server.count(Call::Attest), 2);
}

#[actix::test]
async fn a_bundle_that_came_during_an_attempt_is_not_overwritten_by_an_older_one() {
    let world = world();
    world.server.reattestable.set(false);
    world.server.agent_ttl.set(Duration::from_mins(1));
    world.pass(1).await;
    let older = Arc::clone(&world.credentials.borrow().as_ref().unwrap().bundle);
    let newer = Bundle::new(
        older.trust_domain.clone(),
        [
            older.x509_authorities(),
            Ca::new(world.clock.wall())
                .bundle(TRUST_DOMAIN)
                .x509_authorities(),
        ]
        .concat(),
    );

    world.server.renewal_takes.set(Duration::from_secs(5));
    while world.server.count(Call::Renew) == 0 {
        sleep(Duration::from_millis(100)).await;
    }
    world
        .attestor
        .send(TrustBundle(Arc::new(newer.clone())))
        .await
        .unwrap();
    let before = world.serial();
    world.pass(6).await;

    assert_ne!(world.serial(), before);
    assert_eq!(*world.credentials.borrow().as_ref().unwrap().bundle, newer);
}
