// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A counted reference to an endpoint, as queues, counters and waits hold it: enough to make progress on the endpoint,
//! without its bindings.

use crate::prov;
use crate::prov::general::EndpointCore;
use std::any::Any;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// Keeps an endpoint alive, and points to the `EndpointCore` in it.
#[derive(Clone)]
pub(crate) struct EpRef {
    core: NonNull<EndpointCore>,
    /// The endpoint that contains `core`.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: it is an `Arc` of a type that is `Send` and `Sync`, with a shared reference into it.
unsafe impl Send for EpRef {}
// SAFETY: it is an `Arc` of a type that is `Send` and `Sync`, with a shared reference into it.
unsafe impl Sync for EpRef {}

impl EpRef {
    pub fn new<E: Any + Send + Sync>(owner: &Arc<E>, core: impl FnOnce(&E) -> &EndpointCore) -> EpRef {
        EpRef { core: NonNull::from(core(owner)), _owner: owner.clone() }
    }

    /// The address of the core: unique while this reference exists.
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
        // SAFETY: the core is part of the endpoint that `_owner` shares, which neither moves nor is freed before this
        // reference.
        unsafe { self.core.as_ref() }
    }
}

impl PartialEq for EpRef {
    fn eq(&self, other: &EpRef) -> bool {
        self.core == other.core
    }
}
