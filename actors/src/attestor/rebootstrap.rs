//! Starting over from the configured bundle sources, once the server's authority has been unknown for long enough (node-side 1.4, 1.5). Pure.

use std::time::{Duration, SystemTime};

use crate::store::{BootstrapState, Purpose};

/// `rebootstrap_mode` and `rebootstrap_delay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebootstrapConfig {
    /// Whether to start over at all.
    pub mode: RebootstrapMode,
    /// How long the authority must have been unknown.
    pub delay: Duration,
}

/// `rebootstrap_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RebootstrapMode {
    /// An unknown authority is reported and waited for.
    #[default]
    Never,
    /// Start over where the agent can attest again.
    Auto,
    /// Start over; an agent that cannot attest again does not run.
    Always,
}

/// What to do about an unknown authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AboutUnknown {
    /// Nothing but trying again (design D2).
    Retry,
    /// Look again after this time; if the authority is still unknown then, start over.
    Wait(Duration),
    /// Ask the sources and attest by what they give.
    StartOver,
}

/// How far a bootstrap or rebootstrap is.
#[derive(Debug)]
pub struct Rebootstrap {
    config: RebootstrapConfig,
    state: BootstrapState,
    stored: BootstrapState,
    is_starting_over: bool,
    /// While starting over every other try is left to the bundle that is held: the server that it vouches for may be back.
    is_turn_of_held: bool,
}

impl Rebootstrap {
    /// Goes on where the last process stopped. `has_bundle` tells what a state file means that says nothing.
    pub fn resume(config: RebootstrapConfig, stored: BootstrapState, has_bundle: bool) -> Self {
        let purpose = if has_bundle {
            Purpose::Rebootstrap
        } else {
            Purpose::Bootstrap
        };
        let state = BootstrapState {
            purpose: stored.purpose.or(Some(purpose)),
            ..stored
        };
        Self {
            config,
            state,
            stored: state,
            is_starting_over: false,
            is_turn_of_held: false,
        }
    }

    /// How far it is.
    pub fn state(&self) -> BootstrapState {
        self.state
    }

    /// What is worth a write: that trouble began or ended, and attempts when their number has doubled, so that an outage does not wear the disk.
    pub fn to_be_stored(&mut self) -> Option<BootstrapState> {
        let (state, stored) = (self.state, self.stored);
        let is_news = state.started != stored.started
            || state.purpose != stored.purpose
            || state.attempts >= stored.attempts.saturating_mul(2)
                && state.attempts > stored.attempts;
        if is_news {
            self.stored = state;
        }
        is_news.then_some(state)
    }

    /// What was to be stored could not be: it is still worth a write.
    pub fn not_stored(&mut self) {
        self.stored = BootstrapState::default();
    }

    /// The success is on disk already.
    pub fn stored(&mut self) {
        self.stored = BootstrapState::succeeded();
    }

    /// Whether the sources count and not the bundle that is held.
    pub fn is_starting_over(&self) -> bool {
        self.is_starting_over
    }

    /// Whether the next try asks the sources although a bundle is held.
    pub fn passes_over_held(&mut self) -> bool {
        let asks = self.is_starting_over && !self.is_turn_of_held;
        self.is_turn_of_held = asks;
        asks
    }

    /// How long until the delay is over.
    pub fn left(&self, now: SystemTime) -> Duration {
        let elapsed = self
            .state
            .started
            .and_then(|started| now.duration_since(started).ok());
        self.config
            .delay
            .saturating_sub(elapsed.unwrap_or_default())
    }

    /// The sources are about to be asked.
    pub fn asking(&mut self, now: SystemTime) {
        self.state.attempts = self.state.attempts.saturating_add(1);
        self.state.started.get_or_insert(now);
    }

    /// The server's authority is unknown. `may_attest` tells whether the agent could come in again.
    pub fn unknown_authority(&mut self, now: SystemTime, may_attest: bool) -> AboutUnknown {
        if self.config.mode == RebootstrapMode::Never || !may_attest {
            return AboutUnknown::Retry;
        }
        if self.state.purpose != Some(Purpose::Rebootstrap) {
            // Without a bundle of its own the agent asks the sources anyway.
            return AboutUnknown::Retry;
        }
        let started = *self.state.started.get_or_insert(now);
        // A start in the future is a clock that went back: it counts from now on.
        let elapsed = now.duration_since(started).unwrap_or_else(|_| {
            self.state.started = Some(now);
            Duration::ZERO
        });
        match self.config.delay.saturating_sub(elapsed) {
            Duration::ZERO => {
                self.is_starting_over = true;
                AboutUnknown::StartOver
            }
            left => AboutUnknown::Wait(left),
        }
    }

    /// The server has accepted the agent.
    pub fn succeeded(&mut self) {
        self.is_starting_over = false;
        self.state = BootstrapState::succeeded();
    }

    /// Why this agent must not run: `always` is a promise that an agent which cannot attest again cannot keep.
    pub fn refuses(&self, may_attest: bool) -> Option<&'static str> {
        (self.config.mode == RebootstrapMode::Always && !may_attest).then_some(
            "rebootstrap_mode is always, but this agent cannot attest again: use auto or never",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::epoch;

    const DELAY: Duration = Duration::from_mins(10);

    fn mode(mode: RebootstrapMode) -> RebootstrapConfig {
        RebootstrapConfig { mode, delay: DELAY }
    }

    fn running(config: RebootstrapMode) -> Rebootstrap {
        Rebootstrap::resume(mode(config), BootstrapState::succeeded(), true)
    }

    fn minutes(minutes: u64) -> SystemTime {
        epoch() + Duration::from_mins(minutes)
    }

    #[test]
    fn only_the_configured_mode_starts_over() {
        let table = [
            (RebootstrapMode::Never, true, AboutUnknown::Retry),
            (RebootstrapMode::Never, false, AboutUnknown::Retry),
            (RebootstrapMode::Auto, true, AboutUnknown::StartOver),
            (RebootstrapMode::Auto, false, AboutUnknown::Retry),
            (RebootstrapMode::Always, true, AboutUnknown::StartOver),
        ];
        for (configured, may_attest, expected) in table {
            let mut rebootstrap = running(configured);

            rebootstrap.unknown_authority(minutes(0), may_attest);
            let later = rebootstrap.unknown_authority(minutes(10), may_attest);

            assert_eq!(later, expected, "{configured:?} {may_attest}");
            assert_eq!(
                rebootstrap.is_starting_over(),
                expected == AboutUnknown::StartOver
            );
        }
    }

    #[test]
    fn the_delay_goes_on_over_a_restart_and_ends_with_a_success() {
        let mut before = running(RebootstrapMode::Auto);
        assert_eq!(
            before.unknown_authority(minutes(0), true),
            AboutUnknown::Wait(DELAY)
        );

        let mut after = Rebootstrap::resume(mode(RebootstrapMode::Auto), before.state(), true);
        let at_six = after.unknown_authority(minutes(6), true);
        assert_eq!(at_six, AboutUnknown::Wait(Duration::from_mins(4)));
        assert_eq!(after.to_be_stored(), None, "stored by the process before");
        after.succeeded();
        assert_eq!(after.to_be_stored(), Some(BootstrapState::succeeded()));
        assert_eq!(after.to_be_stored(), None);

        let anew = after.unknown_authority(minutes(30), true);
        assert_eq!(anew, AboutUnknown::Wait(DELAY));
    }

    #[test]
    fn a_clock_that_went_back_does_not_stretch_the_delay_for_ever() {
        let mut rebootstrap = running(RebootstrapMode::Auto);
        rebootstrap.unknown_authority(minutes(1000), true);

        let back = rebootstrap.unknown_authority(minutes(0), true);
        let later = rebootstrap.unknown_authority(minutes(10), true);

        assert_eq!(back, AboutUnknown::Wait(DELAY));
        assert_eq!(later, AboutUnknown::StartOver);
    }

    #[test]
    fn a_first_bootstrap_asks_the_sources_at_every_try_and_never_starts_over() {
        let mut first = Rebootstrap::resume(
            mode(RebootstrapMode::Auto),
            BootstrapState::default(),
            false,
        );

        first.asking(minutes(0));
        first.asking(minutes(1));

        assert_eq!(
            first.unknown_authority(minutes(60), true),
            AboutUnknown::Retry
        );
        assert_eq!(first.to_be_stored(), Some(first.state()));
        first.asking(minutes(2));
        assert_eq!(first.to_be_stored(), None);
        first.asking(minutes(3));
        assert_eq!(first.to_be_stored(), Some(first.state()));
        let state = first.state();
        assert_eq!(
            (state.purpose, state.started, state.attempts),
            (Some(Purpose::Bootstrap), Some(minutes(0)), 4)
        );
    }

    #[test]
    fn an_old_state_file_means_what_its_bundle_means() {
        let purpose = |has_bundle| {
            let stored = BootstrapState::default();
            Rebootstrap::resume(mode(RebootstrapMode::Auto), stored, has_bundle)
                .state()
                .purpose
        };

        assert_eq!(purpose(true), Some(Purpose::Rebootstrap));
        assert_eq!(purpose(false), Some(Purpose::Bootstrap));
    }

    #[test]
    fn always_is_refused_where_the_agent_cannot_attest_again() {
        assert!(running(RebootstrapMode::Always).refuses(false).is_some());
        assert_eq!(running(RebootstrapMode::Always).refuses(true), None);
        assert_eq!(running(RebootstrapMode::Auto).refuses(false), None);
        assert_eq!(running(RebootstrapMode::Never).refuses(false), None);
    }
}
