//! The actor: who is told, and when.

use std::time::Duration;

use actix::Addr;
use tokio::time::{advance, pause, sleep};

use super::view::{View, Waiting};
use super::*;
use crate::testing::certificates::Ca;
use crate::testing::epoch;
use crate::testing::probe::Probe;
use crate::testing::scripted_server::{TRUST_DOMAIN, entry, uid_selectors};

struct World {
    cache: Addr<Cache>,
    ca: Ca,
    clock: Clock,
}

fn world() -> World {
    pause();
    let clock = Clock::virtual_from(epoch());
    let cache = Cache::new(
        TrustDomain::parse(TRUST_DOMAIN).unwrap(),
        1000,
        clock.clone(),
    )
    .start();
    World {
        cache,
        ca: Ca::new(clock.wall()),
        clock,
    }
}

impl World {
    async fn sync(&self, entries: Vec<Entry>) {
        let changed: Vec<_> = entries.into_iter().map(Arc::new).collect();
        let present = changed.iter().map(|entry| entry.id.clone()).collect();
        self.cache
            .send(ApplyEntries(EntrySync {
                changed,
                present,
                skipped: Vec::new(),
            }))
            .await
            .unwrap();
        self.cache
            .send(ApplyBundles(vec![Arc::new(self.ca.bundle(TRUST_DOMAIN))]))
            .await
            .unwrap();
    }

    async fn sign(&self, entry: &Entry, life: Duration) {
        let now = self.clock.wall();
        let svid = Arc::new(self.ca.svid(entry.spiffe_id.as_str(), now, now + life));
        let renewal = Renewal {
            at: now + life / 2,
            slack: Duration::ZERO,
        };
        let signed = vec![Signed {
            entry: Arc::new(entry.clone()),
            svid,
            renewal,
        }];
        self.cache
            .send(InstallSvids {
                signed,
                refused: Vec::new(),
            })
            .await
            .unwrap();
    }

    async fn subscribe(&self, uid: u32) -> ViewReader {
        self.cache
            .send(Subscribe {
                selectors: uid_selectors(uid),
            })
            .await
            .unwrap()
    }
}

fn identities(view: &View) -> usize {
    match view {
        View::Ready(update) => update.identities.len(),
        View::Waiting(why) => panic!("{why:?}"),
    }
}

#[actix::test]
async fn a_subscriber_sees_each_complete_set_once() {
    let world = world();
    let mut reader = world.subscribe(1000).await;
    assert!(matches!(
        *reader.borrow_and_update(),
        View::Waiting(Waiting::FirstSync)
    ));

    world.sync(vec![entry("a", 1000)]).await;
    assert!(matches!(
        *reader.borrow_and_update(),
        View::Waiting(Waiting::Signing)
    ));
    world.sign(&entry("a", 1000), Duration::from_hours(1)).await;
    assert_eq!(identities(&reader.borrow_and_update()), 1);
    world.sync(vec![entry("a", 1000)]).await;

    assert!(
        !reader.has_changed().unwrap(),
        "the same set again is not news"
    );
}

#[actix::test]
async fn a_burst_of_changes_reaches_a_slow_reader_as_the_newest_alone() {
    let world = world();
    let all: Vec<_> = (0..10)
        .map(|number| entry(&format!("e{number}"), 1000))
        .collect();
    world.sync(all.clone()).await;
    for entry in &all {
        world.sign(entry, Duration::from_hours(1)).await;
    }
    let mut reader = world.subscribe(1000).await;
    reader.mark_unchanged();

    for entry in &all {
        world.sign(entry, Duration::from_hours(1)).await;
    }

    assert!(reader.has_changed().unwrap());
    assert_eq!(identities(&reader.borrow_and_update()), 10);
    assert!(!reader.has_changed().unwrap());
}

#[actix::test]
async fn an_svid_is_withdrawn_when_its_end_comes_without_anybody_asking() {
    let world = world();
    world.sync(vec![entry("a", 1000)]).await;
    world.sign(&entry("a", 1000), Duration::from_mins(1)).await;
    let mut reader = world.subscribe(1000).await;
    assert_eq!(identities(&reader.borrow_and_update()), 1);

    sleep(Duration::from_secs(63)).await;

    assert!(reader.has_changed().unwrap());
    assert!(matches!(
        *reader.borrow_and_update(),
        View::Waiting(Waiting::Expired)
    ));
}

#[actix::test]
async fn an_svid_that_has_ended_does_not_count_though_no_timer_has_said_so() {
    let world = world();
    world.sync(vec![entry("a", 1000)]).await;
    world.sign(&entry("a", 1000), Duration::from_mins(1)).await;
    assert_eq!(world.cache.send(SvidCount).await.unwrap(), 1);

    let count = world.cache.send(SvidCount);
    advance(Duration::from_secs(63)).await;

    assert_eq!(count.await.unwrap(), 0);
}

#[actix::test]
async fn a_caller_whose_svid_was_not_signed_ahead_is_reported() {
    let world = world();
    let (recipient, seen) = Probe::start_new();
    world.cache.send(ReportMissing(recipient)).await.unwrap();
    world.sync(vec![entry("a", 1000)]).await;

    world.subscribe(1001).await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(seen.take().len(), 0, "nothing matches");
    let _reader = world.subscribe(1000).await;
    sleep(Duration::from_millis(1)).await;

    assert_eq!(seen.take().len(), 1);
}

#[actix::test]
async fn a_banned_agent_has_no_identity_for_anybody() {
    let world = world();
    world.sync(vec![entry("a", 1000)]).await;
    world.sign(&entry("a", 1000), Duration::from_hours(1)).await;
    let mut reader = world.subscribe(1000).await;
    reader.mark_unchanged();

    world.cache.send(Forget).await.unwrap();

    assert!(reader.has_changed().unwrap());
    assert_eq!(identities(&reader.borrow_and_update()), 0);
    assert_eq!(world.cache.send(SvidCount).await.unwrap(), 0);
}

#[actix::test]
async fn groups_whose_callers_have_gone_are_forgotten() {
    let world = world();
    world.sync(vec![entry("a", 1000)]).await;
    for uid in 0..2000 {
        drop(world.subscribe(uid).await);
    }

    let kept = world.subscribe(1000).await;

    assert_eq!(
        world.cache.send(DescribeCache).await.unwrap().subscribers,
        1
    );
    drop(kept);
}

#[actix::test]
async fn a_stream_hears_of_an_svid_when_it_becomes_valid() {
    let world = world();
    let entry = entry("a", 1000);
    world.sync(vec![entry.clone()]).await;
    let start = world.clock.wall() + Duration::from_secs(10);
    let svid = world.ca.svid(
        entry.spiffe_id.as_str(),
        start,
        start + Duration::from_hours(1),
    );
    let signed = vec![Signed {
        entry: Arc::new(entry),
        svid: Arc::new(svid),
        renewal: Renewal {
            at: start + Duration::from_mins(30),
            slack: Duration::ZERO,
        },
    }];
    world
        .cache
        .send(InstallSvids {
            signed,
            refused: Vec::new(),
        })
        .await
        .unwrap();
    let mut reader = world.subscribe(1000).await;
    assert!(matches!(
        *reader.borrow_and_update(),
        View::Waiting(Waiting::Signing)
    ));

    sleep(Duration::from_secs(11)).await;

    assert!(reader.has_changed().unwrap());
    assert_eq!(identities(&reader.borrow_and_update()), 1);
}
