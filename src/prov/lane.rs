// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What endpoints that match messages ask of a connected one beneath them: a lane, and the parcels that it brings.

use super::op::Iov;
use crate::error::{Error, Result};
use crate::sync::cursor::Brief;

/// A connected endpoint as an ordered link of one that matches messages. It takes RMA as ever, and parcels instead of messages: they
/// need no receive and give no entry. Both ends use it so from the first parcel on.
pub trait Lane {
    /// Bytes that one parcel may have, words included.
    fn max(&self) -> usize;

    /// Sends a parcel of words and pieces of host memory, copied at once, behind all RMA and parcels posted before. False: there
    /// is no room now, or it would overtake something; progress brings it.
    fn put(&self, words: &[u64], bytes: &[Iov]) -> Result<bool>;

    /// As `put` for one to three words and one piece, where that takes nothing but a store or a copy. False: nothing was done, and
    /// `put` is to be asked.
    fn put_brief(&self, _words: &[u64], _from: Iov) -> bool {
        false
    }

    /// A turn of progress. Parcels that came go to `each` in their order. True: there was something else to do, too.
    fn take(&self, force: bool, each: &mut dyn Taker) -> bool;

    /// As `take`, of all parcels that have come by now.
    fn take_all(&self, each: &mut dyn Taker) {
        self.take(true, each);
    }

    /// Ends the connection as if the peer had died.
    fn lose(&self, why: Error);
}

/// Who takes parcels. False: this one stays, and so do those behind it.
pub trait Taker {
    fn take(&mut self, parcel: &dyn Parcel) -> bool;

    /// One that lies in a line of a ring.
    fn take_brief(&mut self, parcel: Brief<'_>) -> bool;
}

/// What a lane has brought: the peer's, and so not to be trusted.
pub trait Parcel {
    fn words(&self) -> usize;

    /// 0 beyond the last one.
    fn word(&self, i: usize) -> u64;

    /// Bytes behind the words.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from byte `skip` on, as many as `to` and the parcel have.
    fn copy(&self, skip: usize, to: Iov);

    /// Copies the bytes from the first on, as many as `to` and the parcel have.
    fn copy_all(&self, to: Iov) {
        self.copy(0, to);
    }

    /// A copy of the first `len` bytes.
    fn bytes(&self, len: usize) -> Box<[u8]> {
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: they outlive the call.
        self.copy(0, unsafe { Iov::of_mut(&mut bytes) });
        bytes
    }
}

impl Parcel for Brief<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        Brief::words(self)
    }

    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        Brief::word(self, i)
    }

    #[inline(always)]
    fn len(&self) -> usize {
        Brief::len(self)
    }

    #[inline(always)]
    fn copy_all(&self, to: Iov) {
        self.copy_to(to);
    }

    fn copy(&self, skip: usize, to: Iov) {
        self.copy_part(skip, to);
    }
}
