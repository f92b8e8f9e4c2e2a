//! The JWT authorities of the trust domain and the tokens that they sign (ES256).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proto::spire::api::types;
use serde_json::json;

use crate::certificate::{self, Issuer};
use crate::clock::Seconds;
use crate::generations::Generations;

/// One generation of the JWT key.
#[derive(Debug)]
pub(crate) struct JwtAuthority {
    key: Issuer,
    key_id: String,
    expires_at: Seconds,
}

impl JwtAuthority {
    /// A new key that ends at `expires_at`.
    pub(crate) fn generate(expires_at: Seconds) -> Self {
        let random: [u8; 16] = certificate::random_bytes();
        Self {
            key: Issuer::generate(Vec::new()),
            key_id: URL_SAFE_NO_PAD.encode(random),
            expires_at,
        }
    }

    /// Signs a token. Its end is capped by that of the key.
    pub(crate) fn issue(&self, claims: Claims<'_>) -> (String, Seconds) {
        let expires_at = claims.expires_at.min(self.expires_at);
        let header = json!({ "alg": "ES256", "kid": self.key_id, "typ": "JWT" });
        let mut body = json!({
            "aud": claims.audience,
            "exp": expires_at,
            "iat": claims.issued_at,
            "sub": claims.subject,
        });
        if claims.has_jti {
            let unique: [u8; 16] = certificate::random_bytes();
            body["jti"] = json!(certificate::hex(&unique));
        }
        let signed = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(body.to_string())
        );
        let signature = certificate::sign_fixed(self.key.expose_pkcs8(), signed.as_bytes());
        (
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)),
            expires_at,
        )
    }
}

/// What a token says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims<'a> {
    pub(crate) subject: &'a str,
    pub(crate) audience: &'a [String],
    pub(crate) issued_at: Seconds,
    pub(crate) expires_at: Seconds,
    /// Whether the token has a unique `jti`.
    pub(crate) has_jti: bool,
}

/// The keys as a bundle shows them.
pub(crate) fn bundle(authorities: &Generations<JwtAuthority>) -> Vec<types::JwtKey> {
    authorities
        .iter()
        .filter(|(_, generation)| !generation.revoked)
        .map(|(_, generation)| types::JwtKey {
            public_key: generation.authority.key.public_key(),
            key_id: generation.authority.key_id.clone(),
            expires_at: generation.authority.expires_at,
            tainted: generation.tainted,
        })
        .collect()
}
