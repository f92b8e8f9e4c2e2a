//! The X.509 authorities of the trust domain: generations that are prepared, activated, tainted and revoked, and the
//! leaves that they sign.

use proto::spire::api::types;

use crate::certificate::{self, Issuer, Purpose, Serial, Template};
use crate::clock::Seconds;
use crate::generations::Generations;

/// Servers back-date certificates by this much, against clocks that lag.
pub(crate) const NOT_BEFORE_CUSHION: Seconds = 10;
/// The authority that is in no bundle outlives every test.
const FOREIGN_AUTHORITY_TTL: Seconds = 864_000;

/// One generation of the CA.
#[derive(Debug)]
pub(crate) struct Authority {
    root: Issuer,
    certificate: Vec<u8>,
    /// The intermediate that signs leaves in place of the root, with its certificate.
    intermediate: Option<(Issuer, Vec<u8>)>,
    not_after: Seconds,
}

impl Authority {
    fn generate(trust_domain: &str, ttl: Seconds, with_intermediate: bool, now: Seconds) -> Self {
        let not_after = now + ttl;
        let root = Issuer::generate(certificate::authority_subject(Serial::random()));
        let mut template = Template {
            subject: root.subject().to_vec(),
            public_key: root.public_key(),
            purpose: Purpose::Authority,
            uris: vec![format!("spiffe://{trust_domain}")],
            dns_names: Vec::new(),
            not_before: (now - NOT_BEFORE_CUSHION).min(not_after - NOT_BEFORE_CUSHION),
            not_after,
            serial: Serial::random(),
        };
        let certificate = root.issue(&template);
        let intermediate = with_intermediate.then(|| {
            let issuer = Issuer::generate(certificate::authority_subject(Serial::random()));
            template.subject = issuer.subject().to_vec();
            template.public_key = issuer.public_key();
            template.serial = Serial::random();
            let signed = root.issue(&template);
            (issuer, signed)
        });
        Self {
            root,
            certificate,
            intermediate,
            not_after,
        }
    }
}

/// Which authority signs a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signer {
    /// The active generation.
    Active,
    /// A generation by number; the active one where there is no such generation.
    Generation(usize),
    /// An authority that is in no bundle.
    Foreign,
}

/// A leaf to be signed. Its end is capped by that of its authority.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) public_key: Vec<u8>,
    pub(crate) uris: Vec<String>,
    pub(crate) dns_names: Vec<String>,
    pub(crate) not_before: Seconds,
    pub(crate) not_after: Seconds,
}

/// A signed leaf.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    /// DER certificates, leaf first, without the root.
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) serial: Serial,
    pub(crate) not_after: Seconds,
}

/// The generations of the CA and an authority outside of them.
#[derive(Debug)]
pub(crate) struct Authorities {
    trust_domain: String,
    pub(crate) generations: Generations<Authority>,
    foreign: Authority,
}

impl Authorities {
    /// One active generation that lives for `ttl` seconds.
    pub(crate) fn new(
        trust_domain: &str,
        ttl: Seconds,
        with_intermediate: bool,
        now: Seconds,
    ) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            generations: Generations::new(Authority::generate(
                trust_domain,
                ttl,
                with_intermediate,
                now,
            )),
            foreign: Authority::generate(trust_domain, FOREIGN_AUTHORITY_TTL, false, now),
        }
    }

    /// Adds a generation to the bundle and returns its number. It signs nothing until it is activated.
    pub(crate) fn prepare(&mut self, ttl: Seconds, with_intermediate: bool, now: Seconds) -> usize {
        self.generations.prepare(Authority::generate(
            &self.trust_domain,
            ttl,
            with_intermediate,
            now,
        ))
    }

    /// The certificates of generations `only`, or of all that are not revoked, as a bundle shows them.
    pub(crate) fn bundle(&self, only: Option<&[usize]>) -> Vec<types::X509Certificate> {
        self.generations
            .iter()
            .filter(|(number, generation)| {
                only.map_or(!generation.revoked, |only| only.contains(number))
            })
            .map(|(_, generation)| types::X509Certificate {
                asn1: generation.authority.certificate.clone(),
                tainted: generation.tainted,
            })
            .collect()
    }

    /// The DER certificates that client certificates may chain to: neither revoked nor over.
    pub(crate) fn client_roots(&self, now: Seconds) -> Vec<Vec<u8>> {
        self.generations
            .iter()
            .filter(|(_, generation)| !generation.revoked && generation.authority.not_after > now)
            .map(|(_, generation)| generation.authority.certificate.clone())
            .collect()
    }

    /// Signs a leaf.
    pub(crate) fn issue(&self, signer: Signer, leaf: Leaf) -> Issued {
        let authority = self.authority(signer);
        let not_after = leaf.not_after.min(authority.not_after);
        let serial = Serial::random();
        let template = Template {
            subject: certificate::svid_subject(),
            public_key: leaf.public_key,
            purpose: Purpose::Svid,
            uris: leaf.uris,
            dns_names: leaf.dns_names,
            not_before: leaf.not_before.min(not_after - NOT_BEFORE_CUSHION),
            not_after,
            serial,
        };
        let chain = match &authority.intermediate {
            Some((issuer, certificate)) => vec![issuer.issue(&template), certificate.clone()],
            None => vec![authority.root.issue(&template)],
        };
        Issued {
            chain,
            serial,
            not_after,
        }
    }

    fn authority(&self, signer: Signer) -> &Authority {
        let number = match signer {
            Signer::Active => self.generations.active(),
            Signer::Generation(number) => number,
            Signer::Foreign => return &self.foreign,
        };
        self.generations.find(number).unwrap_or(&self.foreign)
    }
}
