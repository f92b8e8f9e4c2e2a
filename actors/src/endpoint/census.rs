//! Who is connected: counts connections in all and by user, and says when memory is worth giving back.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Notify;

use super::caps::Caps;

/// So many ended connections and calls leave enough behind to be worth a trim.
const ENDED_BEFORE_TRIM: u32 = 64;

/// Open connections. Shared by the accept loops and the connections of one thread.
#[derive(Debug)]
pub(super) struct Census {
    caps: Caps,
    by_uid: RefCell<HashMap<u32, usize>>,
    total: Cell<usize>,
    emptied: Notify,
    ended: Cell<u32>,
    trim_is_due: Cell<bool>,
}

/// One counted connection; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Place {
    census: Rc<Census>,
    uid: u32,
}

impl Census {
    /// Nobody yet.
    pub(super) fn new(caps: Caps) -> Self {
        Self {
            caps,
            by_uid: RefCell::default(),
            total: Cell::new(0),
            emptied: Notify::new(),
            ended: Cell::new(0),
            trim_is_due: Cell::new(false),
        }
    }

    /// A place for one more connection of this user, unless a bound is reached.
    pub(super) fn enter(self: &Rc<Self>, uid: u32) -> Option<Place> {
        let mut by_uid = self.by_uid.borrow_mut();
        let held = by_uid.get(&uid).copied().unwrap_or(0);
        if self.total.get() >= self.caps.total || held >= self.caps.per_uid {
            return None;
        }
        by_uid.insert(uid, held + 1);
        self.total.set(self.total.get() + 1);
        Some(Place {
            census: Rc::clone(self),
            uid,
        })
    }

    /// How many connections are open.
    pub(super) fn open(&self) -> usize {
        self.total.get()
    }

    /// Waits until none is open.
    pub(super) async fn emptied(&self) {
        while self.open() > 0 {
            self.emptied.notified().await;
        }
    }

    /// Told after each end of a connection or call: whether a trim is to be done soon. Says so once until [`Self::trimmed`].
    pub(super) fn asks_for_trim(&self) -> bool {
        self.ended.set(self.ended.get().saturating_add(1));
        self.ended.get() >= ENDED_BEFORE_TRIM && !self.trim_is_due.replace(true)
    }

    /// A trim was done.
    pub(super) fn trimmed(&self) {
        self.ended.set(0);
        self.trim_is_due.set(false);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let census = &self.census;
        let mut by_uid = census.by_uid.borrow_mut();
        if let Some(held) = by_uid.get_mut(&self.uid) {
            *held -= 1;
            if *held == 0 {
                by_uid.remove(&self.uid);
            }
        }
        census.total.set(census.total.get() - 1);
        if census.open() == 0 {
            census.emptied.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(total: usize, per_uid: usize) -> Rc<Census> {
        Rc::new(Census::new(Caps { total, per_uid }))
    }

    #[test]
    fn a_user_at_the_bound_leaves_room_for_others() {
        let census = census(3, 2);

        let first = census.enter(1).unwrap();
        let _second = census.enter(1).unwrap();

        assert!(census.enter(1).is_none());
        let _other = census.enter(2).unwrap();
        assert!(census.enter(3).is_none());
        drop(first);
        assert!(census.enter(1).is_some());
    }

    #[tokio::test]
    async fn the_last_one_to_leave_is_noticed() {
        let census = census(3, 3);
        let places = [census.enter(1).unwrap(), census.enter(2).unwrap()];

        let waiting = census.emptied();
        drop(places);
        waiting.await;

        assert_eq!(census.open(), 0);
        assert!(census.by_uid.borrow().is_empty());
    }

    #[test]
    fn a_burst_of_ends_asks_for_one_trim() {
        let census = census(1, 1);

        let asked = (0..200).filter(|_| census.asks_for_trim()).count();
        census.trimmed();

        assert_eq!(asked, 1);
        assert_eq!((0..64).filter(|_| census.asks_for_trim()).count(), 1);
    }
}
