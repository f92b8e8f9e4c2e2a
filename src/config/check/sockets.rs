//! Where the sockets are, and that the private ones stay away from the public one.

use std::path::{Path, PathBuf};

use super::super::DEFAULT_SOCKET_PATH;
use super::super::raw::RawAgent;
use super::{Checker, Origin, paths, pick};

impl Checker<'_> {
    /// Public and admin socket, absolute and clean.
    pub(super) fn sockets(&mut self, agent: &RawAgent, public: bool) -> (PathBuf, Option<PathBuf>) {
        let experimental = &agent.experimental;
        for (key, pipe) in [
            ("named_pipe_name", &experimental.named_pipe_name),
            ("admin_named_pipe_name", &experimental.admin_named_pipe_name),
        ] {
            if let Some(pipe) = pipe.as_ref().filter(|pipe| !pipe.value.is_empty()) {
                self.problem(
                    &format!("agent.experimental.{key}"),
                    pipe.origin,
                    format!("{key} is not supported on this platform, use a socket path"),
                );
            }
        }
        let socket = pick(
            self.flags.socket_path.as_ref(),
            "-socketPath",
            agent.socket_path.as_ref(),
        );
        let text = if socket.value.is_empty() {
            DEFAULT_SOCKET_PATH
        } else {
            &socket.value
        };
        let path = paths::clean(&self.cwd.join(text));
        if public {
            self.socket_length("agent.socket_path", socket.origin, &path);
        }
        let admin = agent
            .admin_socket_path
            .as_ref()
            .filter(|admin| !admin.value.is_empty());
        let admin_path = admin.map(|admin| {
            let admin_path = paths::clean(&self.cwd.join(&admin.value));
            let key = "agent.admin_socket_path";
            if public && paths::is_beside_or_below(&admin_path, &path) {
                self.problem(key, admin.origin, "admin socket cannot be in the same directory or a subdirectory as that containing the Workload API socket");
            }
            self.socket_length(key, admin.origin, &admin_path);
            admin_path
        });
        (path, admin_path)
    }

    pub(super) fn socket_length(&mut self, key: &str, origin: Origin, path: &Path) {
        /// Bytes of `sun_path` without its closing zero (unix(7)).
        const LONGEST_SOCKET_PATH: usize = 107;
        let length = path.as_os_str().len();
        if length > LONGEST_SOCKET_PATH {
            let message = format!(
                "socket path {} is too long: {length} bytes, at most {LONGEST_SOCKET_PATH} are possible",
                path.display()
            );
            self.problem(key, origin, message);
        }
    }
}
