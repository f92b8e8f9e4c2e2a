//! `keys.json`. Key texts are decoded straight out of the file's (zeroised) text, so that no other copy is made. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use zeroize::Zeroizing;

use super::{FileError, from_base64, kind_or_syntax};
use crate::keys::PrivateKey;
use crate::store::KeySlot;

/// Agent keys by slot.
pub type Keys = BTreeMap<KeySlot, Arc<PrivateKey>>;

impl KeySlot {
    /// The key's name in `keys.json`.
    pub fn id(self) -> &'static str {
        match self {
            Self::A => "agent-svid-A",
            Self::B => "agent-svid-B",
        }
    }

    fn from_id(id: &str) -> Option<Self> {
        [Self::A, Self::B].into_iter().find(|slot| slot.id() == id)
    }
}

/// Reads the text of `keys.json`. Keys of other names are passed over: the agent has no use for them. So is a damaged one beside a good one,
/// which may be that of the SVID; where all are damaged the text is of no use.
pub fn decode_keys(text: &[u8]) -> Result<Keys, FileError> {
    let (mut keys, mut damaged) = (Keys::new(), None);
    for (slot, der) in decode_key_texts(text)? {
        match PrivateKey::from_pkcs8(&der) {
            Ok(key) => drop(keys.insert(slot, Arc::new(key))),
            Err(error) => {
                damaged = Some(FileError::Key {
                    id: slot.id(),
                    reason: error.to_string(),
                });
            }
        }
    }
    match damaged {
        Some(error) if keys.is_empty() => Err(error),
        Some(error) => {
            tracing::warn!(%error, "agent key is damaged and passed over");
            Ok(keys)
        }
        None => Ok(keys),
    }
}

/// The text of `keys.json`, indented by tabs as Go's `json.MarshalIndent` gives it.
pub fn encode_keys(keys: &Keys) -> Zeroizing<Vec<u8>> {
    let sizes: usize = keys
        .values()
        .map(|key| key.expose_pkcs8().len() * 2 + 64)
        .sum();
    // Room for everything from the start: a text that grows leaves copies of keys behind.
    let mut text = Zeroizing::new(String::with_capacity(sizes + 64));
    text.push_str("{\n\t\"keys\": {");
    for (count, (slot, key)) in keys.iter().enumerate() {
        text.push_str(if count == 0 { "\n\t\t\"" } else { ",\n\t\t\"" });
        text.push_str(slot.id());
        text.push_str("\": \"");
        STANDARD.encode_string(key.expose_pkcs8(), &mut text);
        text.push('"');
    }
    text.push_str(if keys.is_empty() { "}\n}" } else { "\n\t}\n}" });
    Zeroizing::new(std::mem::take(&mut *text).into_bytes())
}

type KeyTexts = Vec<(KeySlot, Zeroizing<Vec<u8>>)>;

fn decode_key_texts(text: &[u8]) -> Result<KeyTexts, FileError> {
    let file: Option<KeysText> = serde_json::from_slice(text)
        .map_err(|error| kind_or_syntax(&error, "the file", "an object of keys in base64"))?;
    Ok(file.map(|file| file.0).unwrap_or_default())
}

/// The outer object.
struct KeysText(KeyTexts);

impl<'de> Deserialize<'de> for KeysText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Outer;
        impl<'de> Visitor<'de> for Outer {
            type Value = KeysText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<KeysText, A::Error> {
                let mut keys = KeyTexts::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name.eq_ignore_ascii_case("keys") {
                        keys = map
                            .next_value::<Option<KeyObject>>()?
                            .map(|object| object.0)
                            .unwrap_or_default();
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(KeysText(keys))
            }
        }
        deserializer.deserialize_map(Outer)
    }
}

/// The inner object: names and base64.
struct KeyObject(KeyTexts);

impl<'de> Deserialize<'de> for KeyObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Inner;
        impl<'de> Visitor<'de> for Inner {
            type Value = KeyObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<KeyObject, A::Error> {
                let mut keys = KeyTexts::new();
                while let Some(id) = map.next_key::<String>()? {
                    if let Some(slot) = KeySlot::from_id(&id) {
                        keys.push((slot, map.next_value_seed(KeyText)?));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(KeyObject(keys))
            }
        }
        deserializer.deserialize_map(Inner)
    }
}

/// One key in base64.
struct KeyText;

impl<'de> DeserializeSeed<'de> for KeyText {
    type Value = Zeroizing<Vec<u8>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyText {
    type Value = Zeroizing<Vec<u8>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("base64")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        from_base64(text)
            .map(Zeroizing::new)
            .ok_or_else(|| E::custom("not base64"))
    }
}
