//! JWT authorities as a JSON Web Key Set (RFC 7517), as the Workload API hands them out (workload-side 1.9). Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use crate::bundle::JwtAuthority;
use crate::keys::der::{self, Reader};
use crate::keys::pkcs8::{Curve, Pkcs8Kind, read_public_key};

/// Why an authority cannot be written as a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("public key of JWT authority {key_id:?} is of an unknown kind or damaged")]
pub(super) struct JwksError {
    key_id: String,
}

#[derive(Serialize)]
struct KeySet<'a> {
    keys: Vec<Key<'a>>,
}

#[derive(Serialize)]
struct Key<'a> {
    kty: &'static str,
    kid: &'a str,
    #[serde(flatten)]
    parameters: Parameters,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Parameters {
    Ec {
        crv: &'static str,
        x: String,
        y: String,
    },
    Rsa {
        n: String,
        e: String,
    },
}

/// Writes the set: keys sorted by `kid`, indented by 4 spaces, public parameters only.
pub(super) fn write(authorities: &[JwtAuthority]) -> Result<Vec<u8>, JwksError> {
    let mut sorted: Vec<_> = authorities.iter().collect();
    sorted.sort_by(|a, b| a.key_id.cmp(&b.key_id));
    let keys = sorted.into_iter().map(key).collect::<Result<_, _>>()?;
    let mut out = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    KeySet { keys }
        .serialize(&mut serde_json::Serializer::with_formatter(
            &mut out, format,
        ))
        .expect("a tree of strings is written to memory");
    Ok(out)
}

fn key(authority: &JwtAuthority) -> Result<Key<'_>, JwksError> {
    let parameters = parameters(&authority.public_key).ok_or_else(|| JwksError {
        key_id: authority.key_id.clone(),
    })?;
    let kty = match parameters {
        Parameters::Ec { .. } => "EC",
        Parameters::Rsa { .. } => "RSA",
    };
    Ok(Key {
        kty,
        kid: &authority.key_id,
        parameters,
    })
}

/// Reads a `SubjectPublicKeyInfo` (RFC 5280 4.1).
fn parameters(public_key: &[u8]) -> Option<Parameters> {
    let (kind, key) = read_public_key(public_key)?;
    match kind {
        Pkcs8Kind::Ec(Curve::P256) => ec_point("P-256", 32, key),
        Pkcs8Kind::Ec(Curve::P384) => ec_point("P-384", 48, key),
        Pkcs8Kind::Ec(Curve::P521) => ec_point("P-521", 66, key),
        Pkcs8Kind::Rsa => rsa_key(key),
        Pkcs8Kind::Other => None,
    }
}

/// An uncompressed point (SEC 1 2.3.3); coordinates keep their leading zeros (RFC 7518 6.2.1.2).
fn ec_point(crv: &'static str, size: usize, key: &[u8]) -> Option<Parameters> {
    let (x, y) = key.strip_prefix(&[4])?.split_at_checked(size)?;
    (y.len() == size).then(|| Parameters::Ec {
        crv,
        x: URL_SAFE_NO_PAD.encode(x),
        y: URL_SAFE_NO_PAD.encode(y),
    })
}

/// Modulus and exponent (RFC 8017 A.1.1) without leading zeros (RFC 7518 6.3.1).
fn rsa_key(key: &[u8]) -> Option<Parameters> {
    let mut numbers = Reader::new(Reader::new(key).read(der::SEQUENCE)?);
    let (n, e) = (numbers.read_unsigned()?, numbers.read_unsigned()?);
    let is_key = numbers.is_empty() && !n.is_empty() && !e.is_empty();
    is_key.then(|| Parameters::Rsa {
        n: URL_SAFE_NO_PAD.encode(n),
        e: URL_SAFE_NO_PAD.encode(e),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::keys::{KeyType, PrivateKey};

    fn authority(key_id: &str, public_key: &[u8]) -> JwtAuthority {
        JwtAuthority {
            key_id: key_id.into(),
            public_key: public_key.to_vec().into(),
            expires_at: None,
            tainted: false,
        }
    }

    fn generated(key_id: &str, kind: KeyType) -> JwtAuthority {
        authority(key_id, PrivateKey::generate(kind).unwrap().public_key_der())
    }

    /// RFC 5480 `SubjectPublicKeyInfo` on P-521, its X coordinate beginning with zeros.
    fn p521() -> Vec<u8> {
        let algorithm = der::element(
            der::SEQUENCE,
            &[
                &der::element(
                    der::OBJECT_IDENTIFIER,
                    &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01]],
                ),
                &der::element(der::OBJECT_IDENTIFIER, &[&[0x2b, 0x81, 0x04, 0x00, 0x23]]),
            ],
        );
        let bits = der::element(der::BIT_STRING, &[&[0, 4], &[0; 66], &[7; 66]]);
        der::element(der::SEQUENCE, &[&algorithm, &bits]).to_vec()
    }

    #[test]
    fn an_empty_set_is_written_as_the_reference_writes_it() {
        assert_eq!(write(&[]).unwrap(), b"{\n    \"keys\": []\n}");
    }

    #[test]
    fn keys_are_sorted_and_hold_public_parameters_only() {
        let authorities = [
            generated("c", KeyType::Rsa2048),
            generated("b", KeyType::EcP384),
            generated("a", KeyType::EcP256),
            authority("d", &p521()),
        ];

        let text = write(&authorities).unwrap();

        let set: Value = serde_json::from_slice(&text).unwrap();
        let members = |key: &Value| {
            key.as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect::<Vec<_>>()
                .join(" ")
        };
        let keys = set["keys"].as_array().unwrap();
        let summary: Vec<_> = keys
            .iter()
            .map(|key| {
                (
                    key["kid"].as_str().unwrap(),
                    key["kty"].as_str().unwrap(),
                    key["crv"].as_str(),
                )
            })
            .collect();
        assert_eq!(
            summary,
            [
                ("a", "EC", Some("P-256")),
                ("b", "EC", Some("P-384")),
                ("c", "RSA", None),
                ("d", "EC", Some("P-521"))
            ]
        );
        assert!(
            keys.iter()
                .all(|key| ["crv kid kty x y", "e kid kty n"].contains(&members(key).as_str()))
        );
        assert_eq!(keys[2]["e"], "AQAB");
        assert_eq!(
            keys[2]["n"].as_str().unwrap().len(),
            342,
            "2048 bits without padding or a leading zero"
        );
        assert_eq!(keys[3]["x"], "A".repeat(88));
        assert!(text.starts_with(b"{\n    \"keys\": [\n        {\n            \"kty\": \"EC\",\n            \"kid\": \"a\""));
    }

    #[test]
    fn the_coordinates_are_those_of_the_key() {
        let key = PrivateKey::generate(KeyType::EcP256).unwrap();
        let point = &key.public_key_der()[key.public_key_der().len() - 64..];

        let set: Value =
            serde_json::from_slice(&write(&[authority("a", key.public_key_der())]).unwrap())
                .unwrap();

        let read = |name: &str| {
            URL_SAFE_NO_PAD
                .decode(set["keys"][0][name].as_str().unwrap())
                .unwrap()
        };
        assert_eq!([read("x"), read("y")].concat(), point);
    }

    #[test]
    fn a_key_of_an_unknown_kind_is_named() {
        let error = write(&[authority("odd", &[0x30, 0])]).unwrap_err();

        assert_eq!(
            error.to_string(),
            "public key of JWT authority \"odd\" is of an unknown kind or damaged"
        );
    }

    proptest! {
        #[test]
        fn damaged_keys_never_panic(at in 0_usize..160, byte: u8, cut in 0_usize..160) {
            let mut key = p521();
            if let Some(target) = key.get_mut(at) {
                *target = byte;
            }
            key.truncate(cut);

            prop_assert!(write(&[authority("a", &key)]).is_err() || cut >= p521().len());
        }
    }
}
