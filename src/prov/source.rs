// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What feeds a completion queue beside its endpoints: optional for a provider.

use super::ops::{CqFormat, CqOps};
use std::any::Any;

/// What feeds a completion queue beside its endpoints.
pub trait Source: Any + Send + Sync {
    /// How the queue is read in this format, and what the entry finds in [`super::ops::CqHead::of`].
    fn ops(&self, format: CqFormat) -> (&'static CqOps, *const ());

    /// Takes what is there. If another thread does, that is enough, unless `force`.
    fn poll(&self, force: bool);
}
