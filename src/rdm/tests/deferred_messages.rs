// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that are left with their lane for a moment because the next receive is expected. None of them is lost, and no
//! other peer has to wait.

use super::*;

/// `a` and two peers, connected and idle. `a` knows them by 0 and 1; they know `a` by 0.
fn three(set: &str) -> [Side; 3] {
    let info = info(set);
    let mut sides = [Side::open(&info), Side::open(&info), Side::open(&info)];
    for k in 1..3 {
        sides[0].av.insert(sides[k].name).unwrap();
        sides[k].av.insert(sides[0].name).unwrap();
        let (mut got, context) = ([0u8; 1], 900 + k);
        sides[0].recv(k as u64 - 1, &mut got, 1, 0, context);
        sides[k].send(0, b"x", 1, context);
        let [a, rest @ ..] = &mut sides;
        both(a, &mut rest[k - 1], |s| s[0].take(context).is_some());
    }
    sides
}

#[test]
fn a_peer_whose_messages_are_received_delays_no_other() {
    for set in SETS {
        let [mut a, mut flood, mut other] = three(set);
        let (mut m, mut last) = ([0u8; 4], [0u8; 4]);
        a.recv(1, &mut m, 8, 0, 8);
        // Connected lanes bring these two messages after some turns at most.
        other.send(0, b"left", 7, 1);
        other.send(0, b"mine", 8, 2);
        other.turn();
        let start = Instant::now();
        while a.take(8).is_none() {
            // Each turn fills a receive.
            a.recv(0, &mut last, 3, 0, 3);
            flood.send(0, b"more", 3, 3);
            while a.take(3).is_none() {
                flood.turn();
                a.turn();
                assert!(start.elapsed() < Duration::from_secs(20), "{set}: it waits behind another's messages");
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{set}: it waits behind another's messages");
        }
        assert_eq!(&m, b"mine");
        let mut l = [0u8; 4];
        a.recv(1, &mut l, 7, 0, 7);
        both(&mut a, &mut other, |s| s[0].take(7).is_some());
        assert_eq!(&l, b"left");
    }
}

/// Messages that were deferred are received in whichever turn this side notices the end of the peer.
#[test]
fn deferred_messages_are_received_after_their_peer_has_ended() {
    for set in SETS {
        for turns in 0..16 {
            let [mut a, _, c] = three(set);
            (0..turns).for_each(|_| a.turn());
            let (mut first, mut second) = ([0u8; 5], [0u8; 6]);
            a.recv(1, &mut first, 7, 0, 1);
            c.send(0, b"first", 7, 1);
            c.send(0, b"second", 7, 2);
            drop(c);
            std::thread::sleep(Duration::from_millis(5));
            until(&mut [&mut a], |s| s[0].take(1).is_some());
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(100));
                a.turn();
            }
            a.recv(UNSPEC, &mut second, 7, 0, 2);
            until(&mut [&mut a], |s| s[0].take(2).is_some());
            assert_eq!((&first, &second), (b"first", b"second"));
        }
    }
}

#[test]
fn peek_finds_deferred_messages() {
    for set in SETS {
        let [mut a, _, mut c] = three(set);
        let mut first = [0u8; 5];
        a.recv(1, &mut first, 7, 0, 1);
        c.send(0, b"first", 7, 1);
        c.send(0, b"second", 7, 2);
        c.turn();
        std::thread::sleep(Duration::from_millis(50));
        until(&mut [&mut a], |s| s[0].take(1).is_some());
        a.probe(1, 7, PEEK, 5);
        let (found, _) = a.take(5).expect("it came long ago");
        assert_eq!(found.len, 6, "{set}");
    }
}
