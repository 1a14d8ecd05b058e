// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection for accepted operations: an operation is started at once, held, or lost together with the connection.

use crate::prov::event::tell_end;
use crate::prov::fault::{FaultOp, Plan, Verdict};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::fault::AcceptedOp;
use crate::prov::tcp::state::{Phase, State};

impl State {
    /// Applies fault injection to an accepted operation. Returns the operation if it is to be started now. Without
    /// faults, that is every operation; so it is on a lane, because the layer above a lane injects its own faults.
    #[inline]
    pub fn apply_faults(&mut self, domain: &Domain, accepted: AcceptedOp) -> Option<AcceptedOp> {
        if self.faults.is_none() || self.bind.is_lane() { Some(accepted) } else { self.judge(domain, accepted) }
    }

    /// As `apply_faults`, for an endpoint with faults.
    #[cold]
    fn judge(&mut self, domain: &Domain, accepted: AcceptedOp) -> Option<AcceptedOp> {
        let connected = matches!(self.phase, Phase::Connected);
        let faults = self.faults.as_mut().filter(|_| connected || matches!(self.phase, Phase::Enabled | Phase::Connecting { .. }));
        // If the connection is over, a delay has no meaning any more.
        let Some(faults) = faults else { return Some(accepted) };
        let op = match &accepted {
            AcceptedOp::Rma { dir, .. } => FaultOp::from(*dir),
            AcceptedOp::Send(_) => FaultOp::Send,
            AcceptedOp::Recv(_) => FaultOp::Recv,
        };
        match faults.judge(op, connected) {
            Verdict::Go => return Some(accepted),
            Verdict::Hold(until) => {
                let owned = match accepted {
                    AcceptedOp::Rma { dir, remote, posted } => {
                        let end = posted.end;
                        posted.own().map(|posted| AcceptedOp::Rma { dir, remote, posted }).map_err(|e| (e, end))
                    }
                    AcceptedOp::Send(posted) => {
                        let end = posted.end;
                        posted.own().map(AcceptedOp::Send).map_err(|e| (e, end))
                    }
                    recv => Ok(recv),
                };
                match owned {
                    Ok(accepted) => faults.held.push_back((until, accepted)),
                    Err((e, end)) => self.fail(&end, e),
                }
            }
            Verdict::Lose => {
                tell_end(self.object, &self.peer_address(), &Plan::gone());
                // Operations complete in the order in which they were posted, so the earlier ones come first.
                self.end_everything(domain, &Plan::gone());
                match accepted {
                    AcceptedOp::Rma { posted, .. } | AcceptedOp::Send(posted) => self.fail(&posted.end, Plan::gone()),
                    AcceptedOp::Recv(recv) => self.abandon(&recv, Plan::gone()),
                }
                self.enter_down(Plan::gone());
            }
        }
        None
    }

    /// Starts held operations whose time has come.
    #[cold]
    pub fn release_held(&mut self, domain: &Domain, now: u64) {
        while let Some(faults) = &mut self.faults
            && faults.held.front().is_some_and(|(until, _)| *until <= now)
        {
            let Some((until, accepted)) = faults.held.pop_front() else { return };
            // A message may have to wait for room in the peer's window. All operations behind the message wait, too.
            if let Some(accepted) = self.start(domain, accepted) {
                if let Some(faults) = &mut self.faults {
                    faults.held.push_front((until, accepted));
                }
                return;
            }
        }
    }

    /// Starts an accepted operation. Returns the operation if it is a message for which the peer's window has no room.
    pub fn start(&mut self, domain: &Domain, accepted: AcceptedOp) -> Option<AcceptedOp> {
        match accepted {
            AcceptedOp::Rma { dir, remote, posted: p } => self.start_rma(domain, dir, p.pieces, &remote, &p.c, p.end, p.site),
            AcceptedOp::Send(p) if self.conn.as_ref().is_some_and(|c| !c.has_window()) => return Some(AcceptedOp::Send(p)),
            AcceptedOp::Send(p) => self.start_send(domain, p.pieces, &p.c, p.end, p.site),
            AcceptedOp::Recv(recv) => self.start_recv(domain, recv),
        }
        None
    }
}
