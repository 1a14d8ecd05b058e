// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One rail: a TCP connection between one address of this side and one of the peer. It writes and reads one segment at a time,
//! sealed if the connection is. `set` and `schedule` decide which segments it carries.

use crate::error::Result;
use crate::prov::op::Iov;
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::secure::seal::Window;
use crate::prov::tcp::secure::sealed;
use crate::prov::tcp::secure::sealed::{SealedIn, SealedOut};
use crate::prov::tcp::wire::segment::{SEGMENT, SEGMENT_HEAD, SegmentHead, SegmentKind};
use crate::sys::health::Health;
use crate::sys::stream::{self, Moved};
use crate::sys::tcp;
use std::os::fd::{AsFd, OwnedFd};

/// Room in front of a segment's bytes, for the start of a frame that the previous segment ended with.
pub const HEADROOM: usize = 512;
/// The kernel buffers 10 ms of the rail's speed in unsent bytes (1/`AHEAD_RATE` s): a sleeping thread may take that long to
/// come back.
const AHEAD_RATE: u64 = 100;
const AHEAD_LEAST: u64 = 64 << 10;
const AHEAD_MOST: u64 = 2 << 20;
/// Bytes read in one call while no segment has begun, and bytes read ahead behind the end of a segment.
const REACH: usize = 4 << 10;
const AHEAD: usize = 512;

/// A buffer that holds a segment's bytes behind `HEADROOM`.
pub type Buf = Box<[u8]>;

/// A buffer of the size that all of them have.
pub fn buffer() -> Buf {
    vec![0; HEADROOM + SEGMENT].into()
}

/// The segment that the rail is sending.
struct OutgoingSegment {
    head: [u8; SEGMENT_HEAD],
    /// Offset in the ring of its bytes, and their number.
    at: usize,
    len: usize,
    from: u64,
    /// Bytes of head and data that are on the wire, or in a sealed record.
    sent: usize,
    /// A copy of its data, once the ring no longer holds it.
    saved: Option<Box<[u8]>>,
}

/// The result of `Rail::receive`.
pub enum Received {
    /// A segment's head, and its data if it has any.
    Segment(SegmentHead, Option<Buf>),
    Nothing,
    Ended,
}

/// A rail that is up.
pub struct Rail {
    pub socket: OwnedFd,
    seal: Option<SealedOut>,
    sending: Option<OutgoingSegment>,
    /// The socket takes no more for now; `armed`: the epoll set watches it for room.
    pub blocked: bool,
    pub armed: bool,
    /// Bound of the unsent bytes in the kernel (`TCP_NOTSENT_LOWAT`).
    ahead: u64,

    opens: Option<SealedIn>,
    stash: Box<[u8]>,
    window: Window,
    head: [u8; SEGMENT_HEAD],
    have: usize,
    coming: Option<(SegmentHead, Buf, usize)>,

    /// The kernel's state of the connection, and when it was queried.
    pub health: Health,
    pub asked: u64,
    /// When a segment was last begun.
    pub spoke: u64,
}

impl Rail {
    pub fn new(link: Link, now: u64) -> Result<Rail> {
        let (out, incoming) = link.seal.map_or((None, None), |seal| (Some(seal.out), Some(seal.incoming)));
        let mut rail = Rail {
            socket: link.socket,
            seal: out.map(|half| SealedOut::new(half, link.room)).transpose()?,
            sending: None,
            blocked: false,
            armed: false,
            ahead: 0,
            stash: if incoming.is_some() { sealed::buffer() } else { vec![0; REACH].into() },
            opens: incoming.map(SealedIn::new),
            window: (0, 0),
            head: [0; SEGMENT_HEAD],
            have: 0,
            coming: None,
            health: Health::default(),
            asked: 0,
            spoke: now,
        };
        rail.ask(now);
        Ok(rail)
    }

    /// Queries the kernel's state of the connection, and adapts the bound of unsent bytes to its speed: bytes that this socket
    /// has buffered cannot go over another rail.
    pub fn ask(&mut self, now: u64) {
        self.asked = now;
        self.health.update(self.socket.as_fd(), now);
        let want = (self.health.rate / AHEAD_RATE).clamp(AHEAD_LEAST, AHEAD_MOST);
        if want.abs_diff(self.ahead) > self.ahead / 4 {
            self.ahead = want;
            if let Err(e) = tcp::set_unsent(self.socket.as_fd(), want as i32) {
                crate::log!(Debug, "a rail: {e}");
            }
        }
    }

    pub fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// True if a segment has begun to be sent and is not out.
    pub fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// The peer has acknowledged everything before byte `taken`, and the ring may be overwritten up to there. If the segment
    /// being sent (a second time) lies before it, its data is copied.
    pub fn save(&mut self, taken: u64, ring: &[u8]) {
        if let Some(s) = self.sending.as_mut().filter(|s| s.len > 0 && s.saved.is_none() && s.from + s.len as u64 <= taken) {
            s.saved = ring.get(s.at..s.at + s.len).map(Box::from);
        }
    }

    /// Begins to send a segment, whose data lies in the ring at offset `at`.
    pub fn begin(&mut self, head: SegmentHead, at: usize, now: u64) {
        let (from, len) = if let SegmentKind::Data { from, len } = head.word { (from, len) } else { (0, 0) };
        self.sending = Some(OutgoingSegment { head: head.encode(), at, len, from, sent: 0, saved: None });
        self.health.queued += len as u64;
        self.spoke = now;
    }

    /// Sends the begun segment, as far as the socket takes it; true: all of it is out. `short`: the most bytes of one system
    /// call (fault injection).
    pub fn send(&mut self, ring: &[u8], short: usize) -> Result<bool> {
        while let Some(s) = &mut self.sending {
            let all = SEGMENT_HEAD + s.len;
            let body = s.saved.as_deref().or_else(|| ring.get(s.at..s.at + s.len)).unwrap_or(&[]);
            let pieces = |from: usize| {
                let (head, body) = (s.head.get(from..).unwrap_or(&[]), body.get(from.saturating_sub(SEGMENT_HEAD)..).unwrap_or(&[]));
                // SAFETY: `head` and `body` are borrowed from `self` and `ring`, which do not change before the pieces are used.
                unsafe { [Iov::of(head), Iov::of(body)] }
            };
            if let Some(seal) = &mut self.seal {
                if s.sent < all {
                    // A segment fits into one record, and its memory is the library's own, so the copy cannot end early.
                    seal.gather(&pieces(0))?;
                    s.sent = all;
                }
                self.blocked = !seal.push(self.socket.as_fd(), short)?;
                if self.blocked {
                    return Ok(false);
                }
            } else {
                let mut pieces = pieces(s.sent);
                if short < all - s.sent {
                    let head = pieces[0].len().min(short);
                    pieces = [pieces[0].part(0, head), pieces[1].part(0, (short - head).min(pieces[1].len()))];
                }
                let asked = pieces[0].len() + pieces[1].len();
                match stream::send_pieces(self.socket.as_fd(), &pieces)? {
                    Moved::Bytes(n) => {
                        s.sent += n;
                        self.blocked = n < asked;
                    }
                    _ => self.blocked = true,
                }
                if s.sent < all {
                    if self.blocked {
                        return Ok(false);
                    }
                    continue;
                }
            }
            self.sending = None;
        }
        Ok(true)
    }

    /// True if bytes were read ahead, which the socket does not announce again.
    pub fn holds_more(&self) -> bool {
        self.window.0 < self.window.1 || self.opens.as_ref().is_some_and(|opens| opens.holds_record(&self.stash))
    }

    /// Moves bytes from the stash into the segment being received; returns the segment once it is complete.
    fn take(&mut self, fresh: &mut impl FnMut() -> Buf) -> Result<Option<Received>> {
        while self.window.0 < self.window.1 {
            let bytes = self.stash.get(self.window.0..self.window.1).unwrap_or(&[]);
            if let Some((head, buf, filled)) = &mut self.coming {
                let len = if let SegmentKind::Data { len, .. } = head.word { len } else { 0 };
                let n = bytes.len().min(len - *filled);
                buf[HEADROOM + *filled..HEADROOM + *filled + n].copy_from_slice(&bytes[..n]);
                *filled += n;
                self.window.0 += n;
                if let Some(whole) = self.whole() {
                    return Ok(Some(whole));
                }
                continue;
            }
            let n = bytes.len().min(SEGMENT_HEAD - self.have);
            self.head[self.have..self.have + n].copy_from_slice(&bytes[..n]);
            self.have += n;
            self.window.0 += n;
            if self.have < SEGMENT_HEAD {
                continue;
            }
            self.have = 0;
            let head = SegmentHead::decode(&self.head)?;
            match head.word {
                SegmentKind::Data { len, .. } if len > 0 => self.coming = Some((head, fresh(), 0)),
                _ => return Ok(Some(Received::Segment(head, None))),
            }
        }
        Ok(None)
    }

    /// The segment being received, if it is complete.
    fn whole(&mut self) -> Option<Received> {
        let (head, buf, filled) = self.coming.take()?;
        if matches!(head.word, SegmentKind::Data { len, .. } if filled < len) {
            self.coming = Some((head, buf, filled));
            return None;
        }
        Some(Received::Segment(head, Some(buf)))
    }

    /// Reads until a segment is complete, or the socket has no more.
    pub fn receive(&mut self, short: usize, fresh: &mut impl FnMut() -> Buf) -> Result<Received> {
        loop {
            if let Some(got) = self.take(fresh)? {
                return Ok(got);
            }
            let fd = self.socket.as_fd();
            let moved = if let Some(opens) = &mut self.opens {
                opens.read(fd, &mut self.stash, &mut self.window, short)?
            } else if let Some((head, buf, filled)) = &mut self.coming {
                let len = if let SegmentKind::Data { len, .. } = head.word { len } else { 0 };
                let rest = buf.get_mut(HEADROOM + *filled..HEADROOM + len).unwrap_or(&mut []);
                let rest_len = rest.len().min(short);
                let ahead = AHEAD.min(short - rest_len);
                // SAFETY: both slices are borrowed mutably from `self` until the call has returned.
                let pieces = unsafe { [Iov::of_mut(&mut rest[..rest_len]), Iov::of_mut(&mut self.stash[..ahead])] };
                let moved = stream::receive_pieces(fd, &pieces[..if ahead > 0 { 2 } else { 1 }])?;
                if let Moved::Bytes(n) = moved {
                    *filled += n.min(rest_len);
                    self.window = (0, n.saturating_sub(rest_len));
                }
                if let Some(whole) = self.whole() {
                    return Ok(whole);
                }
                moved
            } else {
                let moved = stream::receive(fd, &mut self.stash[..REACH.min(short)])?;
                self.window = (0, if let Moved::Bytes(n) = moved { n } else { 0 });
                moved
            };
            match moved {
                Moved::Bytes(_) => {}
                Moved::Ended => return Ok(Received::Ended),
                Moved::Blocked | Moved::Fault => return Ok(Received::Nothing),
            }
        }
    }
}
