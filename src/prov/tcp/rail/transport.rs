// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands between the stream of frames and the network where that is more than one bare socket: a seal, or several
//! rails, which have seals of their own. Both copy what they take.

use super::set::Rails;
use crate::error::Result;
use crate::prov::tcp::secure::seal::{FILL, Window};
use crate::prov::tcp::secure::sealed::{SealedIn, SealedOut};
use crate::sys::iov::Iov;
use crate::sys::stream::Moved;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Both ends of a connection's rails; the lock is never waited for, since the endpoint's is held around it.
pub type SharedRails = Arc<Mutex<Rails>>;

pub enum WriteTransport {
    Sealed(Box<SealedOut>),
    Rails(SharedRails),
}

impl WriteTransport {
    #[inline]
    pub fn is_out(&self) -> bool {
        match self {
            WriteTransport::Sealed(seal) => seal.is_out(),
            WriteTransport::Rails(rails) => rails.lock().is_out(),
        }
    }

    /// Sends what it has; true: there is room for more. `behind`: bytes that wait for that.
    #[inline]
    pub fn push(&mut self, fd: BorrowedFd<'_>, short: usize, behind: impl FnOnce() -> u64) -> Result<bool> {
        match self {
            WriteTransport::Sealed(seal) => seal.push(fd, short),
            WriteTransport::Rails(rails) => {
                let mut rails = rails.lock();
                rails.behind = behind();
                rails.push(short)
            }
        }
    }

    /// Bytes that it takes at once.
    #[inline]
    pub fn room(&self) -> u64 {
        match self {
            WriteTransport::Sealed(_) => FILL as u64,
            WriteTransport::Rails(rails) => rails.lock().room() as u64,
        }
    }

    /// Takes the first of these bytes, once there is room; gives how many.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            WriteTransport::Sealed(seal) => seal.put(bytes),
            WriteTransport::Rails(rails) => Ok(rails.lock().put(bytes)),
        }
    }

    /// The same of pieces, as many bytes as there is room for, whose pages may be gone.
    pub fn gather(&mut self, pieces: &[Iov]) -> Result<Moved> {
        match self {
            WriteTransport::Sealed(seal) => seal.gather(pieces),
            WriteTransport::Rails(rails) => rails.lock().gather(pieces),
        }
    }
}

pub enum ReadTransport {
    Sealed(Box<SealedIn>),
    Rails(SharedRails),
}

impl ReadTransport {
    /// Brings more of the stream into its reader's buffer; whether there may be more yet.
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

    /// A turn begins in which sockets may have been announced.
    #[inline]
    pub fn begin_turn(&mut self) {
        match self {
            ReadTransport::Sealed(seal) => seal.begin_turn(),
            ReadTransport::Rails(rails) => rails.lock().begin_turn(),
        }
    }

    /// Whether something is here that no socket announces.
    pub fn holds_more(&self, buf: &[u8]) -> bool {
        match self {
            ReadTransport::Sealed(seal) => seal.holds_record(buf),
            ReadTransport::Rails(rails) => rails.lock().holds_more(),
        }
    }
}
