//! How identities are replaced before they end, and what is refused.

use std::collections::{BTreeMap, BTreeSet};

use devserver::{Code, SignTwist, SvidTwist, rpc};

use crate::harness::{Agent, SOON, World, eventually, own_entry, seconds, throughout};

#[test]
fn the_agent_svid_is_replaced_before_its_end_by_the_way_that_the_server_wants() {
    let begin = |(can_reattest, attestations, renewals)| {
        let world = World::with(|settings| {
            settings.agent_ttl = 20;
            settings.can_reattest = can_reattest;
        });
        world.entry("web");
        let mut agent = world.agent();
        agent.start_serving(&["/web"]);
        let first = (agent.stored().unwrap(), keys(&agent));
        (agent, first, attestations, renewals, world)
    };
    let mut runs = [(true, 2, 0), (false, 1, 1)].map(begin);

    for (agent, (stored, keys_before), attestations, renewals, world) in &mut runs {
        let second = eventually("a new agent SVID is stored", seconds(15), || {
            agent.fetch().expect("the workload is served throughout");
            agent.stored().filter(|now| now != stored)
        });

        assert_eq!(second.svid.len(), 1);
        assert_ne!(keys(agent), *keys_before, "the new SVID has a new key");
        assert_eq!(world.control.count(rpc::ATTEST_AGENT), *attestations);
        assert_eq!(world.control.count(rpc::RENEW_AGENT), *renewals);
        world.entry("with-the-new-one");
        agent.wait_served(&["/web", "/with-the-new-one"]);
    }
}

fn keys(agent: &Agent) -> String {
    std::fs::read_to_string(agent.data().join("keys.json")).expect("keys are on disk")
}

#[test]
fn a_faulty_agent_svid_is_refused_and_the_old_one_stays_until_a_good_one_comes() {
    let twists = [
        SvidTwist::Missing,
        SvidTwist::GarbageChain,
        SvidTwist::WrongKey,
        SvidTwist::WrongId,
        SvidTwist::NoUri,
        SvidTwist::ForeignAuthority,
        SvidTwist::Lifetime(-5),
    ];
    let begin = |twist| {
        let world = World::with(|settings| {
            settings.agent_ttl = 30;
            settings.can_reattest = false;
        });
        world.entry("web");
        world.control.twist_renewal(Some(twist));
        let mut agent = world.agent();
        agent.start_serving(&["/web"]);
        let stored = agent.stored();
        (twist, agent, stored, world)
    };
    let mut runs: Vec<_> = twists.into_iter().map(begin).collect();

    for (twist, agent, stored, world) in &mut runs {
        agent.wait_logged("Unable to rotate the agent SVID", 1);
        assert_eq!(agent.stored(), *stored, "{twist:?}");
        agent.fetch().expect("the workload is served");
        world.control.twist_renewal(None);
    }

    for (twist, agent, stored, _) in &runs {
        eventually(&format!("a good one after {twist:?}"), SOON, || {
            (agent.stored() != *stored).then_some(())
        });
    }
}

#[test]
fn d03_workload_svids_are_renewed_by_timers_of_their_own_without_an_entry_sync() {
    let world = World::with(|settings| settings.svid_ttl = 20);
    world.entry("web");
    let mut agent = world.agent();
    agent.options.sync_interval = "30d";
    agent.start_serving(&["/web"]);
    let stream = agent.stream();
    let syncs = || world.control.count(rpc::SYNC_AUTHORIZED_ENTRIES);
    // One after the attestation, then one in each sync; the first tick comes within 5 s.
    let bundles = 3;
    let synced = world
        .control
        .wait_for_calls(rpc::GET_BUNDLE, bundles, seconds(10));
    assert!(synced);

    throughout(seconds(13), || {
        let update = agent.fetch().expect("the workload is served throughout");
        assert_eq!(update.paths(), ["/web"]);
    });

    assert_eq!(syncs(), 2);
    assert_eq!(world.control.count(rpc::GET_BUNDLE), bundles);
    let updates = eventually("a message for each signing call", SOON, || {
        let updates = stream.updates();
        (updates.len() == world.control.count(rpc::BATCH_NEW_X509_SVID)).then_some(updates)
    });
    let identities = updates.iter().filter_map(|update| update.identity("/web"));
    let serials: BTreeSet<_> = identities.clone().map(|found| &found.serial).collect();
    let keys: BTreeSet<_> = identities.map(|found| &found.key).collect();
    assert!(serials.len() >= 3, "{} renewals", serials.len());
    assert_eq!(serials.len(), updates.len(), "a message without news");
    assert_eq!(keys.len(), updates.len(), "a key was used twice");
}

#[test]
fn d22_faulty_svids_are_refused_one_by_one_and_the_last_good_ones_stay() {
    let twists = BTreeMap::from([
        ("empty-chain", SvidTwist::EmptyChain),
        ("expired", SvidTwist::Lifetime(-5)),
        ("foreign-authority", SvidTwist::ForeignAuthority),
        ("garbage", SvidTwist::GarbageChain),
        ("missing", SvidTwist::Missing),
        ("no-uri", SvidTwist::NoUri),
        ("wrong-id", SvidTwist::WrongId),
        ("wrong-key", SvidTwist::WrongKey),
    ]);
    let world = World::with(|settings| settings.svid_ttl = 30);
    world.entry("steady");
    for id in twists.keys() {
        world.entry(id);
    }
    let mut agent = world.agent();
    let mut paths: Vec<String> = twists.keys().map(|id| format!("/{id}")).collect();
    paths.push("/steady".to_owned());
    paths.sort();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let good = agent.start_serving(&paths);
    for (&id, &twist) in &twists {
        world
            .control
            .twist_signing(id, Some(SignTwist::Svid(twist)));
    }

    eventually("every other renewal is refused", SOON, || {
        let update = agent.fetch().expect("the workload is served");
        let is_refused = |id: &&str| agent.log().contains(&refusal(id));
        let is_renewed = update.identity("/steady") != good.identity("/steady");
        (is_renewed && twists.keys().all(is_refused)).then_some(())
    });
    let update = agent.fetch().unwrap();
    assert_eq!(update.paths(), paths, "nothing is lost");
    for id in twists.keys() {
        let path = format!("/{id}");
        assert_eq!(update.identity(&path), good.identity(&path), "{id}");
    }
    for id in twists.keys() {
        world.control.twist_signing(id, None);
    }

    eventually("all are renewed", SOON, || {
        let update = agent.fetch().expect("the workload is served");
        let is_new = |path: &&str| update.identity(path) != good.identity(path);
        paths.iter().all(is_new).then_some(())
    });
}

/// The line that names an entry whose SVID was refused, up to the entry.
fn refusal(id: &str) -> String {
    format!("X509-SVID refused\" entry={id}")
}

#[test]
fn d21_an_entry_made_anew_under_its_id_gets_a_certificate_of_its_own() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    let before = agent.start_serving(&["/web"]);
    let stream = agent.stream();
    let wait_seen = |path: &str| {
        eventually("the stream brings it", SOON, || {
            stream.has_seen(path).then_some(())
        });
    };
    wait_seen("/web");

    for round in 0..3 {
        let path = format!("/made-anew-{round}");
        let mut entry = own_entry("web");
        entry.path.clone_from(&path);
        world.control.add_entry(entry);

        agent.wait_served(&[&path]);
        wait_seen(&path);
    }

    let last = agent.fetch().unwrap().identities;
    assert_ne!(last[0].serial, before.identities[0].serial);
    assert_ne!(last[0].key, before.identities[0].key);
    assert_eq!(stream.updates().len(), 4, "one message for each identity");
}

#[test]
fn a_changed_entry_is_signed_anew_and_served_until_then() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    let before = agent.start_serving(&["/web"]);

    world.control.update_entry("web", |entry| {
        entry.dns_names = vec!["web.test".to_owned()];
    });

    eventually("a new certificate", SOON, || {
        let update = agent.fetch().expect("the workload is served throughout");
        (update != before).then_some(())
    });
}

#[test]
fn an_entry_that_the_server_never_signs_does_not_keep_the_others_from_a_caller() {
    let world = World::new();
    world.entry("good");
    world.entry("never");
    let refusal = SignTwist::Fail(Code::Internal, "not this one".to_owned());
    world.control.twist_signing("never", Some(refusal));
    let mut agent = world.agent();

    agent.start_serving(&["/good"]);
}
