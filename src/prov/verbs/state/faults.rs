// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults on demand of a verbs endpoint: the plan, and receives that it keeps from the device.

use crate::prov::fault::Plan;
use crate::prov::verbs::queue::work::HeldReceive;
use std::collections::VecDeque;

/// Faults on demand of an endpoint.
pub struct Faults {
    pub plan: Box<Plan>,
    /// Receives that are not posted yet, and when they are.
    pub held: VecDeque<(u64, HeldReceive)>,
}
