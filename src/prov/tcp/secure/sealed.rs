// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sealed records on a socket: the sending end (`SealedOut`) and the receiving end (`SealedIn`).

use super::seal::{BUFFER, CipherState, FILL, LENGTH, OUT, Opener, Sealer, Window};
use crate::error::Result;
use crate::sys::iov::Iov;
use crate::sys::stream::{self, Moved};
use crate::sys::usercopy::GatherBuffer;
use std::os::fd::BorrowedFd;

/// The sending end, with at most one record on its way.
pub struct SealedOut {
    sealer: Sealer,
    buf: GatherBuffer,
}

impl SealedOut {
    /// Allocates the buffer. It takes a descriptor, so it comes before a sealed connection is promised.
    pub fn room() -> Result<GatherBuffer> {
        GatherBuffer::new(OUT)
    }

    /// `room`: the buffer, if it was allocated before.
    pub fn new(half: CipherState, room: Option<GatherBuffer>) -> Result<SealedOut> {
        let buf = room.map_or_else(SealedOut::room, Ok)?;
        Ok(SealedOut { sealer: Sealer::new(half), buf })
    }

    #[inline]
    pub fn is_out(&self) -> bool {
        self.sealer.is_out()
    }

    /// Sends the rest of the record; true: all of it is out. `short`: the most bytes of one system call (fault injection).
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

    /// Seals the first of `bytes`, at most `FILL`; returns how many. The last record must be out.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = bytes.len().min(FILL);
        let buf = self.buf.bytes_mut();
        buf[LENGTH..LENGTH + n].copy_from_slice(&bytes[..n]);
        self.sealer.seal(buf, n)?;
        Ok(n)
    }

    /// As `put`, from pieces of up to `FILL` bytes, whose pages may have been unmapped.
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
    /// In this turn the socket gave less than there was room for.
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

    /// True if a complete record waits in the buffer, which no socket announces.
    pub fn holds_record(&self, buf: &[u8]) -> bool {
        self.opener.holds_record(buf)
    }

    /// Opens the next record, after reading from the socket if necessary. `Moved::Bytes`: the window has changed. An end within a
    /// record is reported as an end too: only the peer's sealed BYE proves that nothing was cut off.
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

    /// A new turn: the socket is read before it counts as drained again.
    pub fn begin_turn(&mut self) {
        self.drained = false;
    }

    /// True if another read may bring something.
    pub fn may_have(&self, buf: &[u8]) -> bool {
        !self.drained || self.opener.holds_record(buf)
    }

    pub fn is_amid(&self) -> bool {
        self.opener.is_amid()
    }
}
