//! Follows the X.509 contexts of a Workload API with the Rust `spiffe` crate and prints one JSON line per update. usage: watch SOCKET

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use interop::api;
use interop::update::Update;

fn main() -> ExitCode {
    let Some(socket) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: watch SOCKET");
        return ExitCode::from(2);
    };

    let end = api::watch(&socket, |update| print(&update));

    let error = end.map_or_else(
        |error| error.to_string(),
        |()| "the stream ended".to_owned(),
    );
    print(&Update::failed(&error));
    ExitCode::FAILURE
}

fn print(update: &Update) {
    println!(
        "{}",
        serde_json::to_string(update).expect("an update is plain data")
    );
}
