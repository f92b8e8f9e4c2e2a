//! What the server says of entries, and what to ask it next (node-side 4.7). Pure: [`Exchange`] takes the messages of one
//! `SyncAuthorizedEntries` stream one by one.

use std::collections::HashSet;
use std::sync::Arc;

use prost::Message;
use proto::spire::api::server::entry::v1::{EntryRevision, SyncAuthorizedEntriesResponse};
use proto::spire::api::types::{self, EntryMask};

use super::status::{clean, is_harmful};
use crate::entry::{Entry, EntryId, EntrySync, EntryVersion, KnownEntries};
use crate::selector::{Selector, SelectorSet};
use crate::spiffe_id::{SpiffeId, TrustDomain};

/// The fields that are asked for; the ID always comes.
pub(super) const MASK: EntryMask = EntryMask {
    spiffe_id: true,
    parent_id: false,
    selectors: true,
    x509_svid_ttl: false,
    federates_with: true,
    admin: true,
    downstream: true,
    expires_at: false,
    dns_names: false,
    revision_number: true,
    store_svid: true,
    jwt_svid_ttl: false,
    hint: true,
    created_at: true,
    additional_attributes: true,
};

/// Longest entry ID that is taken, in bytes; servers allow 255.
const MAX_ENTRY_ID: usize = 1024;
/// Longest hint that is taken, in bytes; servers allow 1024 characters.
const MAX_HINT: usize = 4096;
/// Damaged entries that are reported one by one; further ones are dropped in silence.
const MAX_SKIPPED: usize = 1000;

/// What one sync may bring.
#[derive(Debug, Clone, Copy)]
pub(super) struct SyncLimits {
    /// Entries or revisions.
    pub(super) entries: usize,
    /// Bytes of all messages.
    pub(super) bytes: usize,
}

impl Default for SyncLimits {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            bytes: 256 << 20,
        }
    }
}

/// One sync from its first answer to its end.
#[derive(Debug)]
pub(super) struct Exchange<'a> {
    known: &'a KnownEntries,
    limits: SyncLimits,
    bytes: usize,
    phase: Phase,
    /// Revisions in the first page: how many entries are asked for at a time.
    page_size: usize,
    /// Entries to ask for, last one first once they are sorted.
    wanted: Vec<String>,
    intake: Intake<'a>,
}

/// What the next message may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first one: everything, or the first page of revisions.
    First,
    /// Further pages of revisions.
    Revisions,
    /// Pages of entries that were asked for.
    Entries,
}

/// What to do after a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Read another message.
    Receive,
    /// Ask for these entries, then read.
    Request(Vec<String>),
    /// The sync is complete.
    Done,
}

impl<'a> Exchange<'a> {
    /// Begins a sync. `own` is the agent's trust domain.
    pub(super) fn new(known: &'a KnownEntries, own: &'a TrustDomain, limits: SyncLimits) -> Self {
        let intake = Intake {
            own,
            sync: EntrySync::default(),
        };
        Self {
            known,
            limits,
            bytes: 0,
            phase: Phase::First,
            page_size: 0,
            wanted: Vec::new(),
            intake,
        }
    }

    /// Takes one message. An error is a breach of the contract: nothing of this sync is to be used.
    pub(super) fn receive(
        &mut self,
        message: SyncAuthorizedEntriesResponse,
    ) -> Result<Next, String> {
        self.bytes = self.bytes.saturating_add(message.encoded_len());
        if self.bytes > self.limits.bytes {
            return Err(format!("more than {} bytes of entries", self.limits.bytes));
        }
        match self.phase {
            Phase::First if message.entry_revisions.is_empty() => {
                self.take_entries(message.entries)?;
                Ok(Next::Done)
            }
            Phase::First | Phase::Revisions => {
                if !message.entries.is_empty() {
                    return Err("entries in a page of revisions".to_owned());
                }
                if self.phase == Phase::First {
                    self.page_size = message.entry_revisions.len();
                }
                self.phase = Phase::Revisions;
                self.take_revisions(message.entry_revisions)?;
                if message.more {
                    return Ok(Next::Receive);
                }
                // The last comes first, so that pages can be cut off the end.
                self.wanted.sort_unstable_by(|a, b| b.cmp(a));
                self.wanted.dedup();
                self.phase = Phase::Entries;
                Ok(self.next_page())
            }
            Phase::Entries => {
                if !message.entry_revisions.is_empty() {
                    return Err("revisions in a page of entries".to_owned());
                }
                self.take_entries(message.entries)?;
                Ok(if message.more {
                    Next::Receive
                } else {
                    self.next_page()
                })
            }
        }
    }

    /// What the sync brought.
    pub(super) fn finish(self) -> EntrySync {
        self.intake.sync
    }

    fn next_page(&mut self) -> Next {
        let keep = self.wanted.len().saturating_sub(self.page_size);
        let mut page = self.wanted.split_off(keep);
        page.reverse();
        if page.is_empty() {
            Next::Done
        } else {
            Next::Request(page)
        }
    }

    fn take_revisions(&mut self, revisions: Vec<EntryRevision>) -> Result<(), String> {
        for revision in revisions {
            let id = match entry_id(&revision.id) {
                Ok(id) if revision.revision_number >= 0 => id,
                Ok(_) => {
                    self.intake
                        .skip(&revision.id, "revision number is negative");
                    continue;
                }
                Err(reason) => {
                    self.intake.skip(&revision.id, reason);
                    continue;
                }
            };
            let is_current = self.known.get(&id).is_some_and(|known| {
                known.revision == revision.revision_number
                    && (revision.created_at == 0 || known.created_at == revision.created_at)
            });
            if !is_current {
                self.wanted.push(revision.id);
            }
            self.intake.sync.present.insert(id);
        }
        self.check_count()
    }

    fn take_entries(&mut self, entries: Vec<types::Entry>) -> Result<(), String> {
        for entry in entries {
            self.intake.take(entry);
        }
        self.check_count()
    }

    fn check_count(&self) -> Result<(), String> {
        let sync = &self.intake.sync;
        if sync.present.len().max(sync.changed.len()) > self.limits.entries {
            return Err(format!("more than {} entries", self.limits.entries));
        }
        Ok(())
    }
}

/// A complete list, as `GetAuthorizedEntries` answers it.
pub(super) fn complete_list(entries: Vec<types::Entry>, own: &TrustDomain) -> EntrySync {
    let mut intake = Intake {
        own,
        sync: EntrySync::default(),
    };
    for entry in entries {
        intake.take(entry);
    }
    intake.sync
}

/// Collects what passes the checks.
#[derive(Debug)]
struct Intake<'a> {
    own: &'a TrustDomain,
    sync: EntrySync,
}

impl Intake<'_> {
    /// Takes one entry in full. A damaged one counts as present, so that the last good version stays (design D11).
    fn take(&mut self, entry: types::Entry) {
        let id = match entry_id(&entry.id) {
            Ok(id) => id,
            Err(reason) => return self.skip(&entry.id, reason),
        };
        self.sync.present.insert(id.clone());
        let name = entry.id.clone();
        match check(id, entry, self.own) {
            Ok(entry) => self.sync.changed.push(Arc::new(entry)),
            Err(reason) => self.skip(&name, &reason),
        }
    }

    fn skip(&mut self, id: &str, reason: &str) {
        if self.sync.skipped.len() < MAX_SKIPPED {
            self.sync.skipped.push((clean(id), reason.to_owned()));
        }
    }
}

fn entry_id(text: &str) -> Result<EntryId, &'static str> {
    if text.len() > MAX_ENTRY_ID {
        return Err("entry ID is too long");
    }
    if text.chars().any(is_harmful) {
        return Err("entry ID has control or invisible characters");
    }
    EntryId::new(text).ok_or("entry ID is empty")
}

fn check(id: EntryId, entry: types::Entry, own: &TrustDomain) -> Result<Entry, String> {
    let spiffe_id = entry.spiffe_id.ok_or("SPIFFE ID is missing")?;
    let spiffe_id = TrustDomain::parse(&spiffe_id.trust_domain)
        .and_then(|trust_domain| SpiffeId::from_parts(&trust_domain, &spiffe_id.path))
        .map_err(|error| format!("SPIFFE ID {error}"))?;
    if entry.selectors.is_empty() {
        return Err("there is no selector".to_owned());
    }
    let selectors: SelectorSet = entry
        .selectors
        .iter()
        .map(|selector| Selector::new(&selector.r#type, &selector.value))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    if entry.hint.len() > MAX_HINT {
        return Err("hint is too long".to_owned());
    }
    // Workloads choose by it and print it.
    if entry.hint.chars().any(is_harmful) {
        return Err("hint has control or invisible characters".to_owned());
    }
    let attributes = entry.additional_attributes.unwrap_or_default();
    Ok(Entry {
        id,
        spiffe_id,
        selectors,
        federates_with: federated(&entry.federates_with, own)?,
        version: EntryVersion {
            revision: entry.revision_number,
            created_at: entry.created_at,
        },
        hint: entry.hint,
        admin: entry.admin,
        downstream: entry.downstream,
        store_svid: entry.store_svid,
        disable_x509_svid_prefetch: attributes.disable_x509_svid_prefetch,
        jwt_svid_include_jti: attributes.jwt_svid_include_jti,
    })
}

/// The federated trust domains in the server's order, each once. The server refuses to hand out its own bundle as a
/// federated one.
fn federated(names: &[String], own: &TrustDomain) -> Result<Vec<TrustDomain>, String> {
    let mut seen = HashSet::new();
    let mut domains = Vec::new();
    for name in names {
        let domain =
            TrustDomain::parse(name).map_err(|error| format!("federated trust domain {error}"))?;
        if domain != *own && seen.insert(domain.clone()) {
            domains.push(domain);
        }
    }
    Ok(domains)
}

#[cfg(test)]
mod tests;
