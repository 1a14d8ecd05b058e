// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Offers that are taken back, operations that are cancelled, and deadlines. Only the operation that is meant ends, and
//! the others keep their order.

use super::*;
use crate::rdm::matching::message_lists::STEPS;
use crate::rdm::wire::parcel::ParcelWords;

fn send_for(side: &Side, to: u64, bytes: &[u8], tag: u64, context: usize, timeout_ns: u64) {
    let c = Common { context, peer: to, timeout_ns, ..Common::default() };
    side.ep.tsend(&[iov(bytes)], &c, &[], tag).unwrap();
}

#[test]
fn an_offer_that_is_taken_back_is_never_matched() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let long = bytes(1 << 20, 1);
        for (context, timeout_ns) in [(1, 500_000_000), (2, 0)] {
            send_for(&a, 0, &long, 7, context, timeout_ns);
            both(&mut a, &mut b, |s| {
                s[1].probe(0, 7, PEEK, 90);
                s[1].take_failed(90);
                s[1].take(90).is_some()
            });
            if timeout_ns == 0 {
                a.ep.cancel(context).unwrap();
            }
            let code = if timeout_ns == 0 { Code::Canceled } else { Code::Deadline };
            both(&mut a, &mut b, |s| s[0].take_failed(context).is_some_and(|(_, why, _)| why.error.code == code));
            both(&mut a, &mut b, |s| {
                s[1].probe(0, 7, PEEK, 90);
                s[1].take(90);
                s[1].take_failed(90).is_some()
            });
        }
        let (mut never, mut to) = (vec![0u8; 1 << 20], vec![0u8; 1 << 20]);
        b.recv(0, &mut never, 7, 0, 3);
        b.recv(0, &mut to, 8, 0, 4);
        a.send(0, &long, 8, 5);
        both(&mut a, &mut b, |s| s[0].take(5).is_some() && s[1].take(4).is_some());
        assert!(to == long && a.failed.is_empty() && b.done.is_empty() && b.failed.is_empty(), "{set}");
        a.ep.close().unwrap();
        b.ep.close().unwrap();
        assert_eq!((a.domain.in_use(), b.domain.in_use()), ((0, 0), (0, 0)));
    }
}

/// Offers are withdrawn from the last to the first, and unknown offers too. No withdrawal walks through the other offers.
#[test]
fn withdrawing_an_offer_does_not_walk_through_others() {
    const COUNT: usize = 2000;
    let (mut a, mut b) = pair("shm+tcp");
    let long = bytes(10_000, 4);
    (0..COUNT).for_each(|i| a.send(0, &long, i as u64, i));
    both(&mut a, &mut b, |s| s[1].ep.stats().unexpected == COUNT as u64);
    STEPS.set(0);
    (0..COUNT).rev().for_each(|i| a.ep.cancel(i).unwrap());
    both(&mut a, &mut b, |s| {
        s[1].probe(0, 0, PEEK, 1);
        s[1].take(1);
        s[1].take_failed(1).is_some() && s[0].failed.len() == COUNT
    });
    let hostile = hostile_peer::HostilePeer::call("shm", &mut b);
    (0..100).for_each(|i| hostile.say(ParcelWords::withdraw(i).as_slice(), &[]));
    (0..100).for_each(|_| b.turn());
    assert!(STEPS.get() < COUNT, "{} steps", STEPS.get());
}

/// The receiver learns of the message and of its withdrawal at the same time, and the matched receive takes the next
/// message.
#[test]
fn a_receive_outlives_an_offer_that_is_taken_back() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let (long, mut to) = ([bytes(1 << 20, 1), bytes(1 << 20, 2), bytes(1 << 20, 3)], [vec![0u8; 1 << 20], vec![0u8; 1 << 20]]);
        a.send(0, b"hello", 1, 9);
        let mut short = [0; 5];
        b.recv(0, &mut short, 1, 0, 9);
        both(&mut a, &mut b, |s| s.iter().all(|s| s.done.len() == 1));
        assert!(a.take(9).is_some() && b.take(9).is_some());
        let [one, other] = &mut to;
        b.recv(0, one, 7, 0, 1);
        b.recv(0, other, 7, 0, 2);
        for _ in 0..2 {
            send_for(&a, 0, &long[0], 7, 3, 0);
            (0..100).for_each(|_| a.turn());
            a.ep.cancel(3).unwrap();
            both(&mut a, &mut b, |s| s[0].take_failed(3).is_some_and(|(_, why, _)| why.error.code == Code::Canceled));
            (0..100).for_each(|_| both(&mut a, &mut b, |s| s[1].failed.is_empty()));
        }
        a.send(0, &long[1], 7, 4);
        a.send(0, &long[2], 7, 5);
        both(&mut a, &mut b, |s| s[0].done.len() == 2 && s[1].done.len() == 2);
        assert!(to[..] == long[1..] && b.take(1).is_some() && b.take(2).is_some() && b.failed.is_empty(), "{set}");
    }
}

/// A later receive got a message meanwhile, so the earlier receive fails: any message that it could get now is younger
/// than that message.
#[test]
fn a_receive_fails_with_its_offer_if_a_later_one_was_filled() {
    let (mut a, mut b) = pair("tcp");
    let (long, mut first, mut second) = (bytes(1 << 20, 1), vec![0u8; 1 << 20], [0; 5]);
    b.recv(0, &mut second, 1, 0, 9);
    a.send(0, b"hello", 1, 9);
    both(&mut a, &mut b, |s| s[1].take(9).is_some());
    let chat = |b: &mut Side| (0..100).for_each(|_| b.turn());
    b.recv(0, &mut first, 7, 0, 1);
    send_for(&a, 0, &long, 7, 3, 0);
    a.send(0, b"other", 7, 4);
    chat(&mut a);
    // The receiver has posted the read, and the sender makes no progress.
    until(&mut [&mut b], |s| s[0].ep.stats().unexpected == 1);
    chat(&mut b);
    b.recv(0, &mut second, 7, 0, 2);
    assert_eq!(&second, b"other");
    a.ep.cancel(3).unwrap();
    a.send(0, b"third", 7, 5);
    both(&mut a, &mut b, |s| s[1].take_failed(1).is_some_and(|(_, why, _)| why.error.code == Code::Key));
    b.recv(0, &mut second, 7, 0, 6);
    both(&mut a, &mut b, |s| s[1].take(6).is_some());
    assert_eq!(&second, b"third");
}

/// The later receive got a message of another sender, which does not concern the earlier receive.
#[test]
fn a_receive_from_one_sender_outlives_its_offer_whatever_another_sender_sends() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let mut c = Side::open(&info(set));
        assert_eq!((b.av.insert(c.name).unwrap(), c.av.insert(b.name).unwrap()), (2, 0));
        let (long, mut first, mut second) = (bytes(1 << 20, 1), vec![0u8; 1 << 20], [0; 5]);
        for (side, from) in [(&mut a, 0), (&mut c, 2)] {
            b.recv(from, &mut second, 1, 0, 9);
            side.send(0, b"hello", 1, 9);
            both(side, &mut b, |s| s[1].take(9).is_some() && s[0].take(9).is_some());
        }
        b.recv(0, &mut first, 7, 0, 1);
        b.recv(2, &mut second, 7, 0, 2);
        send_for(&a, 0, &long, 7, 3, 0);
        (0..100).for_each(|_| a.turn());
        a.ep.cancel(3).unwrap();
        c.send(0, b"other", 7, 4);
        both(&mut c, &mut b, |s| s[1].take(2).is_some());
        a.send(0, &long[1..], 7, 5);
        until(&mut [&mut a, &mut b, &mut c], |s| s[1].take(1).is_some() || !s[1].failed.is_empty());
        assert!(b.failed.is_empty() && first[..long.len() - 1] == long[1..] && &second == b"other", "{set}: {:?}", b.failed);
        [a, b, c].iter().for_each(|side| side.ep.close().unwrap());
    }
}

/// Receives are cancelled and expire in the order of posting, wherever they are stored, tagged or not.
#[test]
fn receives_with_one_context_are_cancelled_and_expire_in_their_order() {
    let (mut a, mut b) = pair("shm");
    let to = [[0u8; 8]; 5];
    let plain = |b: &Side, at: usize, timeout_ns| {
        let c = Common { context: 1, peer: 0, timeout_ns, ..Common::default() };
        b.ep.recv(&[iov(&to[at])], &c, &[]).unwrap();
    };
    let tagged = |b: &Side, at: usize, timeout_ns| {
        let c = Common { context: 1, peer: 0, timeout_ns, ..Common::default() };
        b.ep.trecv(&[iov(&to[at])], &c, &[], at as u64, 0).unwrap();
    };
    for timeout_ns in [0, 50_000_000] {
        tagged(&b, 0, 0);
        plain(&b, 1, timeout_ns);
        tagged(&b, 2, timeout_ns);
        a.send(0, b"0", 0, 9);
        both(&mut a, &mut b, |s| s[1].take(1).is_some());
        // This receive is stored in the slot of the receive that was filled.
        tagged(&b, 3, timeout_ns);
        plain(&b, 4, timeout_ns);
        if timeout_ns == 0 {
            (0..4).for_each(|_| b.ep.cancel(1).unwrap());
        }
        until(&mut [&mut b], |s| s[0].failed.len() == 4);
        let ended = b.failed.drain(..).map(|(c, ..)| c.buf);
        assert!(ended.eq((1..5).map(|at| to[at].as_ptr() as usize)));
    }
}

/// The first round cancels operations that wait for the first connection, the second round operations that a peer works
/// on.
#[test]
fn operations_with_one_context_are_cancelled_in_their_order() {
    let (mut a, mut b) = pair("shm");
    let long = bytes(100_000, 5);
    for _ in 0..2 {
        for (k, to) in [0, 1, 0, 1].into_iter().enumerate() {
            a.send(to, &long[k..], 7, 1);
        }
        for k in 0..4 {
            a.ep.cancel(1).unwrap();
            both(&mut a, &mut b, |s| s[0].failed.len() == k + 1);
            assert_eq!(a.failed[k].0.buf, long[k..].as_ptr() as usize, "{k}");
        }
        assert_eq!(a.ep.cancel(1).unwrap_err().errno, errno::ENOENT);
        a.failed.clear();
        a.send(0, b"hello", 1, 2);
        both(&mut a, &mut b, |s| s[0].take(2).is_some());
    }
}

#[test]
fn loopback_messages_expire_and_are_cancelled_but_claimed_ones_stay() {
    let (mut a, _b) = pair("shm+tcp");
    let long = bytes(100_000, 2);
    send_for(&a, 1, &long, 1, 1, 1_000_000);
    until(&mut [&mut a], |s| s[0].take_failed(1).is_some_and(|(_, why, _)| why.error.code == Code::Deadline));
    send_for(&a, 1, &long, 1, 2, 0);
    a.ep.cancel(2).unwrap();
    until(&mut [&mut a], |s| s[0].take_failed(2).is_some_and(|(_, why, _)| why.error.code == Code::Canceled));
    a.probe(1, 1, PEEK, 3);
    assert!(a.take_failed(3).is_some(), "nothing waits");
    for context in [4, 5] {
        send_for(&a, 1, &long, context as u64, context, 0);
    }
    a.probe(1, 4, PEEK | CLAIM, 6);
    assert!(a.take(6).is_some());
    let mut to = vec![0u8; 100_000];
    let c = |flags, peer| Common { context: 6, peer, flags, ..Common::default() };
    assert_eq!(a.ep.trecv(&[], &c(PEEK | CLAIM, 1), &[], 5, 0).unwrap_err().errno, errno::EBUSY);
    assert!(a.ep.recv(&[iov(&to)], &c(CLAIM, 1), &[]).is_err(), "a claim of a tagged one");
    a.ep.trecv(&[iov(&to)], &c(CLAIM, 1), &[], 4, 0).unwrap();
    until(&mut [&mut a], |s| s[0].take(4).is_some() && s[0].take(6).is_some());
    assert_eq!(to, long);
    a.recv(1, &mut to, 5, 0, 7);
    until(&mut [&mut a], |s| s[0].take(5).is_some() && s[0].take(7).is_some());
}
