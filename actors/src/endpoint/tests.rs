//! The endpoint over real sockets, with scripted actors behind it.

mod bundles;
mod calls;
mod connections;
mod logs;
mod operators;
mod shutdown;
mod world;
