// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The send queue of a connection: one buffer of the library's own bytes (headers, words, short bodies), and between
//! these bytes the long bodies, which the kernel gathers from their own memory. Many small frames leave in one system
//! call.

use super::body::{Body, Owner};
use super::scatter::Scatter;
use crate::error::{Error, Result};
use crate::prov::bind::Ending;
use crate::prov::op::Iov;
use crate::prov::tcp::memory::source::{BodySource, GatherCall, leave};
use crate::prov::tcp::memory::staging::StagingLanes;
use crate::prov::tcp::rail::transport::WriteTransport;
use crate::prov::tcp::wire::frame::{HEADER, Header, PART};
use crate::sys::stream::{self, Moved};
use crate::sys::time::ticks;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Bytes in the buffer above which posting returns `EAGAIN`.
pub const QUEUE_MAX: usize = 256 << 10;
/// Number of bytes that are worth a system call of their own.
const BATCH: usize = 16 << 10;
/// Number of frames that are worth a system call of their own.
const BATCH_FRAMES: u32 = 96;
/// Most pieces of one call.
const PIECES: usize = 64;
/// Most bytes of one call: enough to make the call cheap, and few enough to stay in the cache.
const CALL: u64 = 2 * PART;
/// After a pause of this many ticks in sending, the endpoint's `flush` first asks whether the peer has closed the connection.
const REST: u64 = 2_000_000;

/// An item that stands between bytes of the buffer.
enum QueueItem {
    Body(Box<Body>),
    /// An operation that completes when all bytes before the mark are out; `None`: the operation has completed otherwise.
    Mark(Option<Ending>, Owner),
}

impl QueueItem {
    /// Number of the body's bytes that have not left.
    fn bytes(&self) -> u64 {
        if let QueueItem::Body(body) = self { body.rest() } else { 0 }
    }
}

/// An operation or body whose last byte is out.
pub enum Departed {
    Mark(Ending),
    Body(Box<Body>),
}

/// The send queue of a connection.
#[derive(Default)]
pub struct Tx {
    /// The buffer of the library's own bytes.
    out: Vec<u8>,
    /// Number of bytes of `out` that are on the wire.
    sent: usize,
    /// Stream position of the first byte of `out`.
    base: u64,
    /// Each item, with the position in front of which it stands. Positions count the bytes of `out` alone, not those of bodies.
    items: VecDeque<(u64, QueueItem)>,
    /// Number of items that complete an operation.
    ends: usize,
    /// Number of bodies among the items.
    bodies: usize,
    /// Frames queued since the last call of `flush`.
    frames: u32,
    pub lanes: StagingLanes,
    /// Further streams for long bodies, if there are any.
    pub streams: Option<Box<Scatter>>,
    /// The seal or the rails through which all bytes go. `None`: bytes go directly to the socket.
    pub write_transport: Option<WriteTransport>,
    /// Items that have left and whose operations the endpoint has not completed yet.
    pub departed: Vec<Departed>,
    /// The socket or the transport takes no more for now.
    pub blocked: bool,
    /// The time, in ticks, at which something was last sent.
    pub last: u64,
    /// Most bytes of one system call (fault injection).
    pub short: usize,
}

impl Tx {
    pub fn new(short: Option<usize>, write_transport: Option<WriteTransport>) -> Tx {
        Tx { short: short.unwrap_or(usize::MAX), write_transport, ..Tx::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.sent == self.out.len()
            && self.items.is_empty()
            && self.write_transport.as_ref().is_none_or(|write_transport| write_transport.is_out())
    }

    /// True if nothing was sent for a while. Always false with rails, which have several sockets.
    pub fn has_rested(&self) -> bool {
        !matches!(self.write_transport, Some(WriteTransport::Rails(_))) && ticks().wrapping_sub(self.last) > REST
    }

    /// True if the rails' window is full.
    pub fn is_full(&self) -> bool {
        self.write_transport.as_ref().is_some_and(|write_transport| write_transport.room() == 0)
    }

    /// True if the transport holds bytes that have not left.
    pub fn is_passing(&self) -> bool {
        self.write_transport.as_ref().is_some_and(|write_transport| !write_transport.is_out())
    }

    /// True if the queue is worth a system call of its own.
    #[inline]
    pub fn is_worth_a_call(&self) -> bool {
        self.bodies > 0 || self.frames >= BATCH_FRAMES || self.waiting() >= BATCH
    }

    /// Number of bytes in the buffer that have not left.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Number of queued operations that complete when their bytes have left.
    #[inline]
    pub fn ends(&self) -> usize {
        self.ends
    }

    /// True if a long body is queued.
    #[inline]
    pub fn has_bodies(&self) -> bool {
        self.bodies > 0
    }

    /// True if a queued body comes from a device, whose copies no socket announces.
    pub fn awaits_device(&self) -> bool {
        self.items.iter().any(|(_, i)| matches!(i, QueueItem::Body(b) if matches!(b.source, BodySource::Device(_))))
    }

    /// Appends bytes of the library's own.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Lets `add` append bytes to the buffer.
    #[inline]
    pub fn add<R>(&mut self, add: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        add(&mut self.out)
    }

    /// The end of the buffer. `take_back` returns to this end, if nothing was sent since.
    #[inline]
    pub fn end(&self) -> usize {
        self.out.len()
    }

    /// Removes all bytes behind `end`.
    pub fn take_back(&mut self, end: usize) {
        self.out.truncate(end);
    }

    #[inline]
    pub fn put_header(&mut self, header: &Header) {
        self.frames += 1;
        let bytes: [u8; HEADER] = header.encode();
        self.out.extend_from_slice(&bytes);
    }

    /// Appends a header and its words at once.
    #[inline]
    pub fn put_head<const N: usize>(&mut self, header: &Header, words: &[u64; N]) {
        self.frames += 1;
        self.out.reserve(HEADER + 8 * N);
        self.out.extend_from_slice(&header.encode());
        for word in words {
            self.out.extend_from_slice(&word.to_le_bytes());
        }
    }

    #[inline]
    pub fn put_word(&mut self, word: u64) {
        self.out.extend_from_slice(&word.to_le_bytes());
    }

    /// Copies host memory into the buffer.
    #[inline]
    pub fn put_pieces(&mut self, pieces: &[Iov]) {
        pieces.iter().for_each(|v| v.append_to(&mut self.out));
    }

    /// True if the next bytes to be sent are stripes, which go over further streams.
    pub fn is_scattering(&self) -> bool {
        let first = self.items.front().filter(|(stand, _)| *stand == self.base + self.sent as u64);
        first.is_some_and(|(_, item)| matches!(item, QueueItem::Body(b) if b.stripes.as_ref().is_some_and(|s| !s.are_out())))
    }

    /// `Some(true)`: the first body goes in stripes. `None`: no body is queued.
    pub fn is_in_stripes(&self) -> Option<bool> {
        self.items.iter().find_map(|(_, item)| if let QueueItem::Body(body) = item { Some(body.stripes.is_some()) } else { None })
    }

    /// Sends stripes of the first body over the further streams, once the body's header is out.
    fn scatter(&mut self) -> Result<()> {
        let here = self.base + self.sent as u64;
        let Tx { items, streams: Some(streams), lanes, short, .. } = self else { return Ok(()) };
        match items.front_mut() {
            Some((stand, QueueItem::Body(body))) if *stand == here && body.stripes.is_some() => streams.send(body, lanes, *short),
            _ => Ok(()),
        }
    }

    /// Queues a body behind the bytes that were put before.
    pub fn put_body(&mut self, body: Body) {
        let at = self.base + self.out.len() as u64;
        self.ends += usize::from(body.end.is_some());
        self.bodies += 1;
        self.items.push_back((at, QueueItem::Body(Box::new(body))));
    }

    /// Queues the completion of an operation, which completes when all bytes that were put before have left.
    pub fn mark(&mut self, end: Ending, owner: Owner) {
        let at = self.base + self.out.len() as u64;
        self.ends += 1;
        self.items.push_back((at, QueueItem::Mark(Some(end), owner)));
    }

    /// Removes up to `most` completions that `which` picks, and gives up the bodies of their operations. The caller
    /// reports the completions.
    pub fn take_ends(&mut self, which: impl Fn(&Ending) -> bool, why: &Error, most: usize) -> Vec<(Ending, Owner)> {
        let mut taken = Vec::new();
        for (_, item) in &mut self.items {
            let (end, owner) = match item {
                QueueItem::Mark(end, owner) => (end, *owner),
                QueueItem::Body(body) => (&mut body.end, body.owner),
            };
            if taken.len() == most || !end.is_some_and(|e| which(&e)) {
                continue;
            }
            taken.extend(end.take().map(|end| (end, owner)));
            if let QueueItem::Body(body) = item {
                body.give_up(&mut self.lanes, why.clone(), true);
            }
        }
        self.ends -= taken.len();
        taken
    }

    /// Calls `each` for every completion in the queue.
    pub fn each_end(&self, mut each: impl FnMut(&Ending)) {
        for (_, item) in &self.items {
            match item {
                QueueItem::Mark(end, _) => end.iter().for_each(&mut each),
                QueueItem::Body(body) => body.end.iter().for_each(&mut each),
            }
        }
    }

    /// The operations of all items in the queue.
    fn owners(&self) -> impl Iterator<Item = Owner> {
        self.items.iter().map(|(_, item)| match item {
            QueueItem::Mark(_, owner) => *owner,
            QueueItem::Body(body) => body.owner,
        })
    }

    /// Sequence of the oldest WRITE that has not left completely.
    #[inline]
    pub fn first_write(&self) -> Option<u32> {
        self.owners().find_map(|o| if let Owner::Write(sequence) = o { Some(sequence) } else { None })
    }

    /// True if the message with this number has not left completely.
    pub fn holds_message(&self, number: u64) -> bool {
        self.owners().any(|o| o == Owner::Send(Some(number)))
    }

    /// Gives up the bodies of an operation whose completion is not in this queue.
    pub fn give_up(&mut self, owner: Owner, why: &Error) {
        for (_, item) in &mut self.items {
            if let QueueItem::Body(body) = item
                && body.owner == owner
            {
                body.give_up(&mut self.lanes, why.clone(), true);
            }
        }
    }

    /// Empties the queue after the end of the connection.
    pub fn take_all(&mut self) -> Vec<Departed> {
        // The staging lanes go first: dropping a lane waits for its copies, and then nothing touches the bodies' memory.
        self.lanes = StagingLanes::default();
        let mut all = std::mem::take(&mut self.departed);
        all.extend(self.items.drain(..).filter_map(|(_, i)| match i {
            QueueItem::Body(b) => Some(Departed::Body(b)),
            QueueItem::Mark(end, _) => end.map(Departed::Mark),
        }));
        all
    }

    /// Sends as much as the socket takes.
    #[inline]
    pub fn flush(&mut self, fd: BorrowedFd<'_>) -> Result<()> {
        self.frames = 0;
        if self.items.is_empty() && self.write_transport.is_none() {
            if self.sent == self.out.len() {
                return Ok(());
            }
            let end = self.out.len().min(self.sent.saturating_add(self.short));
            let moved = stream::send(fd, &self.out[self.sent..end])?;
            self.last = ticks();
            match moved {
                Moved::Bytes(n) => {
                    self.sent += n;
                    self.blocked = self.sent < end;
                    self.compact();
                }
                _ => self.blocked = true,
            }
            return Ok(());
        }
        self.flush_items(fd)
    }

    /// Removes sent bytes from the buffer, if all bytes are sent or the sent ones are many.
    fn compact(&mut self) {
        if self.sent == self.out.len() {
            self.base += self.sent as u64;
            self.out.clear();
            self.sent = 0;
        } else if self.sent > QUEUE_MAX {
            self.out.drain(..self.sent);
            self.base += self.sent as u64;
            self.sent = 0;
        }
    }

    /// As `flush`, for a queue with items or with a transport.
    fn flush_items(&mut self, fd: BorrowedFd<'_>) -> Result<()> {
        let mut most = PIECES;
        loop {
            let behind = self.waiting() as u64;
            if let Some(write_transport) = &mut self.write_transport
                && !write_transport
                    .push(fd, self.short, || behind + self.items.iter().take(PIECES).map(|(_, item)| item.bytes()).sum::<u64>())?
            {
                self.blocked = true;
                return Ok(());
            }
            self.advance(0);
            self.pump_devices();
            if self.streams.is_some() {
                self.scatter()?;
            }
            let mut pieces = [Iov::EMPTY; PIECES];
            let limit = self.write_transport.as_ref().map_or(CALL, |write_transport| write_transport.room()).min(self.short as u64);
            let mut call = GatherCall { pieces: &mut pieces[..most], count: 0, bytes: 0, limit, entered: Vec::new() };
            self.collect(&mut call);
            let GatherCall { count, bytes, entered, .. } = call;
            if count == 0 {
                self.blocked = self.streams.is_some() && self.is_scattering();
                return Ok(());
            }
            let moved = match &mut self.write_transport {
                None => stream::send_pieces(fd, &pieces[..count]),
                // Only the library's own buffer is left, so no page of the memory can be missing.
                Some(write_transport) if self.items.is_empty() => {
                    write_transport.put(&self.out[self.sent..][..bytes as usize]).map(Moved::Bytes)
                }
                Some(write_transport) => write_transport.gather(&pieces[..count]),
            };
            entered.iter().for_each(|r| leave(r));
            self.last = ticks();
            match moved? {
                Moved::Bytes(n) => {
                    self.advance(n as u64);
                    self.compact();
                    most = PIECES;
                    if self.write_transport.is_none() && ((n as u64) < bytes || self.short != usize::MAX) {
                        self.blocked = (n as u64) < bytes;
                        return Ok(());
                    }
                }
                // The memory of some piece is missing. Each piece is sent alone from now on, so that the piece at fault shows.
                Moved::Fault if count > 1 => most = 1,
                Moved::Fault => self.spoil_first()?,
                _ => {
                    self.blocked = true;
                    return Ok(());
                }
            }
        }
    }

    /// Adds the pieces that can be sent now, in the order of the stream.
    fn collect(&mut self, call: &mut GatherCall<'_>) {
        let mut at = self.sent;
        for (stand, item) in &mut self.items {
            let own = (*stand - self.base) as usize;
            if at < own {
                // SAFETY: nothing is appended to `out` before the call that uses the pieces is over.
                let n = unsafe { call.add_own(&self.out[at..own]) };
                if n < own - at {
                    return;
                }
                at = own;
            }
            if let QueueItem::Body(body) = item
                && !body.collect(call, &mut self.lanes)
            {
                return;
            }
        }
        // SAFETY: nothing is appended to `out` before the call that uses the pieces is over.
        unsafe { call.add_own(&self.out[at..]) };
    }

    /// Advances the queue by `n` bytes that have left, and moves the items whose last byte left to `departed`.
    fn advance(&mut self, mut n: u64) {
        loop {
            let here = self.base + self.sent as u64;
            let Some((stand, item)) = self.items.front_mut() else {
                self.sent += n as usize;
                return;
            };
            let own = n.min(*stand - here);
            self.sent += own as usize;
            n -= own;
            if here + own < *stand {
                return;
            }
            let over = match item {
                QueueItem::Mark(..) => true,
                QueueItem::Body(body) => {
                    n -= body.advance(n, &mut self.lanes);
                    body.is_over()
                }
            };
            if !over {
                return;
            }
            match self.items.pop_front() {
                Some((_, QueueItem::Mark(end, _))) => {
                    self.ends -= usize::from(end.is_some());
                    self.departed.extend(end.map(Departed::Mark));
                }
                Some((_, QueueItem::Body(body))) => {
                    self.ends -= usize::from(body.end.is_some());
                    self.bodies -= 1;
                    self.departed.push(Departed::Body(body));
                }
                None => return,
            }
        }
    }

    /// Posts copies into free staging slots. A body's copies start only when all copies of the body before have started.
    fn pump_devices(&mut self) {
        for (_, item) in &mut self.items {
            let QueueItem::Body(body) = item else { continue };
            let BodySource::Device(device_source) = &mut body.source else { continue };
            match device_source.pump(&mut self.lanes) {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) => body.give_up(&mut self.lanes, e, false),
            }
        }
    }

    /// Handles memory of the first body that the kernel could not read.
    #[cold]
    fn spoil_first(&mut self) -> Result<()> {
        match self.items.front_mut() {
            Some((_, QueueItem::Body(body))) => body.spoil(&mut self.lanes),
            _ => Ok(()),
        }
    }
}
