// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listeners of one endpoint, one per lane, where callers arrive; and how often the listeners are polled.

use crate::error::Result;
use crate::prov::{Listener, Request};
use crate::rdm::peers::listen_schedule::ListenSchedule;
use crate::sys::epoll::Poller;

/// The listener of one lane.
pub struct Acceptor {
    pub lane_index: usize,
    pub listener: Box<dyn Listener>,
}

#[derive(Default)]
pub struct Listeners {
    all: Vec<Acceptor>,
    schedule: ListenSchedule,
}

impl Listeners {
    pub fn open(&mut self, all: Vec<Acceptor>) {
        self.all = all;
    }

    pub fn close(&mut self) {
        self.all.clear();
    }

    /// Counts one poll of rare matters. True if the listeners are to be polled now.
    pub fn is_due(&mut self) -> bool {
        self.schedule.is_due()
    }

    /// The callers that have arrived, each with the index of the lane.
    pub fn poll(&mut self) -> Vec<(usize, Box<dyn Request>)> {
        let mut callers = Vec::new();
        for acceptor in &mut self.all {
            let (requests, trouble) = acceptor.listener.poll();
            trouble.iter().for_each(|e| crate::log!(Warn, "{e}"));
            callers.extend(requests.into_iter().map(|request| (acceptor.lane_index, request)));
        }
        callers
    }

    /// Sets the interval to the next poll of the listeners. `busy`: somebody called, or lanes are being connected.
    pub fn polled(&mut self, busy: bool) {
        self.schedule.polled(busy);
    }

    pub fn watch(&self, poller: &Poller) -> Result<()> {
        self.all.iter().try_for_each(|acceptor| acceptor.listener.watch(poller))
    }

    /// For each listener, a number that changes when the set of its descriptors to watch changes.
    pub fn watch_versions(&self) -> impl Iterator<Item = u64> {
        self.all.iter().map(|acceptor| acceptor.listener.watch_version())
    }
}
