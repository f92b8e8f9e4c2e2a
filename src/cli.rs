//! The command line: one table of commands, each in a file of its own under `cli/`.
//!
//! It takes the arguments and the environment as `main` found them and gives an exit code. Which command is meant and the help
//! texts are decided in `usage.rs`, flags in `flags.rs`.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};

use actors::clock::Clock;

mod api_fetch_jwt;
mod api_fetch_x509;
mod api_validate_jwt;
mod api_watch;
pub(crate) mod client;
mod credential_files;
mod debug_getinfo;
#[cfg(feature = "demo")]
mod demo;
mod flags;
mod healthcheck;
pub(crate) mod identities;
mod json;
mod logger;
mod output;
mod run;
mod socket;
#[cfg(test)]
mod tests;
mod usage;
mod validate;

use flags::{Flag, FlagError, Flags, Kind};
pub(crate) use output::Output;
#[cfg(all(test, feature = "demo"))]
pub(crate) use output::testing;
use usage::Selection;

/// What help texts call the program.
const PROGRAM: &str = env!("CARGO_PKG_NAME");

/// Done.
pub(crate) const SUCCESS: u8 = 0;

/// An error that an operator must look at.
pub(crate) const FAILURE: u8 = 1;

/// There is no such command.
const UNKNOWN_COMMAND: u8 = 127;

/// A command of the agent.
#[derive(Debug)]
struct Command {
    /// Its words, with single spaces.
    words: &'static str,
    /// What it does, in a few words without a full stop.
    about: &'static str,
    flags: &'static [&'static Flag],
    run: fn(&Flags, &Surroundings<'_>, &mut Output) -> u8,
}

/// What a command may know of the process it runs in.
pub(crate) struct Surroundings<'a> {
    /// Looks up an environment variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The working directory.
    pub(crate) directory: PathBuf,
    pub(crate) clock: Clock,
}

static COMMANDS: &[Command] = &[
    Command {
        words: "api fetch",
        about: "fetches this process's X.509-SVIDs, as `api fetch x509` does",
        flags: api_fetch_x509::FLAGS,
        run: api_fetch_x509::run,
    },
    Command {
        words: "api fetch jwt",
        about: "fetches a JWT-SVID for an audience",
        flags: api_fetch_jwt::FLAGS,
        run: api_fetch_jwt::run,
    },
    Command {
        words: "api fetch x509",
        about: "fetches this process's X.509-SVIDs",
        flags: api_fetch_x509::FLAGS,
        run: api_fetch_x509::run,
    },
    Command {
        words: "api validate jwt",
        about: "has the agent check a JWT-SVID",
        flags: api_validate_jwt::FLAGS,
        run: api_validate_jwt::run,
    },
    Command {
        words: "api watch",
        about: "prints this process's X.509-SVIDs at every change",
        flags: api_watch::FLAGS,
        run: api_watch::run,
    },
    Command {
        words: "debug getinfo",
        about: "shows the state of a running agent",
        flags: debug_getinfo::FLAGS,
        run: debug_getinfo::run,
    },
    #[cfg(feature = "demo")]
    Command {
        words: "demo",
        about: "shows the agent at work, with a server and two workloads made for it",
        flags: demo::FLAGS,
        run: demo::run,
    },
    Command {
        words: "healthcheck",
        about: "asks a running agent whether it is healthy",
        flags: healthcheck::FLAGS,
        run: healthcheck::run,
    },
    Command {
        words: "logger get",
        about: "shows the log level of a running agent",
        flags: logger::FLAGS,
        run: logger::get,
    },
    Command {
        words: "logger reset",
        about: "sets the log level back to that of the start",
        flags: logger::FLAGS,
        run: logger::reset,
    },
    Command {
        words: "logger set",
        about: "sets the log level of a running agent",
        flags: logger::SET_FLAGS,
        run: logger::set,
    },
    Command {
        words: "run",
        about: "runs the agent",
        flags: run::FLAGS,
        run: run::run,
    },
    Command {
        words: "validate",
        about: "checks the configuration file and changes nothing",
        flags: run::FLAGS,
        run: validate::run,
    },
];

/// Flags that several commands have.
static SOCKET_PATH: Flag = Flag::new(
    "socketPath",
    Kind::Text,
    "Path of the agent's public socket",
)
.or(crate::config::DEFAULT_SOCKET_PATH);
static ADMIN_SOCKET_PATH: Flag =
    Flag::new("socketPath", Kind::Text, "Path of the agent's admin socket")
        .or(socket::DEFAULT_ADMIN);
static INSTANCE: Flag = Flag::new(
    "instance",
    Kind::Text,
    "Name that replaces %i in SPIRE_AGENT_PUBLIC_SOCKET_TEMPLATE",
);
static OUTPUT: Flag = Flag::new("output", Kind::Output, "Form of the result").or("pretty");
static TIMEOUT: Flag = Flag::new(
    "timeout",
    Kind::Duration,
    "Time to wait for an answer, 0 for as long as it takes",
)
.or("5s");

/// Runs the command that the arguments name; gives the exit code.
pub(crate) fn main(
    arguments: &[String],
    surroundings: &Surroundings<'_>,
    output: &mut Output,
) -> u8 {
    match usage::select(COMMANDS, arguments) {
        Selection::Version => {
            output.complain(env!("CARGO_PKG_VERSION"));
            SUCCESS
        }
        Selection::Help => say(output, SUCCESS, &usage::overview(PROGRAM, COMMANDS)),
        Selection::Unknown => say(output, UNKNOWN_COMMAND, &usage::overview(PROGRAM, COMMANDS)),
        Selection::Group { words, wants_help } => {
            let code = if wants_help { SUCCESS } else { FAILURE };
            say(output, code, &usage::group_help(PROGRAM, COMMANDS, words))
        }
        Selection::CommandHelp(command) => {
            say(output, SUCCESS, &usage::command_help(PROGRAM, command))
        }
        Selection::MisplacedFlags => say(
            output,
            FAILURE,
            "Invalid flags before the subcommand. Flags of a subcommand belong behind it.\n",
        ),
        Selection::Run(command, arguments) => run_command(command, arguments, surroundings, output),
    }
}

fn run_command(
    command: &'static Command,
    arguments: &[String],
    surroundings: &Surroundings<'_>,
    output: &mut Output,
) -> u8 {
    let flags = match Flags::parse(command.flags, arguments) {
        Ok(flags) => flags,
        Err(error) => return wrong_use(command, &error, output),
    };
    let code = (command.run)(&flags, surroundings, output);
    if output.is_broken() && code == SUCCESS {
        FAILURE
    } else {
        code
    }
}

fn wrong_use(command: &'static Command, error: &FlagError, output: &mut Output) -> u8 {
    output.complain(error);
    say(output, FAILURE, &usage::command_help(PROGRAM, command))
}

fn say(output: &mut Output, code: u8, text: &str) -> u8 {
    output.complain(text.trim_end());
    code
}

/// Prints the result, or the error as it is; gives the exit code.
fn finish(result: Result<String, impl fmt::Display>, output: &mut Output) -> u8 {
    match result {
        Ok(text) => {
            output.print(&text);
            SUCCESS
        }
        Err(error) => {
            output.complain(error);
            FAILURE
        }
    }
}

/// The public socket that flags and environment name.
fn public_socket(
    flags: &Flags,
    surroundings: &Surroundings<'_>,
) -> Result<String, socket::SocketError> {
    socket::public(
        flags.text("socketPath"),
        flags.text("instance"),
        surroundings.variable,
    )
}

/// Runs a command's calls on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut outcome = None;
    drive(pin!(async { outcome = Some(future.await) }));
    outcome.expect("what was driven has ended")
}

/// One event loop's code serves all commands.
fn drive(work: Pin<&mut dyn Future<Output = ()>>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a process can have one event loop")
        .block_on(work);
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
