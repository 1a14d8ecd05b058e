// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics from std, or from loom when a model runs, so that the models check the code that ships.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
