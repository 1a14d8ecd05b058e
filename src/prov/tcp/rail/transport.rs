// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layer between the stream of frames and the network, for a connection that is not one plain socket: a sealed
//! socket, or several rails (each of them sealed, if the connection is sealed). Both copy the bytes that they take.

use super::set::Rails;
use crate::error::Result;
use crate::prov::tcp::secure::seal::{FILL, Window};
use crate::prov::tcp::secure::sealed::{SealedIn, SealedOut};
use crate::sys::iov::Iov;
use crate::sys::stream::Moved;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The rails, shared by the connection's sending and receiving end. Every user holds the endpoint's lock, so nobody
/// ever waits for this lock.
pub type SharedRails = Arc<Mutex<Rails>>;

/// The sending end.
pub enum WriteTransport {
    Sealed(Box<SealedOut>),
    Rails(SharedRails),
}

impl WriteTransport {
    /// True if all bytes that were taken have been sent.
    #[inline]
    pub fn is_out(&self) -> bool {
        match self {
            WriteTransport::Sealed(seal) => seal.is_out(),
            WriteTransport::Rails(rails) => rails.lock().is_out(),
        }
    }

    /// Sends the bytes that were taken; true: more can be taken. `backlog`: the number of bytes that wait in the layer above.
    #[inline]
    pub fn push(&mut self, fd: BorrowedFd<'_>, short: usize, backlog: impl FnOnce() -> u64) -> Result<bool> {
        match self {
            WriteTransport::Sealed(seal) => seal.push(fd, short),
            WriteTransport::Rails(rails) => {
                let mut rails = rails.lock();
                rails.backlog = backlog();
                rails.push(short)
            }
        }
    }

    /// Number of bytes that can be taken at once.
    #[inline]
    pub fn room(&self) -> u64 {
        match self {
            WriteTransport::Sealed(_) => FILL as u64,
            WriteTransport::Rails(rails) => rails.lock().room() as u64,
        }
    }

    /// Takes the first of `bytes` and returns their number. May be called only when there is room.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            WriteTransport::Sealed(seal) => seal.put(bytes),
            WriteTransport::Rails(rails) => Ok(rails.lock().put(bytes)),
        }
    }

    /// As `put`, from pieces of together at most `room` bytes, whose pages may have been unmapped.
    pub fn gather(&mut self, pieces: &[Iov]) -> Result<Moved> {
        match self {
            WriteTransport::Sealed(seal) => seal.gather(pieces),
            WriteTransport::Rails(rails) => rails.lock().gather(pieces),
        }
    }
}

/// The receiving end.
pub enum ReadTransport {
    Sealed(Box<SealedIn>),
    Rails(SharedRails),
}

impl ReadTransport {
    /// Reads more of the stream into the reader's buffer. The second value is true if another read may bring more.
    #[inline]
    pub fn read(&mut self, fd: BorrowedFd<'_>, buf: &mut Box<[u8]>, window: &mut Window, short: usize) -> Result<(Moved, bool)> {
        match self {
            ReadTransport::Sealed(seal) => {
                let moved = seal.read(fd, buf, window, short)?;
                Ok((moved, seal.may_have(buf)))
            }
            ReadTransport::Rails(rails) => Ok((rails.lock().read(buf, window, short)?, true)),
        }
    }

    /// Begins a turn, in which sockets may have become readable.
    #[inline]
    pub fn begin_turn(&mut self) {
        match self {
            ReadTransport::Sealed(seal) => seal.begin_turn(),
            ReadTransport::Rails(rails) => rails.lock().begin_turn(),
        }
    }

    /// True if received bytes wait in this layer. No socket announces such bytes.
    pub fn holds_more(&self, buf: &[u8]) -> bool {
        match self {
            ReadTransport::Sealed(seal) => seal.holds_record(buf),
            ReadTransport::Rails(rails) => rails.lock().holds_more(),
        }
    }
}
