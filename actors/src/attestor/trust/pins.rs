//! Pinned authorities: of what a source gives, only those whose fingerprint was written down are taken. Pure.

use std::fmt;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use crate::bundle::Bundle;

/// Most pins of one source.
const MAX_PINS: usize = 100;
const ALGORITHM: &str = "sha256:";

/// SHA-256 fingerprints over the DER of authorities' certificates. Without any, every authority is taken.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pins(Vec<[u8; SHA256_OUTPUT_LEN]>);

/// Why a text is no list of pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// A pin is not of its form.
    #[error("a pin must be sha256: and 64 hexadecimal digits; several are separated by commas")]
    Form,
    /// There are more than anyone needs.
    #[error("more than {MAX_PINS} pins")]
    TooMany,
}

impl Pins {
    /// Reads `sha256:<64 hex>`, several of these separated by commas; at least one.
    pub fn parse(text: &str) -> Result<Self, PinError> {
        if text.split(',').count() > MAX_PINS {
            return Err(PinError::TooMany);
        }
        text.split(',')
            .map(|pin| pin.strip_prefix(ALGORITHM).and_then(fingerprint))
            .collect::<Option<_>>()
            .map(Self)
            .ok_or(PinError::Form)
    }

    /// Of a bundle that which is pinned; none if nothing is left.
    pub(super) fn keep(&self, bundle: Bundle) -> Option<Bundle> {
        if self.0.is_empty() {
            return Some(bundle);
        }
        let mut authorities = bundle.x509_authorities().to_vec();
        authorities.retain(|authority| self.has(authority.certificate.der()));
        (!authorities.is_empty()).then(|| Bundle::new(bundle.trust_domain, authorities))
    }

    fn has(&self, der: &[u8]) -> bool {
        let found = digest(&SHA256, der);
        self.0.iter().any(|pin| pin == found.as_ref())
    }
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pins({})", self.0.len())
    }
}

fn fingerprint(hex: &str) -> Option<[u8; SHA256_OUTPUT_LEN]> {
    let digits: Vec<_> = hex
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        })
        .collect::<Option<_>>()?;
    let bytes: Vec<_> = digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
        .collect();
    if digits.len() % 2 == 0 {
        bytes.try_into().ok()
    } else {
        None
    }
}

/// The pin of an authority, as an operator would write it.
#[cfg(test)]
pub(super) fn pin(ca: &crate::testing::certificates::Ca) -> String {
    let found = digest(&SHA256, ca.certificate().der());
    let hex = found.as_ref().iter().map(|byte| format!("{byte:02x}"));
    format!("{ALGORITHM}{}", hex.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::certificates::Ca;
    use crate::testing::epoch;

    fn both(one: &Ca, other: &Ca) -> Bundle {
        let trust_domain = one.bundle("domain.test").trust_domain;
        Bundle::new(trust_domain, vec![one.authority(), other.authority()])
    }

    #[test]
    fn only_pinned_authorities_are_kept() {
        let (one, other, foreign) = (Ca::new(epoch()), Ca::new(epoch()), Ca::new(epoch()));
        let kept = |pins: &str| {
            let pins = Pins::parse(pins).unwrap();
            pins.keep(both(&one, &other))
                .map(|bundle| bundle.certificates())
        };

        assert_eq!(kept(&pin(&other)), Some(vec![other.certificate().clone()]));
        assert_eq!(
            kept(&pin(&other).to_uppercase().replace("SHA", "sha")).map(|kept| kept.len()),
            Some(1)
        );
        assert_eq!(
            kept(&format!("{},{}", pin(&other), pin(&one))).map(|kept| kept.len()),
            Some(2)
        );
        assert_eq!(kept(&pin(&foreign)), None);
        assert_eq!(
            Pins::default().keep(both(&one, &other)),
            Some(both(&one, &other))
        );
    }

    #[test]
    fn text_that_is_no_pin_is_refused() {
        let hex = "0123456789abcdef".repeat(4);
        let good = format!("sha256:{hex}");
        assert!(Pins::parse(&good).is_ok());
        let bad = [
            String::new(),
            hex.clone(),
            "sha256:".to_owned(),
            format!("sha1:{hex}"),
            format!("sha256:{}", &hex[1..]),
            format!("sha256:{}", &hex[2..]),
            format!("sha256:{hex}00"),
            format!("sha256:{}g", &hex[1..]),
            format!("sha256:{}\u{fc}", &hex[2..]),
            format!("{good},"),
            format!("{good},{hex}"),
            format!("{good}, {good}"),
        ];

        for text in bad {
            assert_eq!(Pins::parse(&text), Err(PinError::Form), "{text}");
        }
        assert_eq!(Pins::parse(&",".repeat(MAX_PINS)), Err(PinError::TooMany));
    }
}
