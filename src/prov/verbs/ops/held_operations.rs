// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection into operations. With fault injection, all operations of an endpoint go through the staging queue
//! (`staged_transfer.rs`), which can delay them. Receives are delayed in a queue of their own.

use crate::error::{Error, Result};
use crate::prov::fault::{FaultOp, Plan, Verdict};
use crate::prov::op::IOV_LIMIT;
use crate::prov::verbs::queue::work::{HeldReceive, RxOp};
use crate::prov::verbs::state::staging::WaitingOp;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::abi::ibv_sge;
use crate::sys::time::now_ns;

impl State {
    /// The verdict of fault injection on an accepted operation. For a lane, the layer above injects the faults.
    pub fn apply_fault(&mut self, op: FaultOp) -> Verdict {
        match (&mut self.faults, &self.phase) {
            _ if self.bind.is_lane() => Verdict::Go,
            (Some(f), Phase::Connected) => f.plan.post(op),
            (Some(f), Phase::Enabled | Phase::Connecting(_)) => f.plan.early(op),
            _ => Verdict::Go,
        }
    }

    /// Ends the connection as if the peer had died.
    pub fn simulate_peer_loss(&mut self) {
        self.begin_teardown(Plan::gone(), false);
        self.finish_if_drained();
    }

    /// The time at which fault injection lets something start; 0: nothing waits for such a time.
    pub fn held_until(&self) -> u64 {
        let line = self.staging.jobs.front().map_or(0, WaitingOp::held_until);
        let receives = self.faults.as_ref().and_then(|f| f.held.front()).map_or(0, |(until, _)| *until);
        if line == 0 || receives == 0 { line.max(receives) } else { line.min(receives) }
    }

    /// Posts a receive under fault injection.
    #[cold]
    pub fn recv_faulty(&mut self, mut pieces: [ibv_sge; IOV_LIMIT], count: usize, op: RxOp) -> Result<()> {
        if self.rx.len() as usize + self.faults.as_ref().map_or(0, |f| f.held.len()) >= self.rx.limit() as usize {
            return Err(Error::AGAIN);
        }
        match (self.apply_fault(FaultOp::Recv), &mut self.faults) {
            (Verdict::Hold(until), Some(faults)) => {
                let until = if op.deadline == 0 { until } else { until.min(op.deadline) };
                faults.held.push_back((until, HeldReceive { pieces, count, op }));
                Ok(())
            }
            (Verdict::Lose, _) => {
                self.post_receive(&mut pieces, count, op)?;
                self.simulate_peer_loss();
                Ok(())
            }
            _ => self.post_receive(&mut pieces, count, op),
        }
    }

    /// Starts the operations and receives that were delayed long enough.
    #[cold]
    pub fn release_held(&mut self) {
        let now = now_ns();
        while let Some(faults) = &mut self.faults
            && matches!(faults.held.front(), Some((until, _)) if *until <= now)
            && let Some((_, HeldReceive { mut pieces, count, op })) = faults.held.pop_front()
        {
            let named = RxOp { context: op.context, buf: op.buf, ..RxOp::default() };
            if let Err(error) = self.post_receive(&mut pieces, count, op) {
                self.fail_receive(&named, error);
            }
        }
        if self.must_wait() {
            self.run_queue();
        }
    }

    /// Fails the delayed receives, because the connection has ended.
    pub fn flush_held(&mut self) {
        for (_, receive) in self.faults.as_mut().map(|f| std::mem::take(&mut f.held)).unwrap_or_default() {
            let error = self.flushed(receive.op.deadline);
            self.fail_receive(&receive.op, error);
        }
    }
}
