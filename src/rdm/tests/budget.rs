// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that unexpected messages can take is bounded for all endpoints of a domain together.

use super::*;
use crate::rdm::limits::{FIRST_GRANT, GRANTS_MAX, MOST_GRANT};
use crate::rdm::peers::budget::BudgetShare;

/// Number of bytes that `one` can send at once to `other`, which receives nothing until all messages were sent.
fn granted(one: &mut Side, other: &mut Side) -> u64 {
    let (piece, before) = (bytes(4096, 3), other.ep.stats().unexpected);
    let mut sent = 0;
    loop {
        one.send(0, &piece, 9, 9);
        // A message beyond the grant is offered, and completes when it is received.
        let (start, mut turns) = (Instant::now(), 0);
        while one.take(9).is_none() {
            one.turn();
            other.turn();
            turns += 1;
            if turns > 1000 && start.elapsed() > Duration::from_millis(200) {
                return 4096 * (sent.min(other.ep.stats().unexpected - before));
            }
        }
        sent += 1;
    }
}

/// Sends messages from `one` and receives them, until the grant to `one` does not grow any more.
fn widen_grants(one: &mut Side, other: &mut Side) {
    let (piece, mut into) = (bytes(8000, 1), vec![0; 8000]);
    for _ in 0..2 * MOST_GRANT / 8000 {
        one.send(0, &piece, 7, 1);
        other.recv(0, &mut into, 7, 0, 2);
        both(one, other, |s| s[1].take(2).is_some());
    }
    until(&mut [one], |s| s[0].take(1).is_none());
}

#[test]
fn endpoints_of_a_domain_share_what_they_grant() {
    let info = info("shm");
    let mut first = Side::open(&info);
    let mut second = Side::open_in(first.domain.clone(), &info);
    let room = [&mut first, &mut second].map(|end| {
        let mut sender = Side::open(&info);
        sender.av.insert(end.name).unwrap();
        end.av.insert(sender.name).unwrap();
        widen_grants(&mut sender, end);
        granted(&mut sender, end)
    });
    assert!(room[0] > MOST_GRANT / 2, "the first has what there is: {room:?}");
    assert!(room[1] <= 2 * FIRST_GRANT, "the second has what is left: {room:?}");
}

#[test]
fn a_share_is_given_back() {
    let all = Arc::default();
    let (mut one, mut other) = (BudgetShare::of(&all), BudgetShare::of(&all));
    assert!(one.add_within(GRANTS_MAX, GRANTS_MAX) && !other.add_within(1, GRANTS_MAX));
    one.give_back(5);
    assert!(other.add_within(5, GRANTS_MAX) && !one.add_within(1, GRANTS_MAX) && !one.add_within(u64::MAX, u64::MAX));
    // A share returns no more than it has.
    other.give_back(9);
    assert_eq!(one.all(), GRANTS_MAX - 5);
    other.add(3);
    drop(one);
    assert_eq!(other.all(), 3);
}
