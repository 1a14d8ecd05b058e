// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An endpoint as its completion queues have it: its state under a lock, and what a completion of the device comes to.

use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::service::{ServiceEvent, kind};
use crate::prov::verbs::state::State;
use crate::prov::verbs::sys::abi::ibv_wc;
use crate::sync::serial::Serial;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What an endpoint and its completion queues share.
pub struct Shared {
    pub memory: Arc<Registered>,
    /// There are staged transfers or further rails: every turn of progress looks for the library's own messages, and for parts.
    pub staging: AtomicBool,
    /// So does every turn move rails on: some are being connected.
    pub moving: AtomicBool,
    pub state: Serial<State>,
}

impl Shared {
    /// One completion of the device.
    #[inline]
    pub fn complete(&self, wc: &ibv_wc, recv: bool, seq: u32) {
        let mut s = self.state.lock();
        if recv {
            s.arrived(wc, seq)
        } else {
            s.tx_completed(wc, seq)
        }
        s.follow();
        if s.must_wait() {
            s.run_queue();
        }
    }

    /// One completion of the service queue pair.
    pub fn complete_service(&self, wc: &ibv_wc, recv: bool, seq: u32) {
        let mut s = self.state.lock();
        let Some(service) = &mut s.service else { return };
        match service.complete(wc, recv, seq) {
            ServiceEvent::Nothing => {}
            ServiceEvent::Message(words) => {
                if matches!(words[0] as u8, kind::OPEN | kind::OPENED | kind::RAIL_OFFER) {
                    self.staging.store(true, Ordering::Relaxed);
                }
                if words[0] as u8 == kind::RAIL_OFFER {
                    self.moving.store(true, Ordering::Relaxed);
                }
                match s.on_message(&self.memory, &words) {
                    Err(e) if s.connecting_deadline().is_some() => s.fail_attempt(e, Vec::new()),
                    Err(e) => s.begin_teardown(e, false),
                    Ok(()) => {}
                }
            }
            ServiceEvent::Sent(sent) => s.on_sent(sent),
            ServiceEvent::Read(slot) => s.free_slot(slot),
            ServiceEvent::Failed(status) => s.on_service_failed(status),
        }
        s.finish_if_drained();
    }
}
