//! `healthcheck`: asks the running agent over its public socket.

use std::time::Duration;

use proto::grpc::health::v1::health_check_response::ServingStatus;
use proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};

use super::client::{self, CallError};
use super::flags::{Flag, Flags, Kind};
use super::{FAILURE, Output, SUCCESS, Surroundings};
use crate::cli;

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// An agent that takes longer is not healthy, and probes must not pile up.
const TIME_LIMIT: Duration = Duration::from_secs(5);

static SHALLOW: Flag = Flag::new("shallow", Kind::Bool, "Accepted, without effect");
static VERBOSE: Flag = Flag::new("verbose", Kind::Bool, "Say what is done and why it fails");

pub(super) const FLAGS: &[&Flag] = &[&cli::INSTANCE, &SHALLOW, &cli::SOCKET_PATH, &VERBOSE];

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    let is_verbose = flags.is_set("verbose");
    let socket = match cli::public_socket(flags, surroundings) {
        Ok(socket) => socket,
        Err(error) => return cli::finish(Err(error), output),
    };
    if is_verbose {
        output.print("Checking agent health...\n");
    }
    let answer = cli::block_on(check(&socket));
    let reason = match answer {
        Ok((ServingStatus::Serving, troubles)) => {
            output.print("Agent is healthy.\n");
            if is_verbose {
                for trouble in troubles {
                    output.print(&format!("Trouble, see the log: {trouble}\n"));
                }
            }
            return SUCCESS;
        }
        Ok((status, _)) => format!("agent returned status {:?}", status.as_str_name()),
        Err(error) => {
            if is_verbose {
                output.complain(format_args!("Failed to check health: {error}"));
            }
            "unable to determine health".to_owned()
        }
    };
    output.complain(format_args!("Agent is unhealthy: {reason}"));
    FAILURE
}

/// The status, and what an operator should know of although callers are served.
async fn check(socket: &str) -> Result<(ServingStatus, Vec<String>), CallError> {
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let answer = client::unary(socket, Some(TIME_LIMIT), CHECK, request).await?;
    let troubles = answer.metadata().get_all("edge-agent-trouble");
    let troubles = troubles.iter().filter_map(|name| name.to_str().ok());
    let troubles = troubles.map(str::to_owned).collect();
    let answer: HealthCheckResponse = answer.into_inner();
    Ok((answer.status(), troubles))
}
