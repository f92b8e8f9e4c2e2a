//! The one generator behind every jitter. Not for keys or nonces: those come from ring.

use std::time::Duration;

/// A seedable generator. Forked for each actor that draws, so that a seed replays a run.
#[derive(Debug, Clone)]
pub struct Random(fastrand::Rng);

impl Random {
    /// A generator that no other run repeats.
    pub fn from_entropy() -> Self {
        Self(fastrand::Rng::new())
    }

    /// A generator that repeats itself for the same seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A generator of its own for another actor.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    /// A duration within `share` (0.1 = a tenth) of `middle`, evenly spread.
    pub fn around(&mut self, middle: Duration, share: f64) -> Duration {
        middle.mul_f64(1.0 - share + 2.0 * share * self.0.f64())
    }

    /// A duration from nothing to `limit`, evenly spread.
    pub fn up_to(&mut self, limit: Duration) -> Duration {
        limit.mul_f64(self.0.f64())
    }

    /// Puts items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}
