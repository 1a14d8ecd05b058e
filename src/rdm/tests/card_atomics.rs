// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions whose atomics are reserved for a card. No CPU carries out an atomic there, by whatever lane the peer is
//! reached.

use super::*;
use crate::mr::registry::{CARD_KEY, CHOSEN_KEY};
use crate::prov::atomic::{Atomic, AtomicOp, Datatype, Form, Op, Operands};
use crate::prov::flags::MR_MODE_PROV_KEY;

const MARKS: u64 = CARD_KEY | CHOSEN_KEY;
static ONE: [u64; 2] = [1; 2];

/// Registers memory of `side`. Returns the address and the key that peers use.
fn region(side: &Side, word: &mut u64, access: Access, requested_key: u64) -> (u64, u64) {
    // SAFETY: the test keeps the word until all operations are complete.
    let at = [unsafe { Iov::new(std::ptr::from_mut(word) as usize, 8) }];
    let attr = Attr { source: Source::Iov(&at), requested_key, ..Attr::plain(access | Access::REMOTE_READ | Access::REMOTE_WRITE) };
    (at[0].addr() as u64, side.domain.register(&attr).unwrap().key)
}

fn sum(op: Op, count: u16, (addr, key): (u64, u64)) -> AtomicOp {
    let what = Atomic { op, datatype: Datatype::U64, form: Form::Plain, count };
    // SAFETY: the operand is a static.
    let operand = unsafe { Iov::new(ONE.as_ptr() as usize, what.bytes()) };
    AtomicOp { what, with: Operands { operand, compare: Iov::EMPTY, old: Iov::EMPTY }, addr, key }
}

#[test]
fn no_cpu_carries_out_the_atomics_of_a_card() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        assert!(b.domain.check_card_atomics().is_err_and(|e| e.errno == errno::EOPNOTSUPP && e.words.contains("CPUs")));
        // The domains draw keys as a domain with a card does.
        let mut words = [0u64; 3];
        let [own, cards, plain] = &mut words;
        let (own, cards) = (region(&a, own, Access::ATOMIC, 0), region(&b, cards, Access::ATOMIC, 0));
        let plain = region(&b, plain, Access::empty(), 0);
        assert!(own.1 & MARKS == MARKS && cards.1 & MARKS == MARKS && plain.1 & MARKS == CHOSEN_KEY);
        for (refused, number) in [
            (sum(Op::Min, 1, cards), errno::EOPNOTSUPP),
            (sum(Op::Sum, 0, cards), errno::EOPNOTSUPP),
            (sum(Op::Sum, 2, cards), errno::EMSGSIZE),
        ] {
            assert!(a.ep.atomic(&refused, &Common::default()).is_err_and(|e| e.errno == number && e.words.contains("RDMA device")));
        }
        for (peer, at) in [(0, cards), (1, own)] {
            a.ep.atomic(&sum(Op::Sum, 1, at), &Common { context: 7, peer, ..Common::default() }).unwrap();
            let mut failed = None;
            both(&mut a, &mut b, |s| {
                failed = failed.take().or_else(|| s[0].take_failed(7));
                failed.is_some()
            });
            let error = failed.unwrap().1.error;
            assert!(
                error.errno == errno::EOPNOTSUPP && error.code == Code::Path && error.words.contains("GDRFAB_ATOMIC"),
                "{set}: {error:?}"
            );
        }
        for op in [Op::Min, Op::Sum] {
            a.ep.atomic(&sum(op, 1, plain), &Common { context: 8, ..Common::default() }).unwrap();
            both(&mut a, &mut b, |s| s[0].take(8).is_some());
        }
        assert_eq!(words, [0, 0, 1], "{set}");
        a.ep.close().unwrap();
        b.ep.close().unwrap();
    }
}

/// A key that the program chose says nothing, whatever its bits are, so a domain with such keys has no card regions.
#[test]
fn keys_chosen_by_the_program_are_no_card_keys() {
    let all = info("shm");
    let info = Info { mr_mode: all.mr_mode & !MR_MODE_PROV_KEY, ..all };
    let mut a = Side::open(&info);
    let mut word = 0;
    a.av.insert(a.name).unwrap();
    let at = region(&a, &mut word, Access::empty(), MARKS | 5);
    assert_eq!(at.1, MARKS | 5);
    a.ep.atomic(&sum(Op::Sum, 1, at), &Common { context: 9, ..Common::default() }).unwrap();
    until(&mut [&mut a], |s| s[0].take(9).is_some());
    assert_eq!(word, 1);
    a.ep.close().unwrap();
}
