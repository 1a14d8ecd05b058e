// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of operations that lanes carry out: RMA, atomics, block lists, and reads of offers.

use crate::error::Error;
use crate::prov::av::UNSPEC;
use crate::prov::flags;
use crate::prov::queue::{Completion, Taken};
use crate::rdm::peers::outstanding::OutstandingOp;
use crate::rdm::state::State;

impl State {
    /// Handles the results of the lanes' operations.
    #[inline]
    pub fn take_results(&mut self) {
        if self.lists != 0 {
            self.take_lists();
        }
        while !self.lanes.results().is_empty() {
            let mut batch = [Completion::default(); 32];
            let taken = self.lanes.results().take(batch.len(), |i, c| batch.iter_mut().skip(i).take(1).for_each(|slot| *slot = *c));
            match taken {
                Taken::Empty => return,
                Taken::Some(n) => batch.iter().take(n).for_each(|c| self.on_result(c, None)),
                Taken::ErrorFirst => {
                    if let Some((c, failure, _)) = self.lanes.results().take_error() {
                        self.on_result(&c, Some(failure.error));
                    }
                }
            }
        }
    }

    /// Completes the lists, and parts of lists, that the lanes have moved.
    #[cold]
    pub fn take_lists(&mut self) {
        for (number, why) in self.lanes.take_list_ends() {
            self.lists = self.lists.saturating_sub(1);
            self.rma_ended(number as u64, why);
        }
    }

    fn on_result(&mut self, c: &Completion, error: Option<Error>) {
        if c.flags & flags::REMOTE_WRITE != 0 {
            return self.on_remote_data(c);
        }
        let number = c.context as u64;
        match self.ops.get(number) {
            Some(OutstandingOp::Rma { .. }) => self.rma_ended(number, error),
            Some(OutstandingOp::Reading { .. }) => self.read_ended(number, error.map_or(Ok(()), Err)),
            _ => {}
        }
    }

    /// Ends an RMA operation, an atomic or a block list with its result. The peer's waiting operations are tried again,
    /// because a fence may have waited for this end.
    pub fn rma_ended(&mut self, number: u64, error: Option<Error>) {
        let Some(OutstandingOp::Rma { peer: id, completion, .. }) = self.ops.take(number) else { return };
        if let Some(peer) = self.peers.get_mut(id) {
            peer.in_flight = peer.in_flight.saturating_sub(1);
            if !peer.waiting.is_empty() {
                self.peers.mark_busy(id);
            }
        }
        self.reports.finish(&self.bind, &completion, error.map_or(Ok(()), Err));
    }

    /// Handles the entry of a peer's write with remote data.
    fn on_remote_data(&mut self, c: &Completion) {
        let from = self.lanes.peer_of(c.context).and_then(|id| self.peers.get(id));
        let source = from.map_or(UNSPEC, |p| p.source);
        self.reports.remote_data_arrived(&self.bind, Completion { context: 0, ..*c }, source);
    }
}
