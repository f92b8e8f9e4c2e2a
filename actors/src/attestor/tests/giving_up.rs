//! Agents that nothing can bring in again (design D4).

use super::*;

fn one_time_world() -> World {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    server.reattestable.set(false);
    let setup = Setup {
        node: Rc::new(OneTimeNode),
        ..Setup::default()
    };
    start_with(setup, clock, server, Disk::default())
}

fn denied(call: &'static str) -> ServerError {
    ServerError::Status {
        call,
        code: tonic::Code::PermissionDenied,
        message: "told to deny".into(),
        reason: None,
    }
}

impl World {
    fn serve_for(&self, seconds: u64) {
        let end = self.clock.wall() + Duration::from_secs(seconds);
        *self.served_until.lock().unwrap() = Some(end);
    }

    fn has_ended(&mut self) -> Option<String> {
        self.exits.try_recv().ok().map(|exit| exit.reason)
    }

    fn has_trouble(&self, trouble: Trouble) -> bool {
        self.readiness.borrow().troubles.contains_key(&trouble)
    }
}

#[actix::test]
async fn d04_an_evicted_token_agent_serves_until_the_last_svid_ends_and_then_ends() {
    let mut world = one_time_world();
    world.pass(1).await;
    world.serve_for(600);

    world.reject(DeniedReason::AgentNotAttested).await;
    world.pass(590).await;
    assert_eq!(world.has_ended(), None);
    assert!(world.stored_serial().is_some() && world.has_trouble(Trouble::ShutOut));
    world.pass(15).await;

    let reason = world.has_ended().unwrap();
    assert!(reason.contains("cannot attest again"), "{reason}");
    assert_eq!(world.stored_serial(), None, "a new token needs no cleaning");
    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn d04_an_evicted_token_agent_that_serves_nobody_ends_at_once() {
    let mut world = one_time_world();
    world.pass(1).await;

    world.reject(DeniedReason::AgentNotAttested).await;
    world.pass(1).await;

    assert!(world.has_ended().is_some());
    assert_eq!(world.stored_serial(), None);
}

#[actix::test]
async fn an_agent_of_a_restored_database_goes_on_when_the_server_knows_it_again() {
    let mut world = one_time_world();
    world.pass(1).await;
    world.serve_for(600);

    world.reject(DeniedReason::AgentNotAttested).await;
    world.pass(60).await;
    world.accept().await;
    world.pass(1200).await;

    assert_eq!(world.has_ended(), None);
    assert!(!world.has_trouble(Trouble::ShutOut));
}

#[actix::test]
async fn d04_alerts_cost_nothing_where_the_agent_cannot_attest_again() {
    let mut world = one_time_world();
    world.pass(1).await;

    for _ in 0..10 {
        let serial = world.serial().unwrap();
        let error = ServerError::CertificateRejected {
            peer: "server.test:8081".into(),
            reason: "TLS alert UnknownCA".into(),
        };
        let disposition = error.disposition();
        let rejected = SvidRejected {
            serial,
            disposition,
            error,
        };
        world.attestor.send(rejected).await.unwrap();
        world.pass(1).await;
    }

    assert_eq!(world.has_ended(), None);
    assert!(world.stored_serial().is_some());
    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn d04_a_denied_attestation_is_a_plain_failure_while_the_svid_is_valid() {
    let mut world = world();
    world.pass(1).await;
    world
        .server
        .fail(Call::Attest, denied("AttestAgent"), usize::MAX);

    world.pass(50 * 60).await;
    assert!(world.server.count(Call::Attest) > 5);
    assert_eq!(world.has_ended(), None);
    world.server.mend();
    world.pass(150).await;

    assert!(world.serial().is_some() && world.has_ended().is_none());
}

#[actix::test]
async fn d04_a_denied_agent_whose_svid_has_ended_serves_what_is_left() {
    let mut world = world();
    world.server.agent_ttl.set(Duration::from_mins(1));
    world.pass(1).await;
    world.serve_for(600);
    world
        .server
        .fail(Call::Attest, denied("AttestAgent"), usize::MAX);

    world.pass(590).await;
    assert_eq!(world.has_ended(), None);
    world.pass(15).await;

    let reason = world.has_ended().unwrap();
    assert!(reason.contains("told to deny"), "{reason}");
    assert!(
        world.stored_serial().is_some(),
        "nobody disowned it: the clock may be wrong"
    );
}

#[actix::test]
async fn d04_a_spent_token_ends_the_first_start_within_a_minute() {
    let mut world = one_time_world();
    let refused = ServerError::Status {
        call: "AttestAgent",
        code: tonic::Code::InvalidArgument,
        message: "join token does not exist or has already been used".into(),
        reason: None,
    };
    world.server.fail(Call::Attest, refused, usize::MAX);

    world.pass(20).await;
    assert_eq!(world.has_ended(), None);
    world.pass(40).await;

    let reason = world.has_ended().unwrap();
    assert!(reason.contains("already been used"), "{reason}");
    assert!(world.server.count(Call::Attest) >= 3);
}

#[actix::test]
async fn d04_a_token_agent_whose_svid_ended_offline_ends_once_nobody_is_served() {
    let mut world = one_time_world();
    world.server.agent_ttl.set(Duration::from_mins(1));
    world.pass(1).await;
    world.serve_for(600);
    world.server.fail(Call::Renew, unavailable(), usize::MAX);

    world.pass(590).await;
    assert_eq!(world.has_ended(), None);
    world.pass(130).await;

    assert!(world.has_ended().is_some());
    assert!(world.stored_serial().is_some(), "nobody disowned it");
}

#[actix::test]
async fn a_third_svid_in_turn_that_is_not_active_names_the_clone() {
    let world = world();
    world.pass(1).await;

    let mut revealed_after = None;
    for second in 0..300 {
        world.reject(DeniedReason::AgentNotActive).await;
        world.pass(1).await;
        if world.has_trouble(Trouble::SharedIdentity) {
            revealed_after.get_or_insert((second, world.server.count(Call::Attest)));
        }
    }

    let (second, attestations) = revealed_after.unwrap();
    assert!(second < 60 && attestations <= 4, "{revealed_after:?}");
    let late = world.server.times(Call::Attest);
    let from_second_minute = late.iter().filter(|at| at.as_secs() > 60).count();
    assert!(
        from_second_minute <= 3 * 4,
        "{late:?}: half of six a minute"
    );
}

#[actix::test]
async fn a_crowded_server_is_asked_again_at_a_random_time() {
    let world = world();
    let crowded = ServerError::Status {
        call: "AttestAgent",
        code: tonic::Code::ResourceExhausted,
        message: "rate limit".into(),
        reason: None,
    };
    world.server.fail(Call::Attest, crowded, 8);
    world.server.agent_ttl.set(Duration::from_hours(100));

    world.pass(8 * 600).await;

    let times = world.server.times(Call::Attest);
    assert_eq!(times.len(), 9, "{times:?}");
    let gaps: Vec<f64> = times
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]).as_secs_f64())
        .collect();
    let is_fixed = gaps.windows(2).all(|pair| pair[1] > pair[0]);
    assert!(
        !is_fixed && gaps.iter().all(|gap| *gap <= 601.0),
        "{gaps:?}"
    );
    assert!(world.serial().is_some());
}

#[actix::test]
async fn arrival_is_spread_only_where_nothing_is_stored() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let setup = Setup {
        arrival_spread: Duration::from_hours(1),
        ..Setup::default()
    };

    let world = start_with(setup, clock, server, Disk::default());
    world.pass(3601).await;

    let times = world.server.times(Call::Attest);
    assert!(
        times.len() == 1 && times[0] > Duration::from_secs(5),
        "{times:?}"
    );
}

#[actix::test]
async fn without_a_token_there_is_nothing_to_wait_for() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let setup = Setup {
        node: Rc::new(join_token::JoinToken::new(None)),
        ..Setup::default()
    };

    let mut world = start_with(setup, clock, server, Disk::default());
    world.pass(1).await;

    let reason = world.has_ended().unwrap();
    assert!(reason.contains("join token was not provided"), "{reason}");
}
