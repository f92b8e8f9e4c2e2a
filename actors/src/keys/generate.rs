//! Makes RSA keys, which ring cannot. Randomness is ring's.

use ring::rand::{SecureRandom, SystemRandom};
use rsa::rand_core::{TryCryptoRng, TryRng};
use rsa::traits::{PrivateKeyParts, PublicKeyParts};
use zeroize::Zeroizing;

use super::KeyError;
use super::der::{self, element, unsigned};
use super::pkcs8::RSA_ENCRYPTION;

const FAILED: KeyError = KeyError::Failed("generating an RSA key");

/// A new RSA key with 2048 bits in PKCS#8 DER.
pub(super) fn rsa_2048_pkcs8(random: &SystemRandom) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let key = rsa::PrivateKey::new(&mut Source(random), 2048).map_err(|_| FAILED)?;
    let private_key = pkcs1(&key).ok_or(FAILED)?;
    let algorithm = element(
        der::SEQUENCE,
        &[
            &element(der::OBJECT_IDENTIFIER, &[RSA_ENCRYPTION]),
            &der::NULL,
        ],
    );
    Ok(element(
        der::SEQUENCE,
        &[
            &unsigned(&[0]),
            &algorithm,
            &element(der::OCTET_STRING, &[&private_key]),
        ],
    ))
}

/// `RSAPrivateKey` (RFC 8017 A.1.2).
pub(crate) fn pkcs1(key: &rsa::PrivateKey) -> Option<Zeroizing<Vec<u8>>> {
    let secret = |number: &rsa::BoxedUint| unsigned(&Zeroizing::new(number.to_be_bytes()));
    let [p, q] = key.primes() else {
        return None;
    };
    Some(element(
        der::SEQUENCE,
        &[
            &unsigned(&[0]),
            &unsigned(&key.n_bytes()),
            &unsigned(&key.e_bytes()),
            &secret(key.d()),
            &secret(p),
            &secret(q),
            &secret(key.dp()?),
            &secret(key.dq()?),
            &secret(&Zeroizing::new(key.crt_coefficient()?)),
        ],
    ))
}

/// ring's random numbers in the form that the `rsa` crate takes.
pub(crate) struct Source<'a>(pub(crate) &'a SystemRandom);

/// The system gives no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("no random numbers")]
pub(crate) struct NoRandomness;

impl TryRng for Source<'_> {
    type Error = NoRandomness;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        self.0.fill(bytes).map_err(|_| NoRandomness)
    }
}

impl TryCryptoRng for Source<'_> {}
