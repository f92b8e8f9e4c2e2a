//! The commands of the binary: one line in, one text out.

use devserver::{Code, Control, Entry, Fault};

const HELP: &str =
    "entry ID SELECTOR[,SELECTOR...] [TTL]   add or replace an entry; its path is /ID
remove ID                               remove an entry
entries | agents | calls                show
token [TTL]                             make a join token
evict AGENT_ID | ban AGENT_ID           as an operator would
prepare | activate N | taint N | revoke N   X.509 authorities
fail RPC CODE [TIMES]                   such as: fail SyncAuthorizedEntries Unavailable 3
ok                                      remove all faults
stop | start | goaway | close           the port and its connections";

/// Carries out one command and says what came of it.
pub(crate) fn execute(control: &Control, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [] => String::new(),
        ["entry", id, selectors, rest @ ..] => {
            let ttl = rest.first().and_then(|ttl| ttl.parse().ok()).unwrap_or(0);
            let selectors: Vec<&str> = selectors.split(',').collect();
            control.add_entry(Entry::new(id, &format!("/{id}"), &selectors).with_ttl(ttl));
            "added".to_owned()
        }
        ["remove", id] => done(control.remove_entry(id)),
        ["entries"] => lines(
            control
                .entries()
                .iter()
                .map(|entry| format!("{} {} {}", entry.id, entry.path, entry.selectors.join(","))),
        ),
        ["agents"] => lines(control.agents().iter().map(|agent| {
            let standing = if agent.is_banned { "banned" } else { "active" };
            format!("{} {standing} until {}", agent.id, agent.expires_at)
        })),
        ["calls"] => calls(control),
        ["token", rest @ ..] => {
            let ttl = rest.first().and_then(|ttl| ttl.parse().ok()).unwrap_or(600);
            control.create_join_token(ttl)
        }
        ["evict", id] => done(control.evict_agent(id)),
        ["ban", id] => done(control.ban_agent(id)),
        ["prepare"] => format!("authority {}", control.prepare_x509_authority()),
        ["activate", number] => numbered(number, |number| control.activate_x509_authority(number)),
        ["taint", number] => numbered(number, |number| control.taint_x509_authority(number)),
        ["revoke", number] => numbered(number, |number| control.revoke_x509_authority(number)),
        ["fail", rpc, code, rest @ ..] => fail(control, rpc, code, rest.first().copied()),
        ["ok"] => {
            control.clear_faults();
            "no faults".to_owned()
        }
        ["stop"] => done(control.stop()),
        ["start"] => done(control.start()),
        ["goaway"] => {
            control.go_away();
            "sent".to_owned()
        }
        ["close"] => {
            control.close_connections();
            "closed".to_owned()
        }
        _ => HELP.to_owned(),
    }
}

fn done(is_done: bool) -> String {
    if is_done { "done" } else { "no such thing" }.to_owned()
}

fn numbered(number: &str, act: impl FnOnce(usize) -> bool) -> String {
    number.parse().map_or_else(
        |_| format!("{number:?} is no number"),
        |number| done(act(number)),
    )
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

fn calls(control: &Control) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for call in control.all_calls() {
        *counts.entry(call.rpc).or_insert(0) += 1;
    }
    lines(counts.iter().map(|(rpc, count)| format!("{count:6} {rpc}")))
}

fn fail(control: &Control, rpc: &str, code: &str, times: Option<&str>) -> String {
    let known = (1..=16)
        .map(Code::from)
        .find(|known| format!("{known:?}").eq_ignore_ascii_case(code));
    let Some(code) = known else {
        return format!("{code:?} is no gRPC code: write it like Unavailable");
    };
    let fault = Fault::code(rpc, code);
    let fault = match times.map(str::parse) {
        None => fault,
        Some(Ok(times)) => fault.times(times),
        Some(Err(_)) => return "TIMES is no number".to_owned(),
    };
    control.add_fault(fault);
    format!("{rpc} fails with {code:?}")
}
