//! Where HTTP/2 frames begin in what is written and read, and when a ping is allowed. Pure.

use std::time::{Duration, Instant};

/// A PING frame with a payload of our own (RFC 9113 6.7).
pub(super) const PING_FRAME: [u8; 17] = *b"\x00\x00\x08\x06\x00\x00\x00\x00\x00edgeping";

const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
/// Frame types that carry an answer (RFC 9113 6.1, 6.2).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
/// Pings that may go out in short order between two answers.
const FREE_PINGS: usize = 2;
/// Distance of all further ones. A SPIRE server counts a strike for each that comes within 5 min of the one before, and forgets them when
/// it sends an answer.
const PING_DISTANCE: Duration = Duration::from_secs(305);

/// Follows the bytes of one direction from frame to frame (RFC 9113 4.1).
#[derive(Debug)]
pub(super) struct FrameTracker {
    header: Vec<u8>,
    payload_left: usize,
}

/// How many pings a connection may still send before the server's next answer.
#[derive(Debug, Default)]
pub(super) struct PingBudget {
    sent: usize,
    last: Option<Instant>,
}

impl FrameTracker {
    /// A client's stream begins with the connection preface (RFC 9113 3.4).
    pub(super) fn after_preface() -> Self {
        Self {
            header: Vec::with_capacity(HEADER_BYTES),
            payload_left: PREFACE_BYTES,
        }
    }

    /// A server's stream begins with a frame.
    pub(super) fn from_frame() -> Self {
        Self {
            header: Vec::with_capacity(HEADER_BYTES),
            payload_left: 0,
        }
    }

    /// Takes what went by; whether the beginning of an answer was in it.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) -> bool {
        let mut answered = false;
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let count = self.payload_left.min(bytes.len());
                self.payload_left -= count;
                bytes = bytes.get(count..).unwrap_or_default();
                continue;
            }
            let count = (HEADER_BYTES - self.header.len()).min(bytes.len());
            let (head, rest) = bytes.split_at(count);
            self.header.extend_from_slice(head);
            bytes = rest;
            if let [high, middle, low, kind, _, _, _, _, _] = *self.header.as_slice() {
                answered |= kind == DATA || kind == HEADERS;
                self.payload_left =
                    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.header.clear();
            }
        }
        answered
    }

    /// Whether another frame may be put in here.
    pub(super) fn is_between_frames(&self) -> bool {
        self.payload_left == 0 && self.header.is_empty()
    }
}

impl PingBudget {
    /// Whether a ping may go out now; if so it counts as sent (design D8).
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let allowed = self.sent < FREE_PINGS
            || self
                .last
                .is_none_or(|last| now.saturating_duration_since(last) >= PING_DISTANCE);
        if allowed {
            self.sent += 1;
            self.last = Some(now);
        }
        allowed
    }

    /// Begins anew: the server has answered something.
    pub(super) fn renew(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_followed_whatever_the_size_of_the_writes() {
        let mut stream = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        stream.extend_from_slice(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00");
        stream.extend_from_slice(b"\x00\x01\x02\x00\x00\x00\x00\x00\x01");
        stream.extend(std::iter::repeat_n(7, 0x102));
        let boundaries = [24, 33, stream.len()];

        for size in [1, 2, 7, 9, 24, 100] {
            let mut tracker = FrameTracker::after_preface();
            let mut written = 0;
            for bytes in stream.chunks(size) {
                tracker.advance(bytes);
                written += bytes.len();
                assert_eq!(
                    tracker.is_between_frames(),
                    boundaries.contains(&written),
                    "{written} bytes in steps of {size}"
                );
            }
        }
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "an arbitrary origin for the arithmetic"
    )]
    fn after_two_pings_five_minutes_pass() {
        let start = Instant::now();
        let mut budget = PingBudget::default();

        let allowed: Vec<u64> = (0..1200)
            .step_by(30)
            .filter(|second| budget.take(start + Duration::from_secs(*second)))
            .collect();

        assert_eq!(allowed, [0, 30, 360, 690, 1020]);
        budget.renew();
        assert!(budget.take(start) && budget.take(start) && !budget.take(start));
    }

    #[test]
    fn an_answer_is_told_from_other_frames() {
        let frame = |kind: u8| [0, 0, 2, kind, 0, 0, 0, 0, 1, DATA, HEADERS];

        for (kind, is_answer) in [
            (0, true),
            (1, true),
            (3, false),
            (4, false),
            (6, false),
            (7, false),
        ] {
            let mut tracker = FrameTracker::from_frame();
            let mut answered = false;
            for byte in frame(kind) {
                answered |= tracker.advance(&[byte]);
            }
            assert_eq!(answered, is_answer, "{kind}");
            assert!(tracker.is_between_frames());
        }
    }
}
