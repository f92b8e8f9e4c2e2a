//! Reads a SPIFFE bundle document (JWKS; SPIFFE Trust Domain and Bundle 4). Pure; the text may be hostile.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::BundleError;
use crate::svid::Certificate;

/// Largest document in bytes.
const MAX_TEXT_BYTES: usize = 2 * 1024 * 1024;
/// Most keys in a document.
const MAX_KEYS: usize = 1000;

#[derive(Deserialize)]
struct Document {
    keys: Option<Vec<Key>>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(rename = "use", default)]
    purpose: Option<String>,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    x5c: Option<Vec<String>>,
}

/// The certificates of all entries that are for X.509-SVIDs; entries for tokens are checked and left out.
pub(super) fn x509_authorities(text: &[u8]) -> Result<Vec<Certificate>, BundleError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(BundleError::Document(format!(
            "larger than {MAX_TEXT_BYTES} bytes"
        )));
    }
    let document: Document =
        serde_json::from_slice(text).map_err(|error| BundleError::Document(error.to_string()))?;
    let keys = document.keys.unwrap_or_default();
    if keys.len() > MAX_KEYS {
        return Err(BundleError::Document(format!("more than {MAX_KEYS} keys")));
    }
    let mut found = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        let refuse = |reason: String| Err(BundleError::Document(reason));
        match key.purpose.as_deref().unwrap_or_default() {
            "x509-svid" => found.push(certificate_of(index, key)?),
            "jwt-svid" | "wit-svid" if !key.kid.as_deref().unwrap_or_default().is_empty() => {}
            "jwt-svid" | "wit-svid" => return refuse(format!("missing kid for key entry {index}")),
            "" => return refuse(format!("missing use for key entry {index}")),
            other => {
                let shown: String = other.chars().take(64).collect();
                return refuse(format!("unrecognized use {shown:?} for key entry {index}"));
            }
        }
    }
    Ok(found)
}

fn certificate_of(index: usize, key: &Key) -> Result<Certificate, BundleError> {
    let refuse = |reason: String| BundleError::Document(reason);
    let [encoded] = key.x5c.as_deref().unwrap_or_default() else {
        let count = key.x5c.as_ref().map_or(0, Vec::len);
        return Err(refuse(format!(
            "expected one certificate in key entry {index}, found {count}"
        )));
    };
    let der = STANDARD
        .decode(encoded)
        .map_err(|_| refuse(format!("certificate of key entry {index} is not base64")))?;
    Certificate::from_der(&der).map_err(|error| refuse(format!("key entry {index}: {error}")))
}
