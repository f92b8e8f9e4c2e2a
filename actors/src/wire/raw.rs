//! Calls whose messages are bytes: one instance of tonic's code serves them all.

use std::pin::Pin;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::{Request, Response, Status};

use super::{Outgoing, Wire};

/// An answer on its way. Boxed, so that no caller instantiates what it waits for.
type Answering<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// One message each way.
pub(super) fn unary(wire: Wire, path: &'static str, request: Request<Bytes>) -> Answering<Bytes> {
    Box::pin(async move {
        let mut grpc = Grpc::new(wire);
        grpc.ready().await.map_err(Status::from_error)?;
        grpc.unary(request, PathAndQuery::from_static(path), Raw)
            .await
    })
}

/// Many messages each way.
pub(super) fn streaming(
    wire: Wire,
    path: &'static str,
    request: Request<Outgoing>,
) -> Answering<Streaming<Bytes>> {
    Box::pin(async move {
        let mut grpc = Grpc::new(wire);
        grpc.ready().await.map_err(Status::from_error)?;
        grpc.streaming(request, PathAndQuery::from_static(path), Raw)
            .await
    })
}
