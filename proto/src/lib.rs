//! The gRPC APIs that the agent speaks: messages, clients and servers, generated from `proto/`.
//!
//! It owns the wire contract and nothing else: no transport, no decision. Modules mirror the protobuf packages; the
//! SPIFFE Workload API has no package and is [`workload`]. Messages with a private key or a bearer token have a
//! `Debug` that leaves it out (`redact.rs`).
//!
//! `src/gen` is checked in, so that a build needs no `protoc`; `tests/bootstrap.rs` regenerates and compares it.

#[expect(
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    clippy::default_trait_access,
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    clippy::too_many_lines,
    reason = "generated code"
)]
mod packages;
mod redact;

pub use packages::{google, grpc, spiffe, spire, workload};

/// The encoded `google.protobuf.FileDescriptorSet` of every file in `proto/` and the well-known types they import,
/// without comments. Server reflection answers from it.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("gen/descriptors.bin");
