//! Registration entries: what there is, and which of them an agent is entitled to. Pure.

use std::collections::{BTreeMap, BTreeSet};

use proto::spire::api::types;

use crate::clock::Seconds;

/// A registration entry as a test writes it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "the API that it stands for has these independent flags"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The entry's ID.
    pub id: String,
    /// The path of its SPIFFE ID in the server's trust domain, with a leading slash.
    pub path: String,
    /// Selectors as `type:value`.
    pub selectors: Vec<String>,
    /// Whose entry it is.
    pub parent: Parent,
    /// Lifetime of its X.509-SVIDs; 0 for the server's default.
    pub x509_svid_ttl: Seconds,
    /// Lifetime of its JWT-SVIDs; 0 for the server's default.
    pub jwt_svid_ttl: Seconds,
    /// The hint for workloads with several identities.
    pub hint: String,
    /// Foreign trust domains whose bundles its workloads get.
    pub federates_with: Vec<String>,
    /// DNS names in its X.509-SVIDs.
    pub dns_names: Vec<String>,
    /// Whether its workloads may administer the server.
    pub is_admin: bool,
    /// Whether its workload is a downstream server.
    pub is_downstream: bool,
    /// Whether its SVIDs go to a store instead of a workload.
    pub stores_svid: bool,
    /// Whether agents should not fetch its X.509-SVID ahead of need.
    pub disables_prefetch: bool,
    /// Whether its JWT-SVIDs have a `jti` claim.
    pub includes_jti: bool,
}

/// Whose an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Any attested agent's, which no real server offers and most tests want.
    AnyAgent,
    /// That of an agent, a node alias or another entry, by SPIFFE ID.
    Id(String),
    /// A node alias: the entry stands for the nodes that have all of its selectors.
    Server,
}

impl Entry {
    /// An entry of any agent.
    pub fn new(id: &str, path: &str, selectors: &[&str]) -> Self {
        Self {
            id: id.to_owned(),
            path: path.to_owned(),
            selectors: selectors
                .iter()
                .map(|&selector| selector.to_owned())
                .collect(),
            parent: Parent::AnyAgent,
            x509_svid_ttl: 0,
            jwt_svid_ttl: 0,
            hint: String::new(),
            federates_with: Vec::new(),
            dns_names: Vec::new(),
            is_admin: false,
            is_downstream: false,
            stores_svid: false,
            disables_prefetch: false,
            includes_jti: false,
        }
    }

    /// The same entry with a lifetime for its X.509-SVIDs.
    #[must_use]
    pub fn with_ttl(self, x509_svid_ttl: Seconds) -> Self {
        Self {
            x509_svid_ttl,
            ..self
        }
    }

    /// The same entry that federates with `trust_domains`.
    #[must_use]
    pub fn with_federation(self, trust_domains: &[&str]) -> Self {
        Self {
            federates_with: trust_domains.iter().map(|&name| name.to_owned()).collect(),
            ..self
        }
    }

    /// The same entry under another parent.
    #[must_use]
    pub fn with_parent(self, parent: Parent) -> Self {
        Self { parent, ..self }
    }
}

/// An entry and what the server adds to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredEntry {
    pub(crate) entry: Entry,
    pub(crate) revision: i64,
    pub(crate) created_at: Seconds,
}

impl StoredEntry {
    /// The wire form. The parent of an entry of any agent is shown as `agent`.
    pub(crate) fn to_wire(&self, trust_domain: &str, agent: &str) -> types::Entry {
        let entry = &self.entry;
        let parent = match &entry.parent {
            Parent::AnyAgent => agent.to_owned(),
            Parent::Id(id) => id.clone(),
            Parent::Server => server_id(trust_domain),
        };
        types::Entry {
            id: entry.id.clone(),
            spiffe_id: Some(spiffe_id(trust_domain, &entry.path)),
            parent_id: Some(spiffe_id(trust_domain, path_of(&parent, trust_domain))),
            selectors: entry.selectors.iter().map(|text| selector(text)).collect(),
            x509_svid_ttl: i32::try_from(entry.x509_svid_ttl).unwrap_or(i32::MAX),
            federates_with: entry.federates_with.clone(),
            admin: entry.is_admin,
            downstream: entry.is_downstream,
            expires_at: 0,
            dns_names: entry.dns_names.clone(),
            revision_number: self.revision,
            store_svid: entry.stores_svid,
            jwt_svid_ttl: i32::try_from(entry.jwt_svid_ttl).unwrap_or(i32::MAX),
            hint: entry.hint.clone(),
            created_at: self.created_at,
            additional_attributes: (entry.disables_prefetch || entry.includes_jti).then_some(
                types::entry::AdditionalAttributes {
                    disable_x509_svid_prefetch: entry.disables_prefetch,
                    jwt_svid_include_jti: entry.includes_jti,
                },
            ),
        }
    }
}

/// All entries by ID.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    by_id: BTreeMap<String, StoredEntry>,
    /// The highest creation time so far, so that an entry made anew never repeats one.
    last_created_at: Seconds,
}

impl Entries {
    /// Adds an entry with revision 0, in place of any entry of the same ID.
    pub(crate) fn add(&mut self, entry: Entry, now: Seconds) {
        self.last_created_at = now.max(self.last_created_at + 1);
        let stored = StoredEntry {
            revision: 0,
            created_at: self.last_created_at,
            entry,
        };
        self.by_id.insert(stored.entry.id.clone(), stored);
    }

    /// Changes an entry and raises its revision. False if there is no such entry.
    pub(crate) fn update(&mut self, id: &str, change: impl FnOnce(&mut Entry)) -> bool {
        let Some(stored) = self.by_id.get_mut(id) else {
            return false;
        };
        change(&mut stored.entry);
        id.clone_into(&mut stored.entry.id);
        stored.revision += 1;
        true
    }

    /// Removes an entry. False if there is no such entry.
    pub(crate) fn remove(&mut self, id: &str) -> bool {
        self.by_id.remove(id).is_some()
    }

    /// Every entry, by ID.
    pub(crate) fn all(&self) -> impl Iterator<Item = &StoredEntry> {
        self.by_id.values()
    }

    /// The entries that `agent` on a node with `node_selectors` may serve, by ID: its own, those of its node aliases,
    /// and those below other such entries (4.7).
    pub(crate) fn authorized(
        &self,
        trust_domain: &str,
        agent: &str,
        node_selectors: &[String],
    ) -> BTreeMap<&str, &StoredEntry> {
        let mut parents = BTreeSet::from([agent.to_owned()]);
        let aliases = self.by_id.values().filter(|stored| {
            stored.entry.parent == Parent::Server
                && stored
                    .entry
                    .selectors
                    .iter()
                    .all(|selector| node_selectors.contains(selector))
        });
        parents.extend(aliases.map(|stored| id_text(trust_domain, &stored.entry.path)));

        let mut authorized = BTreeMap::new();
        loop {
            let known = authorized.len();
            for (id, stored) in &self.by_id {
                let is_below = match &stored.entry.parent {
                    Parent::AnyAgent => true,
                    Parent::Id(parent) => parents.contains(parent),
                    Parent::Server => false,
                };
                if is_below {
                    authorized.insert(id.as_str(), stored);
                    parents.insert(id_text(trust_domain, &stored.entry.path));
                }
            }
            if authorized.len() == known {
                return authorized;
            }
        }
    }
}

/// Clears the fields that `mask` leaves out; without a mask all stay. The ID always stays.
pub(crate) fn mask_entry(entry: types::Entry, mask: Option<&types::EntryMask>) -> types::Entry {
    let Some(mask) = mask else { return entry };
    let keep_text = |wanted: bool, text: String| if wanted { text } else { String::new() };
    let keep_number = |wanted: bool, number: i64| if wanted { number } else { 0 };
    types::Entry {
        id: entry.id,
        spiffe_id: entry.spiffe_id.filter(|_| mask.spiffe_id),
        parent_id: entry.parent_id.filter(|_| mask.parent_id),
        selectors: entry
            .selectors
            .into_iter()
            .filter(|_| mask.selectors)
            .collect(),
        x509_svid_ttl: if mask.x509_svid_ttl {
            entry.x509_svid_ttl
        } else {
            0
        },
        federates_with: entry
            .federates_with
            .into_iter()
            .filter(|_| mask.federates_with)
            .collect(),
        admin: entry.admin && mask.admin,
        downstream: entry.downstream && mask.downstream,
        expires_at: keep_number(mask.expires_at, entry.expires_at),
        dns_names: entry
            .dns_names
            .into_iter()
            .filter(|_| mask.dns_names)
            .collect(),
        revision_number: keep_number(mask.revision_number, entry.revision_number),
        store_svid: entry.store_svid && mask.store_svid,
        jwt_svid_ttl: if mask.jwt_svid_ttl {
            entry.jwt_svid_ttl
        } else {
            0
        },
        hint: keep_text(mask.hint, entry.hint),
        created_at: keep_number(mask.created_at, entry.created_at),
        additional_attributes: entry
            .additional_attributes
            .filter(|_| mask.additional_attributes),
    }
}

/// A SPIFFE ID as text.
pub(crate) fn id_text(trust_domain: &str, path: &str) -> String {
    format!("spiffe://{trust_domain}{path}")
}

/// The server's own SPIFFE ID.
pub(crate) fn server_id(trust_domain: &str) -> String {
    id_text(trust_domain, "/spire/server")
}

/// A SPIFFE ID in its wire form.
pub(crate) fn spiffe_id(trust_domain: &str, path: &str) -> types::Spiffeid {
    types::Spiffeid {
        trust_domain: trust_domain.to_owned(),
        path: path.to_owned(),
    }
}

/// The path of an ID of the trust domain; an ID of another one comes back whole.
pub(crate) fn path_of<'a>(id: &'a str, trust_domain: &str) -> &'a str {
    id.strip_prefix("spiffe://")
        .and_then(|rest| rest.strip_prefix(trust_domain))
        .unwrap_or(id)
}

/// A selector in its wire form; text without a colon is all type.
fn selector(text: &str) -> types::Selector {
    let (r#type, value) = text.split_once(':').unwrap_or((text, ""));
    types::Selector {
        r#type: r#type.to_owned(),
        value: value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str = "spiffe://example.org/spire/agent/a";

    fn ids(entries: &Entries, node_selectors: &[&str]) -> Vec<String> {
        let node_selectors: Vec<String> =
            node_selectors.iter().map(|&text| text.to_owned()).collect();
        entries
            .authorized("example.org", AGENT, &node_selectors)
            .into_keys()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn an_agent_gets_what_is_below_it_its_aliases_and_their_entries() {
        let mut entries = Entries::default();
        let below = |id: &str, path: &str, parent: &str| {
            Entry::new(id, path, &["unix:uid:1"]).with_parent(Parent::Id(parent.to_owned()))
        };
        for entry in [
            Entry::new("alias", "/cluster", &["x509pop:san:cluster:test"])
                .with_parent(Parent::Server),
            below("deep", "/deep", "spiffe://example.org/web"),
            below("own", "/own", AGENT),
            below("other", "/other", "spiffe://example.org/spire/agent/b"),
            below("web", "/web", "spiffe://example.org/cluster"),
            Entry::new("any", "/any", &["unix:uid:2"]),
        ] {
            entries.add(entry, 0);
        }

        let on_the_cluster = ids(
            &entries,
            &["x509pop:san:cluster:test", "x509pop:subject:cn:a"],
        );
        let elsewhere = ids(&entries, &[]);

        assert_eq!(on_the_cluster, ["any", "deep", "own", "web"]);
        assert_eq!(elsewhere, ["any", "own"]);
    }

    #[test]
    fn an_update_raises_the_revision_and_a_new_entry_has_a_new_creation_time() {
        let mut entries = Entries::default();
        entries.add(Entry::new("a", "/a", &[]), 5);
        entries.update("a", |entry| entry.hint = "inside".to_owned());
        let updated = entries.all().next().cloned().expect("one entry");

        entries.add(Entry::new("a", "/b", &[]), 5);
        let anew = entries.all().next().cloned().expect("one entry");

        assert_eq!((updated.revision, updated.created_at), (1, 5));
        assert_eq!((anew.revision, anew.created_at), (0, 6));
    }
}
