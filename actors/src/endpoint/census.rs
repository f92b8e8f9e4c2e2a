//! Who is connected: counts connections in all and by user, and calls by user, and says when memory is worth giving back.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Notify;

use super::caps::Caps;

/// So many ended connections and calls leave enough behind to be worth a trim.
const ENDED_BEFORE_TRIM: u32 = 64;

/// Open calls of one user, on all connections together: what their answers and requests hold is bounded by it.
const CALLS_PER_UID: usize = 8_192;

/// Open connections and calls. Shared by the accept loops and the connections of one thread.
#[derive(Debug)]
pub(super) struct Census {
    caps: Caps,
    by_uid: ByUid,
    calls_by_uid: ByUid,
    total: Cell<usize>,
    emptied: Notify,
    ended: Cell<u32>,
    trim_is_due: Cell<bool>,
}

/// A number for each user that has one.
#[derive(Debug, Default)]
struct ByUid(RefCell<HashMap<u32, usize>>);

/// One counted call; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct CallPlace {
    census: Rc<Census>,
    uid: u32,
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
            by_uid: ByUid::default(),
            calls_by_uid: ByUid::default(),
            total: Cell::new(0),
            emptied: Notify::new(),
            ended: Cell::new(0),
            trim_is_due: Cell::new(false),
        }
    }

    /// A place for one more connection of this user, unless a bound is reached.
    pub(super) fn enter(self: &Rc<Self>, uid: u32) -> Option<Place> {
        if self.total.get() >= self.caps.total || !self.by_uid.take(uid, self.caps.per_uid) {
            return None;
        }
        self.total.set(self.total.get() + 1);
        Some(Place {
            census: Rc::clone(self),
            uid,
        })
    }

    /// A place for one more call of this user, unless the bound is reached.
    pub(super) fn begin_call(self: &Rc<Self>, uid: u32) -> Option<CallPlace> {
        self.calls_by_uid
            .take(uid, CALLS_PER_UID)
            .then(|| CallPlace {
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

impl ByUid {
    fn take(&self, uid: u32, limit: usize) -> bool {
        let mut numbers = self.0.borrow_mut();
        let held = numbers.get(&uid).copied().unwrap_or(0);
        if held < limit {
            numbers.insert(uid, held + 1);
        }
        held < limit
    }

    fn give_back(&self, uid: u32) {
        let mut numbers = self.0.borrow_mut();
        if let Some(held) = numbers.get_mut(&uid) {
            *held -= 1;
            if *held == 0 {
                numbers.remove(&uid);
            }
        }
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.census.calls_by_uid.give_back(self.uid);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let census = &self.census;
        census.by_uid.give_back(self.uid);
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

    #[test]
    fn a_user_with_too_many_calls_gets_no_more_and_others_do() {
        let census = census(1, 1);

        let calls: Vec<_> = (0..CALLS_PER_UID).map(|_| census.begin_call(1)).collect();

        assert!(calls.iter().all(Option::is_some));
        assert!(census.begin_call(1).is_none());
        assert!(census.begin_call(2).is_some());
        drop(calls);
        assert!(census.begin_call(1).is_some());
        assert!(census.calls_by_uid.0.borrow().is_empty());
    }

    #[tokio::test]
    async fn the_last_one_to_leave_is_noticed() {
        let census = census(3, 3);
        let places = [census.enter(1).unwrap(), census.enter(2).unwrap()];

        let waiting = census.emptied();
        drop(places);
        waiting.await;

        assert_eq!(census.open(), 0);
        assert!(census.by_uid.0.borrow().is_empty());
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
