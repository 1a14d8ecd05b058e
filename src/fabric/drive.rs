// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What queues, counters and waits hold of an endpoint: enough to drive it, and nothing of what it is bound to.

use crate::prov;
use crate::prov::general::EndpointCore;
use std::any::Any;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A share of an endpoint, seen as what it begins with.
#[derive(Clone)]
pub(crate) struct EpRef {
    core: NonNull<EndpointCore>,
    /// Keeps it there.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: it stands for an `Arc` of something that is `Send` and `Sync`, and gives a shared reference into it.
unsafe impl Send for EpRef {}
// SAFETY: as for `Send`.
unsafe impl Sync for EpRef {}

impl EpRef {
    pub fn new<E: Any + Send + Sync>(owner: &Arc<E>, core: impl FnOnce(&E) -> &EndpointCore) -> EpRef {
        EpRef { core: NonNull::from(core(owner)), _owner: owner.clone() }
    }

    /// Where it lies, which no other does while this is there.
    pub fn address(&self) -> usize {
        self.core.as_ptr() as usize
    }

    /// The provider's endpoint.
    #[inline(always)]
    pub fn prov(&self) -> &dyn prov::Endpoint {
        EndpointCore::prov(self)
    }
}

impl Deref for EpRef {
    type Target = EndpointCore;
    #[inline(always)]
    fn deref(&self) -> &EndpointCore {
        // SAFETY: it lies in what `_owner` shares, which neither moves nor ends before this does.
        unsafe { self.core.as_ref() }
    }
}

impl PartialEq for EpRef {
    fn eq(&self, other: &EpRef) -> bool {
        self.core == other.core
    }
}
