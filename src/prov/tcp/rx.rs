// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes in: a buffer for heads and small bodies, and a body whose bytes the kernel scatters to where they belong.

use super::body::Run;
use super::frame::{PART, Spot, WHOLE_MAX, spot, wire_len};
use super::gather::{Gather, Gathering};
use super::mr::Region;
use super::slots::{Lanes, Storing};
use super::state::Recv;
use crate::error::{Code, Error, Result};
use crate::mr::piece::walk;
use crate::prov::op::{Pieces, parts};
use crate::sys::stream::{self, Moved, Piece, piece};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes that one call reads ahead, at first and at most.
const REACH_MIN: usize = 4 << 10;
const REACH_MAX: usize = 64 << 10;
/// The same behind a long body: the head of the next frame, and little of what would be copied once more.
const AHEAD: usize = 512;
/// What is left of a part below this is not worth a call of its own into its place.
const DIRECT_MIN: u64 = 4 << 10;
const PIECES: usize = 64;

/// Where a body goes.
pub enum Sink {
    /// Memory of this side's operation, of so many bytes; what is more is left out.
    Pieces(Pieces, u64),
    Regions(Box<[Run]>),
    Device(Storing, u64),
    /// A message without a receive.
    Kept(Vec<u8>),
    Nothing,
}

/// What a body's end does.
pub enum Then {
    /// A WRITE: its remote data, the regions that it went to, and whether the sender waits.
    Write { data: Option<u64>, regions: Box<[Arc<Region>]>, prompt: bool },
    /// The answer to the oldest read.
    Answer,
    /// A message of `len` bytes for this receive, if that was not given up; its number, if its sender waits for more.
    Message { recv: Option<Recv>, len: u64, data: Option<u64>, number: Option<u64> },
    /// A message that waits for its receive.
    Keep { data: Option<u64>, number: Option<u64> },
}

/// A body that comes in.
pub struct Incoming {
    pub sink: Sink,
    pub then: Then,
    pub len: u64,
    in_parts: bool,
    /// It comes over several streams.
    pub stripes: Option<Box<Gathering>>,
    at: u64,
    word: [u8; 8],
    /// Why the bytes did not all get to their place, as far as this side knows.
    pub failed: Option<Error>,
    /// The sender gave it up, with this status.
    pub status: u64,
}

impl Incoming {
    pub fn new(sink: Sink, then: Then, len: u64, in_parts: bool) -> Incoming {
        Incoming { sink, then, len, in_parts, stripes: None, at: 0, word: [0; 8], failed: None, status: 0 }
    }

    pub fn all_came(&self) -> bool {
        if let Some(stripes) = &self.stripes {
            return stripes.all_came();
        }
        self.at >= wire_len(self.len, self.in_parts)
    }

    /// The memory is not to be touched any more; what still comes is left out.
    pub fn divert(&mut self, lanes: &mut Lanes, why: Error) {
        if let Sink::Device(storing, _) = &mut self.sink {
            storing.end(lanes);
        }
        self.sink = Sink::Nothing;
        self.failed.get_or_insert(why);
    }

    /// Whether all that came has reached its place.
    pub fn settled(&mut self, lanes: &mut Lanes) -> bool {
        let Sink::Device(storing, _) = &mut self.sink else { return true };
        match storing.settled(lanes) {
            Ok(settled) => settled,
            Err(e) => {
                self.divert(lanes, e);
                true
            }
        }
    }

    /// Takes bytes out of the buffer; gives how many.
    pub fn take(&mut self, bytes: &[u8], lanes: &mut Lanes) -> usize {
        if self.stripes.is_some() {
            return 0;
        }
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let n = match spot(self.at, self.len, self.in_parts) {
                Spot::End => break,
                Spot::Word(k) => {
                    let n = rest.len().min(8 - usize::from(k));
                    self.word[usize::from(k)..usize::from(k) + n].copy_from_slice(&rest[..n]);
                    if usize::from(k) + n == 8 {
                        self.read_word();
                    }
                    n
                }
                Spot::Byte(at, run) => {
                    let n = self.place(at, &rest[..rest.len().min(run as usize)], lanes);
                    if n == 0 {
                        break;
                    }
                    self.after(at + n as u64, lanes);
                    n
                }
            };
            self.at += n as u64;
            taken += n;
        }
        taken
    }

    /// A word between parts has come.
    fn read_word(&mut self) {
        self.status = u64::from_le_bytes(self.word);
        if self.status != 0 {
            // Nothing follows: the last byte of the word is counted by the caller.
            let end = wire_len(self.len, true);
            let begun = match spot(self.at, self.len, true) {
                Spot::Word(k) => 8 - u64::from(k),
                _ => 0,
            };
            self.at = end - begun;
        }
    }

    /// Bytes up to `at` are in place.
    pub(super) fn after(&mut self, at: u64, lanes: &mut Lanes) {
        if let Sink::Device(storing, room) = &mut self.sink
            && let Err(e) = storing.filled(lanes, at.min(*room), at >= *room)
        {
            self.divert(lanes, e);
        }
    }

    /// Copies bytes to where byte `at` of the body goes; gives how many could be.
    pub(super) fn place(&mut self, at: u64, bytes: &[u8], lanes: &mut Lanes) -> usize {
        let all = bytes.len();
        match &mut self.sink {
            Sink::Nothing => all,
            Sink::Kept(kept) => {
                kept.extend_from_slice(bytes);
                all
            }
            Sink::Pieces(pieces, room) => {
                scatter(pieces, at, &bytes[..all.min(room.saturating_sub(at) as usize)]);
                all
            }
            Sink::Regions(runs) => {
                if let Err(e) = store(runs, at, bytes) {
                    self.divert(lanes, e);
                }
                all
            }
            Sink::Device(_, room) if at >= *room => all,
            Sink::Device(storing, room) => match storing.find(lanes, at) {
                Ok(None) => 0,
                Ok(Some((addr, fits))) => {
                    let n = all.min(fits as usize).min((*room - at) as usize);
                    // SAFETY: the slot has room for `fits` bytes, and nothing copies from it yet.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, n) };
                    n
                }
                Err(e) => {
                    self.divert(lanes, e);
                    all
                }
            },
        }
    }

    /// Pieces for the bytes that come next, as far as they go to one part; none: they go through the buffer.
    fn direct(&mut self, into: &mut [Piece], lanes: &mut Lanes) -> (usize, u64) {
        match spot(self.at, self.len, self.in_parts) {
            Spot::Byte(at, run) if self.stripes.is_none() => self.direct_at(at, run, into, lanes),
            _ => (0, 0),
        }
    }

    /// Pieces for up to `run` bytes from byte `at` on.
    pub(super) fn direct_at(&mut self, at: u64, run: u64, into: &mut [Piece], lanes: &mut Lanes) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0u64);
        let mut add = |(addr, n): (usize, usize)| {
            if let Some(place) = into.get_mut(count) {
                *place = piece(addr, n);
                count += 1;
                bytes += n as u64;
            }
        };
        match &mut self.sink {
            Sink::Pieces(pieces, room) => parts(pieces.as_slice(), at as usize, room.saturating_sub(at).min(run) as usize).for_each(add),
            Sink::Regions(runs) if run >= DIRECT_MIN => {
                for (r, from, n) in walk(runs, at as usize, run as usize) {
                    r.region.parts(r.skip + from as u64, n as u64).for_each(&mut add);
                }
            }
            Sink::Device(storing, room) if at < *room => match storing.find(lanes, at) {
                Ok(Some((addr, fits))) => add((addr, run.min(fits).min(*room - at) as usize)),
                Ok(None) => {}
                Err(e) => self.divert(lanes, e),
            },
            _ => {}
        }
        (count, bytes)
    }

    /// Bytes that went to their place without us.
    fn came(&mut self, n: u64, lanes: &mut Lanes) {
        if let Spot::Byte(at, _) = spot(self.at, self.len, self.in_parts)
            && self.stripes.is_none()
        {
            self.at += n;
            self.after(at + n, lanes);
        }
    }

    /// Whether bytes can be taken now: a device's slots may all be in use.
    fn is_ready(&mut self, lanes: &mut Lanes) -> bool {
        match spot(self.at, self.len, self.in_parts) {
            Spot::Byte(at, _) if self.stripes.is_none() => self.is_ready_at(at, lanes),
            _ => true,
        }
    }

    /// The same of byte `at`.
    pub(super) fn is_ready_at(&mut self, at: u64, lanes: &mut Lanes) -> bool {
        match &mut self.sink {
            Sink::Device(storing, room) if at < *room => match storing.find(lanes, at) {
                Ok(place) => place.is_some(),
                Err(e) => {
                    self.divert(lanes, e);
                    true
                }
            },
            _ => true,
        }
    }
}

impl Incoming {
    /// Enters the regions that the kernel is about to write; gives how many. One that is closed ends the writing.
    pub(super) fn enter(&mut self, lanes: &mut Lanes) -> usize {
        let Sink::Regions(runs) = &self.sink else { return 0 };
        for (entered, run) in runs.iter().enumerate() {
            if let Err(e) = enter(run) {
                runs[..entered].iter().for_each(exit);
                self.divert(lanes, e);
                return 0;
            }
        }
        runs.len()
    }

    /// Undoes `enter`.
    pub(super) fn exit(&self, entered: usize) {
        if let Sink::Regions(runs) = &self.sink {
            runs[..entered].iter().for_each(exit);
        }
    }
}

pub fn scatter(pieces: &Pieces, at: u64, bytes: &[u8]) {
    let mut done = 0;
    for (addr, n) in parts(pieces.as_slice(), at as usize, bytes.len()) {
        // SAFETY: the C caller promised that the pieces are writable until completion.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(done), addr as *mut u8, n) };
        done += n;
    }
}

fn enter(run: &Run) -> std::result::Result<(), Error> {
    let shut = |code| Error::coded(crate::error::errno::EKEYREJECTED, code, "the region is closed");
    run.region.enter().map_err(shut)?;
    run.region.begin_cpu(true).map_err(|e| {
        run.region.leave();
        Error::coded(e.errno, Code::Fault, e.words)
    })
}

fn exit(run: &Run) {
    if let Err(e) = run.region.end_cpu(true) {
        crate::log!(Warn, "{e}");
    }
    run.region.leave();
}

/// Copies bytes into regions, each entered for as long as it is written.
fn store(runs: &[Run], at: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    for (run, from, n) in walk(runs, at as usize, bytes.len()) {
        enter(run)?;
        let wrote = run.region.write(run.skip + from as u64, &bytes[done..done + n]);
        done += n;
        exit(run);
        wrote?;
    }
    Ok(())
}

pub struct Rx {
    buf: Box<[u8]>,
    start: usize,
    end: usize,
    reach: usize,
    pub body: Option<Box<Incoming>>,
    pub lanes: Lanes,
    /// Streams for long bodies, if there are any.
    pub far: Option<Box<Gather>>,
    /// Something has come over them since this was last asked.
    pub moved: bool,
    /// Bytes of one call at most.
    pub(super) short: usize,
}

/// What reading came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// Something came; `true`: there may be more.
    Some(bool),
    Nothing,
    Ended,
}

impl Rx {
    pub fn new(short: Option<usize>) -> Rx {
        Rx {
            buf: vec![0; REACH_MAX].into(),
            start: 0,
            end: 0,
            reach: REACH_MIN,
            body: None,
            lanes: Lanes::default(),
            far: None,
            moved: false,
            short: short.unwrap_or(usize::MAX),
        }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(self.start..self.end).unwrap_or(&[])
    }

    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.start += n;
        if self.start >= self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// A body of so many bytes has begun: how far to read ahead from now on.
    #[inline]
    pub fn expect(&mut self, len: u64) {
        if len >= WHOLE_MAX {
            self.reach = AHEAD;
        }
    }

    /// Gives the body what the buffer has of it; true: all of it came.
    pub fn feed(&mut self) -> bool {
        let Some(body) = &mut self.body else { return true };
        let bytes = self.buf.get(self.start..self.end).unwrap_or(&[]);
        let n = body.take(bytes, &mut self.lanes);
        self.consume(n);
        self.body.as_ref().is_none_or(|b| b.all_came())
    }

    /// Makes room for a head that does not fit behind what is there.
    fn make_room(&mut self) {
        if self.start > 0 && self.buf.len() - self.end < REACH_MIN {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Reads what the socket has, bodies into their place.
    #[inline]
    pub fn read(&mut self, fd: BorrowedFd<'_>) -> Result<Read> {
        if self.body.is_some() && self.start == self.end {
            return self.read_body(fd);
        }
        self.make_room();
        let until = self.buf.len().min(self.end.saturating_add(self.reach.min(self.short)));
        let Some(free) = self.buf.get_mut(self.end..until).filter(|free| !free.is_empty()) else { return Ok(Read::Nothing) };
        let asked = free.len();
        Ok(match stream::receive(fd, free)? {
            Moved::Bytes(n) => {
                self.end += n;
                if n == asked {
                    self.reach = (2 * self.reach).min(REACH_MAX);
                }
                Read::Some(n == asked)
            }
            Moved::Ended => Read::Ended,
            Moved::Blocked | Moved::Fault => Read::Nothing,
        })
    }

    /// Reads with the next bytes of the body going straight to their place, and what follows them into the buffer.
    fn read_body(&mut self, fd: BorrowedFd<'_>) -> Result<Read> {
        let Some(body) = &mut self.body else { return Ok(Read::Nothing) };
        if !body.is_ready(&mut self.lanes) {
            return Ok(Read::Nothing);
        }
        let mut pieces = [piece(0, 0); PIECES];
        let entered = body.enter(&mut self.lanes);
        let (mut count, mut direct) = body.direct(&mut pieces[..PIECES - 1], &mut self.lanes);
        if direct as usize > self.short {
            (count, direct) = (1, (self.short as u64).min(pieces[0].iov_len as u64));
            pieces[0].iov_len = direct as usize;
        }
        let ahead = if direct == 0 { self.buf.len() } else { AHEAD };
        let ahead = ahead.min(self.short.saturating_sub(direct as usize));
        if ahead > 0 {
            pieces[count] = piece(self.buf.as_mut_ptr() as usize, ahead);
            count += 1;
        }
        // SAFETY: the buffer is ours and empty; regions are entered; other memory is the C caller's promise.
        let moved = unsafe { stream::receive_pieces(fd, &mut pieces[..count]) };
        body.exit(entered);
        Ok(match moved? {
            Moved::Bytes(n) => {
                body.came((n as u64).min(direct), &mut self.lanes);
                (self.start, self.end) = (0, n.saturating_sub(direct as usize));
                Read::Some(n as u64 >= direct)
            }
            Moved::Ended => Read::Ended,
            Moved::Blocked => Read::Nothing,
            Moved::Fault => {
                let why = Error::coded(crate::error::errno::EFAULT, Code::Fault, "the kernel cannot write the memory");
                body.divert(&mut self.lanes, why);
                Read::Some(true)
            }
        })
    }

    /// Whether a body or something in the buffer is to be gone on with, whether more comes or not.
    pub fn is_amid(&self) -> bool {
        self.body.is_some() || self.has_bytes()
    }

    /// Whether something has come that waits in the buffer.
    pub fn has_bytes(&self) -> bool {
        self.start < self.end
    }

    /// Whether a device's copies are awaited, which no socket announces.
    pub fn awaits_device(&self) -> bool {
        self.body.as_ref().is_some_and(|b| matches!(b.sink, Sink::Device(..)))
    }
}

const _: () = assert!(AHEAD > super::frame::HEAD_MAX && PART as usize > REACH_MAX);
