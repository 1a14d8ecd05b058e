// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that were accepted, on their way through the faults on demand: started, held back, or lost with the connection.

use crate::prov::event::tell_end;
use crate::prov::fault::{Op, Plan, Verdict};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::fault::AcceptedOp;
use crate::prov::tcp::state::{Phase, State};

impl State {
    /// With faults: starts, holds or loses an operation that was accepted. Gives it back if there are none, and if this is a lane:
    /// who uses it looks after that.
    #[inline]
    pub fn apply_faults(&mut self, domain: &Domain, job: AcceptedOp) -> Option<AcceptedOp> {
        if self.faults.is_none() || self.bind.is_lane() { Some(job) } else { self.judge(domain, job) }
    }

    #[cold]
    fn judge(&mut self, domain: &Domain, job: AcceptedOp) -> Option<AcceptedOp> {
        let connected = matches!(self.phase, Phase::Connected);
        let faults = self.faults.as_mut().filter(|_| connected || matches!(self.phase, Phase::Enabled | Phase::Connecting { .. }));
        // What is over is not late any more.
        let Some(faults) = faults else { return Some(job) };
        let op = match &job {
            AcceptedOp::Rma { dir, .. } => Op::from(*dir),
            AcceptedOp::Send(_) => Op::Send,
            AcceptedOp::Recv(_) => Op::Recv,
        };
        match faults.judge(op, connected) {
            Verdict::Go => return Some(job),
            Verdict::Hold(until) => {
                let owned = match job {
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
                    Ok(job) => faults.held.push_back((until, job)),
                    Err((e, end)) => self.fail(&end, e),
                }
            }
            Verdict::Lose => {
                tell_end(self.object, &self.peer_address(), &Plan::gone());
                // In the order of posting: those before it end first.
                self.end_everything(domain, &Plan::gone());
                match job {
                    AcceptedOp::Rma { posted, .. } | AcceptedOp::Send(posted) => self.fail(&posted.end, Plan::gone()),
                    AcceptedOp::Recv(recv) => self.abandon(&recv, Plan::gone()),
                }
                self.over(Plan::gone());
            }
        }
        None
    }

    /// Starts what was held long enough.
    #[cold]
    pub fn release_held(&mut self, domain: &Domain, now: u64) {
        while let Some(faults) = &mut self.faults
            && faults.held.front().is_some_and(|(until, _)| *until <= now)
        {
            let Some((until, job)) = faults.held.pop_front() else { return };
            // A message may have to wait for room in the window, and what is behind it with it.
            if let Some(job) = self.start(domain, job) {
                if let Some(faults) = &mut self.faults {
                    faults.held.push_front((until, job));
                }
                return;
            }
        }
    }

    /// Starts an operation that was accepted; a message for which the receiver has no room any more is given back.
    pub fn start(&mut self, domain: &Domain, job: AcceptedOp) -> Option<AcceptedOp> {
        match job {
            AcceptedOp::Rma { dir, remote, posted: p } => self.start_rma(domain, dir, p.pieces, &remote, &p.c, p.end, p.site),
            AcceptedOp::Send(p) if self.conn.as_ref().is_some_and(|c| !c.has_window()) => return Some(AcceptedOp::Send(p)),
            AcceptedOp::Send(p) => self.start_send(domain, p.pieces, &p.c, p.end, p.site),
            AcceptedOp::Recv(recv) => self.start_recv(domain, recv),
        }
        None
    }
}
