// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts segments from several rails back into the order of the stream, and delivers each byte once. The number of early
//! segments and their distance in the stream are bounded, and so is the memory that a hostile peer can occupy.

use super::connection::{Buf, HEADROOM, buffer};
use crate::error::Result;
use crate::prov::tcp::secure::seal::Window;
use crate::prov::tcp::wire::frame::protocol_error;
use crate::prov::tcp::wire::segment::{SEGMENT, SEGMENTS, WINDOW};
use std::collections::VecDeque;

/// Most free buffers that are kept for the next segments.
const SPARE: usize = 64;

/// A segment that arrived before its predecessors. A long segment's bytes stand behind `HEADROOM`; a segment of less
/// than three quarters of `SEGMENT` is copied into a box of its own length, without `HEADROOM`.
struct EarlySegment {
    from: u64,
    len: usize,
    bytes: Buf,
}

#[derive(Default)]
pub struct Reorder {
    /// Stream position of the byte that is delivered next.
    pub expected: u64,
    /// The segment that begins at position `expected`, and its length.
    ready: Option<(Buf, usize)>,
    /// Later segments, in the order of the stream and without overlap.
    early: VecDeque<EarlySegment>,
    /// Free buffers, at most `SPARE`.
    spare: Vec<Buf>,
}

impl Reorder {
    /// A free buffer for a segment.
    pub fn buffer(&mut self) -> Buf {
        self.spare.pop().unwrap_or_else(buffer)
    }

    /// Keeps a buffer for the next segments, up to `SPARE`.
    fn give_back(&mut self, buf: Buf) {
        if self.spare.len() < SPARE {
            self.spare.push(buf);
        }
    }

    /// True if the segment that is next in the stream has arrived.
    pub fn is_ready(&self) -> bool {
        self.ready.is_some() || self.early.front().is_some_and(|h| h.from == self.expected)
    }

    /// Takes a segment, whose bytes stand behind `HEADROOM`. False: the segment has arrived before; its sender did not
    /// know that yet.
    pub fn take(&mut self, from: u64, len: usize, bytes: Buf) -> Result<bool> {
        let end = from + len as u64;
        let next = self.expected + self.ready.as_ref().map_or(0, |(_, len)| *len as u64);
        if end > self.expected + WINDOW || self.early.len() >= SEGMENTS {
            return Err(protocol_error("segments beyond the reorder window"));
        }
        let at = self.early.partition_point(|h| h.from < from);
        let (before, behind) = (at.checked_sub(1).and_then(|at| self.early.get(at)), self.early.get(at));
        if end <= next || behind.is_some_and(|h| h.from == from && h.len == len) {
            self.give_back(bytes);
            return Ok(false);
        }
        if from < next.max(before.map_or(0, |h| h.from + h.len as u64)) || behind.is_some_and(|h| end > h.from) {
            return Err(protocol_error("a segment that overlaps an earlier one"));
        }
        if from == self.expected {
            self.ready = Some((bytes, len));
        } else if len < SEGMENT / 4 * 3 {
            let alone = bytes.get(HEADROOM..HEADROOM + len).map_or_else(Buf::default, Buf::from);
            self.early.insert(at, EarlySegment { from, len, bytes: alone });
            self.give_back(bytes);
        } else {
            self.early.insert(at, EarlySegment { from, len, bytes });
        }
        Ok(true)
    }

    /// Exchanges the reader's buffer for that of the next segment, and copies the reader's unread bytes in front of the
    /// segment. False: the next segment has not arrived.
    pub fn deliver(&mut self, buf: &mut Buf, window: &mut Window) -> bool {
        if !self.is_ready() {
            return false;
        }
        let next = self.ready.take().or_else(|| self.early.pop_front().map(|h| (h.bytes, h.len)));
        let Some((mut fresh, len)) = next else { return false };
        if fresh.len() < HEADROOM + len {
            let mut whole = self.buffer();
            whole[HEADROOM..HEADROOM + len].copy_from_slice(&fresh[..len]);
            fresh = whole;
        }
        let left = window.1 - window.0;
        fresh[HEADROOM - left..HEADROOM].copy_from_slice(&buf[window.0..window.1]);
        let old = std::mem::replace(buf, fresh);
        self.give_back(old);
        *window = (HEADROOM - left, HEADROOM + len);
        self.expected += len as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    /// A segment whose bytes tell their position in the stream.
    fn segment(r: &mut Reorder, from: u64, len: usize) -> Result<bool> {
        let mut bytes = r.buffer();
        (0..len).for_each(|i| bytes[HEADROOM + i] = (from as usize + i) as u8);
        r.take(from, len, bytes)
    }

    fn drain(r: &mut Reorder, buf: &mut Buf) {
        let mut window = (0, 0);
        let first = r.expected;
        while r.deliver(buf, &mut window) {
            assert!(buf[window.0..window.1].iter().rev().zip((first..r.expected).rev()).all(|(b, at)| *b == at as u8));
            window.0 = window.1 - (window.1 - window.0).min(HEADROOM / 2);
        }
    }

    fn is_lie(result: Result<bool>) -> bool {
        result.is_err_and(|e| e.code == Code::PeerBroke)
    }

    #[test]
    fn segments_in_any_order_and_twice_are_delivered_once_and_in_order() {
        let (mut r, mut buf) = (Reorder::default(), buffer());
        assert!(segment(&mut r, 100, 50).unwrap() && segment(&mut r, 61_590, 400).unwrap() && segment(&mut r, 150, SEGMENT).unwrap());
        assert!(!segment(&mut r, 150, SEGMENT).unwrap() && !r.is_ready());
        drain(&mut r, &mut buf);
        assert_eq!(r.expected, 0);
        assert!(segment(&mut r, 0, 100).unwrap() && r.is_ready());
        assert!(!segment(&mut r, 0, 100).unwrap() && !segment(&mut r, 20, 80).unwrap());
        drain(&mut r, &mut buf);
        assert_eq!(r.expected, 61_990);
        assert!(!segment(&mut r, 0, 61_440).unwrap() && r.early.is_empty());
    }

    #[test]
    fn contradicting_positions_are_refused() {
        let mut r = Reorder::default();
        assert!(segment(&mut r, 0, 100).unwrap() && segment(&mut r, 200, 100).unwrap() && segment(&mut r, 400, 100).unwrap());
        for (from, len) in
            [(0, 101), (50, 100), (99, 2), (150, 51), (200, 99), (200, 101), (201, 99), (250, 100), (299, 101), (399, 2), (499, 9)]
        {
            assert!(is_lie(segment(&mut r, from, len)), "{from}, {len}");
        }
        assert!(is_lie(segment(&mut r, WINDOW - 10, 11)) && segment(&mut r, WINDOW - 10, 10).unwrap());
        assert!(segment(&mut r, 100, 100).unwrap() && segment(&mut r, 300, 100).unwrap());
    }

    #[test]
    fn waiting_segments_are_bounded() {
        let weight = |r: &Reorder| r.early.iter().map(|h| h.bytes.len()).sum::<usize>() + r.spare.iter().map(|b| b.len()).sum::<usize>();
        let mut r = Reorder::default();
        // One byte each, from the last to the first.
        for i in (0..SEGMENTS as u64).rev() {
            assert!(segment(&mut r, 1 + 2 * i, 1).unwrap());
        }
        assert!(is_lie(segment(&mut r, 0, 1)) && weight(&r) < 4 << 20);
        // Just long enough to keep a full buffer each.
        let mut r = Reorder::default();
        let len = SEGMENT / 4 * 3;
        let mut at = 1;
        while at + len as u64 <= WINDOW {
            assert!(segment(&mut r, at, len).unwrap());
            at += len as u64;
        }
        assert!(is_lie(segment(&mut r, at, len)) && weight(&r) < WINDOW as usize / 2 * 3);
        for _ in 0..1000 {
            assert!(!segment(&mut r, 1, len).unwrap());
        }
        assert!(weight(&r) < WINDOW as usize / 2 * 3);
    }
}
