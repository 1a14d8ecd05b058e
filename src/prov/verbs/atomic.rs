// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics by the card, on regions that were registered for them. No CPU carries any out there: what a card does is atomic with
//! its own operations, and with a CPU's only if it says so (`ibv_atomic_cap`).

use super::abi::ibv_wr_opcode::{self, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
use super::bounce;
use super::device::{Atomics, Context};
use super::memory::Registered;
use super::post::{FENCE, check_completion, key_of};
use super::state::State;
use super::work::{Ready, SIGNALED, Target, TxOp};
use crate::error::{Error, Result, errno};
use crate::mr::Paths;
use crate::prov::atomic::{Atomic, AtomicOp, Datatype, Op};
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::op::Common;
use std::sync::Arc;

/// Whether a device carries atomics out at all.
pub fn check(context: &Context, argument: &str) -> Result<()> {
    match context.atomics() {
        Atomics::None => {
            let words = format!("{argument}: {} carries out no atomic operations (atomic_cap is IBV_ATOMIC_NONE)", context.name);
            Err(Error::new(errno::EOPNOTSUPP, words))
        }
        _ => Ok(()),
    }
}

/// The work request that an operation on one element is.
pub fn opcode(context: &Context, what: Atomic) -> Result<ibv_wr_opcode::Type> {
    check(context, "ep")?;
    match (what.op, what.datatype) {
        // Reading adds nothing.
        (Op::Sum | Op::Read, Datatype::I64 | Datatype::U64) => Ok(IBV_WR_ATOMIC_FETCH_AND_ADD),
        (Op::Cswap, Datatype::I64 | Datatype::U64) => Ok(IBV_WR_ATOMIC_CMP_AND_SWP),
        (op, datatype) => {
            let words = format!("op: atomics of a card are SUM, ATOMIC_READ and CSWAP of 64-bit integers, no {op:?} of {datatype:?}");
            Err(Error::new(errno::EOPNOTSUPP, words))
        }
    }
}

impl State {
    pub fn card_atomic(&mut self, memory: &Arc<Registered>, op: &AtomicOp, c: &Common) -> Result<()> {
        let what = op.what;
        let opcode = opcode(&memory.pd.context, what)?;
        match what.count {
            1 => {}
            0 => return Err(Error::fixed(errno::EOPNOTSUPP, "count: 0; a card looks at no key without an element")),
            n => return Err(Error::new(errno::EMSGSIZE, format!("count: {n}, a card changes 1 element at once"))),
        }
        check_completion(c)?;
        let target = Target { addr: op.addr, key: key_of(op.key)? };
        self.check_connected()?;
        if self.tx.is_full() {
            return Err(Error::AGAIN);
        }
        let (kind, bytes) = (op.kind(), what.bytes());
        let place = [if what.fetches() { op.with.old } else { op.with.operand }];
        if let Some(why) = self.ruled_out(Paths::NIC) {
            return self.refuse_rma(kind, bytes, &place, c, why);
        }
        // The card always fetches: into memory of ours, so that the caller's needs no registration.
        let fetched = bounce::take(memory, if what.fetches() { &place } else { &[] }, &[], bytes, false)?;
        let wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c.timeout_ns);
        let fence = c.flags & flags::FENCE != 0 && self.needs_fence(false);
        let mut ready = Ready::empty(opcode, None);
        ready.send_flags = SIGNALED | if fence { FENCE } else { 0 };
        (ready.pieces[0], ready.count, ready.target) = (fetched.piece(), 1, target);
        let mut words = op.operands().chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes)).collect::<Vec<_>>();
        // Compared first, and swapped in behind that.
        words.reverse();
        ready.operands.iter_mut().zip(words).for_each(|(place, word)| *place = word);
        ready.op = TxOp { end: Ending::of(c, kind, bytes, op.buf(), wanted, deadline), bounce: Some(fetched), ..TxOp::default() };
        if self.must_wait() || self.faults.is_some() {
            return self.wait_in_line(ready, false);
        }
        // What was promised to go out with the next one goes before it.
        self.ring_promised();
        self.post_ready(ready);
        Ok(())
    }
}
