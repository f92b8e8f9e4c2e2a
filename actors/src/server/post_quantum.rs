//! X25519MLKEM768 (0x11EC), a key exchange that stays secret as long as either of its halves does: ML-KEM-768 (FIPS 203) beside ring's X25519,
//! put together as draft-ietf-tls-ecdhe-mlkem 4 has it, ML-KEM first. The client's side only. Pure.

use ml_kem::kem::{Decapsulate, KeyExport};
use ml_kem::{DecapsulationKey768, Seed, ml_kem_768};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::crypto::ring::{default_provider, kx_group};
use rustls::crypto::{
    ActiveKeyExchange, CompletedKeyExchange, CryptoProvider, GetRandomFailed, SharedSecret,
    SupportedKxGroup,
};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a seed, of a ciphertext, and of each half's secret.
const SEED: usize = 64;
const CIPHERTEXT: usize = 1088;
const SECRET: usize = 32;

/// ring's algorithms with X25519MLKEM768 before the other groups, or in their place where it is required (`require_pq_kem`): then TLS 1.2,
/// which cannot carry it, is ruled out as well.
pub(super) fn provider(required: bool) -> CryptoProvider {
    let mut provider = default_provider();
    if required {
        provider.kx_groups.clear();
    }
    provider.kx_groups.insert(0, &X25519MlKem768);
    provider
}

/// The group.
#[derive(Debug)]
pub(super) struct X25519MlKem768;

/// A key exchange under way. Its private halves are wiped when dropped.
struct Exchange {
    post_quantum: Box<DecapsulationKey768>,
    classical: Box<dyn ActiveKeyExchange>,
    share: Vec<u8>,
}

impl X25519MlKem768 {
    fn start_from(seed: &Zeroizing<[u8; SEED]>) -> Result<Exchange, Error> {
        let post_quantum = Box::new(DecapsulationKey768::from_seed(Seed::from(**seed)));
        let classical = kx_group::X25519.start()?;
        let mut share = post_quantum.encapsulation_key().to_bytes().to_vec();
        share.extend_from_slice(classical.pub_key());
        Ok(Exchange {
            post_quantum,
            classical,
            share,
        })
    }
}

impl SupportedKxGroup for X25519MlKem768 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut seed = Zeroizing::new([0; SEED]);
        SystemRandom::new()
            .fill(seed.as_mut_slice())
            .map_err(|_| GetRandomFailed)?;
        Ok(Box::new(Self::start_from(&seed)?))
    }

    fn start_and_complete(&self, _: &[u8]) -> Result<CompletedKeyExchange, Error> {
        // What a server does, which has to encapsulate. The agent is none.
        Err(Error::General(
            "BUG: X25519MLKEM768 has a client's side only".to_owned(),
        ))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let (ciphertext, point) = peer
            .split_at_checked(CIPHERTEXT)
            .ok_or(PeerMisbehaved::InvalidKeyShare)?;
        let ciphertext = ml_kem_768::Ciphertext::try_from(ciphertext)
            .map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        // Checks the point's length and refuses one of small order.
        let classical = self.classical.complete(point)?;
        let mut post_quantum = self.post_quantum.decapsulate(&ciphertext);
        // Of its full size from the start: growing would leave copies behind. `SharedSecret` wipes itself.
        let mut secret = Vec::with_capacity(2 * SECRET);
        secret.extend_from_slice(&post_quantum);
        secret.extend_from_slice(classical.secret_bytes());
        post_quantum.as_mut_slice().zeroize();
        Ok(secret.into())
    }

    /// Lets a server without the hybrid go on with its classical half, which saves a round trip.
    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((self.classical.group(), self.classical.pub_key()))
    }

    fn complete_hybrid_component(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        self.classical.complete(peer)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

#[cfg(test)]
pub(super) mod tests;
