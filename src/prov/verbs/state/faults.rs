// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection into a verbs endpoint: the plan, and the receives that the plan delays. `ops/held_operations.rs`
//! applies the plan.

use crate::prov::fault::Plan;
use crate::prov::verbs::queue::work::HeldReceive;
use std::collections::VecDeque;

/// Fault injection of an endpoint.
pub struct Faults {
    pub plan: Box<Plan>,
    /// Delayed receives, each with the time at which it is posted.
    pub held: VecDeque<(u64, HeldReceive)>,
}
