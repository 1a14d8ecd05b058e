// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first parcels of a lane over iWARP. MPA requires the connecting side to send first; the accepting side sends
//! nothing before it has received the first parcel. Soft-iWARP may leave a parcel unread that arrives right after the
//! accept, until more data arrives. So the connecting side sends the first parcel again until it hears from the
//! accepting side.

use crate::prov::verbs::state::conn::ConnectStep;
use crate::prov::verbs::state::lane::kind;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::wire::credit::Class;
use crate::sys::time::now_ns;

/// The delay until the first parcel is sent again. The delay doubles each time.
const AGAIN_NS: u64 = 2_000_000;
/// Number of times, at most, that the first parcel is sent again.
const AGAIN: u32 = 8;

impl State {
    /// Both sides are connected according to the connection manager. The accepting side now waits for the first parcel.
    pub(in crate::prov::verbs) fn connected_by_iwarp(&mut self, data: Vec<u8>) {
        let accepts = matches!(&self.phase, Phase::Connecting(c) if c.step == ConnectStep::Establish);
        if accepts && !self.has_received() {
            return self.set_step(ConnectStep::First);
        }
        self.connected(data);
        self.send_first();
        if !accepts {
            self.link.repeat_first_at = now_ns() + AGAIN_NS;
        }
    }

    /// The first parcel has arrived, so the accepting side may send too.
    pub(in crate::prov::verbs) fn first_parcel_received(&mut self) {
        if matches!(&self.phase, Phase::Connecting(c) if c.step == ConnectStep::First) {
            self.connected(Vec::new());
            self.send_first();
        }
    }

    /// Sends the first parcel again if it is time and nothing has been received.
    pub(in crate::prov::verbs) fn repeat_first(&mut self) {
        if self.link.repeat_first_at == 0 || now_ns() < self.link.repeat_first_at {
            return;
        }
        self.link.repeat_first_at = 0;
        if !self.has_received() && self.link.first_repeats < AGAIN {
            self.link.first_repeats += 1;
            self.link.repeat_first_at = now_ns() + (AGAIN_NS << self.link.first_repeats);
            self.send_first();
        }
    }

    fn has_received(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.has_received)
    }

    fn send_first(&mut self) {
        if let Err(e) = self.send_parcel(kind::CREDIT, Class::Credit, &[], &[]) {
            crate::log!(Debug, "{e}");
        }
    }
}
