//! One update of an X.509 context as every watching client prints it: a JSON line.

use serde::{Deserialize, Serialize};
use spiffe::{X509Context, X509Svid};
use x509_parser::parse_x509_certificate;

/// One complete set of identities, or the error that a client reported instead.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Update {
    /// The identities in the order of the message.
    pub identities: Vec<Identity>,
    /// How many trust domains have a bundle.
    pub bundles: usize,
    /// The error, or nothing.
    pub error: String,
}

/// One X.509-SVID.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Identity {
    /// SPIFFE ID.
    pub id: String,
    /// Serial number of the leaf, lower-case hex without leading zeros.
    pub serial: String,
    /// End of the leaf's validity, Unix seconds.
    pub not_after: i64,
}

impl Update {
    /// The SPIFFE IDs, sorted.
    pub fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self
            .identities
            .iter()
            .map(|identity| identity.id.clone())
            .collect();
        ids.sort();
        ids
    }

    /// What the Rust SDK received.
    pub fn of(context: &X509Context) -> Self {
        let identities = context
            .svids()
            .iter()
            .map(|svid| Identity::of(svid))
            .collect();
        Self {
            identities,
            bundles: context.bundle_set().len(),
            error: String::new(),
        }
    }

    /// An error that ended a stream.
    pub fn failed(error: &dyn ToString) -> Self {
        Self {
            error: error.to_string(),
            ..Self::default()
        }
    }
}

impl Identity {
    fn of(svid: &X509Svid) -> Self {
        let (_, leaf) = parse_x509_certificate(svid.leaf().as_bytes())
            .expect("the SDK has parsed this certificate");
        Self {
            id: svid.spiffe_id().to_string(),
            serial: leaf.serial.to_str_radix(16),
            not_after: leaf.validity().not_after.timestamp(),
        }
    }
}
