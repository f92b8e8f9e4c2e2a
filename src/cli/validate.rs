//! `validate`: checks the configuration as `run` would, and changes nothing. What this build does not act on is valid: `run` tells of it.

use super::flags::Flags;
use super::{FAILURE, Output, SUCCESS, Surroundings, run};

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    match run::load(flags, surroundings) {
        Ok(config) => {
            for warning in &config.warnings {
                output.print(&format!("warning: {warning}\n"));
            }
            output.print("SPIRE agent configuration file is valid.\n");
            SUCCESS
        }
        Err(errors) => {
            output.complain(format_args!(
                "SPIRE agent configuration file is invalid: {errors}"
            ));
            FAILURE
        }
    }
}
