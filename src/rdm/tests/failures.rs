// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deadlines, stalled peers and peers that end. Only the operations concerned fail.

use super::*;
use crate::log;
use crate::mr::{PathPolicy, Paths};
use crate::prov::fault::Plan;
use crate::rdm::connect::wireup::no_room_for_callers;
use crate::rdm::endpoint::Endpoint as Rdm;
use crate::rdm::limits::{EAGER_MAX, ENDED_MAX, ENDED_PEERS_MAX, OFFERS_ALL, UNLISTED_MAX};
use crate::rdm::peers::outstanding::FaultInjection;
use parking_lot::Mutex;
use std::collections::VecDeque;

#[test]
fn receives_stay_with_a_peer_removed_from_the_vector() {
    let info = info("shm+tcp");
    let (mut a, mut b, mut c) = (Side::open(&info), Side::open(&info), Side::open(&info));
    assert_eq!((a.av.insert(b.name).unwrap(), b.av.insert(a.name).unwrap(), c.av.insert(a.name).unwrap()), (0, 0, 0));
    let (mut first, mut second, mut of_c) = ([0u8; 8], [0u8; 8], [0u8; 8]);
    a.recv(0, &mut first, 5, 0, 1);
    a.recv(0, &mut second, 5, 0, 2);
    a.av.remove(0).unwrap();
    assert_eq!(a.av.insert(c.name).unwrap(), 0);
    c.send(0, &[3; 8], 5, 1);
    until(&mut [&mut a, &mut c], |s| s[1].take(1).is_some());
    a.recv(0, &mut of_c, 5, 0, 3);
    b.send(0, &[1; 8], 5, 1);
    b.send(0, &[2; 8], 5, 2);
    until(&mut [&mut a, &mut b, &mut c], |s| s[0].done.len() == 3);
    assert_eq!((first, second, of_c), ([1; 8], [2; 8], [3; 8]));
    assert_eq!(a.take(1).unwrap().1.peer, UNSPEC);
}

#[test]
fn rma_options_do_not_affect_messages() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let (long, mut to) = (bytes(1 << 20, 3), vec![0u8; 1 << 20]);
        let forbid = PathPolicy { forbid: Paths::all(), ..PathPolicy::default() };
        b.ep.set_options(&mut |o| (o.deadline_ns, o.policy) = (1, forbid));
        b.recv(0, &mut to, 1, 0, 1);
        a.send(0, &long, 1, 1);
        both(&mut a, &mut b, |s| s[0].take(1).is_some() && s[1].take(1).is_some());
        assert!(to == long, "{set}");
    }
}

#[test]
fn a_desc_that_does_not_hold_the_buffer_fails_no_message_of_host_memory() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let (from, mut to) = (bytes(3 << 20, 6), vec![0u8; 1 << 20]);
        let (before, long, behind) = (&from[..1 << 20], &from[1 << 20..2 << 20], &from[2 << 20..]);
        let region = register(&a, &from);
        let closed = register(&a, long);
        a.domain.close_region(closed).unwrap();
        for desc in [region.desc, register(&a, before).desc, register(&a, behind).desc, register(&a, &long[1..]).desc, closed.desc] {
            to.fill(0);
            b.recv(0, &mut to, 1, 0, 1);
            let c = Common { context: 1, peer: 0, desc, ..Common::default() };
            a.ep.tsend(&[iov(long)], &c, &[desc], 1).unwrap();
            both(&mut a, &mut b, |s| s[0].take(1).is_some() && s[1].take(1).is_some());
            assert!(to == long, "{set}");
        }
    }
}

#[test]
fn a_stalled_peer_delays_no_other() {
    let info = info("tcp");
    let (mut a, mut b, mut c) = (Side::open(&info), Side::open(&info), Side::open(&info));
    for side in [&b, &c] {
        a.av.insert(side.name).unwrap();
        side.av.insert(a.name).unwrap();
    }
    const COUNT: usize = 1500;
    let from = bytes(10_000, 4);
    (0..COUNT).for_each(|i| b.send(0, &from, 1, i));
    until(&mut [&mut a, &mut b], |s| s[0].ep.stats().unexpected == COUNT as u64);
    // From here on the first peer makes no progress, because the test does not drive it.
    let mut to = vec![vec![0u8; 10_000]; COUNT];
    let late = Common { context: 9000, peer: 0, timeout_ns: 50_000_000, ..Common::default() };
    a.ep.trecv(&[iov(&to[0])], &late, &[], 1, 0).unwrap();
    to.iter_mut().skip(1).enumerate().for_each(|(i, to)| a.recv(0, to, 1, 0, i));
    let mut of_c = vec![0u8; 10_000];
    a.recv(1, &mut of_c, 1, 0, 8000);
    c.send(0, &from, 1, 1);
    until(&mut [&mut a, &mut c], |s| s[0].take(8000).is_some() && s[1].take(1).is_some());
    assert_eq!(of_c, from);
    until(&mut [&mut a], |s| s[0].take_failed(9000).is_some_and(|(_, why, _)| why.error.code == Code::Deadline));
    until(&mut [&mut a, &mut b], |s| s[0].done.len() == COUNT - 1);
}

#[test]
fn unlisted_callers_are_bounded() {
    for set in SETS {
        let info = info(set);
        let mut a = Side::open(&info);
        let mut callers: Vec<Side> = (0..=UNLISTED_MAX).map(|_| Side::open(&info)).collect();
        for caller in &mut callers {
            caller.av.insert(a.name).unwrap();
        }
        let (last, others) = callers.split_last_mut().unwrap();
        for one in others.iter_mut() {
            one.send(0, &[1; 8], 1, 1);
            both(&mut a, one, |s| s[0].ep.stats().unexpected > 0 && s[1].take(1).is_some());
        }
        let (words, name, lines) = (no_room_for_callers().words, last.name.to_string(), Arc::new(Mutex::new(Vec::new())));
        let sink = lines.clone();
        log::set(log::Level::Warn, Some(Box::new(move |_, line| sink.lock().push(line.to_string()))));
        last.send(0, &[2; 8], 2, 2);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            a.turn();
            last.turn();
        }
        assert!(last.take(2).is_none() && last.failed.is_empty(), "{set}: it calls again");
        assert!(last.ep.report(0, 0, 0).is_err_and(|e| e.errno == errno::ENOTCONN && e.words.contains(words.as_ref())));
        let lines = std::mem::take(&mut *lines.lock());
        let of = |text: &str, words: &str| lines.iter().filter(|line| line.contains(text) && line.contains(words)).count();
        let (calls, told) = (of(&name, "is refused"), of(&a.name.to_string(), &words));
        assert!((2..8).contains(&calls) && told == 1, "{set}: {calls} calls in half a second, {lines:?}");
        a.av.insert(others[0].name).unwrap();
        both(&mut a, last, |s| s[1].take(2).is_some());
        // A peer with an index is accepted at any time.
        let mut named = Side::open(&info);
        a.av.insert(named.name).unwrap();
        named.av.insert(a.name).unwrap();
        named.send(0, &[3; 8], 3, 3);
        both(&mut a, &mut named, |s| s[1].take(3).is_some());
    }
}

#[test]
fn unsolicited_entries_wait_for_room_in_the_queue() {
    const COUNT: u64 = 20_000;
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let mut region = vec![0u8; 8];
        let attr = Attr { access: Access::REMOTE_WRITE, ..Attr::plain(Access::REMOTE_WRITE) };
        let id = b.domain.register(&Attr { source: Source::Iov(&[iov(&region)]), ..attr }).unwrap();
        let remote = RmaIov { addr: b.domain.facts(id).unwrap().base, len: 8, key: id.key };
        let from = [7u8; 8];
        for data in 0..COUNT {
            let c = Common { context: 1, flags: flags::REMOTE_CQ_DATA | flags::COMPLETION, data, ..Common::default() };
            a.ep.rma(Dir::Write, &[iov(&from)], &[remote], &c, &[]).unwrap();
        }
        let mut came = 0;
        while came < COUNT {
            for _ in 0..50 {
                a.turn();
                b.ep.progress(true);
            }
            // Entries are written until the queue is full, and none beyond.
            let mut there = 0;
            while let Taken::Some(n) = b.queue.take(64, |_, c| assert_eq!(std::mem::replace(&mut came, c.data + 1), c.data)) {
                there += n;
            }
            assert!(there <= 100, "{set}: {there}");
        }
        both(&mut a, &mut b, |s| s[0].done.len() == COUNT as usize);
        b.domain.close_region(id).unwrap();
        region.fill(1);
        // One buffer takes any number of empty messages.
        let c = Common { context: 5, peer: UNSPEC, flags: flags::MULTI_RECV, ..Common::default() };
        let buffer = vec![0u8; 4096];
        b.ep.recv(&[iov(&buffer)], &c, &[]).unwrap();
        for _ in 0..5000 {
            a.ep.send(&[], &Common { context: 2, ..Common::default() }, &[]).unwrap();
        }
        let mut came = 0;
        while came < 5000 {
            for _ in 0..50 {
                a.turn();
                b.ep.progress(true);
            }
            let mut there = 0;
            while let Taken::Some(n) = b.queue.take(64, |_, _| {}) {
                there += n;
            }
            assert!(there < 3000, "{set}: {there}");
            came += there;
        }
    }
}

/// One peer is known by its bare address as well as by its whole name. Messages for the whole name reach only that
/// incarnation.
#[test]
fn a_whole_name_is_kept_apart_from_a_bare_address() {
    for set in SETS {
        let info = info(set);
        let (mut a, mut b) = (Side::open(&info), Side::open(&info));
        let mut past = b.name;
        past.nonce ^= 1;
        for (index, name) in [(0, Name::at(b.name.socket())), (1, past), (2, b.name)] {
            assert_eq!(a.av.insert(name).unwrap(), index);
        }
        let another = |s: &mut Side, context: usize| {
            s.take_failed(context).is_some_and(|(_, why, _)| why.error.words.contains("another one listens"))
        };
        let mut to = [0u8; 8];
        // Messages for a past incarnation fail while the bare address is dialed, and after.
        a.send(0, &[1; 8], 1, 1);
        a.send(1, &[2; 8], 2, 2);
        both(&mut a, &mut b, |s| another(s[0], 2));
        a.failed.clear();
        a.done.clear();
        b.recv(UNSPEC, &mut to, 3, 0, 3);
        a.send(0, &[3; 8], 3, 4);
        both(&mut a, &mut b, |s| s[1].take(3).is_some());
        a.send(1, &[4; 8], 2, 5);
        a.send(2, &[5; 8], 4, 6);
        both(&mut a, &mut b, |s| another(s[0], 5));
        both(&mut a, &mut b, |s| s[0].take(6).is_some());
        // The peer was reached by both names. Now another endpoint takes its address.
        let place = b.name.socket();
        b.ep.close().unwrap();
        drop(b);
        let mut b = Side::open(&Info { src_addr: Some(format!("rdm://{place}")), ..info.clone() });
        a.recv(2, &mut to, 9, 0, 7);
        until(&mut [&mut a], |s| s[0].take_failed(7).is_some());
        let mut never = [0u8; 8];
        b.recv(UNSPEC, &mut never, 0, u64::MAX, 1);
        a.send(2, &[6; 8], 1, 8);
        both(&mut a, &mut b, |s| another(s[0], 8));
        assert!(b.done.is_empty(), "{set}");
        a.send(0, &[7; 8], 1, 9);
        both(&mut a, &mut b, |s| s[1].take(1).is_some());
        assert_eq!(never, [7; 8]);
    }
}

/// The messages that a peer sent before it ended are received, however many of them are still in the ring when this side
/// notices the end.
#[test]
fn messages_of_a_peer_that_has_ended_are_received() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let mut word = [0u8; 8];
        // This message makes sure that the lane is connected.
        b.recv(0, &mut word, 7, 0, 1);
        a.send(0, &[1; 8], 7, 2);
        both(&mut a, &mut b, |s| s[1].take(1).is_some());
        // The test sends this many messages without a pause.
        let most = 200u64;
        for i in 0..most {
            a.send(0, &i.to_le_bytes(), i, 3);
        }
        a.ep.close().unwrap();
        drop(a);
        b.ep.progress(true);
        for i in 0..most {
            b.recv(UNSPEC, &mut word, i, 0, 4);
            until(&mut [&mut b], |s| s[0].take(4).is_some());
            assert_eq!(u64::from_le_bytes(word), i, "{set}");
        }
    }
}

/// Messages of peers that have ended and that the address vector does not name are kept up to a limit. Once they are
/// received, callers are accepted again.
#[test]
fn messages_of_ended_callers_are_bounded() {
    const LEN: usize = 7000;
    for set in SETS {
        let info = info(set);
        let mut a = Side::open(&info);
        let (message, mut to, mut let_in) = (bytes(LEN, 1), vec![0u8; LEN], 0);
        let mut refused = loop {
            let mut caller = Side::open(&info);
            caller.av.insert(a.name).unwrap();
            (0..8).for_each(|_| caller.send(0, &message, 1, 1));
            let begun = Instant::now();
            while a.ep.stats().unexpected < let_in + 8 && begun.elapsed() < Duration::from_millis(300) {
                a.turn();
                caller.turn();
            }
            if a.ep.stats().unexpected < let_in + 8 {
                break caller;
            }
            let_in += 8;
            assert!(let_in < 4 * ENDED_MAX / LEN as u64, "{set}");
        };
        assert!(refused.failed.is_empty() && let_in as usize * LEN > ENDED_MAX as usize / 2, "{set}: it calls again");
        for i in 0..let_in {
            a.recv(UNSPEC, &mut to, 1, 0, 2);
            both(&mut a, &mut refused, |s| s[0].take(2).is_some());
            assert!(to == message, "{set}: {i}");
        }
        both(&mut a, &mut refused, |s| s[0].ep.stats().unexpected >= let_in + 8);
    }
}

#[test]
fn records_of_ended_callers_are_bounded() {
    let info = info("shm");
    let mut a = Side::open(&info);
    let mut left = Vec::new();
    for i in 0.. {
        let mut caller = Side::open(&info);
        caller.av.insert(a.name).unwrap();
        caller.send(0, &[1; 8], 1, 1);
        let begun = Instant::now();
        while a.ep.stats().unexpected == i && begun.elapsed() < Duration::from_millis(300) {
            a.turn();
            caller.turn();
        }
        if a.ep.stats().unexpected == i {
            break;
        }
        assert!(i < 4 * ENDED_PEERS_MAX as u64, "all are let in");
        left.push(caller.name);
    }
    assert!(left.len() > ENDED_PEERS_MAX / 4);
    // A peer with an index is accepted.
    let mut named = Side::open(&info);
    a.av.insert(named.name).unwrap();
    named.av.insert(a.name).unwrap();
    named.send(0, &[3; 8], 3, 3);
    both(&mut a, &mut named, |s| s[1].take(3).is_some());
}

/// Unlisted callers share one number of offers. A caller that exceeds its share is disconnected, and no other is.
#[test]
fn offers_of_unlisted_callers_are_bounded() {
    let info = info("shm");
    let mut a = Side::open(&info);
    let [mut one, mut greedy, mut modest] = std::array::from_fn(|_| Side::open(&info));
    let long = vec![1u8; EAGER_MAX + 1];
    for (side, count) in [(&mut one, OFFERS_ALL * 3 / 4), (&mut greedy, OFFERS_ALL / 2), (&mut modest, 5)] {
        side.av.insert(a.name).unwrap();
        let before = a.ep.stats().unexpected;
        (0..count).for_each(|_| side.send(0, &long, 1, 1));
        both(&mut a, side, |s| !s[1].failed.is_empty() || s[0].ep.stats().unexpected == before + count as u64);
    }
    both(&mut a, &mut greedy, |s| s[1].failed.len() == OFFERS_ALL / 2);
    let mut to = vec![0u8; long.len()];
    a.recv(UNSPEC, &mut to, 1, 0, 2);
    until(&mut [&mut a, &mut one, &mut modest], |s| s[0].take(2).is_some());
    assert!(to == long && one.failed.is_empty() && modest.failed.is_empty());
}

/// An index that was given to another peer does not stand for the earlier peer, from the next message on.
#[test]
fn a_peer_without_index_is_not_reported_under_another() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let other = Side::open(&info(set));
        let mut word = [0u8; 8];
        b.recv(UNSPEC, &mut word, 1, 0, 1);
        a.send(0, &[1; 8], 1, 2);
        both(&mut a, &mut b, |s| s[1].take(1).is_some_and(|(_, from)| from.peer == 0));
        b.recv(UNSPEC, &mut word, 1, 0, 1);
        b.av.remove(0).unwrap();
        assert_eq!(b.av.insert(other.name).unwrap(), 0);
        a.send(0, &[2; 8], 1, 2);
        let mut came = None;
        both(&mut a, &mut b, |s| {
            came = s[1].take(1);
            came.is_some()
        });
        assert!(came.is_some_and(|(_, from)| from.peer == UNSPEC), "{set}");
        assert_eq!(word, [2; 8]);
    }
}

/// The library reads a claimed message within the deadline of the receive that takes the message.
#[test]
fn the_receive_of_a_claimed_message_has_a_deadline() {
    let (mut a, mut b) = pair("tcp");
    let long = bytes(1 << 20, 1);
    let mut to = vec![0u8; long.len()];
    a.send(0, &long, 1, 2);
    both(&mut a, &mut b, |s| s[1].ep.stats().unexpected == 1);
    b.probe(UNSPEC, 1, PEEK | CLAIM, 7);
    until(&mut [&mut b], |s| s[0].take(7).is_some());
    // The sender makes no progress, so the read cannot end.
    let c = Common { context: 7, flags: CLAIM, timeout_ns: 20_000_000, ..Common::default() };
    b.ep.trecv(&[iov(&to)], &c, &[], 1, 0).unwrap();
    until(&mut [&mut b], |s| !s[0].failed.is_empty());
    assert_eq!(b.take_failed(7).unwrap().1.error.errno, errno::ETIMEDOUT);
    to.fill(0);
}

#[test]
fn an_address_without_listener_is_an_error_with_a_reason() {
    for set in SETS {
        let info = info(set);
        let mut a = Side::open(&info);
        let gone = Side::open(&info);
        a.av.insert(gone.name).unwrap();
        gone.ep.close().unwrap();
        drop(gone);
        a.send(0, &[1; 8], 1, 1);
        until(&mut [&mut a], |s| s[0].take_failed(1).is_some_and(|(_, why, _)| !why.error.words.is_empty()));
        let c = Common { peer: 7, ..Common::default() };
        assert!(a.ep.tsend(&[], &c, &[], 0).is_err_and(|e| e.errno == errno::EINVAL && e.words.contains('7')));
        assert!(a.ep.trecv(&[], &c, &[], 0, 0).is_err_and(|e| e.errno == errno::EINVAL));
    }
}

/// Delays, by a minute, the receives that are posted before their peer is connected.
fn delay(ep: &Rdm) {
    ep.state.lock().faults = Plan::of_words("delay=60000000:recv").map(|plan| Box::new(FaultInjection { plan, delayed: VecDeque::new() }));
}

/// When the peer ends, the delayed receives for which a message waits are filled in their order. The other receives from
/// this peer fail.
#[test]
fn delayed_receives_get_messages_that_came_before_the_peer_ended() {
    for set in ["shm", "tcp"] {
        let info = info(set);
        let (mut a, domain) = (Side::open(&info), open_domain(&info));
        let ep = Rdm::open(domain.clone(), &info).unwrap();
        delay(&ep);
        let mut b = Side::of(Box::new(ep), domain);
        assert_eq!((a.av.insert(b.name).unwrap(), b.av.insert(a.name).unwrap(), b.av.insert(b.name).unwrap()), (0, 0, 1));
        let mut to = [[0u8; 8]; 6];
        let [anyone, first, second, none, own, behind] = &mut to;
        b.recv(UNSPEC, anyone, 5, 0, 1);
        b.recv(1, own, 5, 0, 2);
        b.recv(0, first, 5, 0, 3);
        b.recv(0, second, 5, 0, 4);
        b.recv(0, none, 5, 0, 5);
        b.recv(UNSPEC, behind, 6, 0, 6);
        for k in 1..=3u8 {
            a.send(0, &[k; 8], 5, k.into());
        }
        a.send(0, &[4; 8], 6, 4);
        both(&mut a, &mut b, |s| s[1].ep.stats().unexpected == 4 && s[0].done.len() == 4);
        assert!(b.done.is_empty());
        a.ep.close().unwrap();
        until(&mut [&mut b], |s| s[0].take_failed(5).is_some_and(|(_, why, _)| why.error.errno == errno::ECONNRESET));
        assert_eq!(b.done.drain(..).map(|(c, _)| c.context).collect::<Vec<_>>(), [1, 3, 4], "{set}");
        // A receive that other peers could fill waits for the end of its delay.
        assert!(b.failed.is_empty());
        b.ep.close().unwrap();
        until(&mut [&mut b], |s| s[0].take_failed(2).is_some() && s[0].take_failed(6).is_some());
        assert_eq!(to, [[1; 8], [2; 8], [3; 8], [0; 8], [0; 8], [0; 8]]);
    }
}

#[test]
fn delayed_receives_of_a_connection_get_messages_that_came_before_its_end() {
    let info = Info { ep_type: crate::prov::info::EP_MSG, ..info("shm") };
    let open = || Rdm::open_connected(open_domain(&info), &info, 0).unwrap();
    let (a, b, queue) = (open(), open(), Arc::new(Queue::new(100, Threading::Safe).unwrap()));
    delay(&b);
    for ep in [&a, &b] {
        ep.bind(Binding::Cq { queue: queue.clone(), source: None, transmit: false, receive: true, selective: false }).unwrap();
        ep.bind(Binding::Cq {
            queue: Arc::new(Queue::new(100, Threading::Safe).unwrap()),
            source: None,
            transmit: true,
            receive: false,
            selective: false,
        })
        .unwrap();
        ep.bind(Binding::Eq(Arc::default())).unwrap();
        ep.enable(OpFlags::default()).unwrap();
    }
    let to = [[0u8; 8]; 3];
    for (context, tag) in [(0, 6), (1, 5), (2, 5)] {
        b.trecv(&[iov(&to[context])], &Common { context, peer: UNSPEC, ..Common::default() }, &[], tag, 0).unwrap();
    }
    let (of_a, of_b) = (a.address().unwrap(), b.address().unwrap());
    a.connect_addr(&of_b).unwrap();
    b.connect_addr(&of_a).unwrap();
    let start = Instant::now();
    let until = |what: &dyn Fn() -> bool| {
        while !what() {
            [&a, &b].into_iter().for_each(|ep| ep.progress(false));
            assert!(start.elapsed() < Duration::from_secs(20), "it takes too long");
        }
    };
    let c = Common { flags: INJECT_FLAGS, ..Common::default() };
    until(&|| a.tsend(&[iov(&[7; 8])], &c, &[], 5).is_ok());
    until(&|| b.stats().unexpected == 1);
    a.close().unwrap();
    let mut ended = Vec::new();
    while ended.len() < 3 {
        until(&|| !queue.is_empty());
        if let Taken::ErrorFirst = queue.take_from(64, |_, c, _| ended.push((c.context, 0))) {
            ended.extend(queue.take_error().map(|(c, why, _)| (c.context, why.error.errno)));
        }
    }
    assert_eq!((ended, to[1]), (vec![(1, 0), (0, errno::ECONNRESET), (2, errno::ECONNRESET)], [7; 8]));
    b.close().unwrap();
}
