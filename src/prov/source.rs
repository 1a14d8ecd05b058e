// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A source of completions: it feeds a completion queue beside the queue's endpoints, as an RDMA device's completion queue
//! does. Optional for a provider.

use super::ops::{CqFormat, CqOps};
use std::any::Any;

/// A source of a completion queue.
pub trait CompletionSource: Any + Send + Sync {
    /// The table of operations for reading the queue in this format, and the data that its entry finds in
    /// [`super::ops::CqHead::of`].
    fn ops(&self, format: CqFormat) -> (&'static CqOps, *const ());

    /// Takes the completions that have come. If another thread is doing that, returns at once, unless `force` is set.
    fn poll(&self, force: bool);
}
