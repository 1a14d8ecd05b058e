// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The traits of a lane. Connectionless endpoints (`src/rdm`) and connected endpoints with tags match messages themselves;
//! beneath them, a connected endpoint of a provider carries their packets, called parcels here, and their RMA.

use super::op::Iov;
use crate::error::{Error, Result};
use crate::sync::cursor::ShortMessage;

/// A connected endpoint as an ordered link of an endpoint that matches messages. RMA works as on any endpoint. Parcels take
/// the place of messages: they need no posted receive and give no completion. Both ends use the connection this way from the
/// first parcel on.
pub trait Lane {
    /// The most bytes of one parcel, its words included.
    fn max(&self) -> usize;

    /// Sends a parcel of words and of pieces of host memory, which are copied before the call returns, behind all RMA and
    /// parcels posted before. False: there is no room now, or the parcel would overtake something; try again after progress.
    fn put(&self, words: &[u64], bytes: &[Iov]) -> Result<bool>;

    /// As `put`, for one to three words and one piece, and only where a plain store or copy is enough. False: nothing was
    /// done, and the caller is to use `put`.
    fn put_short(&self, _words: &[u64], _from: Iov) -> bool {
        false
    }

    /// Makes progress once, and hands the parcels that have arrived to `each` in their order. True: there was other work as
    /// well.
    fn take(&self, force: bool, each: &mut dyn ParcelSink) -> bool;

    /// As `take`, until every parcel that has arrived by now was handed over.
    fn take_all(&self, each: &mut dyn ParcelSink) {
        self.take(true, each);
    }

    /// Ends the connection as if the peer had died, for this reason.
    fn lose(&self, why: Error);
}

/// Receives parcels. A method that returns false leaves its parcel, and all behind it, in the lane.
pub trait ParcelSink {
    fn take(&mut self, parcel: &dyn Parcel) -> bool;

    /// Receives a parcel that lies in one line of a shared-memory ring.
    fn take_short(&mut self, parcel: ShortMessage<'_>) -> bool;
}

/// A parcel that has arrived. The peer wrote it, so nothing in it may be trusted.
pub trait Parcel {
    fn words(&self) -> usize;

    /// Word `i`; 0 beyond the last word.
    fn word(&self, i: usize) -> u64;

    /// The number of bytes behind the words.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from byte `skip` on, until `to` is full or the parcel ends.
    fn copy(&self, skip: usize, to: Iov);

    /// Copies bytes from the first on, until `to` is full or the parcel ends.
    fn copy_all(&self, to: Iov) {
        self.copy(0, to);
    }

    /// A copy of the first `len` bytes.
    fn bytes(&self, len: usize) -> Box<[u8]> {
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: `bytes` outlives the call.
        self.copy(0, unsafe { Iov::of_mut(&mut bytes) });
        bytes
    }
}

impl Parcel for ShortMessage<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        ShortMessage::words(self)
    }

    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        ShortMessage::word(self, i)
    }

    #[inline(always)]
    fn len(&self) -> usize {
        ShortMessage::len(self)
    }

    #[inline(always)]
    fn copy_all(&self, to: Iov) {
        self.copy_to(to);
    }

    fn copy(&self, skip: usize, to: Iov) {
        self.copy_part(skip, to);
    }
}
