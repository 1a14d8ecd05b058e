// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Credit of one endpoint pair, without lanes.

use crate::rdm::peers::credit::*;

/// `receive_and_consume` counts the same as `receive` followed by `consumed`, and counts nothing when the peer has to be
/// told.
#[test]
fn receive_and_consume_equals_the_two_steps() {
    let (mut plain, mut fast) = (Credit::new(FIRST_GRANT), Credit::new(FIRST_GRANT));
    let mut advertised = 0;
    for round in 0..20_000usize {
        let len = round * 53 % 3000;
        plain.receive(len).unwrap();
        let said = plain.consumed(len, |_| round % 2 == 0);
        if !fast.receive_and_consume(len) {
            fast.receive(len).unwrap();
            let words = fast.consumed(len, |_| round % 2 == 0);
            assert_eq!(words.as_ref().map(|w| w.as_slice().to_vec()), said.as_ref().map(|w| w.as_slice().to_vec()));
            advertised += usize::from(words.is_some());
        } else {
            assert!(said.is_none(), "{round}: somebody was to be told");
        }
        fast.settle();
        assert_eq!((fast.received, fast.consumed, fast.advertised), (plain.received, plain.consumed, plain.advertised));
    }
    assert!(advertised > 10);
}

#[test]
fn both_sides_keep_to_grants() {
    let (mut one, mut other) = (Credit::new(FIRST_GRANT), Credit::new(FIRST_GRANT));
    let mut room = 1 << 20;
    for round in 0..10_000usize {
        let len = round * 37 % 8000;
        if !one.may_send(len) {
            panic!("consumed at once, so there is always a grant");
        }
        one.sent(len);
        other.receive(len).unwrap();
        let tell = other.consumed(len, |more| {
            let enough = room >= more;
            room -= if enough { more } else { 0 };
            enough
        });
        if let Some(words) = tell {
            let words = words.as_slice();
            one.returned(words[1], words[2]).unwrap();
        }
    }
    assert_eq!(other.grant(), MOST_GRANT);
    while one.may_send(1000) {
        one.sent(1000);
        other.receive(1000).unwrap();
    }
    assert!(other.receive(MOST_GRANT as usize / 2).is_err(), "beyond the grant");
    assert!(one.returned(0, MOST_GRANT).is_err() && one.returned(u64::MAX, MOST_GRANT).is_err());
}
