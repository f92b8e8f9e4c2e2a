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
mod properties;
mod table;
#[cfg(test)]
pub(crate) mod test_client;
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
#[derive(PartialEq, Eq)]
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

/// The frames of one header block, taken apart.
struct Block<'a> {
    first: Head,
    /// The priority fields, as they came; empty without.
    priority: &'a [u8],
    fragments: Cow<'a, [u8]>,
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

impl std::fmt::Debug for Step {
    /// Without the bytes: they may be a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pass(length) => f.debug_tuple("Pass").field(length).finish(),
            Self::Replace { taken, with } => f
                .debug_struct("Replace")
                .field("taken", taken)
                .field("with", &with.len())
                .finish(),
        }
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

    /// Nothing is held: passes frames up to the next header block, or a header block that is complete.
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
                Some(head) if head.kind != HEADERS => self.passing = HEAD_BYTES + head.length,
                _ if passed > 0 => break,
                Some(head) if head.is_whole_block() => {
                    return match rest.get(..HEAD_BYTES + head.length) {
                        Some(frame) => self.complete(frame),
                        None => self.hold(rest),
                    };
                }
                Some(_) | None => return self.hold(rest),
            }
        }
        Step::Pass(passed)
    }

    /// Takes up to one head or one payload, so that each byte is looked at once however the input is split.
    fn hold(&mut self, input: &[u8]) -> Step {
        let known = self.last_head();
        let frame_bytes = HEAD_BYTES + known.map_or(0, |head| head.length);
        let wanted = (self.frame_at + frame_bytes).saturating_sub(self.held.len());
        let taken = wanted.min(input.len());
        self.held
            .extend_from_slice(input.get(..taken).unwrap_or(input));
        let with = match self.last_head() {
            Some(head) if taken == wanted => match known {
                None => self.head_held(&head),
                Some(_) => self.frame_held(&head),
            },
            Some(_) | None => Vec::new(),
        };
        Step::Replace { taken, with }
    }

    fn last_head(&self) -> Option<Head> {
        self.held.get(self.frame_at..).and_then(Head::read)
    }

    /// The head of a frame has been held: what goes on now.
    fn head_held(&mut self, head: &Head) -> Vec<u8> {
        let is_in_block = self.frame_at > 0;
        let belongs = if is_in_block {
            let is_same_stream =
                Head::read(&self.held).is_some_and(|first| first.stream == head.stream);
            head.kind == CONTINUATION
                && is_same_stream
                && self.held.len() + head.length <= HELD_BYTES_MAX
        } else {
            head.kind == HEADERS && head.length <= FRAME_BYTES_MAX
        };
        if belongs {
            return if head.length == 0 {
                self.frame_held(head)
            } else {
                Vec::new()
            };
        }
        self.passing = head.length;
        let frames = self.take_held();
        if (is_in_block || head.kind == HEADERS) && self.blocks.skip() == Outcome::Refused {
            return self.refusal(&frames);
        }
        frames
    }

    /// A frame of a header block has been held in full: what goes on now.
    fn frame_held(&mut self, head: &Head) -> Vec<u8> {
        if head.flags & END_HEADERS == 0 {
            self.frame_at = self.held.len();
            return Vec::new();
        }
        let frames = self.take_held();
        match self.complete(&frames) {
            Step::Pass(_) => frames,
            Step::Replace { with, .. } => with,
        }
    }

    fn take_held(&mut self) -> Vec<u8> {
        self.frame_at = 0;
        std::mem::take(&mut self.held)
    }

    /// What goes on in place of the frames of a whole header block.
    fn complete(&mut self, frames: &[u8]) -> Step {
        let block = Block::read(frames);
        let outcome = match &block {
            Some(block) => self.blocks.mend(&block.fragments),
            None => self.blocks.skip(),
        };
        let with = match (outcome, block) {
            (Outcome::Changed(changed), Some(block)) => block.write(&changed),
            (Outcome::Refused, _) => self.refusal(frames),
            (Outcome::Untouched | Outcome::Changed(_), _) => return Step::Pass(frames.len()),
        };
        Step::Replace {
            taken: frames.len(),
            with,
        }
    }

    /// A block that `h2` cannot but answer with the end of the connection: index 0 (RFC 7541 6.1).
    fn refusal(&mut self, frames: &[u8]) -> Vec<u8> {
        self.stage = Stage::Foreign;
        let stream = Head::read(frames).map_or([0; 4], |head| head.stream);
        let head = Head {
            length: 1,
            kind: HEADERS,
            flags: END_HEADERS,
            stream,
        };
        let mut out = Vec::new();
        head.write(&mut out);
        out.push(hpack::INDEXED);
        out
    }
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let &[high, middle, low, kind, flags, a, b, c, d] = bytes.first_chunk::<HEAD_BYTES>()?;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some(Self {
            length,
            kind,
            flags,
            stream: [a, b, c, d],
        })
    }

    /// Whether a HEADERS frame has a whole block, of a size that is mended.
    fn is_whole_block(&self) -> bool {
        self.flags & END_HEADERS != 0 && self.length <= FRAME_BYTES_MAX
    }

    fn write(&self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).unwrap_or_default().to_be_bytes();
        out.extend_from_slice(length.get(1..).unwrap_or_default());
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream);
    }
}

impl<'a> Block<'a> {
    /// The block of these frames; `None` when padding or priority exceed the payload.
    fn read(mut frames: &'a [u8]) -> Option<Self> {
        let first = Head::read(frames)?;
        let mut priority = &[][..];
        let mut fragments = Cow::Borrowed(&[][..]);
        while let Some(head) = Head::read(frames) {
            let (frame, rest) = frames.split_at_checked(HEAD_BYTES + head.length)?;
            let mut fragment = frame.get(HEAD_BYTES..)?;
            if head.kind == HEADERS {
                (priority, fragment) = Self::strip(head.flags, fragment)?;
            }
            if fragments.is_empty() {
                fragments = Cow::Borrowed(fragment);
            } else {
                fragments.to_mut().extend_from_slice(fragment);
            }
            frames = rest;
        }
        Some(Self {
            first,
            priority,
            fragments,
        })
    }

    /// The priority fields and the fragment of a HEADERS payload (RFC 9113 6.2).
    fn strip(flags: u8, mut payload: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let mut padding = 0;
        if flags & PADDED != 0 {
            let (&length, rest) = payload.split_first()?;
            (padding, payload) = (usize::from(length), rest);
        }
        let priority_bytes = if flags & PRIORITY != 0 {
            PRIORITY_BYTES
        } else {
            0
        };
        let (priority, payload) = payload.split_at_checked(priority_bytes)?;
        let fragment = payload.get(..payload.len().checked_sub(padding)?)?;
        Some((priority, fragment))
    }

    /// Frames of the changed block, without padding.
    fn write(&self, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.priority.len() + block.len());
        let (mut fragment, mut rest) = split_at_most(block, FRAME_BYTES_MAX - self.priority.len());
        let mut head = Head {
            length: self.priority.len() + fragment.len(),
            flags: self.first.flags & !(PADDED | END_HEADERS) | end_flag(rest),
            ..self.first
        };
        head.write(&mut out);
        out.extend_from_slice(self.priority);
        out.extend_from_slice(fragment);
        while !rest.is_empty() {
            (fragment, rest) = split_at_most(rest, FRAME_BYTES_MAX);
            head = Head {
                length: fragment.len(),
                kind: CONTINUATION,
                flags: end_flag(rest),
                ..head
            };
            head.write(&mut out);
            out.extend_from_slice(fragment);
        }
        out
    }
}

fn split_at_most(bytes: &[u8], length: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(length).unwrap_or((bytes, &[]))
}

/// The flags of a frame after which `rest` of the block is still to come.
fn end_flag(rest: &[u8]) -> u8 {
    if rest.is_empty() { END_HEADERS } else { 0 }
}
