//! Finds the entries whose selectors a workload has. Pure.
//!
//! Each entry hangs on one of its selectors, the one that fewest entries hang on when it comes. A look-up walks the workload's own
//! selectors, so its cost follows the caller and its matches, not the number of entries.

use std::collections::HashMap;

use crate::entry::EntryId;
use crate::selector::{Selector, SelectorSet};

/// Entries by selector.
#[derive(Debug, Default)]
pub struct SelectorIndex {
    anchored: HashMap<Selector, Vec<(EntryId, SelectorSet)>>,
    anchor_of: HashMap<EntryId, Selector>,
}

impl SelectorIndex {
    /// Adds an entry, or moves it to other selectors. An entry without selectors matches nobody and is not kept.
    pub fn insert(&mut self, id: &EntryId, selectors: &SelectorSet) {
        self.remove(id);
        let crowd = |selector: &&Selector| self.anchored.get(*selector).map_or(0, Vec::len);
        let Some(anchor) = selectors.iter().min_by_key(crowd).cloned() else {
            return;
        };
        self.anchored
            .entry(anchor.clone())
            .or_default()
            .push((id.clone(), selectors.clone()));
        self.anchor_of.insert(id.clone(), anchor);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, id: &EntryId) {
        let Some(anchor) = self.anchor_of.remove(id) else {
            return;
        };
        if let Some(entries) = self.anchored.get_mut(&anchor) {
            entries.retain(|(other, _)| other != id);
            if entries.is_empty() {
                self.anchored.remove(&anchor);
            }
        }
    }

    /// The entries whose selectors are all among the workload's, in entry-ID order.
    pub fn matching(&self, workload: &SelectorSet) -> Vec<EntryId> {
        let mut found: Vec<EntryId> = workload
            .iter()
            .filter_map(|selector| self.anchored.get(selector))
            .flatten()
            .filter(|(_, selectors)| selectors.is_subset_of(workload))
            .map(|(id, _)| id.clone())
            .collect();
        found.sort_unstable();
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn set(values: impl IntoIterator<Item = u8>) -> SelectorSet {
        values
            .into_iter()
            .map(|value| Selector::new("unix", &format!("uid:{value}")).unwrap())
            .collect()
    }

    fn id(number: u8) -> EntryId {
        EntryId::new(&format!("e{number:03}")).unwrap()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u8, Vec<u8>),
        Remove(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0_u8..20, vec(0_u8..8, 0..4)).prop_map(|(entry, selectors)| Step::Insert(entry, selectors)),
            1 => (0_u8..20).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn matches_are_those_of_the_naive_model(steps in vec(step(), 0..60), workload in btree_set(0_u8..8, 0..6)) {
            let mut index = SelectorIndex::default();
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(entry, selectors) => {
                        index.insert(&id(entry), &set(selectors.clone()));
                        model.insert(id(entry), set(selectors));
                    }
                    Step::Remove(entry) => {
                        index.remove(&id(entry));
                        model.remove(&id(entry));
                    }
                }
            }
            let workload = set(workload);

            let naive: Vec<_> =
                model.iter().filter(|(_, selectors)| !selectors.is_empty() && selectors.is_subset_of(&workload)).map(|(id, _)| id.clone()).collect();

            prop_assert_eq!(index.matching(&workload), naive);
        }
    }

    #[test]
    fn an_entry_hangs_on_its_rarest_selector() {
        let mut index = SelectorIndex::default();
        for number in 0..50 {
            index.insert(&id(number), &set([1, 100 + number]));
        }

        assert!(
            index.anchored.values().all(|entries| entries.len() <= 1),
            "all 50 share selector 1"
        );
    }
}
