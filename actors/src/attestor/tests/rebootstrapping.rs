//! Servers whose authority is unknown (design D2, node-side 1.4 and 1.5).

use std::path::PathBuf;

use super::*;
use crate::bundle::BundleFormat;
use crate::store::Purpose;

/// A bundle file that a test can replace.
struct Source {
    directory: tempfile::TempDir,
}

impl Source {
    fn of(server: &ScriptedServer) -> Self {
        let source = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        source.update(server);
        source
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("bundle.pem")
    }

    fn update(&self, server: &ScriptedServer) {
        let certificates = server.current_bundle().certificates();
        let pem: String = certificates.iter().map(Certificate::to_pem).collect();
        std::fs::write(self.path(), pem).unwrap();
    }

    fn setup(&self, mode: RebootstrapMode) -> Setup {
        Setup {
            source: BundleSource::File {
                path: self.path(),
                format: Some(BundleFormat::Pem),
            },
            mode,
            ..Setup::default()
        }
    }
}

fn begin(mode: RebootstrapMode) -> (World, Source) {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let source = Source::of(&server);
    let world = start_with(source.setup(mode), clock, server, Disk::default());
    (world, source)
}

fn unknown_authority() -> ServerError {
    ServerError::UnknownAuthority {
        peer: "server.test:8081".into(),
    }
}

impl World {
    /// As the synchronizer tells it.
    async fn report_unknown(&self) {
        let serial = self.serial().unwrap();
        let error = unknown_authority();
        let report = ServerUnknown { serial, error };
        self.attestor.send(report).await.unwrap();
        self.pass(1).await;
    }

    /// Another CA signs from now on, and calls with credentials fail as they would.
    fn replace_server(&self) {
        self.server.rotate_authority(true);
        self.server
            .fail(Call::Bundle, unknown_authority(), usize::MAX);
    }

    fn knows_authority(&self) -> bool {
        let readiness = self.readiness.borrow();
        !readiness.troubles.contains_key(&Trouble::UnknownAuthority)
    }

    fn trusts_the_server(&self) -> bool {
        let credentials = self.credentials.borrow();
        credentials.as_ref().unwrap().bundle.certificates()
            == self.server.current_bundle().certificates()
    }
}

#[actix::test]
async fn d02_an_unknown_authority_is_reported_and_never_ends_the_agent() {
    let (mut world, _source) = begin(RebootstrapMode::Never);
    world.pass(1).await;
    world.replace_server();

    for _ in 0..50 {
        world.report_unknown().await;
        world.pass(60).await;
    }

    assert!(!world.knows_authority());
    assert!(world.exits.try_recv().is_err());
    assert!(world.serial().is_some());
    world.accept().await;
    world.pass(1).await;
    assert!(world.knows_authority());
}

#[actix::test]
async fn a_server_that_stays_unknown_is_found_again_by_the_bootstrap_bundle() {
    let (world, source) = begin(RebootstrapMode::Auto);
    world.pass(1).await;
    world.attested.take();
    let before = world.serial();
    world.replace_server();
    source.update(&world.server);

    world.report_unknown().await;
    world.pass(9 * 60).await;
    assert_eq!(world.serial(), before, "the delay is kept");
    let stored = world.disk.lock().unwrap().bootstrap;
    assert_eq!(stored.purpose, Some(Purpose::Rebootstrap));
    assert!(stored.started.is_some());
    world.server.fail(Call::Bundle, unknown_authority(), 1);
    world.pass(120).await;

    assert_ne!(world.serial(), before);
    assert_eq!(world.serial(), world.stored_serial());
    assert!(world.trusts_the_server() && world.knows_authority());
    assert_eq!(world.attested.take().len(), 1, "entries are asked for anew");
    let disk = world.disk.lock().unwrap();
    assert_eq!(disk.bundle, world.server.current_bundle().certificates());
    assert_eq!(disk.bootstrap, BootstrapState::succeeded());
}

#[actix::test]
async fn an_svid_of_a_new_authority_is_never_on_disk_without_its_bundle() {
    let (world, source) = begin(RebootstrapMode::Auto);
    world.pass(1).await;
    world.replace_server();
    source.update(&world.server);
    world.disk.lock().unwrap().writes.clear();

    world.report_unknown().await;
    while world.disk.lock().unwrap().writes.last() != Some(&"svid") {
        sleep(Duration::from_millis(500)).await;
    }

    let disk = world.disk.lock().unwrap();
    let stored = Bundle::of_certificates(
        TrustDomain::parse(TRUST_DOMAIN).unwrap(),
        disk.bundle.clone(),
    );
    assert_eq!(stored.verify(&disk.chain, world.clock.wall()), Ok(()));
}

#[actix::test]
async fn a_server_that_is_known_again_within_the_delay_changes_nothing() {
    let (world, source) = begin(RebootstrapMode::Auto);
    world.pass(1).await;
    let before = world.serial();

    world.report_unknown().await;
    world.pass(300).await;
    world.accept().await;
    source.update(&world.server);
    world.pass(400).await;

    assert_eq!(world.serial(), before);
    assert!(world.knows_authority());
    assert_eq!(
        world.disk.lock().unwrap().bootstrap,
        BootstrapState::succeeded()
    );
}

#[actix::test]
async fn the_server_is_looked_at_once_more_before_the_agent_starts_over() {
    let (world, _source) = begin(RebootstrapMode::Auto);
    world.pass(1).await;
    let before = world.serial();

    world.report_unknown().await;
    world.pass(700).await;

    assert_eq!(world.serial(), before, "it had come back unnoticed");
    assert!(world.knows_authority());
}

#[actix::test]
async fn the_delay_of_a_rebootstrap_goes_on_over_a_restart() {
    let (first, source) = begin(RebootstrapMode::Auto);
    first.pass(1).await;
    first.replace_server();
    source.update(&first.server);
    first.report_unknown().await;
    first.pass(360).await;

    let disk = std::mem::take(&mut *first.disk.lock().unwrap());
    let (clock, server) = (first.clock.clone(), Rc::clone(&first.server));
    let restarted = clock.now().boot;
    let second = start_with(source.setup(RebootstrapMode::Auto), clock, server, disk);
    second.pass(5).await;
    let before = second.serial();
    second.report_unknown().await;
    while second.serial() == before {
        second.pass(1).await;
    }

    let waited = second.clock.now().boot.saturating_sub(restarted).as_secs();
    assert!((230..=250).contains(&waited), "{waited}");
}

#[actix::test]
async fn a_source_that_is_still_the_old_one_is_asked_until_it_is_not() {
    let (world, source) = begin(RebootstrapMode::Auto);
    world.pass(1).await;
    let before = world.serial();
    world.replace_server();

    world.report_unknown().await;
    world.pass(1200).await;
    assert_eq!(world.serial(), before);
    assert!(world.disk.lock().unwrap().bootstrap.attempts > 1);
    source.update(&world.server);
    world.server.mend();
    world.pass(300).await;

    assert_ne!(world.serial(), before);
}

#[actix::test]
async fn a_server_that_comes_back_after_the_delay_is_known_by_the_bundle_that_is_held() {
    let (world, source) = begin(RebootstrapMode::Auto);
    world.server.agent_ttl.set(Duration::from_mins(30));
    world.pass(1).await;
    let ours = world.server.swap_authority(Ca::new(world.clock.wall()));
    world
        .server
        .fail(Call::Bundle, unknown_authority(), usize::MAX);
    // What the source has leads to neither server.
    std::fs::write(
        source.path(),
        Ca::new(world.clock.wall()).certificate().to_pem(),
    )
    .unwrap();

    world.report_unknown().await;
    world.pass(3600).await;
    world.server.swap_authority(ours);
    world.server.mend();
    world.pass(300).await;

    let credentials = world.credentials.borrow();
    let svid = &credentials.as_ref().unwrap().svid;
    assert!(svid.not_after() > world.clock.wall());
    assert!(world.knows_authority());
}

#[actix::test]
async fn an_agent_that_cannot_attest_again_is_not_started_over() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    server.reattestable.set(false);
    let source = Source::of(&server);
    let setup = source.setup(RebootstrapMode::Auto);
    let world = start_with(setup, clock, server, Disk::default());
    world.pass(1).await;
    world.replace_server();
    source.update(&world.server);

    for _ in 0..40 {
        world.report_unknown().await;
        world.pass(20).await;
    }

    assert_eq!(world.server.count(Call::Attest), 1);
    assert!(!world.knows_authority());
}

#[actix::test]
async fn w29_always_is_refused_before_a_token_is_spent() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let source = Source::of(&server);
    let setup = Setup {
        node: Rc::new(OneTimeNode),
        ..source.setup(RebootstrapMode::Always)
    };

    let mut world = start_with(setup, clock, server, Disk::default());
    world.pass(5).await;

    let exit = world.exits.try_recv().unwrap();
    assert!(exit.reason.contains("rebootstrap_mode"), "{}", exit.reason);
    assert_eq!(world.server.count(Call::Attest), 0);
}

#[actix::test]
async fn a_cold_start_with_the_bundle_of_a_lost_server_starts_over_too() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let source = Source::of(&server);
    let lost = Ca::new(clock.wall());
    let disk = Disk {
        bundle: vec![lost.certificate().clone()],
        bootstrap: BootstrapState::succeeded(),
        ..Disk::default()
    };

    let world = start_with(source.setup(RebootstrapMode::Auto), clock, server, disk);
    world.pass(590).await;
    assert_eq!(world.serial(), None);
    world.pass(250).await;

    assert!(world.serial().is_some() && world.trusts_the_server());
}

#[actix::test]
async fn a_stored_svid_without_a_bundle_waits_for_one_and_shows_no_token_again() {
    let clock = virtual_clock();
    let server = ScriptedServer::new(&clock);
    let source = Source::of(&server);
    std::fs::remove_file(source.path()).unwrap();
    let svid = Ca::new(clock.wall()).svid(
        "spiffe://domain.test/spire/agent/join_token/spent",
        clock.wall(),
        clock.wall() + Duration::from_hours(1),
    );
    let disk = Disk {
        chain: svid.chain().to_vec(),
        keys: BTreeMap::from([(KeySlot::B, Arc::clone(&svid.key))]),
        ..Disk::default()
    };
    let setup = Setup {
        node: Rc::new(OneTimeNode),
        ..source.setup(RebootstrapMode::Never)
    };

    let world = start_with(setup, clock, server, disk);
    world.pass(20).await;
    assert_eq!(world.serial(), None);
    source.update(&world.server);
    world.pass(30).await;

    assert_eq!(world.server.count(Call::Attest), 0);
    assert_eq!(world.serial(), Some(svid.leaf().serial_hex()));
}
