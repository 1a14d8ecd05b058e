// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The atomic operations under test. Each works on one 64-bit integer, the first eight bytes of the target.

use gdrfab::prov::atomic::{Atomic, Datatype, Form, Op};

/// Bytes of the integer.
pub const SIZE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Adds 1, without fetching the value.
    Add,
    /// Adds 1, and fetches the value before.
    FetchAdd,
    /// Replaces the present value by an equal one, so that every compare-and-swap succeeds.
    CompareSwap,
}

impl Action {
    pub fn shape(self) -> Atomic {
        let (op, form) = match self {
            Action::Add => (Op::Sum, Form::Plain),
            Action::FetchAdd => (Op::Sum, Form::Fetch),
            Action::CompareSwap => (Op::Cswap, Form::Compare),
        };
        Atomic { op, datatype: Datatype::U64, form, count: 1 }
    }
}
