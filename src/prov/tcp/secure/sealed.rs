// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sealed stream over its socket: what `stream` does with a bare one, a record at a time.

use super::seal::{BUFFER, CipherState, FILL, LENGTH, OUT, Opener, Sealer, Window};
use crate::error::Result;
use crate::sys::iov::Iov;
use crate::sys::stream::{self, Moved};
use crate::sys::usercopy::GatherBuffer;
use std::os::fd::BorrowedFd;

/// The sender's end: at most one record of it is on its way.
pub struct SealedOut {
    sealer: Sealer,
    buf: GatherBuffer,
}

impl SealedOut {
    /// Its buffer, which takes a descriptor: whoever promises a sealed connection has that first.
    pub fn room() -> Result<GatherBuffer> {
        GatherBuffer::new(OUT)
    }

    /// `room`: the buffer, if it is there already.
    pub fn new(half: CipherState, room: Option<GatherBuffer>) -> Result<SealedOut> {
        let buf = room.map_or_else(SealedOut::room, Ok)?;
        Ok(SealedOut { sealer: Sealer::new(half), buf })
    }

    #[inline]
    pub fn is_out(&self) -> bool {
        self.sealer.is_out()
    }

    /// Sends what is left of the record; true: all of it is out. `short`: bytes of one call at most.
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

    /// Seals the first of these bytes, once the last record is out; gives how many.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = bytes.len().min(FILL);
        let buf = self.buf.bytes_mut();
        buf[LENGTH..LENGTH + n].copy_from_slice(&bytes[..n]);
        self.sealer.seal(buf, n)?;
        Ok(n)
    }

    /// The same of pieces, `FILL` bytes at most, whose pages may be gone.
    pub fn gather(&mut self, pieces: &[Iov]) -> Result<Moved> {
        let moved = self.buf.gather(LENGTH, pieces)?;
        if let Moved::Bytes(n) = moved {
            self.sealer.seal(self.buf.bytes_mut(), n)?;
        }
        Ok(moved)
    }
}

/// The receiver's end: opens records in its reader's buffer.
pub struct SealedIn {
    opener: Opener,
    /// In this turn the socket gave less than there was room for.
    drained: bool,
}

/// A buffer for them.
pub fn buffer() -> Box<[u8]> {
    vec![0; BUFFER].into()
}

impl SealedIn {
    pub fn new(half: CipherState) -> SealedIn {
        SealedIn { opener: Opener::new(half), drained: false }
    }

    /// Whether there is more in the buffer than is open, which no socket announces.
    pub fn holds_record(&self, buf: &[u8]) -> bool {
        self.opener.holds_record(buf)
    }

    /// Opens the next record, if need be with what the socket has: `Bytes`, and the window is another. `Ended` in the
    /// middle of a record is the end as well, since only the peer's goodbye, which is sealed, tells an end from a cut.
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

    /// Something may have come since the last turn: the socket is asked before it counts as drained again.
    pub fn begin_turn(&mut self) {
        self.drained = false;
    }

    /// Whether another read may give something.
    pub fn may_have(&self, buf: &[u8]) -> bool {
        !self.drained || self.opener.holds_record(buf)
    }

    pub fn is_amid(&self) -> bool {
        self.opener.is_amid()
    }
}
