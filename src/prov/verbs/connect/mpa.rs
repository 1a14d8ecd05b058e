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
    pub(in crate::prov::verbs) fn join_in_order(&mut self, data: Vec<u8>) {
        let accepts = matches!(&self.phase, Phase::Connecting(c) if c.step == ConnectStep::Establish);
        if accepts && !self.has_heard() {
            return self.step(ConnectStep::First);
        }
        self.joined(data);
        self.say_first();
        if !accepts {
            self.link.again_at = now_ns() + AGAIN_NS;
        }
    }

    /// The first parcel has come.
    pub(in crate::prov::verbs) fn heard_first(&mut self) {
        if matches!(&self.phase, Phase::Connecting(c) if c.step == ConnectStep::First) {
            self.joined(Vec::new());
            self.say_first();
        }
    }

    pub(in crate::prov::verbs) fn repeat_first(&mut self) {
        if self.link.again_at == 0 || now_ns() < self.link.again_at {
            return;
        }
        self.link.again_at = 0;
        if !self.has_heard() && self.link.said < AGAIN {
            self.link.said += 1;
            self.link.again_at = now_ns() + (AGAIN_NS << self.link.said);
            self.say_first();
        }
    }

    fn has_heard(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.heard)
    }

    fn say_first(&mut self) {
        if let Err(e) = self.put_parcel(kind::CREDIT, Class::Credit, &[], &[]) {
            crate::log!(Debug, "{e}");
        }
    }
}
