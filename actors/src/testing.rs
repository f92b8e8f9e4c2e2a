//! What tests are made of: probes, a scripted server, a store in memory, certificate fixtures.

pub mod certificates;
pub mod probe;
pub mod scripted_server;
