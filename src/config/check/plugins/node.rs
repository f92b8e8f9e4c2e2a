//! The settings of node attestors.

use std::path::PathBuf;

use actors::workload_api::Address;

use super::super::super::model::Secret;
use super::super::super::plugin::{HttpChallenge, NodeAttestor, TpmDevid, X509pop};
use super::super::super::schema;
use super::super::super::section::Section;
use super::super::{Checker, paths};
use super::{Settings, needed, optional};

const NODE_ATTESTORS: [&str; 10] = [
    "aws_iid",
    "azure_imds",
    "azure_msi",
    "gcp_iit",
    "http_challenge",
    "join_token",
    "k8s_psat",
    "sshpop",
    "tpm_devid",
    "x509pop",
];

impl Checker<'_> {
    pub(super) fn node_attestor(&mut self, settings: &Settings<'_>) -> NodeAttestor {
        match settings.plugin.name.as_str() {
            "join_token" => {
                if settings.is_external() {
                    let message = "the join_token node attestor cannot be an external plugin";
                    self.problem(&settings.key(), settings.origin(), message);
                }
                NodeAttestor::JoinToken
            }
            _ if settings.is_external() => {
                NodeAttestor::Other(self.other(settings, &NODE_ATTESTORS))
            }
            "x509pop" => NodeAttestor::X509pop(self.x509pop(settings)),
            "sshpop" => self.sshpop(settings),
            "http_challenge" => NodeAttestor::HttpChallenge(self.http_challenge(settings)),
            "tpm_devid" => NodeAttestor::TpmDevid(self.tpm_devid(settings)),
            _ => NodeAttestor::Other(self.other(settings, &NODE_ATTESTORS)),
        }
    }

    fn x509pop(&mut self, settings: &Settings<'_>) -> X509pop {
        let cwd = self.cwd;
        self.typed(settings, &schema::X509POP, |section, missing| {
            if let Some(socket) = optional(section, "spiffe_endpoint_socket") {
                let address = Address::parse(&socket).unwrap_or_else(|| {
                    let message = "spiffe_endpoint_socket must be unix:///path or tcp://ip:port";
                    missing.push(message.to_owned());
                    Address::Unix(PathBuf::new())
                });
                return X509pop::WorkloadApi {
                    spiffe_endpoint_socket: address,
                };
            }
            let intermediates =
                optional(section, "intermediates_path").filter(|path| !path.trim().is_empty());
            X509pop::Files {
                private_key_path: paths::absolute(
                    cwd,
                    &needed(section, "private_key_path", missing),
                ),
                certificate_path: paths::absolute(
                    cwd,
                    &needed(section, "certificate_path", missing),
                ),
                intermediates_path: intermediates.map(|path| paths::absolute(cwd, &path)),
            }
        })
    }

    fn sshpop(&mut self, settings: &Settings<'_>) -> NodeAttestor {
        let cwd = self.cwd;
        self.typed(settings, &schema::SSHPOP, |section, _| {
            let path = |key, default: &str| {
                let text = optional(section, key).unwrap_or_else(|| default.to_owned());
                paths::absolute(cwd, &text)
            };
            NodeAttestor::Sshpop {
                host_key_path: path("host_key_path", "/etc/ssh/ssh_host_rsa_key"),
                host_cert_path: path("host_cert_path", "/etc/ssh/ssh_host_rsa_key-cert.pub"),
            }
        })
    }

    fn http_challenge(&mut self, settings: &Settings<'_>) -> HttpChallenge {
        self.typed(settings, &schema::HTTP_CHALLENGE, |section, missing| {
            let advertised = port(section, "advertised_port", missing);
            HttpChallenge {
                hostname: optional(section, "hostname"),
                agentname: optional(section, "agentname").unwrap_or_else(|| "default".to_owned()),
                port: port(section, "port", missing),
                advertised_port: (advertised != 0).then_some(advertised),
            }
        })
    }

    fn tpm_devid(&mut self, settings: &Settings<'_>) -> TpmDevid {
        let cwd = self.cwd;
        self.typed(settings, &schema::TPM_DEVID, |section, missing| {
            let secret = |key| optional(section, key).map(Secret::new);
            TpmDevid {
                devid_cert_path: paths::absolute(cwd, &needed(section, "devid_cert_path", missing)),
                devid_priv_path: paths::absolute(cwd, &needed(section, "devid_priv_path", missing)),
                devid_pub_path: paths::absolute(cwd, &needed(section, "devid_pub_path", missing)),
                devid_password: secret("devid_password"),
                tpm_device_path: optional(section, "tpm_device_path")
                    .map(|path| paths::absolute(cwd, &path)),
                owner_hierarchy_password: secret("owner_hierarchy_password"),
                endorsement_hierarchy_password: secret("endorsement_hierarchy_password"),
            }
        })
    }
}

fn port(section: &Section<'_>, key: &str, missing: &mut Vec<String>) -> u16 {
    let given = section.integer(key).unwrap_or_default().value;
    u16::try_from(given).unwrap_or_else(|_| {
        missing.push(format!("{key} must be from 0 to 65535, not {given}"));
        0
    })
}
