// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiving end of a connection. Headers and short bodies go through a buffer; the bytes of a long body go
//! straight to their memory by scattered reads.

use super::gather::Gather;
use super::incoming::{BodySink, Incoming};
use super::stripes::ReceivedStripes;
use crate::error::{Code, Error, Result, errno};
use crate::prov::op::Iov;
use crate::prov::tcp::memory::staging::StagingLanes;
use crate::prov::tcp::rail::connection;
use crate::prov::tcp::rail::transport::ReadTransport;
use crate::prov::tcp::secure::sealed;
use crate::prov::tcp::wire::frame::{PART, STRIPE_HEAD, WHOLE_MAX, protocol_error};
use crate::sys::stream::{self, Moved};
use std::os::fd::BorrowedFd;

/// Number of bytes that one call reads into the buffer at first.
const REACH_MIN: usize = 4 << 10;
/// Most bytes that one call reads into the buffer.
const REACH_MAX: usize = 64 << 10;
/// Number of bytes that are read ahead behind a long body: enough for the next header, and few others, which would have
/// to be copied from the buffer.
const AHEAD: usize = 512;
/// Most pieces of memory of one call.
const PIECES: usize = 64;

/// The receiving end of a connection.
pub struct Rx {
    buf: Box<[u8]>,
    /// Position in the buffer where the unhandled bytes begin.
    start: usize,
    /// Position in the buffer where the unhandled bytes end.
    end: usize,
    /// Number of bytes that the next call reads into the buffer.
    reach: usize,
    /// The body that is being received.
    pub body: Option<Box<Incoming>>,
    pub lanes: StagingLanes,
    /// Further streams for long bodies, if there are any.
    pub streams: Option<Box<Gather>>,
    /// Bytes have come over further streams since this flag was last cleared.
    pub moved: bool,
    /// The seal or the rails from which the buffer is filled. `None`: the socket is read directly.
    read_transport: Option<ReadTransport>,
    /// Most bytes of one system call (fault injection).
    pub short: usize,
}

/// The result of `Rx::read`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadResult {
    /// Bytes came; `true`: there may be more.
    Some(bool),
    Nothing,
    Ended,
}

impl Rx {
    pub fn new(short: Option<usize>, read_transport: Option<ReadTransport>) -> Rx {
        Rx {
            buf: match read_transport.as_ref() {
                None => vec![0; REACH_MAX].into(),
                Some(ReadTransport::Sealed(_)) => sealed::buffer(),
                Some(ReadTransport::Rails(_)) => connection::buffer(),
            },
            start: 0,
            end: 0,
            reach: REACH_MIN,
            body: None,
            lanes: StagingLanes::default(),
            streams: None,
            moved: false,
            read_transport,
            short: short.unwrap_or(usize::MAX),
        }
    }

    /// The unhandled bytes in the buffer.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(self.start..self.end).unwrap_or(&[])
    }

    /// Removes `n` handled bytes from the buffer.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.start += n;
        if self.start >= self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Notes that a body of `len` bytes begins. Behind the header of a long body less is read into the buffer.
    #[inline]
    pub fn expect(&mut self, len: u64) {
        if len >= WHOLE_MAX {
            self.reach = AHEAD;
        }
    }

    /// Gives the body its bytes from the buffer; true: the body is complete.
    pub fn feed(&mut self) -> bool {
        let Some(body) = &mut self.body else { return true };
        let bytes = self.buf.get(self.start..self.end).unwrap_or(&[]);
        let n = body.take(bytes, &mut self.lanes);
        self.consume(n);
        self.body.as_ref().is_none_or(|b| b.all_came())
    }

    /// Moves the buffer's bytes to its front if the room behind them is small.
    fn make_room(&mut self) {
        if self.start > 0 && self.buf.len() - self.end < REACH_MIN {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Reads from the socket. Bytes of a long body go straight to their memory.
    #[inline]
    pub fn read(&mut self, fd: BorrowedFd<'_>) -> Result<ReadResult> {
        if self.read_transport.is_some() {
            return self.read_through_transport(fd);
        }
        if self.body.is_some() && self.start == self.end {
            return self.read_body(fd);
        }
        self.make_room();
        let until = self.buf.len().min(self.end.saturating_add(self.reach.min(self.short)));
        let Some(free) = self.buf.get_mut(self.end..until).filter(|free| !free.is_empty()) else { return Ok(ReadResult::Nothing) };
        let asked = free.len();
        Ok(match stream::receive(fd, free)? {
            Moved::Bytes(n) => {
                self.end += n;
                if n == asked {
                    self.reach = (2 * self.reach).min(REACH_MAX);
                }
                ReadResult::Some(n == asked)
            }
            Moved::Ended => ReadResult::Ended,
            Moved::Blocked | Moved::Fault => ReadResult::Nothing,
        })
    }

    /// As `read`, through a seal or rails, so that all bytes go through the buffer.
    fn read_through_transport(&mut self, fd: BorrowedFd<'_>) -> Result<ReadResult> {
        let Rx { read_transport: Some(read_transport), buf, start, end, short, .. } = self else { return Ok(ReadResult::Nothing) };
        let mut window = (*start, *end);
        let read = read_transport.read(fd, buf, &mut window, *short);
        (*start, *end) = window;
        let (moved, more) = read?;
        Ok(match moved {
            Moved::Bytes(_) => ReadResult::Some(more),
            Moved::Ended => ReadResult::Ended,
            Moved::Blocked | Moved::Fault => ReadResult::Nothing,
        })
    }

    /// Begins a turn, in which the sockets may have become readable.
    #[inline]
    pub fn begin_turn(&mut self) {
        if let Some(read_transport) = &mut self.read_transport {
            read_transport.begin_turn();
        }
    }

    /// True if the transport or a sealed further stream holds bytes that no socket announces. The buffer's bytes do not
    /// count here.
    pub fn holds_more(&self) -> bool {
        self.read_transport.as_ref().is_some_and(|read_transport| read_transport.holds_more(&self.buf))
            || (self.is_gathering() && self.streams.as_ref().is_some_and(|streams| streams.holds_more()))
    }

    /// Reads the body's next bytes straight to their memory, and the bytes behind the body into the buffer.
    fn read_body(&mut self, fd: BorrowedFd<'_>) -> Result<ReadResult> {
        let Some(body) = &mut self.body else { return Ok(ReadResult::Nothing) };
        if !body.is_ready(&mut self.lanes) {
            return Ok(ReadResult::Nothing);
        }
        let mut pieces = [Iov::EMPTY; PIECES];
        let entered = body.enter(&mut self.lanes);
        let (mut count, mut direct) = body.direct(&mut pieces[..PIECES - 1], &mut self.lanes);
        if direct as usize > self.short {
            pieces[0] = pieces[0].part(0, self.short);
            (count, direct) = (1, pieces[0].len() as u64);
        }
        let ahead = if direct == 0 { self.buf.len() } else { AHEAD };
        let ahead = ahead.min(self.short.saturating_sub(direct as usize));
        if ahead > 0 {
            // SAFETY: the buffer is borrowed mutably from `self` until the call is over.
            pieces[count] = unsafe { Iov::of_mut(&mut self.buf[..ahead]) };
            count += 1;
        }
        let moved = stream::receive_pieces(fd, &pieces[..count]);
        body.exit(entered);
        Ok(match moved? {
            Moved::Bytes(n) => {
                body.came((n as u64).min(direct), &mut self.lanes);
                (self.start, self.end) = (0, n.saturating_sub(direct as usize));
                ReadResult::Some(n as u64 >= direct)
            }
            Moved::Ended => ReadResult::Ended,
            Moved::Blocked => ReadResult::Nothing,
            Moved::Fault => {
                let why = Error::coded(
                    errno::EFAULT,
                    Code::Fault,
                    "the kernel cannot write the destination memory: it is not mapped, or not writable",
                );
                body.divert(&mut self.lanes, why);
                ReadResult::Some(true)
            }
        })
    }

    /// Begins to receive a body in stripes.
    pub fn announce(&mut self, len: u64) -> Result<Box<ReceivedStripes>> {
        match &mut self.streams {
            Some(streams) => Ok(Box::new(streams.announce(len))),
            None => Err(protocol_error("data in stripes without additional streams")),
        }
    }

    /// True if a body in stripes is being received and is incomplete.
    pub fn is_gathering(&self) -> bool {
        self.body.as_ref().is_some_and(|b| b.stripes.as_ref().is_some_and(|s| !s.all_came()))
    }

    /// True if the rest of a body in stripes may still come over further streams, although the first stream has ended.
    pub fn awaits_stripes(&self) -> bool {
        self.is_gathering() && self.streams.as_ref().is_some_and(|streams| streams.lives())
    }

    /// Reads stripes of the current body from the further streams, and the words that end the body from the first stream.
    pub fn gather(&mut self) -> Result<()> {
        let came = self.bytes().len().min(STRIPE_HEAD);
        let mut words = [0; STRIPE_HEAD];
        words[..came].copy_from_slice(&self.bytes()[..came]);
        let Rx { body: Some(body), streams: Some(streams), lanes, short, moved, .. } = self else { return Ok(()) };
        let Some(stripes) = &mut body.stripes else { return Ok(()) };
        let (n, status) = stripes.end(&words[..came])?;
        if status != 0 {
            body.status = status;
        }
        *moved |= streams.read(body, lanes, *short)?;
        self.consume(n);
        Ok(())
    }

    /// True if a body is being received or the buffer has bytes, so that a turn may go on even if nothing arrives.
    pub fn is_amid(&self) -> bool {
        self.body.is_some() || self.has_bytes()
    }

    /// True if unhandled bytes are in the buffer.
    pub fn has_bytes(&self) -> bool {
        self.start < self.end
    }

    /// True if the current body goes to a device, whose copies no socket announces.
    pub fn awaits_device(&self) -> bool {
        self.body.as_ref().is_some_and(|b| matches!(b.sink, BodySink::Device(..)))
    }
}

const _: () = assert!(AHEAD > crate::prov::tcp::wire::frame::HEAD_MAX && PART as usize > REACH_MAX);
