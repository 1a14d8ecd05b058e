// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics executed by the peer's card, on regions that were registered for such atomics. The peer's CPU takes no part.
//! A card's atomics are atomic with the other operations of the card, and with those of a CPU only if the device says
//! so (`ibv_atomic_cap`). Over a lane, the peer is first asked for the meaning of the key, as for RMA (`lane/rma.rs`).

use super::post::{FENCE, check_completion, key_of};
use crate::error::{Error, Result, errno};
use crate::mr::Paths;
use crate::prov::atomic::{Atomic, AtomicOp, Op, check_card};
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::op::Common;
use crate::prov::verbs::device::context::{Atomics, Context};
use crate::prov::verbs::memory::bounce::{self, Bounce};
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::work::{NicAtomic, RemoteAddr, SIGNALED, TxOp, UnpostedRequest};
use crate::prov::verbs::state::State;
use crate::prov::verbs::sys::abi::ibv_wr_opcode::{IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
use std::sync::Arc;

/// Checks that a device executes atomics at all.
pub fn check(context: &Context, argument: &str) -> Result<()> {
    match context.atomics() {
        Atomics::None => {
            let words = format!("{argument}: {} has no atomic operations (its atomic_cap is IBV_ATOMIC_NONE)", context.name);
            Err(Error::new(errno::EOPNOTSUPP, words))
        }
        _ => Ok(()),
    }
}

/// Checks that a device executes this atomic operation.
pub fn check_op(context: &Context, what: Atomic) -> Result<()> {
    check(context, "ep")?;
    check_card(what)
}

/// The opcode and operands for an operation that `check_op` has accepted.
pub fn on_card(op: &AtomicOp) -> NicAtomic {
    let mut operands = [0; 2];
    // The operands are taken from the end: `operands[0]` is the last one, which is compared or added, and `operands[1]`
    // is the one before, which is swapped in. A read adds 0.
    for (place, word) in operands.iter_mut().zip(op.operands().rchunks_exact(8)) {
        *place = word.try_into().map_or(0, u64::from_ne_bytes);
    }
    let opcode = if op.what.op == Op::Cswap { IBV_WR_ATOMIC_CMP_AND_SWP } else { IBV_WR_ATOMIC_FETCH_AND_ADD };
    NicAtomic { opcode, operands }
}

/// A buffer of the library for the value that the card always fetches. With this buffer the caller's memory needs no
/// registration.
pub fn fetched(memory: &Arc<Registered>, op: &AtomicOp) -> Result<Box<Bounce>> {
    let old = [op.with.old];
    bounce::take(memory, if op.what.fetches() { &old } else { &[] }, &[], op.what.bytes(), false)
}

impl State {
    pub fn card_atomic(&mut self, memory: &Arc<Registered>, op: &AtomicOp, c: &Common) -> Result<()> {
        let what = op.what;
        check_op(&memory.pd.context, what)?;
        check_completion(c)?;
        let target = RemoteAddr { addr: op.addr, key: key_of(op.key)? };
        self.check_connected()?;
        if self.tx.is_full() {
            return Err(Error::AGAIN);
        }
        let (kind, bytes) = (op.kind(), what.bytes());
        let place = [if what.fetches() { op.with.old } else { op.with.operand }];
        if let Some(why) = self.ruled_out(Paths::NIC) {
            return self.refuse_rma(kind, bytes, &place, c, why);
        }
        let (NicAtomic { opcode, operands }, fetched) = (on_card(op), fetched(memory, op)?);
        let wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c.timeout_ns);
        let fence = c.flags & flags::FENCE != 0 && self.needs_fence(false);
        let mut ready = UnpostedRequest::empty(opcode, None);
        ready.send_flags = SIGNALED | if fence { FENCE } else { 0 };
        (ready.pieces[0], ready.count, ready.target, ready.operands) = (fetched.piece(), 1, target, operands);
        ready.op = TxOp { end: Ending::of(c, kind, bytes, op.buf(), wanted, deadline), bounce: Some(fetched), ..TxOp::default() };
        if self.must_wait() || self.faults.is_some() {
            return self.enqueue_request(ready, false);
        }
        // Earlier operations with `GDRFAB_MORE` wait in the batch and have to be posted first.
        self.flush_batch();
        self.post_queued(ready);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::atomic::{Datatype, Form, Operands};
    use crate::prov::op::Iov;

    #[test]
    fn the_compare_operand_comes_first() {
        static WORDS: [u64; 2] = [2, 9];
        // SAFETY: the memory is a static, which stays.
        let [swap, compare] = [0, 8].map(|skip| unsafe { Iov::new(WORDS.as_ptr() as usize + skip, 8) });
        let posted = |op, form, operand, compare| {
            let what = Atomic { op, datatype: Datatype::U64, form, count: 1 };
            on_card(&AtomicOp { what, with: Operands { operand, compare, old: Iov::EMPTY }, addr: 0, key: 0 })
        };
        let of = |card: NicAtomic| (card.opcode, card.operands);
        assert_eq!(of(posted(Op::Cswap, Form::Compare, swap, compare)), (IBV_WR_ATOMIC_CMP_AND_SWP, [9, 2]));
        assert_eq!(of(posted(Op::Sum, Form::Plain, swap, Iov::EMPTY)), (IBV_WR_ATOMIC_FETCH_AND_ADD, [2, 0]));
        assert_eq!(of(posted(Op::Read, Form::Fetch, Iov::EMPTY, Iov::EMPTY)), (IBV_WR_ATOMIC_FETCH_AND_ADD, [0, 0]));
    }
}
