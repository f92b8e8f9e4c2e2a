//! What a panic does. It leaves an actor dead behind a live address, and one in a spawned task is silent: so it ends the process,
//! after one line that names the place. The one exception is an RPC handler: there only the call ends.

use std::panic::Location;

use crate::endpoint::polling_rpc;

/// Where the sources of the actors are, as the compiler writes it.
const ACTORS: &str = "actors/src/";

/// From now on a panic on any thread ends the process with `exit_code`, unless it happens while a local call is being answered.
pub fn install(exit_code: u8) {
    std::panic::set_hook(Box::new(move |info| {
        let error = info.payload_as_str().unwrap_or("no message");
        let actor = info.location().map_or_else(|| "unknown".to_owned(), place);
        tracing::error!(error, actor, "panicked");
        if !polling_rpc() {
            std::process::exit(i32::from(exit_code));
        }
    }));
}

fn place(location: &Location<'_>) -> String {
    let (file, line) = (location.file(), location.line());
    match actor_of(file) {
        Some(actor) => format!("{actor} ({file}:{line})"),
        None => format!("{file}:{line}"),
    }
}

/// The actor as an operator knows it: `actors/src/cache/entries.rs` belongs to `cache`. None for sources that are no actor's.
fn actor_of(file: &str) -> Option<&str> {
    let (_, module) = file.rsplit_once(ACTORS)?;
    module.split(['/', '.']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_file_is_named_by_its_actor() {
        let table = [
            ("actors/src/cache.rs", Some("cache")),
            ("actors/src/cache/entries.rs", Some("cache")),
            ("/build/agent/actors/src/store/files.rs", Some("store")),
            ("src/system.rs", None),
            ("/registry/tokio-1.54.1/src/signal/unix.rs", None),
        ];

        for (file, actor) in table {
            assert_eq!(actor_of(file), actor, "{file}");
        }
    }

    #[test]
    fn a_place_is_the_line_of_a_file() {
        let here = Location::caller();

        assert!(place(here).starts_with("panics (actors/src/panics.rs:"));
    }
}
