//! A panic ends the process: with an exit code of its own, and with one line that says where. What happens in a call that is
//! being answered is tested beside the endpoint.

use std::process::{Command, Stdio};

use actix::{Actor, AsyncContext, Context, Handler, Message, SyncArbiter, SyncContext, WrapFuture};

use crate::harness::PROGRAM;

/// The exit code that service managers know.
const EXIT_CODE: u8 = 70;

/// Tells the test, when it runs itself once more, in which place to panic.
const PLACE: &str = "EDGE_AGENT_TEST_PANIC";

/// An actor with a fault.
struct Faulty;

/// An actor with a fault on a thread of its own.
struct FaultyThread;

#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
struct Fail(String);

impl Actor for Faulty {
    type Context = Context<Self>;
}

impl Handler<Fail> for Faulty {
    type Result = ();

    fn handle(&mut self, Fail(place): Fail, ctx: &mut Self::Context) {
        match place.as_str() {
            "task" => {
                let fault = async { panic!("a fault in a task") };
                ctx.spawn(fault.into_actor(self));
            }
            "blocking work" => drop(actix_rt::task::spawn_blocking(|| {
                panic!("a fault in blocking work")
            })),
            _ => panic!("a fault in a {place}"),
        }
    }
}

impl Actor for FaultyThread {
    type Context = SyncContext<Self>;
}

impl Handler<Fail> for FaultyThread {
    type Result = ();

    fn handle(&mut self, Fail(place): Fail, _: &mut Self::Context) {
        panic!("a fault in a {place}");
    }
}

/// What the process does when it is run once more: it ends by its own fault, or returns if nothing ends it.
fn fail(place: &str) {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    actors::panics::install(EXIT_CODE);
    let message = Fail(place.to_owned());
    actix::System::new().block_on(async {
        let told = if place == "thread" {
            let thread = SyncArbiter::start(1, || FaultyThread);
            thread.try_send(message).is_ok()
        } else {
            Faulty.start().try_send(message).is_ok()
        };
        assert!(told, "an actor that has just been started takes a message");
        tokio::time::sleep(crate::harness::SOON).await;
    });
}

#[test]
fn a_panic_in_an_actor_ends_the_process_with_one_line_that_says_where() {
    if let Ok(place) = std::env::var(PLACE) {
        return fail(&place);
    }

    for place in ["handler", "task", "thread", "blocking work"] {
        let this_test = "dies::a_panic_in_an_actor_ends_the_process_with_one_line_that_says_where";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", this_test, "--nocapture"])
            .env(PLACE, place)
            .output()
            .unwrap();

        let errors = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(output.status.code(), Some(EXIT_CODE.into()), "{place}");
        assert_eq!(lines.len(), 1, "{place}: {errors}");
        assert!(lines[0].contains("panicked"), "{errors}");
        assert!(lines[0].contains("tests/system/dies.rs:"), "{errors}");
        assert!(lines[0].contains("a fault in "), "{errors}");
    }
}

#[test]
fn the_agent_has_the_rule_before_anything_else_can_fail() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("agent.conf");
    std::fs::write(&config, CONFIG).unwrap();
    // Too few descriptors for a runtime, whose absence the agent takes for impossible.
    let script = r#"ulimit -n 4 && exec "$0" run -config "$1""#;

    let output = Command::new("sh")
        .args(["-c", script, PROGRAM])
        .arg(&config)
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(EXIT_CODE.into()), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].contains("panicked"), "{text}");
    assert!(lines[0].contains("src/system.rs:"), "{text}");
}

const CONFIG: &str = r#"agent {
  server_address = "127.0.0.1"
  server_port = 1
  trust_domain = "domain.test"
  trust_bundle_path = "/x.pem"
}
plugins {
  KeyManager "memory" { plugin_data {} }
  NodeAttestor "x509pop" { plugin_data { private_key_path = "/x" certificate_path = "/y" } }
  WorkloadAttestor "unix" { plugin_data {} }
}
"#;
