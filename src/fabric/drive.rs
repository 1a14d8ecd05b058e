// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What queues, counters and waits hold of an endpoint: enough to drive it, and nothing of what it is bound to.

use crate::prov;
use crate::prov::general::Posting;
use std::any::Any;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A share of an endpoint, seen as what it begins with.
#[derive(Clone)]
pub(crate) struct EpRef {
    posting: NonNull<Posting>,
    /// Keeps it there.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: it stands for an `Arc` of something that is `Send` and `Sync`, and gives a shared reference into it.
unsafe impl Send for EpRef {}
// SAFETY: as for `Send`.
unsafe impl Sync for EpRef {}

impl EpRef {
    pub fn new<E: Any + Send + Sync>(owner: &Arc<E>, posting: impl FnOnce(&E) -> &Posting) -> EpRef {
        EpRef { posting: NonNull::from(posting(owner)), _owner: owner.clone() }
    }

    /// Where it lies, which no other does while this is there.
    pub fn place(&self) -> usize {
        self.posting.as_ptr() as usize
    }

    /// The provider's endpoint.
    #[inline(always)]
    pub fn prov(&self) -> &dyn prov::Endpoint {
        Posting::prov(self)
    }
}

impl Deref for EpRef {
    type Target = Posting;
    #[inline(always)]
    fn deref(&self) -> &Posting {
        // SAFETY: it lies in what `_owner` shares, which neither moves nor ends before this does.
        unsafe { self.posting.as_ref() }
    }
}

impl PartialEq for EpRef {
    fn eq(&self, other: &EpRef) -> bool {
        self.posting == other.posting
    }
}
