//! Entries, X.509-SVIDs with their keys, bundles and subscribers.
//! Takes [`ApplyEntries`], [`ApplyBundles`], [`InstallSvids`], [`KnownVersions`], [`DueForRenewal`] and [`SvidCount`] from the
//! synchronizer, [`Forget`] when the agent is banned, [`Subscribe`] and [`DescribeCache`] from the endpoint. Sends [`IdentityMissing`]. Decisions are in [`entries`] and [`index`].

pub mod entries;
pub mod index;
pub mod subscribers;
pub mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use actix::{
    Actor, AsyncContext, Context, Handler, Message, MessageResult, Recipient, SpawnHandle,
};

use crate::bundle::Bundle;
use crate::clock::Clock;
use crate::entry::{Entry, EntryId, EntrySync, KnownEntries};
use crate::rotation::Renewal;
use crate::selector::SelectorSet;
use crate::spiffe_id::TrustDomain;
use crate::svid::X509Svid;
use entries::{Changes, Entries};
use subscribers::Subscribers;
use view::ViewReader;

/// Messages that may queue before senders have to wait: a burst of new callers.
const MAILBOX: usize = 1024;

/// Keeps what workloads are entitled to.
#[derive(Debug)]
pub struct Cache {
    entries: Entries,
    subscribers: Subscribers,
    /// Changes that callers have not been told of yet: entries came, their bundles have not.
    untold: Changes,
    /// When the next SVID begins or ends.
    next_turn: Option<SystemTime>,
    turn_timer: Option<SpawnHandle>,
    missing: Option<Recipient<IdentityMissing>>,
    clock: Clock,
}

/// Opens a subscription for everything that these selectors entitle to. Dropping the reader ends it.
#[derive(Debug, Message)]
#[rtype(result = "ViewReader")]
pub struct Subscribe {
    /// The caller's selectors.
    pub selectors: SelectorSet,
}

/// How many X.509-SVIDs are held: the question behind the next tick (design 4).
#[derive(Debug, Message)]
#[rtype(result = "usize")]
pub struct SvidCount;

/// When the last of the SVIDs that are held ends: so long is the agent of use to somebody, whatever becomes of itself (design D4).
#[derive(Debug, Message)]
#[rtype(result = "Option<SystemTime>")]
pub struct LastEnd;

/// The versions of all entries held.
#[derive(Debug, Message)]
#[rtype(result = "KnownEntries")]
pub struct KnownVersions;

/// Brings entries in step with the server and answers which federated bundles they name. Callers are told with the [`ApplyBundles`] that
/// follows, so that they see entries and bundles change together.
#[derive(Debug, Message)]
#[rtype(result = "BTreeSet<TrustDomain>")]
pub struct ApplyEntries(pub EntrySync);

/// New bundles; trust domains that are not named keep what they have, those that no entry names any more are dropped.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ApplyBundles(pub Vec<Arc<Bundle>>);

/// Which entries need an SVID now, and when the next one does.
#[derive(Debug, Message)]
#[rtype(result = "Renewals")]
pub struct DueForRenewal {
    /// The date; what is due within its own slack is taken along.
    pub now: SystemTime,
}

/// Freshly signed SVIDs, checked by the synchronizer, and entries that the server would not sign for.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct InstallSvids {
    /// Replace what is held.
    pub signed: Vec<Signed>,
    /// Keep what they have; said once.
    pub refused: Vec<EntryId>,
}

/// Drops every identity: the agent is banned (design D5).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Forget;

/// Numbers for operators.
#[derive(Debug, Message)]
#[rtype(result = "CacheFacts")]
pub struct DescribeCache;

/// A caller waits for an SVID that was not signed ahead.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct IdentityMissing;

/// Says who wants to hear of [`IdentityMissing`]: closes the cycle between cache and synchronizer.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ReportMissing(pub Recipient<IdentityMissing>);

/// Private message to notice SVIDs whose beginning or end has come.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Turn;

/// One SVID and when it is to be replaced.
#[derive(Debug)]
pub struct Signed {
    /// The entry as it was when the SVID was asked for.
    pub entry: Arc<Entry>,
    /// Certificate and key.
    pub svid: Arc<X509Svid>,
    /// Drawn once, at issue (design 4).
    pub renewal: Renewal,
}

/// Answer to [`DueForRenewal`].
#[derive(Debug, Default)]
pub struct Renewals {
    /// Entries without an SVID, or with one that is due; in entry-ID order.
    pub due: Vec<Due>,
    /// When the next SVID that is not in `due` has to be replaced.
    pub next: Option<SystemTime>,
}

/// An entry that needs an SVID.
#[derive(Debug, Clone)]
pub struct Due {
    /// The entry.
    pub entry: Arc<Entry>,
    /// End of the SVID it has or had, if any.
    pub expires_at: Option<SystemTime>,
}

/// Numbers for operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheFacts {
    /// Entries known.
    pub entries: usize,
    /// X.509-SVIDs held.
    pub x509_svids: usize,
    /// JWT-SVIDs held.
    pub jwt_svids: usize,
    /// Records for store plugins.
    pub store_records: usize,
    /// Live subscriptions.
    pub subscribers: usize,
}

impl Cache {
    /// An empty cache of this trust domain that has at most `prefetch_limit` SVIDs signed ahead.
    pub fn new(trust_domain: TrustDomain, prefetch_limit: usize, clock: Clock) -> Self {
        Self {
            entries: Entries::new(trust_domain, prefetch_limit),
            subscribers: Subscribers::default(),
            untold: Changes::default(),
            next_turn: None,
            turn_timer: None,
            missing: None,
            clock,
        }
    }

    /// Tells callers of what changed and waits for the next SVID's beginning or end.
    fn publish(&mut self, changes: &Changes, ctx: &mut Context<Self>) {
        let now = self.clock.wall();
        if !changes.is_empty() {
            self.subscribers.drop_dead();
            self.entries
                .recount_subscriptions(self.subscribers.selector_sets());
            self.subscribers.tell(changes, |selectors, before| {
                self.entries.view(selectors, now, Some(before))
            });
        }
        if let Some(timer) = self.turn_timer.take() {
            ctx.cancel_future(timer);
        }
        self.next_turn = self.entries.next_turn();
        if let Some(turn) = self.next_turn {
            self.turn_timer = Some(ctx.notify_later(Turn, self.clock.now().until(turn)));
        }
    }

    /// Before anybody is answered: SVIDs whose end has come are let go, whatever the timer did.
    fn age(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.wall();
        if self.next_turn.is_some_and(|turn| turn <= now) {
            let changes = self.entries.age(now);
            self.publish(&changes, ctx);
        }
    }
}

impl Actor for Cache {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<Subscribe> for Cache {
    type Result = MessageResult<Subscribe>;

    fn handle(
        &mut self,
        Subscribe { selectors }: Subscribe,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        self.age(ctx);
        let now = self.clock.wall();
        let missing = self.entries.subscribed(&selectors);
        let reader = self.subscribers.subscribe(&selectors, |before| {
            self.entries.view(&selectors, now, before)
        });
        if missing && let Some(synchronizer) = &self.missing {
            // A full mailbox means that the synchronizer is about to look for work anyway.
            if synchronizer.try_send(IdentityMissing).is_err() {
                tracing::debug!("synchronizer is busy");
            }
        }
        MessageResult(reader)
    }
}

impl Handler<SvidCount> for Cache {
    type Result = usize;

    fn handle(&mut self, _: SvidCount, ctx: &mut Self::Context) -> Self::Result {
        self.age(ctx);
        self.entries.svid_count()
    }
}

impl Handler<LastEnd> for Cache {
    type Result = MessageResult<LastEnd>;

    fn handle(&mut self, _: LastEnd, ctx: &mut Self::Context) -> Self::Result {
        self.age(ctx);
        MessageResult(self.entries.last_end())
    }
}

impl Handler<KnownVersions> for Cache {
    type Result = MessageResult<KnownVersions>;

    fn handle(&mut self, _: KnownVersions, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.entries.versions())
    }
}

impl Handler<ApplyEntries> for Cache {
    type Result = MessageResult<ApplyEntries>;

    fn handle(&mut self, ApplyEntries(sync): ApplyEntries, _: &mut Self::Context) -> Self::Result {
        let changes = self.entries.apply(sync);
        self.untold.merge(changes);
        MessageResult(self.entries.federated_domains())
    }
}

impl Handler<ApplyBundles> for Cache {
    type Result = ();

    fn handle(&mut self, ApplyBundles(bundles): ApplyBundles, ctx: &mut Self::Context) {
        let mut changes = std::mem::take(&mut self.untold);
        changes.merge(self.entries.apply_bundles(bundles, self.clock.wall()));
        self.publish(&changes, ctx);
    }
}

impl Handler<DueForRenewal> for Cache {
    type Result = MessageResult<DueForRenewal>;

    fn handle(
        &mut self,
        DueForRenewal { now }: DueForRenewal,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        self.age(ctx);
        MessageResult(self.entries.due(now))
    }
}

impl Handler<InstallSvids> for Cache {
    type Result = ();

    fn handle(&mut self, InstallSvids { signed, refused }: InstallSvids, ctx: &mut Self::Context) {
        let mut changes = self.entries.install(signed, self.clock.wall());
        changes.merge(self.entries.refused(&refused));
        self.publish(&changes, ctx);
    }
}

impl Handler<Forget> for Cache {
    type Result = ();

    fn handle(&mut self, _: Forget, ctx: &mut Self::Context) {
        self.entries.clear();
        self.publish(
            &Changes {
                everybody: true,
                selectors: Vec::new(),
            },
            ctx,
        );
    }
}

impl Handler<DescribeCache> for Cache {
    type Result = MessageResult<DescribeCache>;

    fn handle(&mut self, _: DescribeCache, _: &mut Self::Context) -> Self::Result {
        MessageResult(CacheFacts {
            subscribers: self.subscribers.count(),
            ..self.entries.facts()
        })
    }
}

impl Handler<ReportMissing> for Cache {
    type Result = ();

    fn handle(&mut self, ReportMissing(recipient): ReportMissing, _: &mut Self::Context) {
        self.missing = Some(recipient);
    }
}

impl Handler<Turn> for Cache {
    type Result = ();

    fn handle(&mut self, _: Turn, ctx: &mut Self::Context) {
        let changes = self.entries.age(self.clock.wall());
        self.publish(&changes, ctx);
    }
}

#[cfg(test)]
mod tests;
