//! The whole agent, as built, against the development server: real time, short lifetimes, real sockets.
//!
//! Every test has a server, an agent and folders of its own, so all of them may run at once. What an agent is told and
//! what it answers are in [`harness`] and [`client`]; every answer that a test takes is checked there for what must never be
//! wrong: identity, certificate and key belong together, nothing has expired, and the bundle vouches for the rest.

mod attest;
mod client;
mod dies;
mod disk;
mod harness;
mod hitches;
mod outage;
mod replaced;
mod rotate;
mod serve;
mod ways_in;
mod words;
