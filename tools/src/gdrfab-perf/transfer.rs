// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The method of RdmaTransport's benchmark: for each size one write at a time until it is delivered, then one read at a time;
//! and the cost of registering and deregistering 8 KiB.

use crate::client::{batch, warm};
use crate::measure::{Until, latency};
use crate::memory::{Kind, Memory};
use crate::report::Latency;
use crate::stats::{Clock, Histogram};
use gdrfab::error::Result;
use gdrfab::fabric::Domain;
use gdrfab::mr::PathPolicy;
use std::sync::Arc;

pub const BYTES: usize = 8 << 10;
const ROUNDS: u64 = 2000;
const SPAN_S: f64 = 0.5;

/// The microseconds to register and deregister memory of the kind under test, beside the regions that are open.
pub fn registration(domain: &Arc<Domain>, kind: Kind, policy: PathPolicy, clock: Clock) -> Result<f64> {
    let mut memory = Memory::new(kind, domain, BYTES)?;
    let once = |m: &mut Memory| m.register(domain, BYTES, policy)?.close();
    let span = clock.ticks_of_us(SPAN_S * 1e6);
    let before = warm(&mut memory, Until::within(ROUNDS / 10, span), once)?;
    let batch = batch(clock, before);
    let mut samples = Histogram::new();
    latency(&mut memory, Until::within(ROUNDS, span), batch, &mut samples, once, &mut crate::measure::undisturbed())?;
    memory.release()?;
    Ok(Latency::of(&samples, clock, batch).typical)
}
