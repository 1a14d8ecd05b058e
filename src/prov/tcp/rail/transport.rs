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
pub type Shared = Arc<Mutex<Rails>>;

pub enum Outlet {
    Sealed(Box<SealedOut>),
    Rails(Shared),
}

impl Outlet {
    #[inline]
    pub fn is_out(&self) -> bool {
        match self {
            Outlet::Sealed(seal) => seal.is_out(),
            Outlet::Rails(rails) => rails.lock().is_out(),
        }
    }

    /// Sends what it has; true: there is room for more. `behind`: bytes that wait for that.
    #[inline]
    pub fn push(&mut self, fd: BorrowedFd<'_>, short: usize, behind: impl FnOnce() -> u64) -> Result<bool> {
        match self {
            Outlet::Sealed(seal) => seal.push(fd, short),
            Outlet::Rails(rails) => {
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
            Outlet::Sealed(_) => FILL as u64,
            Outlet::Rails(rails) => rails.lock().room() as u64,
        }
    }

    /// Takes the first of these bytes, once there is room; gives how many.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Outlet::Sealed(seal) => seal.put(bytes),
            Outlet::Rails(rails) => Ok(rails.lock().put(bytes)),
        }
    }

    /// The same of pieces, as many bytes as there is room for, whose pages may be gone.
    pub fn gather(&mut self, pieces: &[Iov]) -> Result<Moved> {
        match self {
            Outlet::Sealed(seal) => seal.gather(pieces),
            Outlet::Rails(rails) => rails.lock().gather(pieces),
        }
    }
}

pub enum Inlet {
    Sealed(Box<SealedIn>),
    Rails(Shared),
}

impl Inlet {
    /// Brings more of the stream into its reader's buffer; whether there may be more yet.
    #[inline]
    pub fn read(&mut self, fd: BorrowedFd<'_>, buf: &mut Box<[u8]>, window: &mut Window, short: usize) -> Result<(Moved, bool)> {
        match self {
            Inlet::Sealed(seal) => {
                let moved = seal.read(fd, buf, window, short)?;
                Ok((moved, seal.may_have(buf)))
            }
            Inlet::Rails(rails) => Ok((rails.lock().read(buf, window, short)?, true)),
        }
    }

    /// A turn begins in which sockets may have been announced.
    #[inline]
    pub fn begin_turn(&mut self) {
        match self {
            Inlet::Sealed(seal) => seal.begin_turn(),
            Inlet::Rails(rails) => rails.lock().begin_turn(),
        }
    }

    /// Whether something is here that no socket announces.
    pub fn holds_more(&self, buf: &[u8]) -> bool {
        match self {
            Inlet::Sealed(seal) => seal.holds_record(buf),
            Inlet::Rails(rails) => rails.lock().holds_more(),
        }
    }
}
