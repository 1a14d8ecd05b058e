// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posts atomic operations, and checks their effects.

use crate::action::{Action, SIZE};
use crate::io::Link;
use crate::memory::Mismatch;
use crate::post::{Turn, posted};
use gdrfab::error::Result;
use gdrfab::prov::atomic::{AtomicOp, Operands};
use gdrfab::prov::flags;
use gdrfab::prov::op::{Common, Iov};

/// The number of operations of a check.
const CHECKED: u64 = 16;

impl Link {
    /// The operands lie in the source range of other tests, and fetched values in the target range.
    fn words(&self) -> [usize; 3] {
        let source = self.layout.source(SIZE);
        [source, source + SIZE, self.layout.target(SIZE)]
    }

    fn set_operands(&mut self, operand: u64, compare: u64) {
        let [at, behind, _] = self.words();
        self.memory.put(at, &operand.to_ne_bytes());
        self.memory.put(behind, &compare.to_ne_bytes());
    }

    fn fetched(&self) -> u64 {
        let mut bytes = [0; SIZE];
        bytes.copy_from_slice(&self.memory.copy_out(self.words()[2], SIZE));
        u64::from_ne_bytes(bytes)
    }

    fn operation(&self, action: Action) -> AtomicOp {
        let [operand, compare, old] = self.words().map(|at| self.memory.iov(at, SIZE));
        let with = match action {
            Action::Add => Operands { operand, compare: Iov::EMPTY, old: Iov::EMPTY },
            Action::FetchAdd => Operands { operand, compare: Iov::EMPTY, old },
            Action::CompareSwap => Operands { operand, compare, old },
        };
        let addr = self.peer.base.wrapping_add(self.layout.target(SIZE) as u64);
        AtomicOp { what: action.shape(), with, addr, key: self.peer.key }
    }

    /// An operation that can be repeated, whatever value the integer has.
    pub fn atomic(&mut self, action: Action) -> Result<AtomicOp> {
        let value = if action == Action::CompareSwap { self.value()? } else { 1 };
        self.set_operands(value, value);
        Ok(self.operation(action))
    }

    /// Posts an operation. False: there is no room; make progress first.
    #[inline(always)]
    pub fn atomic_by(&self, op: &AtomicOp, turn: Turn) -> Result<bool> {
        let flags = if turn.signal { flags::COMPLETION } else { 0 } | if turn.more { flags::MORE } else { 0 };
        let common =
            Common { context: turn.lane, flags, desc: self.desc, timeout_ns: self.timeout_ns, peer: turn.lane as u64, ..Common::default() };
        posted(self.eps[turn.lane].atomic(op, &common, &[self.desc; 3]))
    }

    /// Runs one operation to its completion.
    fn once(&mut self, action: Action, operand: u64, compare: u64) -> Result<u64> {
        self.set_operands(operand, compare);
        let (op, next) = (self.operation(action), self.done + 1);
        self.must("room for an atomic operation", |l| l.atomic_by(&op, Turn { lane: 0, signal: true, more: false }))?;
        self.wait("completion", |l| l.done >= next)?;
        Ok(self.fetched())
    }

    /// The integer's present value.
    fn value(&mut self) -> Result<u64> {
        self.once(Action::FetchAdd, 0, 0)
    }

    /// Checks that each of a few operations finds the value that the one before it has left.
    pub fn check_atomics(&mut self, action: Action) -> Result<Option<Mismatch>> {
        let mut value = self.value()?;
        for _ in 0..CHECKED {
            let next = value.wrapping_add(1);
            let seen = match action {
                Action::Add => {
                    self.once(action, 1, 0)?;
                    self.value()?.wrapping_sub(1)
                }
                Action::FetchAdd => self.once(action, 1, 0)?,
                Action::CompareSwap => self.once(action, next, value)?,
            };
            let differs =
                |(at, (want, got)): (usize, (u8, u8))| (want != got).then_some(Mismatch { offset: at, expected: want, found: got });
            let bytes = value.to_ne_bytes().into_iter().zip(seen.to_ne_bytes());
            if let Some(wrong) = bytes.enumerate().find_map(differs) {
                return Ok(Some(wrong));
            }
            value = next;
        }
        Ok(None)
    }
}
