//! Who is told what: one group for all callers with the same selectors, and one shared view for each group.

use std::collections::HashMap;

use tokio::sync::watch;

use super::entries::{Changes, is_same};
use super::view::{View, ViewReader};
use crate::selector::SelectorSet;

/// Groups with nobody in them are swept out when this many have been made since the last sweep.
const SWEEP_EVERY: usize = 256;

/// All live subscriptions.
#[derive(Debug, Default)]
pub struct Subscribers {
    groups: HashMap<SelectorSet, watch::Sender<View>>,
    made_since_sweep: usize,
}

impl Subscribers {
    /// Adds a caller to the group of its selectors. `look` says what the group is told now, given what it was told before.
    pub fn subscribe(
        &mut self,
        selectors: &SelectorSet,
        look: impl FnOnce(Option<&View>) -> View,
    ) -> ViewReader {
        if let Some(group) = self.groups.get(selectors) {
            let view = look((group.receiver_count() > 0).then_some(&*group.borrow()));
            publish(group, view);
            return group.subscribe();
        }
        self.made_since_sweep += 1;
        if self.made_since_sweep >= SWEEP_EVERY {
            self.drop_dead();
        }
        let (group, reader) = watch::channel(look(None));
        self.groups.insert(selectors.clone(), group);
        reader
    }

    /// Tells every group that a change concerns; silent where the words would be the same.
    pub fn tell(&mut self, changes: &Changes, look: impl Fn(&SelectorSet, &View) -> View) {
        for (selectors, group) in &self.groups {
            if changes.concern(selectors) {
                let view = look(selectors, &group.borrow());
                publish(group, view);
            }
        }
    }

    /// Forgets groups that everybody has left.
    pub fn drop_dead(&mut self) {
        self.groups.retain(|_, group| group.receiver_count() > 0);
        self.made_since_sweep = 0;
    }

    /// The selectors of all groups.
    pub fn selector_sets(&self) -> impl Iterator<Item = &SelectorSet> {
        self.groups.keys()
    }

    /// How many callers listen.
    pub fn count(&self) -> usize {
        self.groups
            .values()
            .map(watch::Sender::receiver_count)
            .sum()
    }
}

fn publish(group: &watch::Sender<View>, view: View) {
    group.send_if_modified(|current| {
        let changed = !is_same(current, &view);
        if changed {
            *current = view;
        }
        changed
    });
}
