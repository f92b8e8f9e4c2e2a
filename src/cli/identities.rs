//! The identities of an X.509 answer: read, verified, and shown as `api fetch x509` and `api watch` print them. Pure.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use actors::bundle::{Bundle, VerifyError, X509Authority};
use actors::keys::{KeyError, PrivateKey};
use actors::spiffe_id::{IdError, TrustDomain};
use actors::svid::{Certificate, CertificateError, X509Svid};
use proto::workload::{X509svid, X509svidResponse};

use crate::config::duration::format_duration;
use crate::telemetry::date::go_utc;
use crate::telemetry::escape::printable;

/// One identity with what its owner is to trust.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) svid: X509Svid,
    hint: String,
    pub(crate) bundle: Vec<Certificate>,
    /// Bundles of foreign trust domains, by name.
    pub(crate) federated: Vec<Federated>,
}

/// The bundle of a foreign trust domain.
#[derive(Debug, Clone)]
pub(crate) struct Federated {
    pub(crate) trust_domain: TrustDomain,
    pub(crate) authorities: Vec<Certificate>,
}

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("SVID #{index}: {reason}")]
    Svid {
        index: usize,
        reason: CertificateError,
    },
    #[error("key of SVID #{index}: {reason}")]
    Key { index: usize, reason: KeyError },
    #[error("SVID #{index} is that of {found}, not of {named:?}")]
    OtherId {
        index: usize,
        named: String,
        found: String,
    },
    #[error("bundle of SVID #{index}: {reason}")]
    Bundle {
        index: usize,
        reason: CertificateError,
    },
    #[error("SVID #{index} does not verify against its bundle: {reason}")]
    Unverified { index: usize, reason: VerifyError },
    #[error("federated bundle {name:?}: {reason}")]
    FederatedName { name: String, reason: IdError },
    #[error("federated bundle of {trust_domain}: {reason}")]
    FederatedBundle {
        trust_domain: TrustDomain,
        reason: CertificateError,
    },
}

/// Reads an answer; every SVID must lead to its bundle at `now`.
pub(crate) fn read(
    answer: &X509svidResponse,
    now: SystemTime,
) -> Result<Vec<Identity>, IdentityError> {
    let mut federated = Vec::new();
    for (name, der) in &answer.federated_bundles {
        let trust_domain =
            TrustDomain::parse(name).map_err(|reason| IdentityError::FederatedName {
                name: name.clone(),
                reason,
            })?;
        let authorities =
            Certificate::list_from_der(der).map_err(|reason| IdentityError::FederatedBundle {
                trust_domain: trust_domain.clone(),
                reason,
            })?;
        federated.push(Federated {
            trust_domain,
            authorities,
        });
    }
    federated.sort_by(|one, other| one.trust_domain.name().cmp(other.trust_domain.name()));
    let svids = answer.svids.iter().enumerate();
    svids
        .map(|(index, svid)| read_one(index, svid, &federated, now))
        .collect()
}

fn read_one(
    index: usize,
    message: &X509svid,
    federated: &[Federated],
    now: SystemTime,
) -> Result<Identity, IdentityError> {
    let of_svid = |reason| IdentityError::Svid { index, reason };
    let chain = Certificate::list_from_der(&message.x509_svid).map_err(of_svid)?;
    let key = PrivateKey::from_pkcs8(&message.x509_svid_key)
        .map_err(|reason| IdentityError::Key { index, reason })?;
    let svid = X509Svid::new(chain, key).map_err(of_svid)?;
    if svid.id.as_str() != message.spiffe_id {
        let (named, found) = (message.spiffe_id.clone(), svid.id.to_string());
        return Err(IdentityError::OtherId {
            index,
            named,
            found,
        });
    }
    let bundle = Certificate::list_from_der(&message.bundle)
        .map_err(|reason| IdentityError::Bundle { index, reason })?;
    let authorities = bundle.iter().cloned();
    let authorities = authorities.map(|certificate| X509Authority {
        certificate,
        tainted: false,
    });
    Bundle::new(svid.id.trust_domain(), authorities.collect())
        .verify(svid.chain(), now)
        .map_err(|reason| IdentityError::Unverified { index, reason })?;
    Ok(Identity {
        svid,
        hint: message.hint.clone(),
        bundle,
        federated: federated.to_vec(),
    })
}

/// The text for all identities; hints only where they are asked for.
pub(super) fn render(identities: &[Identity], waited: Duration, with_hints: bool) -> String {
    let count = identities.len();
    let noun = if count == 1 { "svid" } else { "svids" };
    let mut text = format!(
        "Received {count} {noun} after {}\n\n",
        format_duration(waited)
    );
    for identity in identities {
        push(
            &mut text,
            format_args!("SPIFFE ID:\t\t{}\n", identity.svid.id),
        );
        if with_hints && !identity.hint.is_empty() {
            push(
                &mut text,
                format_args!("Hint:\t\t\t{}\n", printable(&identity.hint)),
            );
        }
        push_validity(&mut text, "SVID", identity.svid.leaf());
        for (number, certificate) in identity.svid.chain().iter().enumerate().skip(1) {
            push_validity(&mut text, &format!("Intermediate #{number}"), certificate);
        }
        for (number, certificate) in (1..).zip(&identity.bundle) {
            push_validity(&mut text, &format!("CA #{number}"), certificate);
        }
        for Federated {
            trust_domain,
            authorities,
        } in &identity.federated
        {
            for (number, certificate) in (1..).zip(authorities) {
                let name = format!("[{}] CA #{number}", trust_domain.id_string());
                push_validity(&mut text, &name, certificate);
            }
        }
        text.push('\n');
    }
    text
}

fn push_validity(text: &mut String, name: &str, certificate: &Certificate) {
    let (after, until) = (
        go_utc(certificate.not_before()),
        go_utc(certificate.not_after()),
    );
    push(
        text,
        format_args!("{name} Valid After:\t{after}\n{name} Valid Until:\t{until}\n"),
    );
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a string takes any text");
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use actors::clock::from_unix_seconds;
    use actors::testing::certificates::Ca;

    use super::*;

    const EPOCH: i64 = 1_767_366_245;
    const HOUR: Duration = Duration::from_hours(1);

    fn message(ca: &Ca, id: &str, hint: &str) -> X509svid {
        let epoch = from_unix_seconds(EPOCH);
        let svid = ca.svid(id, epoch, epoch + HOUR);
        X509svid {
            spiffe_id: id.to_owned(),
            x509_svid: svid.chain_der().clone(),
            x509_svid_key: svid.key.expose_pkcs8_shared(),
            bundle: ca.bundle("domain.test").x509_der().clone(),
            hint: hint.to_owned(),
        }
    }

    #[test]
    fn an_identity_is_shown_with_its_dates_hint_and_bundles() {
        let epoch = from_unix_seconds(EPOCH);
        let root = Ca::valid(epoch, epoch + 24 * HOUR);
        let signer = root.intermediate(epoch, epoch + 2 * HOUR);
        let mut svid = message(&signer, "spiffe://domain.test/w", "in\nner");
        svid.bundle = root.bundle("domain.test").x509_der().clone();
        let foreign = Ca::valid(epoch, epoch + 48 * HOUR).bundle("other.test");
        let answer = X509svidResponse {
            svids: vec![svid],
            federated_bundles: HashMap::from([(
                "spiffe://other.test".to_owned(),
                foreign.x509_der().clone(),
            )]),
            ..X509svidResponse::default()
        };

        let identities = read(&answer, epoch).unwrap();

        let after = "Valid After:\t2026-01-02 15:04:05 +0000 UTC";
        let text = format!(
            "Received 1 svid after 3.2ms

SPIFFE ID:\t\tspiffe://domain.test/w
Hint:\t\t\tin\\nner
SVID {after}
SVID Valid Until:\t2026-01-02 16:04:05 +0000 UTC
Intermediate #1 {after}
Intermediate #1 Valid Until:\t2026-01-02 17:04:05 +0000 UTC
CA #1 {after}
CA #1 Valid Until:\t2026-01-03 15:04:05 +0000 UTC
[spiffe://other.test] CA #1 {after}
[spiffe://other.test] CA #1 Valid Until:\t2026-01-04 15:04:05 +0000 UTC

"
        );
        assert_eq!(render(&identities, Duration::from_micros(3200), true), text);
        let hint = "Hint:\t\t\tin\\nner\n";
        assert_eq!(
            render(&identities, Duration::from_micros(3200), false),
            text.replace(hint, "")
        );
    }

    #[test]
    fn the_count_says_svids_unless_there_is_one() {
        let ca = Ca::new(from_unix_seconds(EPOCH));
        let svids =
            ["a", "b"].map(|name| message(&ca, &format!("spiffe://domain.test/{name}"), ""));
        let answer = X509svidResponse {
            svids: svids.to_vec(),
            ..X509svidResponse::default()
        };

        let identities = read(&answer, from_unix_seconds(EPOCH)).unwrap();

        assert!(
            render(&identities, Duration::from_nanos(15_042), true)
                .starts_with("Received 2 svids after 15.042µs\n\n")
        );
        assert!(
            render(&[], Duration::from_millis(1500), true)
                .starts_with("Received 0 svids after 1.5s\n\n")
        );
    }

    #[test]
    fn an_answer_that_does_not_fit_together_is_refused_by_number() {
        let ca = Ca::new(from_unix_seconds(EPOCH));
        let good = || message(&ca, "spiffe://domain.test/a", "");
        let other = message(
            &Ca::new(from_unix_seconds(EPOCH)),
            "spiffe://domain.test/a",
            "",
        );
        let table = [
            (
                "SVID #1 does not verify against its bundle: ",
                X509svid {
                    bundle: other.bundle.clone(),
                    ..good()
                },
            ),
            (
                "SVID #1: private key does not match",
                X509svid {
                    x509_svid_key: other.x509_svid_key.clone(),
                    ..good()
                },
            ),
            (
                "key of SVID #1: ",
                X509svid {
                    x509_svid_key: vec![1].into(),
                    ..good()
                },
            ),
            (
                "SVID #1: no certificate",
                X509svid {
                    x509_svid: vec![].into(),
                    ..good()
                },
            ),
            (
                "bundle of SVID #1: ",
                X509svid {
                    bundle: vec![0].into(),
                    ..good()
                },
            ),
            (
                "SVID #1 is that of spiffe://domain.test/a, not of \"spiffe://domain.test/b\"",
                X509svid {
                    spiffe_id: "spiffe://domain.test/b".to_owned(),
                    ..good()
                },
            ),
        ];

        for (beginning, bad) in table {
            let answer = X509svidResponse {
                svids: vec![good(), bad],
                ..X509svidResponse::default()
            };
            let error = read(&answer, from_unix_seconds(EPOCH))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(beginning), "{error}");
        }
    }

    #[test]
    fn an_expired_identity_is_refused() {
        let ca = Ca::new(from_unix_seconds(EPOCH));
        let answer = X509svidResponse {
            svids: vec![message(&ca, "spiffe://domain.test/a", "")],
            ..X509svidResponse::default()
        };

        let error = read(&answer, from_unix_seconds(EPOCH) + 2 * HOUR).unwrap_err();

        assert_eq!(
            error.to_string(),
            "SVID #0 does not verify against its bundle: certificate has expired"
        );
    }
}
