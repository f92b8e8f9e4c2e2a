//! The settings of workload attestors.

use super::super::super::ast::Object;
use super::super::super::model::OpaqueData;
use super::super::super::plugin::{Docker, WorkloadAttestor};
use super::super::super::schema;
use super::super::{Checker, plain};
use super::{Settings, optional};

const WORKLOAD_ATTESTORS: [&str; 6] = ["docker", "k8s", "slurm", "systemd", "unix", "windows"];

impl Checker<'_> {
    pub(super) fn workload_attestor(&mut self, settings: &Settings<'_>) -> WorkloadAttestor {
        match settings.plugin.name.as_str() {
            _ if settings.is_external() => {
                WorkloadAttestor::Other(self.other(settings, &WORKLOAD_ATTESTORS))
            }
            "unix" => self.typed(settings, &schema::UNIX, |section, _| {
                WorkloadAttestor::Unix {
                    discover_workload_path: section
                        .boolean("discover_workload_path")
                        .is_some_and(|on| on.value),
                    workload_size_limit: section
                        .integer("workload_size_limit")
                        .unwrap_or_default()
                        .value,
                }
            }),
            "docker" => WorkloadAttestor::Docker(self.docker(settings)),
            name @ ("systemd" | "slurm") => {
                if !settings.data.entries.is_empty() {
                    let message = format!(
                        "WorkloadAttestor {name:?}: it has no settings, so plugin_data must be empty"
                    );
                    self.problem(&settings.key(), settings.origin(), message);
                }
                match name {
                    "systemd" => WorkloadAttestor::Systemd,
                    _ => WorkloadAttestor::Other(self.other(settings, &WORKLOAD_ATTESTORS)),
                }
            }
            _ => WorkloadAttestor::Other(self.other(settings, &WORKLOAD_ATTESTORS)),
        }
    }

    fn docker(&mut self, settings: &Settings<'_>) -> Docker {
        self.typed(settings, &schema::DOCKER, |section, missing| {
            let text =
                |key, default: &str| optional(section, key).unwrap_or_else(|| default.to_owned());
            let template = text(
                "podman_socket_path_template",
                "unix:///run/user/%d/podman/podman.sock",
            );
            let placeholders = template.replace("%%", "");
            if placeholders.matches('%').count() != 1 || !placeholders.contains("%d") {
                missing.push("podman_socket_path_template must hold exactly one %d".to_owned());
            }
            let new_locator = section
                .boolean("use_new_container_locator")
                .is_none_or(|on| on.value);
            let matchers = plain(section.texts("container_id_cgroup_matchers"));
            if new_locator && !matchers.is_empty() {
                missing.push(
                    "container_id_cgroup_matchers needs use_new_container_locator = false"
                        .to_owned(),
                );
            }
            let more: Vec<_> = section
                .all("sigstore")
                .chain(section.all("experimental"))
                .cloned()
                .collect();
            Docker {
                docker_socket_path: text("docker_socket_path", "unix:///var/run/docker.sock"),
                docker_version: optional(section, "docker_version"),
                podman_socket_path: text("podman_socket_path", "unix:///run/podman/podman.sock"),
                podman_socket_path_template: template,
                container_id_cgroup_matchers: matchers,
                use_new_container_locator: new_locator,
                verbose_container_locator_logs: section
                    .boolean("verbose_container_locator_logs")
                    .is_some_and(|on| on.value),
                more: (!more.is_empty()).then_some(OpaqueData(Object { entries: more })),
            }
        })
    }
}
