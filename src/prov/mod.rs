// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transports, and what they share: the shape of an operation, queues that results go to, and the
//! list of what is built in.

pub mod event;
pub mod flags;
pub mod op;
pub mod queue;
pub mod shm;

pub use event::{Event, EventKind, EventQueue};
pub use queue::{Completion, Counter, Queue};

/// What a provider offers on this host, or why it does not.
pub struct Offer {
    pub name: &'static str,
    pub usable: crate::error::Result<()>,
    /// One line per fact: what works here and what does not, and why.
    pub facts: Vec<(String, Result<String, String>)>,
}

/// Every provider of this build, best first.
pub fn offers() -> Vec<Offer> {
    vec![shm::offer()]
}
