//! Command line flags of `run` and `validate`, as given.

use std::fmt;

/// One field for each flag that stands for a key of the file; `None` when the flag was not given.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) data_dir: Option<String>,
    pub(crate) join_token: Option<String>,
    pub(crate) join_token_file: Option<String>,
    pub(crate) log_file: Option<String>,
    pub(crate) log_format: Option<String>,
    pub(crate) log_level: Option<String>,
    pub(crate) log_source_location: Option<bool>,
    pub(crate) server_address: Option<String>,
    pub(crate) server_port: Option<String>,
    pub(crate) socket_path: Option<String>,
    pub(crate) trust_domain: Option<String>,
    pub(crate) disable_workload_api: Option<bool>,
    pub(crate) disable_sds_api: Option<bool>,
    /// `-trustBundle`: `trust_bundle_path`.
    pub(crate) trust_bundle: Option<String>,
    pub(crate) trust_bundle_url: Option<String>,
    pub(crate) trust_bundle_format: Option<String>,
    pub(crate) allow_unauthenticated_verifiers: Option<bool>,
    pub(crate) insecure_bootstrap: Option<bool>,
    pub(crate) rebootstrap_mode: Option<String>,
    pub(crate) rebootstrap_delay: Option<String>,
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flags")
            .field("has_join_token", &self.join_token.is_some())
            .finish_non_exhaustive()
    }
}
