//! A site that powers up: its agents come at once, from one address.

use interop::{arrival, seconds};

#[test]
fn thirty_agents_behind_one_address_all_get_in_at_the_servers_pace_without_asking_in_vain() {
    const AGENTS: u64 = 30;

    let arrival = arrival::arrive(30, seconds(90));

    println!("{arrival:?}");
    assert!(arrival.calls <= 2 * AGENTS, "{arrival:?}");
    assert!(
        arrival.took >= seconds(AGENTS - 5),
        "the server's limit was on: {arrival:?}"
    );
}
