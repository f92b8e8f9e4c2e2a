//! Whether what the server signed may be served (design D22): key, ID, validity and a path to the bundle held. Pure.

use std::time::SystemTime;

use crate::bundle::{Bundle, VerifyError};
use crate::entry::Entry;
use crate::keys::PrivateKey;
use crate::svid::{Certificate, CertificateError, X509Svid};

/// Why a signed certificate is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedSvid {
    /// It is no SVID, or its key is not the one asked for.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// It names another identity than the entry.
    #[error("certificate is for {found}, not for {expected}")]
    ForeignId {
        /// In the certificate.
        found: String,
        /// In the entry.
        expected: String,
    },
    /// It has ended already.
    #[error("certificate has expired already")]
    Expired,
    /// It leads to no authority that workloads know.
    #[error(transparent)]
    Path(#[from] VerifyError),
}

/// Joins a signed chain and its key after checking that they are the entry's, and of use. A certificate that is not valid yet is taken: it is
/// not handed out before its time.
pub fn assemble(
    chain: Vec<Certificate>,
    key: PrivateKey,
    entry: &Entry,
    now: SystemTime,
) -> Result<X509Svid, RefusedSvid> {
    let svid = X509Svid::new(chain, key)?;
    if svid.id != entry.spiffe_id {
        return Err(RefusedSvid::ForeignId {
            found: svid.id.to_string(),
            expected: entry.spiffe_id.to_string(),
        });
    }
    if svid.not_after() <= now {
        return Err(RefusedSvid::Expired);
    }
    Ok(svid)
}

/// Checks that workloads can verify an SVID by the bundle that they are given.
pub fn check_path(svid: &X509Svid, bundle: &Bundle, now: SystemTime) -> Result<(), VerifyError> {
    bundle.verify(svid.chain(), now.max(svid.leaf().not_before()))
}
