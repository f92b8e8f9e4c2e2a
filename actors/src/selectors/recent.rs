//! A small table whose entries are good for a short time. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Values that are good for `good_for` after they were put in; at most `limit` of them.
#[derive(Debug)]
pub struct Recent<K, V> {
    good_for: Duration,
    limit: usize,
    entries: HashMap<K, (Duration, V)>,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    /// An empty table.
    pub fn new(good_for: Duration, limit: usize) -> Self {
        Self {
            good_for,
            limit,
            entries: HashMap::new(),
        }
    }

    /// The value of `key`, if it is still good at `now` (time since boot).
    pub fn get(&self, key: &K, now: Duration) -> Option<&V> {
        self.entries
            .get(key)
            .filter(|(until, _)| now < *until)
            .map(|(_, value)| value)
    }

    /// Puts a value in, unless the table is full of values that are still good; whether it was put in.
    pub fn insert(&mut self, key: K, value: V, now: Duration) -> bool {
        self.entries.retain(|_, (until, _)| now < *until);
        let has_room = self.entries.len() < self.limit;
        if has_room {
            self.entries.insert(key, (now + self.good_for, value));
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_value_is_good_for_a_while_and_then_gone() {
        let mut recent = Recent::new(2 * SECOND, 8);

        recent.insert("a", 1, SECOND);

        assert_eq!(recent.get(&"a", 2 * SECOND), Some(&1));
        assert_eq!(recent.get(&"a", 3 * SECOND), None);
        assert_eq!(recent.get(&"b", SECOND), None);
    }

    #[test]
    fn a_full_table_takes_no_more_until_something_has_gone_stale() {
        let mut recent = Recent::new(2 * SECOND, 2);

        let taken = [
            recent.insert("a", 1, SECOND),
            recent.insert("b", 2, 2 * SECOND),
            recent.insert("c", 3, 2 * SECOND),
            recent.insert("d", 4, 3 * SECOND),
        ];

        assert_eq!(taken, [true, true, false, true]);

        assert_eq!(
            [
                recent.get(&"b", 3 * SECOND),
                recent.get(&"c", 3 * SECOND),
                recent.get(&"d", 3 * SECOND)
            ],
            [Some(&2), None, Some(&4)]
        );
    }
}
