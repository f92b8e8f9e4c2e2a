//! The actor in virtual time: one thread, paused clock, a scripted server, the real cache or one that counts questions.

use std::cell::Cell;
use std::collections::BTreeSet;

use actix::{Addr, MessageResult};
use tokio::sync::watch;
use tokio::time::{pause, sleep};

use super::*;
use crate::cache::view::View;
use crate::cache::{
    ApplyBundles, ApplyEntries, Cache, DueForRenewal, InstallSvids, KnownVersions, ReportMissing,
    Subscribe, SvidCount,
};
use crate::credentials::Credentials;
use crate::entry::{Entry, EntryVersion};
use crate::readiness::{ReadinessReader, readiness};
use crate::testing::certificates::Ca;
use crate::testing::epoch;
use crate::testing::probe::{Probe, Seen};
use crate::testing::scripted_server::{
    Call, ScriptedServer, TRUST_DOMAIN, entry, uid_selectors, unavailable,
};

/// How far a gap may be from its base: the jitter and the timer's grain.
const JITTER: f64 = 0.1;
const GRAIN: f64 = 0.05;

struct World {
    server: Rc<ScriptedServer>,
    cache: Addr<Cache>,
    synchronizer: Addr<Synchronizer>,
    readiness: ReadinessReader,
    rejected: Seen<SvidRejected>,
    clock: Clock,
}

/// An agent that is attested, synced once, and lives in virtual time.
async fn world(sync_interval: Duration) -> World {
    world_with(sync_interval, |_| {}).await
}

async fn world_with(sync_interval: Duration, prepare: impl FnOnce(&ScriptedServer)) -> World {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    prepare(&server);
    let trust_domain = TrustDomain::parse(TRUST_DOMAIN).unwrap();
    let cache = Cache::new(trust_domain.clone(), 1000, clock.clone()).start();
    let agent = Ca::new(clock.wall()).svid(
        "spiffe://domain.test/spire/agent/test/node",
        clock.wall(),
        clock.wall() + Duration::from_hours(1),
    );
    let credentials = Credentials {
        svid: Arc::new(agent),
        reattestable: true,
        bundle: Arc::new(server.current_bundle()),
    };
    let (_, credentials_reader) = watch::channel(Some(Arc::new(credentials)));
    let (readiness, readiness_reader) = readiness();
    let config = SynchronizerConfig {
        trust_domain,
        sync_interval,
        key_type: KeyType::EcP256,
        availability_target: None,
    };
    let synchronizer = Synchronizer::new(
        config,
        Rc::clone(&server) as Rc<dyn ServerApi>,
        CacheHandle::of(&cache),
        credentials_reader,
        readiness,
        (clock.clone(), Random::from_seed(42)),
    )
    .start();
    let (rejected, seen) = Probe::start_new();
    let (accepted, _) = Probe::start_new();
    let (unknown, _) = Probe::start_new();
    let (bundle, _) = Probe::start_new();
    synchronizer
        .send(ReportTo {
            rejected,
            accepted,
            unknown,
            bundle,
        })
        .await
        .unwrap();
    cache
        .send(ReportMissing(synchronizer.clone().recipient()))
        .await
        .unwrap();
    synchronizer.send(Attested).await.unwrap();
    World {
        server,
        cache,
        synchronizer,
        readiness: readiness_reader,
        rejected: seen,
        clock,
    }
}

impl World {
    async fn pass(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    /// Waits for `count` syncs in all, then returns the gaps between the last `last + 1` of them, in seconds.
    async fn gaps_of_last(&self, count: usize, last: usize) -> Vec<f64> {
        while self.server.count(Call::Sync) < count {
            sleep(Duration::from_millis(100)).await;
        }
        let times = self.server.times(Call::Sync);
        let times = &times[count - last - 1..count];
        times
            .windows(2)
            .map(|pair| pair[1].checked_sub(pair[0]).unwrap().as_secs_f64())
            .collect()
    }

    async fn svid_ids(&self, uid: u32) -> Option<Vec<String>> {
        let reader = self
            .cache
            .send(Subscribe {
                selectors: uid_selectors(uid),
            })
            .await
            .unwrap();
        let view = reader.borrow().clone();
        match view {
            View::Ready(update) => Some(
                update
                    .identities
                    .iter()
                    .map(|identity| identity.svid.id.to_string())
                    .collect(),
            ),
            View::Waiting(_) => None,
        }
    }
}

/// Stops tokio's time and shows a date in 2027 that moves with it.
fn virtual_clock() -> Clock {
    pause();
    Clock::virtual_from(epoch())
}

fn assert_gaps(gaps: &[f64], bases: &[f64]) {
    assert_eq!(gaps.len(), bases.len(), "{gaps:?}");
    for (gap, base) in gaps.iter().zip(bases) {
        let low = if *base <= 5.0 {
            base * (1.0 - JITTER)
        } else {
            base * (1.0 - JITTER) - GRAIN
        };
        assert!(
            *gap >= low && *gap <= base * (1.0 + JITTER) + GRAIN,
            "{gaps:?}, expected {bases:?}"
        );
    }
}

async fn looks_every_five_seconds(interval: Duration) {
    let world = world(interval).await;

    let gaps = world.gaps_of_last(5, 4).await;

    assert!(
        gaps.iter().all(|gap| (4.9..=5.0 + GRAIN).contains(gap)),
        "{gaps:?}"
    );
}

#[actix::test]
async fn an_empty_agent_looks_every_five_seconds_with_an_interval_of_a_minute() {
    looks_every_five_seconds(Duration::from_mins(1)).await;
}

#[actix::test]
async fn an_empty_agent_looks_every_five_seconds_with_an_interval_of_a_month() {
    looks_every_five_seconds(Duration::from_hours(24 * 30)).await;
}

#[actix::test]
async fn an_agent_with_an_svid_waits_its_full_interval_after_an_early_first_tick() {
    let world = world_with(Duration::from_mins(1), |server| {
        server.set_entries([entry("web", 1000)]);
    })
    .await;

    let gaps = world.gaps_of_last(5, 4).await;

    assert_gaps(&gaps, &[5.0, 60.0, 60.0, 60.0]);
}

#[actix::test]
async fn the_sync_that_brings_the_first_svid_ends_the_clamp() {
    let world = world(Duration::from_mins(1)).await;
    world.gaps_of_last(4, 3).await;

    world.server.set_entries([entry("web", 1000)]);
    let gaps = world.gaps_of_last(7, 3).await;

    assert_gaps(&gaps, &[5.0, 60.0, 60.0]);
    assert_eq!(
        world.svid_ids(1000).await.unwrap(),
        ["spiffe://domain.test/web"]
    );
}

#[actix::test]
async fn an_empty_agent_that_fails_backs_off_and_is_never_clamped() {
    let world = world(Duration::from_secs(8)).await;
    world.gaps_of_last(3, 2).await;

    world.server.fail(Call::Sync, unavailable(), 5);
    let gaps = world.gaps_of_last(11, 8).await;

    assert_gaps(&gaps, &[5.0, 12.0, 18.0, 27.0, 40.5, 60.75, 5.0, 5.0]);
}

#[actix::test]
async fn the_first_failure_of_a_long_interval_waits_one_and_a_half_of_it() {
    let world = world(Duration::from_mins(1)).await;
    world.gaps_of_last(3, 2).await;

    world.server.fail(Call::Sync, unavailable(), 1);
    let gaps = world.gaps_of_last(7, 4).await;

    assert_gaps(&gaps, &[5.0, 90.0, 5.0, 5.0]);
}

#[actix::test]
async fn an_interval_shorter_than_the_clamp_is_never_stretched() {
    let world = world(Duration::from_secs(2)).await;

    let gaps = world.gaps_of_last(6, 5).await;

    assert_gaps(&gaps, &[2.0; 5]);
}

#[actix::test]
async fn the_first_sync_is_retried_soon_even_with_an_interval_of_a_month() {
    let world = world_with(Duration::from_hours(24 * 30), |server| {
        server.fail(Call::Sync, unavailable(), 3);
    })
    .await;

    let gaps = world.gaps_of_last(4, 3).await;

    assert_gaps(&gaps, &[5.0, 7.5, 11.25]);
    world.pass(1).await;
    assert_eq!(world.readiness.borrow().phase, Phase::Ready);
}

/// Stands in for the cache: holds so many SVIDs, and counts how often it is asked.
struct CountingCache {
    svids: usize,
    asked: Rc<Cell<usize>>,
}

impl Actor for CountingCache {
    type Context = Context<Self>;
}

#[actix::test]
async fn the_cache_is_asked_for_its_count_once_after_each_success_and_never_after_a_failure() {
    let asked = Rc::new(Cell::new(0));
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let counting = CountingCache {
        svids: 1,
        asked: Rc::clone(&asked),
    }
    .start();
    let tools = Tools {
        server: Rc::clone(&server) as Rc<dyn ServerApi>,
        cache: CacheHandle::of(&counting),
        attestor: None,
        trust_domain: TrustDomain::parse(TRUST_DOMAIN).unwrap(),
        key_type: KeyType::EcP256,
        availability_target: None,
        clock,
        said: Rc::default(),
    };
    let all = Work {
        entries: true,
        renewals: true,
        bundles: false,
    };
    let round = || {
        let signing = Signing {
            failures: Failures::default(),
            bundle: None,
            batch_limit: MAX_SIGNING_BATCH,
            random: Random::from_seed(1),
        };
        run(tools.clone(), all, signing, None)
    };

    let good = round().await;
    assert_eq!((good.synced.unwrap().unwrap().1, asked.get()), (1, 1));
    server.fail(Call::Sync, unavailable(), 1);
    assert!(round().await.synced.unwrap().is_err());
    server.fail(Call::Bundle, unavailable(), 1);
    assert!(round().await.synced.unwrap().is_err());

    assert_eq!(asked.get(), 1);
    round().await;
    assert_eq!(asked.get(), 2);
}

macro_rules! answers {
    ($message:ty, $this:ident => $answer:expr) => {
        impl Handler<$message> for CountingCache {
            type Result = MessageResult<$message>;

            fn handle(&mut self, _: $message, _: &mut Self::Context) -> Self::Result {
                let $this = self;
                MessageResult($answer)
            }
        }
    };
}
answers!(KnownVersions, _this => crate::entry::KnownEntries::default());
answers!(ApplyEntries, _this => BTreeSet::new());
answers!(ApplyBundles, _this => ());
answers!(DueForRenewal, _this => crate::cache::Renewals::default());
answers!(InstallSvids, _this => ());
answers!(SvidCount, this => {
    this.asked.set(this.asked.get() + 1);
    this.svids
});

#[actix::test]
async fn with_a_long_interval_svids_are_renewed_by_their_own_timers_without_a_sync() {
    let world = world_with(Duration::from_mins(10), |server| {
        server.svid_ttl.set(Duration::from_mins(1));
        server.set_entries([entry("web", 1000)]);
    })
    .await;
    world.pass(6).await;
    let syncs = world.server.count(Call::Sync);
    let mut reader = world
        .cache
        .send(Subscribe {
            selectors: uid_selectors(1000),
        })
        .await
        .unwrap();

    for _ in 0..500 {
        world.pass(1).await;
        let View::Ready(update) = reader.borrow_and_update().clone() else {
            panic!("never without an identity")
        };
        let left = update.identities[0]
            .svid
            .not_after()
            .duration_since(world.clock.wall())
            .expect("never expired");
        assert!(left > Duration::from_secs(20), "{left:?}");
    }

    assert_eq!(
        world.server.count(Call::Sync),
        syncs,
        "a renewal is no entry sync"
    );
    assert!(
        (18..=26).contains(&world.server.count(Call::Sign)),
        "{}",
        world.server.count(Call::Sign)
    );
}

#[actix::test]
async fn an_outage_longer_than_an_svid_withdraws_it_in_time_and_recovers_by_itself() {
    let world = world_with(Duration::from_secs(5), |server| {
        server.svid_ttl.set(Duration::from_mins(1));
        server.set_entries([entry("web", 1000)]);
    })
    .await;
    world.pass(6).await;
    assert!(world.svid_ids(1000).await.is_some());

    for call in [Call::Sync, Call::Bundle, Call::Sign] {
        world.server.fail(call, unavailable(), usize::MAX);
    }
    world.pass(90).await;
    assert_eq!(
        world.svid_ids(1000).await,
        None,
        "an expired SVID is never served"
    );
    world.server.mend();
    world.pass(125).await;

    assert_eq!(
        world.svid_ids(1000).await.unwrap(),
        ["spiffe://domain.test/web"]
    );
}

#[actix::test]
async fn one_entry_that_cannot_be_signed_costs_few_calls_and_not_its_neighbours() {
    let world = world_with(Duration::from_secs(5), |server| {
        server.set_entries([entry("bad", 1000), entry("good", 1001)]);
        server.refuse_to_sign(&["bad"]);
    })
    .await;

    world.pass(60).await;

    assert_eq!(
        world.svid_ids(1001).await.unwrap(),
        ["spiffe://domain.test/good"]
    );
    assert_eq!(world.svid_ids(1000).await, None);
    assert!(
        world.server.count(Call::Sign) <= 15,
        "{}",
        world.server.count(Call::Sign)
    );
}

#[actix::test]
async fn an_svid_for_another_id_is_refused_and_the_last_good_one_kept() {
    let world = world_with(Duration::from_secs(5), |server| {
        server.svid_ttl.set(Duration::from_mins(1));
        server.set_entries([entry("web", 1000)]);
    })
    .await;
    world.pass(6).await;

    *world.server.wrong_id.borrow_mut() = Some("spiffe://domain.test/somebody-else".into());
    world.pass(35).await;

    assert!(world.server.count(Call::Sign) >= 2);
    assert_eq!(
        world.svid_ids(1000).await.unwrap(),
        ["spiffe://domain.test/web"]
    );
}

#[actix::test]
async fn an_svid_of_an_unknown_issuer_waits_for_the_bundle_that_names_it() {
    let world = world(Duration::from_secs(5)).await;
    world.pass(1).await;

    world.server.rotate_authority(false);
    world.server.set_entries([entry("web", 1000)]);
    world.pass(20).await;
    assert_eq!(
        world.svid_ids(1000).await,
        None,
        "workloads could not verify it"
    );
    world.server.publish_authority();
    world.pass(30).await;

    assert_eq!(
        world.svid_ids(1000).await.unwrap(),
        ["spiffe://domain.test/web"]
    );
}

#[actix::test]
async fn a_new_authority_is_fetched_before_the_svid_it_signed_is_published() {
    let world = world_with(Duration::from_hours(24), |server| {
        server.svid_ttl.set(Duration::from_mins(1));
        server.set_entries([entry("web", 1000)]);
    })
    .await;
    world.pass(8).await;
    let bundles = world.server.count(Call::Bundle);

    world.server.rotate_authority(true);
    world.pass(35).await;

    assert_eq!(
        world.server.count(Call::Bundle),
        bundles + 1,
        "once, because the issuer was unknown"
    );
    let reader = world
        .cache
        .send(Subscribe {
            selectors: uid_selectors(1000),
        })
        .await
        .unwrap();
    let View::Ready(update) = reader.borrow().clone() else {
        panic!("served")
    };
    assert_eq!(
        update
            .bundle
            .verify(update.identities[0].svid.chain(), world.clock.wall()),
        Ok(())
    );
}

#[actix::test]
async fn a_changed_entry_gets_a_new_svid_and_a_remade_one_never_the_old_certificate() {
    let world = world_with(Duration::from_secs(5), |server| {
        server.set_entries([entry("web", 1000)]);
    })
    .await;
    world.pass(6).await;
    let mut changed = entry("web", 1000);
    changed.version = EntryVersion {
        revision: 1,
        created_at: 1,
    };

    world.server.set_entries([changed]);
    world.pass(6).await;
    assert_eq!(world.server.count(Call::Sign), 2);
    let mut remade = entry("other", 1000);
    remade.id = crate::testing::scripted_server::entry_id("web");
    remade.version = EntryVersion {
        revision: 1,
        created_at: 2,
    };
    world.server.set_entries([remade]);
    world.pass(6).await;

    assert_eq!(
        world.svid_ids(1000).await.unwrap(),
        ["spiffe://domain.test/other"]
    );
}

#[actix::test]
async fn a_rejection_is_reported_to_the_attestor_with_the_serial_it_concerns() {
    let world = world(Duration::from_secs(5)).await;
    world.pass(1).await;

    let error = ServerError::Status {
        call: "SyncAuthorizedEntries",
        code: tonic::Code::PermissionDenied,
        message: "agent is not attested".into(),
        reason: Some(crate::server::DeniedReason::AgentNotAttested),
    };
    world.server.fail(Call::Sync, error, 1);
    world.pass(6).await;

    let seen = world.rejected.take();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].disposition, Disposition::Reattest);
    assert!(!seen[0].serial.is_empty());
    world.synchronizer.send(Attested).await.unwrap();
    world.pass(1).await;
    assert_eq!(world.rejected.take().len(), 0);
}

#[actix::test]
async fn a_failing_federated_bundle_keeps_its_last_good_version_and_the_sync_goes_on() {
    let other = TrustDomain::parse("other.test").unwrap();
    let world = world_with(Duration::from_secs(5), |server| {
        server.set_federated(Ca::new(epoch()).bundle("other.test"));
        server.set_entries([Entry {
            federates_with: vec![TrustDomain::parse("other.test").unwrap()],
            ..entry("web", 1000)
        }]);
    })
    .await;
    world.pass(1).await;

    world
        .server
        .fail(Call::FederatedBundle, unavailable(), usize::MAX);
    world.server.set_entries([
        Entry {
            federates_with: vec![other.clone()],
            ..entry("web", 1000)
        },
        entry("late", 1001),
    ]);
    world.pass(12).await;

    assert_eq!(
        world.svid_ids(1001).await.unwrap(),
        ["spiffe://domain.test/late"]
    );
    let reader = world
        .cache
        .send(Subscribe {
            selectors: uid_selectors(1000),
        })
        .await
        .unwrap();
    let View::Ready(update) = reader.borrow().clone() else {
        panic!("served")
    };
    assert!(update.federated.contains_key(&other));
}

#[actix::test]
async fn a_caller_before_the_first_good_sync_does_not_stop_the_world() {
    let world = world_with(Duration::from_secs(5), |server| {
        server.set_entries([entry("web", 1000)]);
        server.fail(Call::Bundle, unavailable(), 3);
    })
    .await;
    world.pass(1).await;

    assert_eq!(world.svid_ids(1000).await, None);
    world.pass(60).await;

    assert_eq!(
        world.svid_ids(1000).await.unwrap(),
        ["spiffe://domain.test/web"]
    );
}

#[actix::test]
async fn a_refused_batch_shrinks_and_grows_again() {
    let world = world(Duration::from_secs(5)).await;
    world.pass(1).await;
    let all: Vec<_> = (0..900).map(|n| entry(&format!("e{n:04}"), n)).collect();

    world.server.set_entries(all);
    world.server.fail(Call::Sign, unavailable(), 2);
    world.pass(60).await;

    let sizes = world.server.batches();
    assert_eq!(sizes[..4], [500, 250, 125, 250], "{sizes:?}");
    assert_eq!(sizes[2..].iter().sum::<usize>(), 900);
}

#[actix::test]
async fn an_entry_that_the_server_fails_at_does_not_keep_all_others_waiting() {
    let world = world(Duration::from_secs(5)).await;
    world.pass(1).await;
    let all: Vec<_> = (0..40).map(|n| entry(&format!("e{n:02}"), n)).collect();

    world.server.set_entries(all);
    world.server.fail_at(Some("e00"));
    world.pass(300).await;

    for uid in 1..40 {
        assert!(world.svid_ids(uid).await.is_some(), "{uid}");
    }
    world
        .server
        .set_entries((0..41).map(|n| entry(&format!("e{n:02}"), n)));
    world.pass(8).await;
    assert!(
        world.svid_ids(40).await.is_some(),
        "a new entry waits for nothing"
    );
    world.server.fail_at(None);
    world.pass(140).await;
    assert!(world.svid_ids(0).await.is_some());
}

#[actix::test]
async fn a_new_issuer_costs_one_look_at_the_bundle_and_not_one_a_round() {
    let world = world_with(Duration::from_hours(24), |server| {
        server.svid_ttl.set(Duration::from_mins(1));
        server.set_entries([entry("web", 1000)]);
    })
    .await;
    world.pass(8).await;
    let bundles = world.server.count(Call::Bundle);

    world.server.rotate_authority(true);
    world.pass(200).await;

    assert!(world.server.count(Call::Sign) >= 6);
    assert_eq!(world.server.count(Call::Bundle), bundles + 1);
}

#[actix::test]
async fn a_problem_that_stays_is_said_once() {
    let problems =
        |text: &str| std::collections::HashMap::from([("bundle of x".to_owned(), text.to_owned())]);
    let mut said = round::Said::default();

    let none = std::collections::HashMap::new;

    assert_eq!(said.news(problems("not found"), true).len(), 1);
    assert_eq!(said.news(problems("not found"), true).len(), 0);
    assert_eq!(
        said.news(problems("garbage"), true).len(),
        1,
        "another reason"
    );
    assert_eq!(said.news(none(), false).len(), 0);
    assert_eq!(
        said.news(problems("garbage"), true).len(),
        0,
        "not looked at meanwhile"
    );
    assert_eq!(said.news(none(), true).len(), 0);
    assert_eq!(
        said.news(problems("garbage"), true).len(),
        1,
        "it was well meanwhile"
    );
}
