//! `validate`: checks the configuration as `run` would, and changes nothing.

use super::flags::Flags;
use super::{FAILURE, Output, SUCCESS, Surroundings, run};

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    match run::load(flags, surroundings) {
        Ok(config) => {
            for warning in &config.warnings {
                output.print(&format!("warning: {warning}\n"));
            }
            for setting in config.unbuilt() {
                let consequence = if setting.needed {
                    "`run` refuses it"
                } else {
                    "it has no effect"
                };
                let place = setting
                    .line
                    .map_or_else(String::new, |line| format!(" (line {line})"));
                output.print(&format!(
                    "warning: this build does not act on {} yet: {consequence}{place}\n",
                    setting.key
                ));
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
