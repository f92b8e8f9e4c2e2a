//! What tests are made of: probes, a scripted server, certificate fixtures.
