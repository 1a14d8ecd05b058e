// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of an endpoint that its completion queues reach too: the state under a lock, and the functions that take
//! completions.

use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::service::{ServiceEvent, kind};
use crate::prov::verbs::state::State;
use crate::prov::verbs::sys::abi::ibv_wc;
use crate::sync::serial::Serial;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shared by an endpoint and its completion queues.
pub struct Shared {
    pub memory: Arc<Registered>,
    /// The endpoint has staged transfers or further rails, so every turn of progress polls the service queue and the
    /// rails' queues.
    pub staging: AtomicBool,
    /// A rail is being connected or the first rail is lost, so every turn of progress advances the rails.
    pub moving: AtomicBool,
    pub state: Serial<State>,
}

impl Shared {
    /// Handles one completion of the endpoint's queue pair.
    #[inline]
    pub fn complete(&self, wc: &ibv_wc, recv: bool, seq: u32) {
        let mut s = self.state.lock();
        if recv {
            s.rx_completed(wc, seq)
        } else {
            s.tx_completed(wc, seq)
        }
        s.update_expected();
        if s.must_wait() {
            s.run_queue();
        }
    }

    /// Handles one completion of the service queue pair.
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
