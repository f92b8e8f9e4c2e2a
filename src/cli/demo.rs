//! `demo`: the agent with a server and a workload in one process.

use super::flags::{Flag, Flags, Kind};
use super::{Output, Surroundings};
use crate::demo::{self, Options};

pub(super) const FLAGS: &[&Flag] = &[
    &Flag::new(
        "keep",
        Kind::Bool,
        "Stay up after the last step, until Ctrl-C",
    ),
    &Flag::new(
        "verbose",
        Kind::Bool,
        "Show the agent's log instead of keeping it in a file",
    ),
];

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    let options = Options {
        keep: flags.is_set("keep"),
        is_verbose: flags.is_set("verbose"),
    };
    demo::run(options, surroundings, output)
}
