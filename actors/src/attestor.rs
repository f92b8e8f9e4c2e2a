//! Proves the node to the server and keeps the agent SVID fresh.

pub mod node;
pub mod x509pop;
