//! The process is told to stop.

use super::*;

/// An attestation takes three seconds.
fn slow_world(node: Rc<dyn NodeAttestor>) -> World {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    server.attestation_takes.set(Duration::from_secs(3));
    let setup = Setup {
        node,
        ..Setup::default()
    };
    start_with(setup, clock, server, Disk::default())
}

impl World {
    /// How long a stop waits.
    async fn settle(&self) -> Duration {
        let begun = self.clock.now().boot;
        self.attestor.send(Settle).await.unwrap();
        self.clock.now().boot.saturating_sub(begun)
    }
}

#[actix::test]
async fn a_stop_waits_for_the_one_attestation_of_a_token_until_its_svid_is_stored() {
    let world = slow_world(Rc::new(OneTimeNode));
    world.pass(1).await;

    let waited = world.settle().await;

    assert!(waited >= Duration::from_millis(1990), "{waited:?}");
    assert!(world.stored_serial().is_some());
}

#[actix::test]
async fn a_stop_waits_for_no_attestation_that_can_be_had_again() {
    let world = slow_world(Rc::new(TrustedNode));
    world.pass(1).await;

    let waited = world.settle().await;

    assert!(waited < Duration::from_millis(10), "{waited:?}");
    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn a_stop_waits_for_no_renewal() {
    let world = slow_world(Rc::new(OneTimeNode));
    world.server.reattestable.set(false);
    world.server.renewal_takes.set(Duration::from_mins(1));
    while world.server.count(Call::Renew) == 0 {
        world.pass(1).await;
    }

    let waited = world.settle().await;

    assert!(waited < Duration::from_millis(10), "{waited:?}");
}

#[actix::test]
async fn once_the_agent_is_stopping_no_token_is_spent() {
    let world = slow_world(Rc::new(OneTimeNode));
    world.server.fail(Call::Attest, unavailable(), usize::MAX);
    world.pass(10).await;

    world.settle().await;
    let asked = world.server.count(Call::Attest);
    world.pass(600).await;

    assert!(asked > 0);
    assert_eq!(world.server.count(Call::Attest), asked);
}

#[actix::test]
async fn an_agent_that_is_stopped_while_it_loads_spends_no_token() {
    let world = slow_world(Rc::new(OneTimeNode));

    world.settle().await;
    world.pass(600).await;

    assert_eq!(world.server.count(Call::Attest), 0);
}
