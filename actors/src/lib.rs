//! The actors of edge-agent and the vocabulary they share.

pub mod ask;
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
pub mod peer;
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
