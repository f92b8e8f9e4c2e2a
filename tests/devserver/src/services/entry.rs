//! The entries that an agent is entitled to (4.7), with revisions and without.

use std::collections::BTreeSet;

use proto::spire::api::server::entry::v1::entry_server::Entry;
use proto::spire::api::server::entry::v1::{
    BatchCreateEntryRequest, BatchCreateEntryResponse, BatchDeleteEntryRequest,
    BatchDeleteEntryResponse, BatchUpdateEntryRequest, BatchUpdateEntryResponse,
    CountEntriesRequest, CountEntriesResponse, EntryRevision, GetAuthorizedEntriesRequest,
    GetAuthorizedEntriesResponse, GetEntryRequest, ListEntriesRequest, ListEntriesResponse,
    SyncAuthorizedEntriesRequest, SyncAuthorizedEntriesResponse,
};
use proto::spire::api::types;
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::{CallNumber, Services, caller, unimplemented_rpcs};
use crate::clock;
use crate::conversation::{Answers, Conversation};
use crate::entries::mask_entry;
use crate::script::rpc;
use crate::settings::SyncShape;
use crate::state::State;

#[tonic::async_trait]
impl Entry for Services {
    type SyncAuthorizedEntriesStream = Conversation<SyncAuthorizedEntriesResponse>;

    async fn get_authorized_entries(
        &self,
        request: Request<GetAuthorizedEntriesRequest>,
    ) -> Result<Response<GetAuthorizedEntriesResponse>, Status> {
        let agent = caller(request.extensions())?;
        let mask = request.get_ref().output_mask;
        let entries = wire_entries(&self.shared.state(), &agent)
            .into_iter()
            .map(|entry| mask_entry(entry, mask.as_ref()))
            .collect();
        Ok(Response::new(GetAuthorizedEntriesResponse { entries }))
    }

    async fn sync_authorized_entries(
        &self,
        request: Request<Streaming<SyncAuthorizedEntriesRequest>>,
    ) -> Result<Response<Self::SyncAuthorizedEntriesStream>, Status> {
        let agent = caller(request.extensions())?;
        let services = self.clone();
        let (_, extensions, requests) = request.into_parts();
        Ok(Response::new(Conversation::start(
            move |answers| async move { services.sync(&agent, &extensions, requests, answers).await },
        )))
    }

    unimplemented_rpcs! {
        count_entries: CountEntriesRequest => CountEntriesResponse;
        list_entries: ListEntriesRequest => ListEntriesResponse;
        get_entry: GetEntryRequest => types::Entry;
        batch_create_entry: BatchCreateEntryRequest => BatchCreateEntryResponse;
        batch_update_entry: BatchUpdateEntryRequest => BatchUpdateEntryResponse;
        batch_delete_entry: BatchDeleteEntryRequest => BatchDeleteEntryResponse;
    }
}

impl Services {
    async fn sync(
        self,
        agent: &str,
        call: &Extensions,
        mut requests: Streaming<SyncAuthorizedEntriesRequest>,
        answers: Answers<SyncAuthorizedEntriesResponse>,
    ) -> Result<(), Status> {
        let Some(first) = requests.message().await? else {
            return Ok(());
        };
        let mask = first.output_mask;
        if !first.ids.is_empty() {
            return Err(Status::invalid_argument(
                "the first request must not name entries",
            ));
        }
        if mask.is_some_and(|mask| !mask.revision_number) {
            return Err(Status::invalid_argument(
                "the revision number cannot be masked",
            ));
        }
        let (entries, revisions, shape, page_size) = {
            let state = self.shared.state();
            let entries = wire_entries(&state, agent);
            let mut revisions: Vec<EntryRevision> = entries.iter().map(revision).collect();
            revisions.extend(state.script.raw_revisions.iter().cloned());
            (
                entries,
                revisions,
                state.settings.sync_shape,
                state.settings.page_size.max(1),
            )
        };
        let is_full = match shape {
            SyncShape::Full => true,
            SyncShape::Revisions => revisions.is_empty(),
            SyncShape::ByCount => revisions.len() <= page_size,
        };
        if is_full {
            let entries = entries
                .into_iter()
                .map(|entry| mask_entry(entry, mask.as_ref()))
                .collect();
            let complete = SyncAuthorizedEntriesResponse {
                entries,
                ..SyncAuthorizedEntriesResponse::default()
            };
            return answers.send(complete).await;
        }
        for (page, more) in pages(&revisions, page_size) {
            let entry_revisions = page.to_vec();
            answers
                .send(SyncAuthorizedEntriesResponse {
                    entry_revisions,
                    entries: Vec::new(),
                    more,
                })
                .await?;
        }
        while let Some(request) = requests.message().await? {
            self.record_ids(call, &request.ids);
            let wanted: BTreeSet<String> = request.ids.into_iter().collect();
            let vanished = self.shared.state().script.vanished.clone();
            let asked_for: Vec<types::Entry> = entries
                .iter()
                .filter(|entry| wanted.contains(&entry.id) && !vanished.contains(&entry.id))
                .map(|entry| mask_entry(entry.clone(), mask.as_ref()))
                .collect();
            for (page, more) in pages(&asked_for, page_size) {
                answers
                    .send(SyncAuthorizedEntriesResponse {
                        entry_revisions: Vec::new(),
                        entries: page.to_vec(),
                        more,
                    })
                    .await?;
            }
        }
        Ok(())
    }

    fn record_ids(&self, call: &Extensions, ids: &[String]) {
        let Some(CallNumber(number)) = call.get() else {
            return;
        };
        let Some(mut record) = self.shared.state().script.calls.get(*number).cloned() else {
            return;
        };
        rpc::SYNC_AUTHORIZED_ENTRIES_IDS.clone_into(&mut record.rpc);
        record.at = clock::now();
        record.ids = ids.to_vec();
        self.shared.record(record);
    }
}

/// The entries of `agent` in their wire form, by ID, and after them those that the script adds as they are.
fn wire_entries(state: &State, agent: &str) -> Vec<types::Entry> {
    let trust_domain = &state.settings.trust_domain;
    let no_selectors = Vec::new();
    let node_selectors = state
        .agents
        .get(agent)
        .map_or(&no_selectors, |agent| &agent.selectors);
    state
        .entries
        .authorized(trust_domain, agent, node_selectors)
        .into_values()
        .map(|stored| stored.to_wire(trust_domain, agent))
        .chain(state.script.raw_entries.iter().cloned())
        .collect()
}

fn revision(entry: &types::Entry) -> EntryRevision {
    EntryRevision {
        id: entry.id.clone(),
        revision_number: entry.revision_number,
        created_at: entry.created_at,
    }
}

/// Cuts `items` into pages, each with whether more follow; an empty list is one empty page.
fn pages<T>(items: &[T], page_size: usize) -> Vec<(&[T], bool)> {
    if items.is_empty() {
        return vec![(items, false)];
    }
    let count = items.len().div_ceil(page_size);
    items
        .chunks(page_size)
        .enumerate()
        .map(|(number, page)| (page, number + 1 < count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_page_says_that_nothing_follows() {
        let seen = pages(&[1, 2, 3, 4, 5], 2);

        assert_eq!(
            seen,
            [(&[1, 2][..], true), (&[3, 4][..], true), (&[5][..], false)]
        );
        assert_eq!(pages::<u8>(&[], 2), [(&[][..], false)]);
    }
}
