//! Lets many agents arrive at once behind one address and prints what it cost. usage: arrival COUNT [SECONDS]

use std::env;
use std::process::ExitCode;

use interop::{arrival, seconds};

const ORDINARY_LIMIT: u64 = 240;

fn main() -> ExitCode {
    let numbers: Vec<u64> = env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let count = numbers
        .first()
        .and_then(|count| usize::try_from(*count).ok());
    let Some(count) = count else {
        eprintln!("usage: arrival COUNT [SECONDS]");
        return ExitCode::from(2);
    };
    let limit = numbers.get(1).copied().unwrap_or(ORDINARY_LIMIT);

    let arrival = arrival::arrive(count, seconds(limit));

    println!(
        "{} agents attested within {:.0} s by {} calls; {} attempts were put off",
        arrival.agents,
        arrival.took.as_secs_f64(),
        arrival.calls,
        arrival.postponed
    );
    ExitCode::SUCCESS
}
