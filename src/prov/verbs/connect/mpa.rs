// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first parcels of a lane over iWARP. MPA demands that the side which has called sends first; the other side sends nothing before it
//! has received that. Soft-iWARP may leave a parcel that follows the accept unread until more arrives, so the first parcel is sent again
//! until the other side is heard.

use crate::prov::verbs::state::conn::ConnectStep;
use crate::prov::verbs::state::lane::kind;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::wire::credit::Class;
use crate::sys::time::now_ns;

/// The delay until the first parcel is sent again, which doubles each time; and how often it is sent.
const AGAIN_NS: u64 = 2_000_000;
const AGAIN: u32 = 8;

impl State {
    /// The connection manager has connected both sides.
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

    /// The first parcel has arrived.
    pub(in crate::prov::verbs) fn first_parcel_received(&mut self) {
        if matches!(&self.phase, Phase::Connecting(c) if c.step == ConnectStep::First) {
            self.connected(Vec::new());
            self.send_first();
        }
    }

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
