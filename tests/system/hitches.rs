//! Something goes wrong at one step of the first attestation: the agent comes in a little later, once.

use devserver::{AttestTwist, Code, Fault, SvidTwist, rpc};

use crate::harness::{Agent, World, eventually, seconds};

/// A retry comes after some five seconds; an answer to the challenge is waited for half a minute.
const PATIENCE: std::time::Duration = seconds(60);

/// What goes wrong, once.
#[derive(Clone, Debug)]
enum Hitch {
    Call(Fault),
    Attestation(AttestTwist),
}

/// All of them, in the order of the steps.
fn hitches() -> Vec<Hitch> {
    let every_way = |name| {
        [
            Fault::code(name, Code::Unavailable),
            Fault::code(name, Code::Internal),
            Fault::garbage(name),
            Fault::oversized(name, 80 << 20),
            Fault::go_away(name),
            Fault::close_connection(name),
        ]
    };
    let calls = [rpc::ATTEST_AGENT, rpc::GET_BUNDLE].map(every_way);
    let calls = calls.into_iter().flatten();
    let twists = [
        AttestTwist::Close,
        AttestTwist::GarbageChallenge,
        AttestTwist::CloseAfterChallenge,
        AttestTwist::Svid(SvidTwist::Missing),
        AttestTwist::Svid(SvidTwist::WrongKey),
        AttestTwist::Svid(SvidTwist::ForeignAuthority),
        // Noticed after half a minute: the others must not wait for it.
        AttestTwist::StallAfterChallenge,
    ];
    let calls = calls.map(|fault| Hitch::Call(fault.times(1)));
    calls
        .chain(twists.into_iter().map(Hitch::Attestation))
        .collect()
}

/// An agent at whose first attestation this goes wrong.
fn begin(hitch: Hitch, has_bundle: bool) -> (Hitch, Agent, World) {
    let world = World::new();
    world.entry("web");
    match &hitch {
        Hitch::Call(fault) => world.control.add_fault(fault.clone()),
        Hitch::Attestation(twist) => world.control.twist_attestation(Some(*twist)),
    }
    let mut agent = world.agent();
    if !has_bundle {
        agent.options.bundle = None;
    }
    agent.start();
    (hitch, agent, world)
}

fn come_in_all_the_same(has_bundle: bool) {
    let begin = |hitch| begin(hitch, has_bundle);
    let mut runs: Vec<_> = hitches().into_iter().map(begin).collect();
    for (hitch, agent, world) in &runs {
        if let Hitch::Attestation(_) = hitch {
            let what = format!("{hitch:?} is noticed");
            eventually(&what, PATIENCE, || {
                let log = agent.log();
                log.contains("Failed to retrieve attestation result")
                    .then_some(())
            });
            world.control.twist_attestation(None);
        }
    }

    for (hitch, agent, world) in &mut runs {
        eventually(&format!("served after {hitch:?}"), PATIENCE, || {
            assert!(agent.is_running(), "the agent has ended: {hitch:?}");
            let update = agent.fetch().ok()?;
            (update.paths() == ["/web"]).then_some(())
        });
        let tries = world.control.count(rpc::ATTEST_AGENT);
        assert!(tries <= 3, "{hitch:?}: {tries} attestations");
        assert_eq!(world.control.agents().len(), 1, "{hitch:?}");
        let stored = agent.stored().expect("the state is on disk");
        assert_eq!(stored.svid.len(), 1, "{hitch:?}");
        assert_eq!(stored.bundle, world.control.bundle_pem(), "{hitch:?}");
        assert!(!agent.log().contains("panicked"), "{hitch:?}");

        // The SVID on disk is the one that the server takes.
        agent.stop();
        agent.start_serving(&["/web"]);
        assert_eq!(world.control.count(rpc::ATTEST_AGENT), tries, "{hitch:?}");
    }
}

#[test]
fn a_fault_at_any_step_of_an_attestation_is_got_over_with_a_known_bundle() {
    come_in_all_the_same(true);
}

#[test]
fn a_fault_at_any_step_of_an_attestation_is_got_over_without_a_known_bundle() {
    come_in_all_the_same(false);
}
