//! The rows of node-side 2.9, 3.3, 3.5 and 3.6, one test each.

use super::*;
use crate::server::DeniedReason::{
    AgentBanned, AgentExpired, AgentMustReattest, AgentNotActive, AgentNotAttested,
};

const AGENT: &str = "spiffe://domain.test/spire/agent/test/node";

/// What stands on disk at a start.
#[derive(Clone, Copy, Default)]
struct OnDisk {
    svid: bool,
    keys: &'static [Key],
    expired: bool,
}

/// A key on disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    /// The SVID's, in slot A.
    Own,
    /// Of nothing that is left, in slot B.
    Other,
}

fn start_from(found: OnDisk) -> World {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let end = if found.expired {
        clock.wall()
    } else {
        clock.wall() + Duration::from_hours(1)
    };
    let begin = clock.wall().checked_sub(Duration::from_mins(10)).unwrap();
    let svid = Ca::new(begin).svid(AGENT, begin, end);
    let mut disk = Disk {
        reattestable: true,
        bundle: server.current_bundle().certificates(),
        ..Disk::default()
    };
    if found.svid {
        disk.chain = svid.chain().to_vec();
    }
    if found.keys.contains(&Key::Own) {
        disk.keys.insert(KeySlot::A, Arc::clone(&svid.key));
    }
    if found.keys.contains(&Key::Other) {
        let other = PrivateKey::generate(crate::keys::KeyType::EcP256).unwrap();
        disk.keys.insert(KeySlot::B, Arc::new(other));
    }
    start(clock, server, disk)
}

impl World {
    fn slots(&self) -> Vec<KeySlot> {
        self.disk.lock().unwrap().keys.keys().copied().collect()
    }

    /// The slot that holds the key of the SVID in use.
    fn slot_in_use(&self) -> KeySlot {
        let credentials = self.credentials.borrow();
        let used = credentials.as_ref().unwrap().svid.key.public_key_der();
        let disk = self.disk.lock().unwrap();
        let mut keys = disk.keys.iter();
        *keys
            .find(|(_, key)| key.public_key_der() == used)
            .unwrap()
            .0
    }
}

#[actix::test]
async fn row_3_3_svid_and_key_not_expired_use_it() {
    let world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Own],
        ..OnDisk::default()
    });

    world.pass(5).await;

    assert_eq!(world.server.count(Call::Attest), 0);
    assert!(world.serial().is_some() && world.serial() == world.stored_serial());
}

#[actix::test]
async fn row_3_3_svid_and_key_expired_new_key_in_the_other_slot() {
    let world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Own],
        expired: true,
    });

    world.pass(5).await;

    assert_eq!(world.server.count(Call::Attest), 1);
    assert_eq!(world.slot_in_use(), KeySlot::B);
    assert_eq!(world.slots(), [KeySlot::A, KeySlot::B]);
}

#[actix::test]
async fn row_3_3_svid_without_any_key_new_key_a() {
    let world = start_from(OnDisk {
        svid: true,
        ..OnDisk::default()
    });

    world.pass(5).await;

    assert_eq!(world.server.count(Call::Attest), 1);
    assert_eq!(world.slots(), [KeySlot::A]);
}

#[actix::test]
async fn row_3_3_svid_with_other_keys_new_key_a() {
    let world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Other],
        ..OnDisk::default()
    });

    world.pass(5).await;

    assert_eq!(world.server.count(Call::Attest), 1);
    assert_eq!(world.slot_in_use(), KeySlot::A);
}

#[actix::test]
async fn row_3_3_keys_without_svid_new_key_a() {
    let world = start_from(OnDisk {
        keys: &[Key::Other],
        ..OnDisk::default()
    });

    world.pass(5).await;

    assert_eq!(world.server.count(Call::Attest), 1);
    assert_eq!(world.slot_in_use(), KeySlot::A);
}

async fn after_reason(reason: DeniedReason) -> World {
    let world = world();
    world.pass(1).await;
    world.attested.take();
    world.reject(reason).await;
    world.pass(1).await;
    world
}

#[actix::test]
async fn row_3_5_agent_expired_attests_again() {
    let world = after_reason(AgentExpired).await;
    assert_eq!(world.server.count(Call::Attest), 2);
}

#[actix::test]
async fn row_3_5_agent_not_attested_attests_again() {
    let world = after_reason(AgentNotAttested).await;
    assert_eq!(world.server.count(Call::Attest), 2);
}

#[actix::test]
async fn row_3_5_agent_not_active_attests_again() {
    let world = after_reason(AgentNotActive).await;
    assert_eq!(world.server.count(Call::Attest), 2);
}

#[actix::test]
async fn row_3_5_agent_must_reattest_attests_again() {
    let world = after_reason(AgentMustReattest).await;
    assert_eq!(world.server.count(Call::Attest), 2);
}

#[actix::test]
async fn row_3_5_agent_banned_ends() {
    let mut world = after_reason(AgentBanned).await;
    assert_eq!(world.server.count(Call::Attest), 1);
    assert_eq!(world.exits.try_recv().unwrap().code, 1);
}

#[test]
fn row_3_5_unknown_numbers_are_no_reason() {
    for number in [0, 6, 99, -1, i32::MAX] {
        assert_eq!(DeniedReason::from_wire(number), None, "{number}");
    }
}

#[actix::test]
async fn row_3_6_evicted_while_running_reattestable_the_new_svid_is_stored_and_announced() {
    let world = after_reason(AgentNotAttested).await;

    assert_eq!(world.serial(), world.stored_serial(), "weakness W12");
    assert_eq!(world.attested.take().len(), 1);
}

#[actix::test]
async fn row_3_6_evicted_and_started_later_attests_in_the_same_process() {
    let mut world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Own],
        ..OnDisk::default()
    });
    world.pass(1).await;

    world.reject(AgentNotAttested).await;
    world.pass(1).await;

    assert_eq!(world.server.count(Call::Attest), 1);
    assert!(world.exits.try_recv().is_err());
}

#[actix::test]
async fn row_3_6_banned_at_start_with_a_stored_svid_removes_it_and_ends() {
    let mut world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Own],
        ..OnDisk::default()
    });
    world.pass(1).await;

    world.reject(AgentBanned).await;
    world.pass(1).await;

    assert_eq!(world.stored_serial(), None);
    assert_eq!(world.exits.try_recv().unwrap().code, 1);
}

#[actix::test]
async fn row_3_6_banned_start_without_svid_ends() {
    let mut world = world();
    world.server.fail(Call::Attest, denied(), usize::MAX);

    world.pass(1).await;

    assert_eq!(world.exits.try_recv().unwrap().code, 1);
    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn row_3_6_restart_with_a_valid_svid_and_no_server_keeps_the_svid() {
    let mut world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Own],
        ..OnDisk::default()
    });
    world.server.fail(Call::Attest, unavailable(), usize::MAX);

    world.pass(50 * 60).await;

    assert!(world.server.count(Call::Attest) > 3, "rotation was tried");
    assert!(world.serial().is_some());
    assert!(world.exits.try_recv().is_err());
}

#[actix::test]
async fn row_3_6_restart_with_an_expired_svid_and_no_server_tries_for_ever() {
    let mut world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Own],
        expired: true,
    });
    world.server.fail(Call::Attest, unavailable(), usize::MAX);

    world.pass(600).await;
    assert!(world.exits.try_recv().is_err());
    world.server.mend();
    world.pass(140).await;

    assert!(world.serial().is_some());
}

fn denied() -> ServerError {
    status(tonic::Code::PermissionDenied)
}

fn status(code: tonic::Code) -> ServerError {
    ServerError::Status {
        call: "AttestAgent",
        code,
        message: "told to fail".into(),
        reason: None,
    }
}

#[actix::test]
async fn row_2_9_permission_denied_ends_at_once_and_deletes_nothing() {
    let mut world = start_from(OnDisk {
        svid: true,
        keys: &[Key::Own],
        expired: true,
    });
    world.server.fail(Call::Attest, denied(), usize::MAX);

    world.pass(1).await;

    assert!(world.exits.try_recv().is_ok());
    assert!(world.stored_serial().is_some());
}

#[actix::test]
async fn row_2_9_every_other_answer_is_tried_again() {
    use tonic::Code;
    let codes = [
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];
    let clock = virtual_clock();
    for code in codes {
        let server = ScriptedServer::new(&clock);
        let mut world = start(clock.clone(), server, Disk::default());
        world.server.fail(Call::Attest, status(code), 1);

        world.pass(15).await;

        assert!(world.exits.try_recv().is_err(), "{code:?}");
        assert_eq!(world.server.count(Call::Attest), 2, "{code:?}");
        assert!(world.serial().is_some(), "{code:?}");
    }
}

#[actix::test]
async fn row_2_9_unknown_authority_is_tried_again_for_ever() {
    let mut world = world();
    let unknown = ServerError::UnknownAuthority {
        peer: "server.test:8081".into(),
    };
    world.server.fail(Call::Attest, unknown, usize::MAX);

    world.pass(3600).await;

    assert!(world.exits.try_recv().is_err());
    assert!(world.server.count(Call::Attest) > 25);
}

#[actix::test]
async fn row_2_9_a_missing_bundle_file_is_waited_for_a_minute() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let setup = Setup {
        source: BundleSource::File {
            path: "/nowhere/bundle.pem".into(),
            format: Some(crate::bundle::BundleFormat::Pem),
        },
        ..Setup::default()
    };
    let mut world = start_with(setup, clock, server, Disk::default());

    world.pass(30).await;
    assert!(world.exits.try_recv().is_err());
    world.pass(60).await;

    let exit = world.exits.try_recv().unwrap();
    assert!(
        exit.reason.contains("/nowhere/bundle.pem"),
        "{}",
        exit.reason
    );
    assert_eq!(world.server.count(Call::Attest), 0);
}

#[actix::test]
async fn w10_a_bundle_that_cannot_be_fetched_costs_no_svid() {
    let clock = virtual_clock();
    for reattestable in [true, false] {
        let server = ScriptedServer::new(&clock);
        let world = start(clock.clone(), server, Disk::default());
        world.server.reattestable.set(reattestable);
        world.server.fail(Call::Bundle, unavailable(), 5);

        world.pass(1).await;
        assert_eq!(
            world.stored_serial().is_some(),
            !reattestable,
            "one that cannot be had again is stored at once"
        );
        world.pass(120).await;

        assert_eq!(world.server.count(Call::Attest), 1, "{reattestable}");
        assert!(world.serial().is_some() && world.serial() == world.stored_serial());
    }
}

#[actix::test]
async fn an_agent_that_is_restarted_all_the_time_replaces_its_svid_all_the_same() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let svid = Ca::new(clock.wall()).svid(
        AGENT,
        clock.wall().checked_sub(Duration::from_hours(1)).unwrap(),
        clock.wall() + Duration::from_mins(10),
    );
    let disk = Disk {
        chain: svid.chain().to_vec(),
        reattestable: true,
        bundle: server.current_bundle().certificates(),
        keys: BTreeMap::from([(KeySlot::A, Arc::clone(&svid.key))]),
        ..Disk::default()
    };

    let world = start(clock, server, disk);
    world.pass(1).await;

    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn a_stored_svid_waits_for_a_bundle_and_is_used_before_anything_is_attested() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bundle.pem");
    let svid =
        Ca::new(clock.wall()).svid(AGENT, clock.wall(), clock.wall() + Duration::from_hours(1));
    let disk = Disk {
        chain: svid.chain().to_vec(),
        keys: BTreeMap::from([(KeySlot::A, Arc::clone(&svid.key))]),
        ..Disk::default()
    };
    let setup = Setup {
        node: Rc::new(OneTimeNode),
        source: BundleSource::File {
            path: path.clone(),
            format: None,
        },
        ..Setup::default()
    };

    let world = start_with(setup, clock, server, disk);
    world.pass(10).await;
    let bundle = world.server.current_bundle();
    std::fs::write(path, bundle.certificates()[0].to_pem()).unwrap();
    world.pass(30).await;

    assert_eq!(world.server.count(Call::Attest), 0);
    assert_eq!(world.serial(), Some(svid.leaf().serial_hex()));
}

#[actix::test]
async fn a_bundle_that_came_during_an_attestation_is_not_lost_on_disk() {
    let world = world();
    world.pass(1).await;
    let newer = Bundle::new(
        TrustDomain::parse(TRUST_DOMAIN).unwrap(),
        [
            world.server.current_bundle().x509_authorities(),
            Ca::new(world.clock.wall())
                .bundle(TRUST_DOMAIN)
                .x509_authorities(),
        ]
        .concat(),
    );
    world.server.attestation_takes.set(Duration::from_mins(1));
    world.server.fail(Call::Bundle, unavailable(), usize::MAX);

    world.reject(AgentNotAttested).await;
    world.pass(30).await;
    let told = TrustBundle(Arc::new(newer.clone()));
    world.attestor.send(told).await.unwrap();
    world.pass(60).await;

    assert_eq!(world.serial(), world.stored_serial());
    assert_eq!(world.disk.lock().unwrap().bundle, newer.certificates());
}

#[actix::test]
async fn rejections_do_not_bring_a_crowded_server_more_tries() {
    let world = world();
    world.server.agent_ttl.set(Duration::from_hours(100));
    world.pass(1).await;
    let crowded = ServerError::Status {
        call: "AttestAgent",
        code: tonic::Code::ResourceExhausted,
        message: "rate limit".into(),
        reason: None,
    };
    world.server.fail(Call::Attest, crowded, usize::MAX);

    for _ in 0..360 {
        world.reject(AgentNotAttested).await;
        world.pass(5).await;
    }

    let tries = world.server.count(Call::Attest);
    assert!((5..=16).contains(&tries), "{tries} in half an hour");
}

#[actix::test]
async fn an_svid_that_is_accepted_again_is_valid_whatever_becomes_of_the_attestation() {
    let mut world = world();
    world.pass(1).await;
    world.server.attestation_takes.set(Duration::from_mins(1));
    world.server.fail(Call::Attest, denied(), usize::MAX);

    world.reject(AgentNotAttested).await;
    world.pass(30).await;
    world.accept().await;
    world.pass(60).await;

    assert!(world.exits.try_recv().is_err());
    assert!(world.serial().is_some());
}

#[actix::test]
async fn row_3_3_an_unreadable_svid_counts_as_none() {
    // What the store hands over once it has set `agent-data.json` aside.
    let world = start_from(OnDisk {
        keys: &[Key::Own],
        ..OnDisk::default()
    });

    world.pass(5).await;

    assert_eq!(world.server.count(Call::Attest), 1);
    assert!(world.serial().is_some() && world.serial() == world.stored_serial());
}

#[actix::test]
async fn row_3_6_evicted_while_running_join_token_ends_and_leaves_no_svid() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    server.reattestable.set(false);
    let setup = Setup {
        node: Rc::new(OneTimeNode),
        ..Setup::default()
    };
    let mut world = start_with(setup, clock, server, Disk::default());
    world.pass(1).await;

    world.reject(AgentNotAttested).await;
    world.pass(1).await;

    assert_eq!(world.exits.try_recv().unwrap().code, 1);
    assert_eq!(world.stored_serial(), None);
    assert_eq!(world.server.count(Call::Attest), 1);
}

#[actix::test]
async fn row_3_6_banned_while_running_withdraws_identities_first() {
    let mut world = after_reason(AgentBanned).await;

    assert_eq!(world.banned.take().len(), 1);
    assert_eq!(world.stored_serial(), None);
    assert_eq!(world.exits.try_recv().unwrap().code, 1);
}

#[actix::test]
async fn row_3_6_a_server_that_lost_the_agents_ca_is_attested_to_after_three_alerts() {
    let world = world();
    world.pass(1).await;
    let before = world.serial();

    for _ in 0..3 {
        let error = ServerError::CertificateRejected {
            peer: "server.test:8081".into(),
            reason: "TLS alert UnknownCA".into(),
        };
        let rejected = SvidRejected {
            serial: world.serial().unwrap(),
            disposition: error.disposition(),
            error,
        };
        assert_eq!(world.serial(), before);
        world.attestor.send(rejected).await.unwrap();
        world.pass(1).await;
    }

    assert_ne!(world.serial(), before);
    assert_eq!(world.server.count(Call::Attest), 2);
}

#[actix::test]
async fn row_2_9_a_bootstrap_state_that_cannot_be_written_holds_nothing_up() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let mut world = start(clock, server, Disk::default());
    world.server.fail(Call::Attest, unavailable(), 3);
    world.pass(1).await;

    world.disk.lock().unwrap().is_full = true;
    world.pass(20).await;
    assert!(world.exits.try_recv().is_err());
    world.disk.lock().unwrap().is_full = false;
    world.pass(60).await;

    assert!(world.serial().is_some());
    assert_eq!(
        world.disk.lock().unwrap().bootstrap,
        BootstrapState::succeeded()
    );
}
