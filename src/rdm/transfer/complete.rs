// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends operations and receives: changes the parts, and reports the end to the program.

use crate::error::Error;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{OutstandingOp, Recv};
use crate::rdm::peers::peer::{PendingKind, PendingOp, UNKNOWN};
use crate::rdm::state::State;
use crate::rdm::wire::parcel::Label;

impl State {
    /// Fails an operation that has not started.
    pub fn fail_pending(&mut self, waiting: PendingOp, why: Error) {
        if let PendingKind::Message { offered: Some((number, _)), .. } = waiting.kind
            && let Some(OutstandingOp::Offered { peer: id, exposed, .. }) = self.ops.take(number)
        {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.exposed = peer.exposed.saturating_sub(exposed.len());
            }
            self.exposed.give_back(exposed);
        }
        self.reports.fail(&self.bind, &waiting.completion, why);
    }

    /// Completes a receive whose first `len` bytes are in place. `lost` further bytes of the message did not fit.
    pub fn received(&mut self, recv: &Recv, len: usize, lost: usize, label: &Label, source: u64) {
        let last = self.matching.finish_part(recv);
        self.reports.received(&self.bind, recv, last, (len, lost), label, source);
        if let Some((recv, why)) = self.matching.end_if_last(recv) {
            self.fail_recv(recv, why, UNKNOWN);
        }
    }

    /// Fails a receive. A multi-receive buffer fails only when all messages that are arriving in it are in place.
    pub fn fail_recv(&mut self, recv: Recv, why: Error, source: u64) {
        if let Some((recv, why)) = self.matching.fail(recv, why) {
            self.complete_failed_recv(&recv, why, &Label::default(), source);
        }
    }

    /// Completes a receive with an error.
    #[cold]
    pub fn complete_failed_recv(&mut self, recv: &Recv, error: Error, label: &Label, source: u64) {
        let last = self.matching.finish_part(recv);
        self.reports.fail_recv(&self.bind, recv, last, error, label, source);
        if let Some((recv, why)) = self.matching.end_if_last(recv) {
            self.fail_recv(recv, why, UNKNOWN);
        }
    }

    /// Tries again to close busy regions. The revoked offers that have ended by now get their error entries.
    pub fn retry_closes(&mut self, domain: &Domain, now: u64) {
        if self.exposed.is_closing() {
            for (completion, why) in self.exposed.retry(domain, now) {
                self.reports.fail(&self.bind, &completion, why);
            }
        }
    }
}
