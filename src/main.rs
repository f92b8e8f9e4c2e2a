//! `edge-agent`: a SPIFFE/SPIRE node agent. Reads arguments and environment, once; the command line does the rest.

use std::process::ExitCode;

use actors::clock::Clock;

mod cli;
mod config;
#[cfg(feature = "demo")]
mod demo;
mod signal;
mod system;
mod telemetry;

fn main() -> ExitCode {
    // Before the first line of the log: it may go to a file.
    actors::sys::survive_file_size_limit();
    let mut output = cli::Output::of_process();
    let mut arguments = Vec::new();
    for (number, argument) in std::env::args_os().enumerate().skip(1) {
        let Ok(argument) = argument.into_string() else {
            output.complain(format_args!("argument {number} is not UTF-8"));
            return ExitCode::from(cli::FAILURE);
        };
        arguments.push(argument);
    }
    let directory = match std::env::current_dir() {
        Ok(directory) => directory,
        Err(error) => {
            output.complain(format_args!("cannot tell the working directory: {error}"));
            return ExitCode::from(cli::FAILURE);
        }
    };
    let surroundings = cli::Surroundings {
        variable: &|name| std::env::var(name).ok(),
        directory,
        clock: Clock::system(),
    };
    ExitCode::from(cli::main(&arguments, &surroundings, &mut output))
}
