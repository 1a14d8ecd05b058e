// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two kinds of parcels of a lane, as the layer above sees them: queued parcels, and messages that still lie in the
//! ring.

use crate::prov::Parcel;
use crate::prov::op::Iov;
use crate::prov::shm::wire::layout::SegmentRef;
use crate::sync::consumer::Message;

/// A parcel that was taken out of the ring, to reach the messages behind it, and that waits for the layer above.
pub struct QueuedParcel {
    pub words: Box<[u64]>,
    pub bytes: Box<[u8]>,
}

impl Parcel for QueuedParcel {
    fn words(&self) -> usize {
        self.words.len()
    }

    fn word(&self, i: usize) -> u64 {
        self.words.get(i).copied().unwrap_or(0)
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy(&self, skip: usize, to: Iov) {
        to.put(self.bytes.get(skip..).unwrap_or_default());
    }
}

impl Parcel for Message<'_, SegmentRef> {
    fn words(&self) -> usize {
        self.header.words.into()
    }

    fn word(&self, i: usize) -> u64 {
        Message::word(self, i)
    }

    fn len(&self) -> usize {
        self.header.bytes.into()
    }

    fn copy(&self, skip: usize, to: Iov) {
        self.copy_out(skip, to.part(0, usize::from(self.header.bytes).saturating_sub(skip)));
    }
}
