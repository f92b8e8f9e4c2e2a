//! Mends the `:authority` of HTTP/2 requests before `h2` sees them: the C core of gRPC sends a percent-encoded socket
//! path, Java the raw path, and `h2` answers `PROTOCOL_ERROR` to both and to an empty value, where Go servers answer
//! the call. [`Mender`] takes the client's bytes as they come and says what goes on in their place. A pure file: it walks
//! the frames (RFC 9113 4.1) and holds back incomplete header blocks; values are judged in [`block`], read by [`hpack`].
//!
//! What is not understood passes untouched and in step: bytes that are not HTTP/2, malformed blocks, frames and blocks
//! over 16 KiB, a foreign frame within a block. `h2` then answers as it sees fit.

mod block;
mod hpack;
mod huffman;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use block::{Blocks, Outcome};

/// What a client sends first (RFC 9113 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a frame's head.
const HEAD_BYTES: usize = 9;

/// The largest frame the server accepts (hyper leaves `SETTINGS_MAX_FRAME_SIZE` at the default).
const FRAME_BYTES_MAX: usize = 16_384;

/// The most that is held back of one connection: one full frame. hyper's limit of a header list is as large, so a
/// longer block is not served anyway.
const HELD_BYTES_MAX: usize = HEAD_BYTES + FRAME_BYTES_MAX;

const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Bytes of the priority fields of HEADERS (RFC 9113 6.2).
const PRIORITY_BYTES: usize = 5;

/// Mends what one client sends on one connection. An idle connection keeps no buffer but the notes of its dynamic
/// table, some hundred bytes and never over about 8 KiB; at most 16 KiB are held back.
#[derive(Default)]
pub struct Mender {
    stage: Stage,
    /// Bytes of the current frame that still pass.
    passing: usize,
    /// What is held back, from the start of a frame: the start of a head, or a header block's frames.
    held: Vec<u8>,
    /// Where in `held` the last frame starts.
    frame_at: usize,
    blocks: Blocks,
}

/// What to do with the first bytes of an input; the rest is for the next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// This many bytes go on as they are. Zero only for an empty input.
    Pass(usize),
    /// This many bytes are taken; others go on in their place, or none when they are held back.
    Replace {
        /// Bytes taken from the input; never zero.
        taken: usize,
        /// What goes on in their place.
        with: Vec<u8>,
    },
}

/// Where in the connection the next byte stands.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// In the preface, of which this many bytes have come.
    Preface(usize),
    /// Among frames.
    Frames,
    /// Not to be understood any more: everything passes.
    Foreign,
}

/// A frame's head (RFC 9113 4.1).
#[derive(Clone, Copy)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    /// With the reserved bit, as it came.
    stream: [u8; 4],
}

impl Default for Stage {
    fn default() -> Self {
        Self::Preface(0)
    }
}

impl std::fmt::Debug for Mender {
    /// Without the bytes held: they may be a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mender")
            .field("stage", &self.stage)
            .field("held", &self.held.len())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

impl Mender {
    /// A mender for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says what to do with the first bytes of `input`, the next bytes of the connection.
    pub fn step(&mut self, input: &[u8]) -> Step {
        match self.stage {
            Stage::Foreign => Step::Pass(input.len()),
            Stage::Preface(seen) => self.preface(seen, input),
            Stage::Frames if self.held.is_empty() => self.frames(input),
            Stage::Frames => self.hold(input),
        }
    }

    /// Appends to `out` what goes on in place of `input`.
    pub fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let taken = match self.step(input) {
                Step::Pass(length) => {
                    out.extend_from_slice(input.get(..length).unwrap_or(input));
                    length
                }
                Step::Replace { taken, with } => {
                    out.extend_from_slice(&with);
                    taken
                }
            };
            input = input.get(taken..).unwrap_or_default();
        }
    }

    /// What was held back, at the end of the connection: an incomplete block goes on as it came.
    pub fn finish(&mut self) -> Vec<u8> {
        self.stage = Stage::Foreign;
        std::mem::take(&mut self.held)
    }

    fn preface(&mut self, seen: usize, input: &[u8]) -> Step {
        let expected = PREFACE.get(seen..).unwrap_or_default();
        let length = expected.len().min(input.len());
        self.stage = if input.get(..length) != expected.get(..length) {
            Stage::Foreign
        } else if length == expected.len() {
            Stage::Frames
        } else {
            Stage::Preface(seen + length)
        };
        Step::Pass(length)
    }

    /// Nothing is held: passes frames up to the next header block, or a block that is complete.
    fn frames(&mut self, input: &[u8]) -> Step {
        let mut passed = 0;
        while let Some(rest) = input.get(passed..).filter(|rest| !rest.is_empty()) {
            if self.passing > 0 {
                let length = self.passing.min(rest.len());
                self.passing -= length;
                passed += length;
                continue;
            }
            match Head::read(rest) {
                Some(head) if !head.is_block_start() => {
                    self.skip_large_block(&head);
                    self.passing = HEAD_BYTES + head.length;
                }
                _ if passed > 0 => break,
                Some(head) if head.ends_block() => match rest.get(..HEAD_BYTES + head.length) {
                    Some(frame) => return self.complete(frame),
                    None => return self.hold(rest),
                },
                _ => return self.hold(rest),
            }
        }
        Step::Pass(passed)
    }

    /// Takes up to one head or one payload, so that each byte is looked at once however the input is split.
    fn hold(&mut self, input: &[u8]) -> Step {
        let head = self.held.get(self.frame_at..).and_then(Head::read);
        let frame_bytes = HEAD_BYTES + head.map_or(0, |head| head.length);
        let wanted = frame_bytes.saturating_sub(self.held.len() - self.frame_at);
        let taken = wanted.min(input.len());
        self.held.extend_from_slice(input.get(..taken).unwrap_or(input));
        let mut with = Vec::new();
        if taken == wanted {
            let is_new = head.is_none();
            if let Some(head) = self.held.get(self.frame_at..).and_then(Head::read) {
                with = self.held_on(&head, is_new);
            }
        }
        Step::Replace { taken, with }
    }

    /// A head (`is_new`) or a payload has been held: what goes on now.
    fn held_on(&mut self, head: &Head, is_new: bool) -> Vec<u8> {
        if is_new && !self.belongs(head) {
            let started = self.frame_at > 0;
            self.frame_at = 0;
            self.passing = head.length;
            let held = std::mem::take(&mut self.held);
            if started {
                return self.skip_block(held);
            }
            self.skip_large_block(head);
            return held;
        }
        if is_new && head.length > 0 {
            return Vec::new();
        }
        if head.flags & END_HEADERS == 0 {
            self.frame_at = self.held.len();
            return Vec::new();
        }
        self.frame_at = 0;
        let held = std::mem::take(&mut self.held);
        match self.complete(&held) {
            Step::Pass(_) => held,
            Step::Replace { with, .. } => with,
        }
    }

    /// Whether the frame whose head has just been held is the next of a header block that can be held.
    fn belongs(&self, head: &Head) -> bool {
        if self.frame_at == 0 {
            return head.is_block_start();
        }
        let is_next = Head::read(&self.held).is_some_and(|first| first.stream == head.stream);
        head.kind == CONTINUATION && is_next && self.held.len() + head.length <= HELD_BYTES_MAX
    }

    /// Judges the frames of a complete header block.
    fn complete(&mut self, frames: &[u8]) -> Step {
        let Some(block) = Block::read(frames) else {
            return match self.blocks.skip() {
                Outcome::Refused => self.refuse(frames),
                Outcome::Untouched | Outcome::Changed(_) => Step::Pass(frames.len()),
            };
        };
        match self.blocks.mend(&block.fragments) {
            Outcome::Untouched => Step::Pass(frames.len()),
            Outcome::Changed(changed) => Step::Replace {
                taken: frames.len(),
                with: block.write(&changed),
            },
            Outcome::Refused => self.refuse(frames),
        }
    }
}
