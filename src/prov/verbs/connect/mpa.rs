// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a lane over iWARP begins: the side that has called sends first, as MPA wants it, and the other one sends nothing before it
//! has heard that. Soft-iWARP may leave what comes right after it accepts until more comes, so it is said again until the other
//! side is heard.

use crate::prov::verbs::state::conn::ConnectStep;
use crate::prov::verbs::state::lane::kind;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::wire::credit::Class;
use crate::sys::time::now_ns;

/// Until the first parcel is said again, each time twice as long; and how often.
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

    /// The first parcel has come.
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
        if let Err(e) = self.put_parcel(kind::CREDIT, Class::Credit, &[], &[]) {
            crate::log!(Debug, "{e}");
        }
    }
}
