// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One rail: a TCP connection between an address of this side and an address of the peer. The rail writes one segment
//! at a time and reads one segment at a time, sealed if the connection is sealed. `set` and `schedule` decide which
//! segments the rail carries.

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

/// Room in front of a segment's bytes. If a segment ends in the middle of a frame's head, the reader's unread bytes move here.
pub const HEADROOM: usize = 512;
/// The bound of unsent bytes in the kernel is what the rail carries in 10 ms (1/`AHEAD_RATE` s), because a sleeping
/// thread may need that long to come back.
const AHEAD_RATE: u64 = 100;
/// Least bound of unsent bytes in the kernel.
const AHEAD_LEAST: u64 = 64 << 10;
/// Largest bound of unsent bytes in the kernel.
const AHEAD_MOST: u64 = 2 << 20;
/// Most bytes that one call reads between segments.
const REACH: usize = 4 << 10;
/// Most bytes that one call reads ahead, behind the end of a segment.
const AHEAD: usize = 512;

/// A buffer that holds a segment's bytes behind `HEADROOM`.
pub type Buf = Box<[u8]>;

/// Makes a `Buf`; all have the same size.
pub fn buffer() -> Buf {
    vec![0; HEADROOM + SEGMENT].into()
}

/// The segment that the rail is sending.
struct OutgoingSegment {
    head: [u8; SEGMENT_HEAD],
    /// Offset of the segment's data in the ring.
    at: usize,
    len: usize,
    /// Stream position of the segment's data.
    from: u64,
    /// Number of bytes of head and data that the socket has taken, or a sealed record.
    sent: usize,
    /// A copy of the segment's data, made before the ring's bytes were released.
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
    /// The socket takes no more bytes for now.
    pub blocked: bool,
    /// The epoll set watches the socket for room.
    pub armed: bool,
    /// Bound of the unsent bytes in the kernel (`TCP_NOTSENT_LOWAT`).
    ahead: u64,

    /// Opens the records of a sealed connection.
    opens: Option<SealedIn>,
    /// Bytes that were read between segments or ahead; for a sealed connection the records.
    stash: Box<[u8]>,
    /// The bytes of `stash` that are still to be taken.
    window: Window,
    /// The head that is being received.
    head: [u8; SEGMENT_HEAD],
    /// Number of the head's bytes that are here.
    have: usize,
    /// The segment that is being received: its head, its buffer, and how many of its bytes are here.
    coming: Option<(SegmentHead, Buf, usize)>,

    /// The kernel's state of the connection.
    pub health: Health,
    /// The time at which the kernel was last queried.
    pub asked: u64,
    /// The time at which a segment was last begun.
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

    /// Queries the kernel's state of the connection, and adapts the bound of unsent bytes to the rail's speed. The
    /// bound is small because bytes that this socket has buffered cannot go over another rail.
    pub fn ask(&mut self, now: u64) {
        self.asked = now;
        self.health.update(self.socket.as_fd(), now);
        let want = (self.health.rate / AHEAD_RATE).clamp(AHEAD_LEAST, AHEAD_MOST);
        if want.abs_diff(self.ahead) > self.ahead / 4 {
            self.ahead = want;
            if let Err(e) = tcp::set_unsent(self.socket.as_fd(), want as i32) {
                crate::log!(Debug, "setting the socket options of a rail: {e}");
            }
        }
    }

    pub fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// True if the sending of a segment has begun and not ended.
    pub fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Called when the ring may be overwritten up to stream position `taken`, since the peer has acknowledged those
    /// bytes. If the segment that this rail is sending (for the second time) lies before `taken`, its data is copied.
    pub fn save(&mut self, taken: u64, ring: &[u8]) {
        if let Some(s) = self.sending.as_mut().filter(|s| s.len > 0 && s.saved.is_none() && s.from + s.len as u64 <= taken) {
            s.saved = ring.get(s.at..s.at + s.len).map(Box::from);
        }
    }

    /// Begins to send a segment, whose data lies at offset `at` of the ring.
    pub fn begin(&mut self, head: SegmentHead, at: usize, now: u64) {
        let (from, len) = if let SegmentKind::Data { from, len } = head.word { (from, len) } else { (0, 0) };
        self.sending = Some(OutgoingSegment { head: head.encode(), at, len, from, sent: 0, saved: None });
        self.health.queued += len as u64;
        self.spoke = now;
    }

    /// Sends the segment that `begin` began, as far as the socket takes it; true: the whole segment is out. `short`:
    /// the most bytes of one system call (fault injection).
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
                    // A segment fits into one record. The ring is the library's own memory, so `gather` cannot end early.
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

    /// True if bytes wait in the stash, which the socket does not announce again.
    pub fn holds_more(&self) -> bool {
        self.window.0 < self.window.1 || self.opens.as_ref().is_some_and(|opens| opens.holds_record(&self.stash))
    }

    /// Moves bytes from the stash into the segment that is being received; returns the segment once it is complete.
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

    /// Takes the segment that is being received, if it is complete.
    fn whole(&mut self) -> Option<Received> {
        let (head, buf, filled) = self.coming.take()?;
        if matches!(head.word, SegmentKind::Data { len, .. } if filled < len) {
            self.coming = Some((head, buf, filled));
            return None;
        }
        Some(Received::Segment(head, Some(buf)))
    }

    /// Reads until a segment is complete, or the socket has no more bytes.
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
