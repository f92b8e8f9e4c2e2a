//! The actors of edge-agent and the vocabulary they share.
//!
//! # Message map
//!
//! Every message there is. A *query* changes nothing, a *command* does, and both are answered; an *event* says what has happened, and a
//! *told* command is one that nobody waits for. *Wiring* closes a cycle once, at the start. `system` is `system.rs` of the binary, `Ban` its small actor.
//!
//! | message | from | to | kind |
//! |---|---|---|---|
//! | [`LoadIdentity`](store::LoadIdentity) | `Attestor` | [`Store`](store::Store) | query |
//! | [`SaveKey`](store::SaveKey), [`SaveSvid`](store::SaveSvid), [`SaveBundle`](store::SaveBundle), [`SaveBootstrap`](store::SaveBootstrap), [`DeleteSvid`](store::DeleteSvid) | `Attestor` | `Store` | command |
//! | [`Attested`](synchronizer::Attested) | `Attestor` | [`Synchronizer`](synchronizer::Synchronizer) | event |
//! | [`Banned`](attestor::Banned) | `Attestor` | `Ban` | command |
//! | [`SvidRejected`](attestor::SvidRejected), [`SvidAccepted`](attestor::SvidAccepted), [`ServerUnknown`](attestor::ServerUnknown) | `Synchronizer` | [`Attestor`](attestor::Attestor) | event |
//! | [`TrustBundle`](attestor::TrustBundle) | `Synchronizer` | `Attestor` | event |
//! | [`KnownVersions`](cache::KnownVersions), [`DueForRenewal`](cache::DueForRenewal), [`SvidCount`](cache::SvidCount) | `Synchronizer` | [`Cache`](cache::Cache) | query |
//! | [`ApplyEntries`](cache::ApplyEntries), [`ApplyBundles`](cache::ApplyBundles), [`InstallSvids`](cache::InstallSvids) | `Synchronizer` | `Cache` | command |
//! | [`IdentityMissing`](cache::IdentityMissing) | `Cache` | `Synchronizer` | event |
//! | [`AttestWorkload`](selectors::AttestWorkload) | [`Endpoint`](endpoint::Endpoint) | [`Selectors`](selectors::Selectors) | query |
//! | [`LastEnd`](cache::LastEnd) | `Attestor` | `Cache` | query |
//! | [`Subscribe`](cache::Subscribe) | `Endpoint` | `Cache` | command |
//! | [`DescribeCache`](cache::DescribeCache) | `Endpoint` | `Cache` | query |
//! | [`Forget`](cache::Forget) | `Ban` | `Cache` | told command |
//! | [`EndStreams`](endpoint::EndStreams) | `Ban` | `Endpoint` | told command |
//! | [`Drain`](endpoint::Drain) | `system` | `Endpoint` | command |
//! | [`Settle`](attestor::Settle) | `system` | `Attestor` | command |
//! | [`ReportTo`](synchronizer::ReportTo) | `system` | `Synchronizer` | wiring |
//! | [`ReportMissing`](cache::ReportMissing) | `system` | `Cache` | wiring |
//! | `Wake`, `WriteAgain`, `LookForEnd`, `LookAgain` | `Attestor` | itself | timer, private |
//! | `Tick` | `Synchronizer` | itself | timer, private |
//! | `Expire` | `Cache` | itself | timer, private |
//!
//! Four things go past the mailboxes, newest value only but for the last:
//!
//! | what | written by | read by |
//! |---|---|---|
//! | [`Credentials`](credentials::Credentials) | `Attestor` | the server client at each handshake, `Synchronizer`, `Endpoint` |
//! | [`Readiness`](readiness::Readiness) | `Attestor`, `Synchronizer` | `Endpoint`, `system` |
//! | [`View`](cache::view::View), one for each set of selectors | `Cache` | the open streams of `Endpoint` |
//! | [`Exit`](exit::Exit), a queue | `Attestor` | `system` |

pub mod attestor;
pub mod backoff;
pub mod bundle;
pub mod cache;
pub mod clock;
pub mod credentials;
pub mod endpoint;
pub mod entry;
pub mod exit;
pub mod keys;
pub mod panics;
pub mod peer;
pub mod proxy;
pub mod random;
pub mod readiness;
pub mod rotation;
pub mod selector;
pub mod selectors;
pub mod server;
pub mod spiffe_id;
pub mod store;
pub mod svid;
pub mod synchronizer;
pub mod sys;
#[cfg(feature = "testing")]
pub mod testing;
pub mod wire;
pub mod workload_api;
