//! What can be wrong with a configuration, and what is only odd about it.

use std::fmt;
use std::path::PathBuf;

use super::ast::{Position, SyntaxError};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody set it.
    #[default]
    Default,
    /// The configuration file.
    File(Position),
    /// The named command line flag, with its dash.
    Flag(&'static str),
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What is wrong, in the words of the reference where it has some.
    pub(crate) message: String,
    /// The full name of the key, such as `agent.server_port`.
    pub(crate) key: String,
    pub(crate) origin: Origin,
}

/// Something odd that does not stop the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) message: String,
    /// The full name of the key, such as `agent.experimental.sync_interval`.
    pub(crate) key: String,
    pub(crate) origin: Origin,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Default => write!(f, "{} ({})", self.message, self.key),
            Origin::File(place) => write!(f, "{} ({} at {place})", self.message, self.key),
            Origin::Flag(flag) => write!(f, "{} (from {flag})", self.message),
        }
    }
}

/// Why there is no usable configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigErrors {
    /// There is no such file.
    #[error("could not find config file {}: please use the -config flag", path.display())]
    NotFound { path: PathBuf },
    /// The file is there but cannot be read.
    #[error("unable to read configuration file {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    /// The text is neither HCL 1 nor JSON.
    #[error("unable to parse configuration file {}:{error}", path.display())]
    Syntax { path: PathBuf, error: SyntaxError },
    /// The text can be read, its content cannot be used.
    #[error("{}", Listing { path, problems })]
    Invalid {
        path: PathBuf,
        /// Never empty; in the order in which the reference checks.
        problems: Vec<Problem>,
    },
}

/// Problems, one a line.
struct Listing<'a> {
    path: &'a PathBuf,
    problems: &'a [Problem],
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.problems.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&problem.message)?;
            match problem.origin {
                Origin::Default => {}
                Origin::File(place) => {
                    write!(f, " ({} at {}:{place})", problem.key, self.path.display())?;
                }
                Origin::Flag(flag) => write!(f, " (from {flag})")?,
            }
        }
        Ok(())
    }
}
