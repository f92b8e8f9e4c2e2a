//! Chooses the agent's socket from flags and environment. Pure.

use crate::config::DEFAULT_SOCKET_PATH;

/// Where the admin socket is unless told otherwise.
pub(super) const DEFAULT_ADMIN: &str = "/tmp/spire-agent/private/admin.sock";

/// Names the public socket when neither flag does.
const VARIABLE: &str = "SPIRE_AGENT_PUBLIC_SOCKET";

/// The path of an instance's socket, with [`PLACE`] for its name.
const TEMPLATE: &str = "SPIRE_AGENT_PUBLIC_SOCKET_TEMPLATE";

const PLACE: &str = "%i";

/// Why `-instance` names no socket.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SocketError {
    #[error("-instance needs the environment variable {TEMPLATE}")]
    NoTemplate,
    #[error("environment variable {TEMPLATE} has no {PLACE:?} in it: {0:?}")]
    NoPlace(String),
}

/// The public socket. A path other than the default wins, but a wrong template is an error all the same.
pub(super) fn public(
    path: &str,
    instance: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, SocketError> {
    let of_instance = match instance {
        "" => None,
        name => Some(from_template(name, variable(TEMPLATE))?),
    };
    if path != DEFAULT_SOCKET_PATH && !path.is_empty() {
        return Ok(path.to_owned());
    }
    let named = of_instance.or_else(|| variable(VARIABLE).filter(|path| !path.is_empty()));
    Ok(named.unwrap_or_else(|| DEFAULT_SOCKET_PATH.to_owned()))
}

fn from_template(name: &str, template: Option<String>) -> Result<String, SocketError> {
    match template.filter(|template| !template.is_empty()) {
        None => Err(SocketError::NoTemplate),
        Some(template) if template.contains(PLACE) => Ok(template.replace(PLACE, name)),
        Some(template) => Err(SocketError::NoPlace(template)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_then_instance_then_variable_then_default() {
        let table = [
            (DEFAULT_SOCKET_PATH, "", None, None, Ok(DEFAULT_SOCKET_PATH)),
            (DEFAULT_SOCKET_PATH, "", Some("/env"), None, Ok("/env")),
            (
                DEFAULT_SOCKET_PATH,
                "",
                Some("/env"),
                Some("/%i/s"),
                Ok("/env"),
            ),
            (
                DEFAULT_SOCKET_PATH,
                "",
                Some(""),
                None,
                Ok(DEFAULT_SOCKET_PATH),
            ),
            ("/flag", "", Some("/env"), None, Ok("/flag")),
            (
                DEFAULT_SOCKET_PATH,
                "a",
                Some("/env"),
                Some("/%i/%i.sock"),
                Ok("/a/a.sock"),
            ),
            ("/flag", "a", None, Some("/%i/s"), Ok("/flag")),
            ("/flag", "a", None, None, Err(SocketError::NoTemplate)),
            (
                DEFAULT_SOCKET_PATH,
                "a",
                Some("/env"),
                None,
                Err(SocketError::NoTemplate),
            ),
            (
                DEFAULT_SOCKET_PATH,
                "a",
                None,
                Some("/s"),
                Err(SocketError::NoPlace("/s".to_owned())),
            ),
        ];

        for (path, instance, socket, template, expected) in table {
            let variable = |name: &str| match name {
                VARIABLE => socket.map(str::to_owned),
                TEMPLATE => template.map(str::to_owned),
                _ => None,
            };
            assert_eq!(
                public(path, instance, &variable),
                expected.map(str::to_owned)
            );
        }
    }
}
