// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sealed records on a socket: the sending end (`SealedOut`) and the receiving end (`SealedIn`).

use super::seal::{BUFFER, CipherState, FILL, LENGTH, OUT, Opener, Sealer, Window};
use crate::error::Result;
use crate::sys::iov::Iov;
use crate::sys::stream::{self, Moved};
use crate::sys::usercopy::GatherBuffer;
use std::os::fd::BorrowedFd;

/// The sending end. At most one record is on its way: the next one is made when the last one has left completely.
pub struct SealedOut {
    sealer: Sealer,
    buf: GatherBuffer,
}

impl SealedOut {
    /// Allocates the buffer, which takes a descriptor and can therefore fail. A listener calls this before ANSWER
    /// promises a sealed connection.
    pub fn room() -> Result<GatherBuffer> {
        GatherBuffer::new(OUT)
    }

    /// `room`: the buffer, if `SealedOut::room` was called before.
    pub fn new(half: CipherState, room: Option<GatherBuffer>) -> Result<SealedOut> {
        let buf = room.map_or_else(SealedOut::room, Ok)?;
        Ok(SealedOut { sealer: Sealer::new(half), buf })
    }

    /// True if the last record has left completely.
    #[inline]
    pub fn is_out(&self) -> bool {
        self.sealer.is_out()
    }

    /// Sends the rest of the record; true: the record has left. `short`: the most bytes of one system call (fault injection).
    #[inline]
    pub fn push(&mut self, fd: BorrowedFd<'_>, short: usize) -> Result<bool> {
        while !self.sealer.is_out() {
            let rest = self.sealer.rest(self.buf.bytes());
            match stream::send(fd, &rest[..rest.len().min(short)])? {
                Moved::Bytes(n) => self.sealer.left(n),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Makes a record of the first of `bytes`, at most `FILL`, and returns their number. The last record must have left.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = bytes.len().min(FILL);
        let buf = self.buf.bytes_mut();
        buf[LENGTH..LENGTH + n].copy_from_slice(&bytes[..n]);
        self.sealer.seal(buf, n)?;
        Ok(n)
    }

    /// As `put`, from pieces of up to `FILL` bytes together, whose pages may have been unmapped.
    pub fn gather(&mut self, pieces: &[Iov]) -> Result<Moved> {
        let moved = self.buf.gather(LENGTH, pieces)?;
        if let Moved::Bytes(n) = moved {
            self.sealer.seal(self.buf.bytes_mut(), n)?;
        }
        Ok(moved)
    }
}

/// The receiving end, which opens records in its reader's buffer.
pub struct SealedIn {
    opener: Opener,
    /// The last read of this turn returned fewer bytes than it asked for, so the socket is empty.
    drained: bool,
}

/// A buffer of the size that `SealedIn` needs.
pub fn buffer() -> Box<[u8]> {
    vec![0; BUFFER].into()
}

impl SealedIn {
    pub fn new(half: CipherState) -> SealedIn {
        SealedIn { opener: Opener::new(half), drained: false }
    }

    /// True if the buffer holds a complete record, which no socket announces, or an error to report.
    pub fn holds_record(&self, buf: &[u8]) -> bool {
        self.opener.holds_record(buf)
    }

    /// Opens the next record, after reading from the socket if necessary. `Moved::Bytes`: `window` now includes the
    /// record, and the number is the window's length. `Moved::Ended` also stands for an end within a record: only the
    /// peer's sealed BYE proves that nothing was cut off.
    #[inline]
    pub fn read(&mut self, fd: BorrowedFd<'_>, buf: &mut [u8], window: &mut Window, short: usize) -> Result<Moved> {
        loop {
            if let Some(opened) = self.opener.open(buf, *window)? {
                *window = opened;
                return Ok(Moved::Bytes(opened.1 - opened.0));
            }
            let (room, moved) = self.opener.room(buf, *window);
            *window = moved;
            let asked = room.len().min(short);
            if asked == 0 {
                return Ok(Moved::Blocked);
            }
            match stream::receive(fd, &mut room[..asked])? {
                Moved::Bytes(n) => {
                    self.opener.came(n);
                    self.drained = n < asked;
                }
                Moved::Ended => return Ok(Moved::Ended),
                other => {
                    self.drained = true;
                    return Ok(other);
                }
            }
        }
    }

    /// Begins a turn: the socket counts as not drained until it has been read.
    pub fn begin_turn(&mut self) {
        self.drained = false;
    }

    /// True if another read may bring something.
    pub fn may_have(&self, buf: &[u8]) -> bool {
        !self.drained || self.opener.holds_record(buf)
    }

    /// True if the buffer holds bytes that are not opened yet.
    pub fn is_amid(&self) -> bool {
        self.opener.is_amid()
    }
}
