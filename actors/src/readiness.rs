//! Whether the agent can answer, and if not, what it is waiting for. Written by attestor and synchronizer, read by the endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::clock::Clock;
use crate::server::ServerError;

/// Longest sleep of [`out_of_reach`] while the server is.
const MAX_NAP: Duration = Duration::from_mins(1);

/// What the agent can do at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// How far the start has come.
    pub phase: Phase,
    /// When entries and bundles were last brought in step with the server.
    pub last_sync: Option<SystemTime>,
    /// Boot time of the first question in a row that did not reach the server; none = the last one did.
    pub unreachable_since: Option<Duration>,
    /// What an operator should know of while callers are served all the same, in words.
    pub troubles: BTreeMap<Trouble, Arc<str>>,
}

/// Kinds of trouble that leave callers served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The server's certificate leads to no known authority (design D2).
    UnknownAuthority,
    /// State could not be written (design 5).
    Unsaved,
    /// Another agent attests with the same evidence.
    SharedIdentity,
    /// The agent cannot come in again (design D4).
    ShutOut,
}

/// How far the start has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No agent SVID yet; the last error, if there was one.
    Attesting(Option<Arc<str>>),
    /// Attested, but no sync has succeeded yet; the last error, if there was one.
    Syncing(Option<Arc<str>>),
    /// Serving.
    Ready,
}

/// The reading end.
pub type ReadinessReader = watch::Receiver<Readiness>;
/// The writing end, shared by attestor and synchronizer through `send_modify`.
pub type ReadinessWriter = Arc<watch::Sender<Readiness>>;

/// A fresh pair: attesting, never synced.
pub fn readiness() -> (ReadinessWriter, ReadinessReader) {
    let (writer, reader) = watch::channel(Readiness {
        phase: Phase::Attesting(None),
        last_sync: None,
        unreachable_since: None,
        troubles: BTreeMap::new(),
    });
    (Arc::new(writer), reader)
}

impl Trouble {
    /// Its name in health answers; what exactly is wrong stands in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownAuthority => "unknown-authority",
            Self::Unsaved => "unsaved-state",
            Self::SharedIdentity => "shared-identity",
            Self::ShutOut => "shut-out",
        }
    }
}

impl Readiness {
    /// Takes down how a question to the server ended. An answer of any kind is contact.
    pub fn asked(&mut self, outcome: Result<(), &ServerError>, boot: Duration) {
        match outcome {
            Ok(()) | Err(ServerError::Status { .. } | ServerError::Malformed { .. }) => {
                self.unreachable_since = None;
            }
            Err(ServerError::Proof(_) | ServerError::NotAttested) => {}
            Err(
                ServerError::Unreachable { .. }
                | ServerError::UnknownAuthority { .. }
                | ServerError::Untrusted { .. }
                | ServerError::CertificateRejected { .. }
                | ServerError::TimedOut { .. },
            ) => {
                self.unreachable_since.get_or_insert(boot);
            }
        }
    }

    /// Begins a trouble, or ends it (`None`). Tells whether it has just begun.
    pub fn trouble(&mut self, trouble: Trouble, words: Option<Arc<str>>) -> bool {
        if let Some(words) = words {
            return self.troubles.insert(trouble, words).is_none();
        }
        self.troubles.remove(&trouble);
        false
    }
}

/// Returns once the server has been out of reach for `limit` (`exit_if_unreachable_for`). An agent that has nothing to ask may not have asked
/// for hours: `ask` is the last look before anything is concluded.
pub async fn out_of_reach<Answer>(
    readiness: ReadinessWriter,
    limit: Duration,
    clock: Clock,
    ask: impl Fn() -> Answer,
) where
    Answer: Future<Output = Result<(), ServerError>>,
{
    let mut reader = readiness.subscribe();
    let mut has_looked = false;
    loop {
        let since = reader.borrow_and_update().unreachable_since;
        let left = since.map(|since| limit.saturating_sub(clock.now().boot.saturating_sub(since)));
        if left == Some(Duration::ZERO) {
            if has_looked {
                return;
            }
            let answer = ask().await;
            let boot = clock.now().boot;
            readiness.send_modify(|readiness| readiness.asked(answer.as_ref().copied(), boot));
            has_looked = true;
            continue;
        }
        has_looked = false;
        // The grain of a timer is a millisecond; naps are short because a suspended machine counts, too.
        let nap = left.map_or(Duration::MAX, |left| left.min(MAX_NAP));
        tokio::select! {
            _ = reader.changed() => {}
            () = tokio::time::sleep(nap.saturating_add(Duration::from_millis(1))), if left.is_some() => {}
        }
    }
}

impl Phase {
    /// What a caller is told while it has to wait.
    pub fn reason(&self) -> String {
        match self {
            Self::Attesting(None) => "agent is not attested yet".into(),
            Self::Attesting(Some(error)) => format!("agent is not attested yet: {error}"),
            Self::Syncing(None) => "agent has not synced with the server yet".into(),
            Self::Syncing(Some(error)) => {
                format!("agent has not synced with the server yet: {error}")
            }
            Self::Ready => "agent is ready".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::epoch;
    use crate::testing::scripted_server::unavailable;

    #[tokio::test(start_paused = true)]
    async fn the_server_is_out_of_reach_from_the_first_failure_in_a_row_on() {
        let clock = Clock::virtual_from(epoch());
        let (writer, _) = readiness();
        let limit = Duration::from_mins(10);
        let ask = || std::future::ready(Err(unavailable()));
        let gone = out_of_reach(Arc::clone(&writer), limit, clock.clone(), ask);
        let asked = |outcome: Result<(), ServerError>| {
            let boot = clock.now().boot;
            writer.send_modify(|readiness| readiness.asked(outcome.as_ref().copied(), boot));
        };
        let story = async {
            let minutes = |minutes| tokio::time::sleep(Duration::from_mins(minutes));
            minutes(100).await;
            asked(Err(unavailable()));
            minutes(9).await;
            asked(Ok(()));
            minutes(100).await;
            asked(Err(unavailable()));
            minutes(5).await;
            asked(Err(unavailable()));
            minutes(60).await;
        };

        tokio::select! {
            () = gone => {}
            () = story => panic!("never noticed"),
        }

        let elapsed = clock.now().boot.as_secs_f64() / 60.0;
        assert!((219.0..219.1).contains(&elapsed), "{elapsed}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_when_it_is_asked_once_more_is_not_out_of_reach() {
        let clock = Clock::virtual_from(epoch());
        let (writer, reader) = readiness();
        let limit = Duration::from_mins(10);
        let asked = std::cell::Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            std::future::ready(if asked.get() == 1 {
                Ok(())
            } else {
                Err(unavailable())
            })
        };
        let gone = out_of_reach(Arc::clone(&writer), limit, clock.clone(), ask);
        let fail = || {
            let boot = clock.now().boot;
            writer.send_modify(|readiness| readiness.asked(Err(&unavailable()), boot));
        };
        let story = async {
            fail();
            tokio::time::sleep(Duration::from_hours(1)).await;
            assert_eq!(asked.get(), 1);
            assert_eq!(reader.borrow().unreachable_since, None);
            fail();
            tokio::time::sleep(Duration::from_hours(1)).await;
        };

        tokio::select! {
            () = gone => {}
            () = story => panic!("never noticed"),
        }

        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn an_answer_of_any_kind_is_contact() {
        let refused = ServerError::Status {
            call: "GetBundle",
            code: tonic::Code::Internal,
            message: String::new(),
            reason: None,
        };
        let mut readiness = readiness().1.borrow().clone();
        let boot = Duration::from_secs(7);

        readiness.asked(Err(&ServerError::NotAttested), boot);
        assert_eq!(readiness.unreachable_since, None);
        readiness.asked(Err(&unavailable()), boot);
        readiness.asked(Err(&unavailable()), boot * 2);
        assert_eq!(readiness.unreachable_since, Some(boot));
        readiness.asked(Err(&refused), boot);
        assert_eq!(readiness.unreachable_since, None);
    }
}
