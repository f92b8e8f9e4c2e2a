//! What operators find in the log.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proto::workload::X509svidRequest;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

use super::world::{World, identity, next, secured};
use crate::selectors::AttestationError;

/// The endpoint's lines, each as `LEVEL field=value …`.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Lines {
    /// Collects what this thread writes while the guard lives.
    fn collect() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let guard = tracing::subscriber::set_default(lines.clone());
        (lines, guard)
    }

    fn with(&self, text: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines
            .iter()
            .filter(|line| line.contains(text))
            .cloned()
            .collect()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().contains("endpoint")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

#[actix::test]
async fn d20_denials_of_one_user_are_one_line_a_minute_without_selectors() {
    tokio::time::pause();
    let (lines, _guard) = Lines::collect();
    let world = World::new();
    world.show(vec![]);

    for _ in 0..3 {
        next(&mut world.svids().await).await.unwrap_err();
    }
    tokio::time::sleep(Duration::from_secs(61)).await;
    next(&mut world.svids().await).await.unwrap_err();

    let denied = lines.with("No identity issued");
    assert_eq!(denied.len(), 2, "{denied:?}");
    let pid = format!("pid={}", std::process::id());
    for part in [
        Level::ERROR.as_str(),
        "method=\"FetchX509SVID\"",
        "service=\"WorkloadAPI\"",
        "registered=false",
        &pid,
        "silent=0",
    ] {
        assert!(denied[0].contains(part), "{part} in {denied:?}");
    }
    assert!(denied[1].contains("silent=2"), "{denied:?}");
    assert!(
        lines
            .with("unix")
            .iter()
            .all(|line| !line.contains("uid:1")),
        "selectors stay out of the log"
    );
}

#[actix::test]
async fn a_failed_attestation_is_logged_with_its_cause_and_a_fetch_with_its_id() {
    let (lines, _guard) = Lines::collect();
    let world = World::new();
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);

    next(&mut world.svids().await).await.unwrap();
    *world.attestation.lock().unwrap() =
        Err(AttestationError::AllFailed("unix: no such process".into()));
    let refused = world
        .workload()
        .await
        .fetch_x509svid(secured(X509svidRequest {}))
        .await;

    assert!(refused.is_err());
    let fetched = lines.with("Fetched X.509 SVID");
    assert_eq!(fetched.len(), 1, "{fetched:?}");
    for part in [
        "DEBUG",
        "spiffe_id=spiffe://domain.test/a",
        "count=1",
        "registered=true",
        "ttl=3",
    ] {
        assert!(fetched[0].contains(part), "{part} in {fetched:?}");
    }
    let failed = lines.with("Workload attestation failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(
        failed[0].starts_with("ERROR") && failed[0].contains("no such process"),
        "{failed:?}"
    );
}

#[actix::test]
async fn a_cancelled_call_is_silent() {
    let (lines, _guard) = Lines::collect();
    let world = World::new();

    drop(world.svids().await);
    world.endpoint.send(crate::endpoint::Drain).await.unwrap();

    assert_eq!(lines.with("ERROR"), Vec::<String>::new());
    assert_eq!(lines.with("WARN"), Vec::<String>::new());
}
