// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two or more endpoints in one process, over the real lanes. Most tests use only the contract (`prov`).

use super::{candidates, get};
use crate::error::{Code, errno};
use crate::mr::{Access, Attr, Iov, RegionId, Source};
use crate::prov::av::{Av, Name, UNSPEC};
use crate::prov::bind::{Binding, INJECT_FLAGS};
use crate::prov::flags::{self, CLAIM, DISCARD, PEEK};
use crate::prov::info::{Ask, Info};
use crate::prov::op::{Common, Dir, RmaIov};
use crate::prov::ops::OpFlags;
use crate::prov::queue::{Completion, Failure, Origin, Queue, Taken};
use crate::prov::{Domain, Endpoint};
use crate::sync::serial::Threading;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod budget;
mod card_atomics;
mod deferred_messages;
mod failures;
mod hostile_peer;
mod loopback;
mod poll_schedule;
mod refusing_listener;
mod withdrawn;

const SETS: [&str; 3] = ["shm+tcp", "shm", "tcp"];

#[test]
fn the_configured_sets_are_those_that_exist() {
    assert!(super::provider::SETS.iter().map(crate::prov::Provider::name).eq(crate::config::SETS));
}

struct Side {
    ep: Box<dyn Endpoint>,
    domain: Arc<dyn Domain>,
    queue: Arc<Queue>,
    av: Arc<Av>,
    name: Name,
    done: Vec<(Completion, Origin)>,
    failed: Vec<(Completion, Failure, Origin)>,
}

fn info(set: &str) -> Info {
    let ask = Ask { node: None, service: None, source: false, domain: None, near: None };
    let found = candidates(&ask, |name| name == set).pop().expect("one candidate");
    assert!(found.reason.is_none(), "{:?}", found.reason);
    found
}

impl Side {
    fn open(info: &Info) -> Side {
        Side::open_in(get(info.prov_name.as_deref()).unwrap().open_domain(info, Threading::Safe).unwrap(), info)
    }

    fn open_in(domain: Arc<dyn Domain>, info: &Info) -> Side {
        Side::of(domain.clone().open_endpoint(info, 0).unwrap(), domain)
    }

    fn of(ep: Box<dyn Endpoint>, domain: Arc<dyn Domain>) -> Side {
        // The completion queue is as small as the queue of an MPI library.
        let queue = Arc::new(Queue::new(100, Threading::Safe).unwrap());
        let av = Arc::new(Av::default());
        ep.bind(Binding::Cq { queue: queue.clone(), source: None, transmit: true, receive: true, selective: false }).unwrap();
        ep.bind(Binding::Av(av.clone())).unwrap();
        ep.enable(OpFlags::default()).unwrap();
        let name = ep.address().unwrap().parse().unwrap();
        Side { ep, domain, queue, av, name, done: Vec::new(), failed: Vec::new() }
    }

    fn turn(&mut self) {
        self.ep.progress(false);
        let done = &mut self.done;
        loop {
            match self.queue.take_from(64, |_, c, from| done.push((*c, from))) {
                Taken::Some(_) => {}
                Taken::Empty => return,
                Taken::ErrorFirst => self.failed.extend(self.queue.take_error()),
            }
        }
    }

    /// Sends a message. Short messages are injected, so that their bytes may be dropped at once.
    fn send(&self, to: u64, bytes: &[u8], tag: u64, context: usize) {
        let how = if bytes.len() <= 64 { flags::INJECT } else { 0 };
        let c = Common { context, peer: to, flags: how, ..Common::default() };
        self.ep.tsend(&[iov(bytes)], &c, &[], tag).unwrap();
    }

    fn recv(&self, from: u64, bytes: &mut [u8], tag: u64, ignore: u64, context: usize) {
        let c = Common { context, peer: from, ..Common::default() };
        self.ep.trecv(&[iov(bytes)], &c, &[], tag, ignore).unwrap();
    }

    fn probe(&mut self, from: u64, tag: u64, how: u64, context: usize) {
        let c = Common { context, peer: from, flags: how, ..Common::default() };
        self.ep.trecv(&[], &c, &[], tag, 0).unwrap();
        self.turn();
    }

    fn take(&mut self, context: usize) -> Option<(Completion, Origin)> {
        let at = self.done.iter().position(|(c, _)| c.context == context)?;
        Some(self.done.remove(at))
    }

    fn take_failed(&mut self, context: usize) -> Option<(Completion, Failure, Origin)> {
        let at = self.failed.iter().position(|(c, ..)| c.context == context)?;
        Some(self.failed.remove(at))
    }
}

fn iov(bytes: &[u8]) -> Iov {
    // SAFETY: the tests keep the bytes until all operations are complete.
    unsafe { Iov::of(bytes) }
}

/// Opens a domain over one provider's lanes, for tests that look inside.
fn open_domain(info: &Info) -> Arc<crate::rdm::memory::lane_domains::Domain> {
    let lane = crate::prov::get(info.prov_name.as_deref()).unwrap();
    Arc::new(crate::rdm::memory::lane_domains::Domain::open(&[lane], info, Threading::Safe).unwrap())
}

/// Opens two endpoints. Each knows the other by index 0 and itself by index 1.
fn pair(set: &str) -> (Side, Side) {
    let info = info(set);
    let (a, b) = (Side::open(&info), Side::open(&info));
    for (one, other) in [(&a, &b), (&b, &a)] {
        assert_eq!(one.av.insert(other.name).unwrap(), 0);
        assert_eq!(one.av.insert(one.name).unwrap(), 1);
    }
    (a, b)
}

fn until(sides: &mut [&mut Side], mut what: impl FnMut(&mut [&mut Side]) -> bool) {
    let start = Instant::now();
    while !what(sides) {
        sides.iter_mut().for_each(|s| s.turn());
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it takes too long: {:?}",
            sides.iter().map(|s| (&s.done, &s.failed)).collect::<Vec<_>>()
        );
    }
}

fn both(a: &mut Side, b: &mut Side, what: impl FnMut(&mut [&mut Side]) -> bool) {
    until(&mut [a, b], what)
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ seed ^ i >> 9) as u8).collect()
}

#[test]
fn messages_of_every_length_arrive_with_tag_and_source() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        for (k, len) in [0, 1, 8, 100, 4096, 8000, 8192, 8193, 65536, 1 << 20, 16 << 20].into_iter().enumerate() {
            let (from, mut to) = (bytes(len, k), vec![0u8; len]);
            let expected = k % 2 == 0;
            if expected {
                b.recv(0, &mut to, k as u64, 0, 100 + k);
            }
            a.send(0, &from, k as u64, 200 + k);
            if !expected {
                for _ in 0..200 {
                    both(&mut a, &mut b, |_| true);
                    a.turn();
                    b.turn();
                }
                b.recv(0, &mut to, k as u64, 0, 100 + k);
            }
            let (mut got, mut sent) = (None, None);
            both(&mut a, &mut b, |s| {
                sent = sent.or_else(|| s[0].take(200 + k));
                got = got.or_else(|| s[1].take(100 + k));
                sent.is_some() && got.is_some()
            });
            let (c, from_whom) = got.unwrap();
            assert_eq!((c.len, c.flags, from_whom), (len, flags::RECV | flags::TAGGED, Origin { tag: k as u64, peer: 0 }), "{set} {len}");
            assert!(from == to, "{set} {len}");
        }
        assert!(a.failed.is_empty() && b.failed.is_empty());
        a.ep.close().unwrap();
        b.ep.close().unwrap();
        assert_eq!(a.domain.in_use(), (0, 0), "{set}: a lent region stays open");
    }
}

#[test]
fn order_wildcards_truncation_and_data() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let mut to = [0u64; 64];
        // Receives from any source with any tag take the messages in the order of sending.
        for (i, word) in to.iter_mut().enumerate() {
            // SAFETY: these are the bytes of the word, borrowed as long as the word.
            let bytes = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(word).cast::<u8>(), 8) };
            b.recv(UNSPEC, bytes, 0, u64::MAX, i);
        }
        for i in 0..64u64 {
            a.send(0, &i.to_le_bytes(), i << 32, 1000);
        }
        both(&mut a, &mut b, |s| s[1].done.len() == 64);
        assert_eq!(to.to_vec(), (0..64).collect::<Vec<u64>>());
        assert!(b.done.iter().enumerate().all(|(i, (c, from))| c.context == i && from.tag == (i as u64) << 32));
        b.done.clear();
        // The mask ignores the lower half of the tag.
        let mut small = [0u8; 4];
        b.recv(0, &mut small, 7 << 32, 0xffff_ffff, 1);
        let c = Common { context: 2, peer: 0, data: 99, flags: flags::REMOTE_CQ_DATA, ..Common::default() };
        a.ep.tsend(&[iov(b"longer")], &c, &[], 7 << 32 | 5).unwrap();
        let mut big = vec![0u8; 10];
        b.recv(0, &mut big, 8, 0, 3);
        let long = bytes(100_000, 1);
        a.send(0, &long, 8, 4);
        both(&mut a, &mut b, |s| s[1].failed.len() == 2);
        let (c, why, from) = b.take_failed(1).unwrap();
        assert_eq!((c.len, why.olen, why.error.errno, from), (4, 2, errno::ETRUNC, Origin { tag: 7 << 32 | 5, peer: 0 }));
        assert_eq!((&small, c.data, c.flags & flags::REMOTE_CQ_DATA != 0), (b"long", 99, true));
        let (c, why, _) = b.take_failed(3).unwrap();
        assert_eq!((c.len, why.olen), (10, 99_990));
        assert_eq!(big, bytes(10, 1));
        both(&mut a, &mut b, |s| s[0].take(4).is_some());
        assert!(a.failed.is_empty(), "the sender succeeds");
        // Untagged messages are matched separately.
        let mut plain = [0u8; 5];
        let c = Common { context: 5, peer: UNSPEC, ..Common::default() };
        b.ep.recv(&[iov(&plain)], &c, &[]).unwrap();
        a.send(0, b"other", 0, 6);
        let c = Common { peer: 0, flags: INJECT_FLAGS, ..Common::default() };
        a.ep.send(&[iov(b"plain")], &c, &[]).unwrap();
        both(&mut a, &mut b, |s| s[1].take(5).is_some());
        assert_eq!(&plain, b"plain");
        plain.fill(0);
        b.recv(0, &mut plain, 0, 0, 7);
        both(&mut a, &mut b, |s| s[1].take(7).is_some());
        assert_eq!(&plain, b"other");
        a.ep.close().unwrap();
        b.ep.close().unwrap();
    }
}

#[test]
fn all_sides_send_before_they_receive() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let lens = [8usize, 3000, 9000, 70_000];
        let from: Vec<Vec<u8>> = (0..600).map(|i| bytes(lens[i % 4], i)).collect();
        let mut to: Vec<Vec<Vec<u8>>> = (0..2).map(|_| from.iter().map(|m| vec![0; m.len()]).collect()).collect();
        for (i, m) in from.iter().enumerate() {
            a.send(0, m, i as u64, i);
            b.send(0, m, i as u64, i);
        }
        for (side, to) in [&a, &b].into_iter().zip(&mut to) {
            // The receives are posted in reverse order.
            for (i, m) in to.iter_mut().enumerate().rev() {
                side.recv(0, m, i as u64, 0, 10_000 + i);
            }
        }
        both(&mut a, &mut b, |s| s[0].done.len() == 1200 && s[1].done.len() == 1200);
        assert!(to.iter().all(|to| *to == from), "{set}");
        assert!(a.failed.is_empty() && b.failed.is_empty());
        a.ep.close().unwrap();
        b.ep.close().unwrap();
        assert_eq!((a.domain.in_use(), b.domain.in_use()), ((0, 0), (0, 0)));
    }
}

#[test]
fn probing_claiming_discarding_cancelling_and_self() {
    let (mut a, mut b) = pair("shm+tcp");
    b.probe(UNSPEC, 5, PEEK, 1);
    assert_eq!(b.take_failed(1).unwrap().1.error.errno, errno::ENOMSG);
    let long = bytes(50_000, 3);
    a.send(0, b"short", 5, 1);
    a.send(0, &long, 5, 2);
    a.send(0, b"last", 5, 3);
    both(&mut a, &mut b, |s| {
        s[1].probe(0, 5, PEEK, 2);
        s[1].take_failed(2);
        s[1].take(2).is_some_and(|(c, from)| c.len == 5 && from == Origin { tag: 5, peer: 0 })
    });
    b.probe(0, 5, PEEK | DISCARD, 3);
    assert_eq!(b.take(3).unwrap().0.len, 5);
    both(&mut a, &mut b, |s| {
        s[1].probe(0, 5, PEEK | CLAIM, 4);
        s[1].take_failed(4);
        s[1].take(4).is_some_and(|(c, _)| c.len == 50_000)
    });
    let mut to = vec![0u8; 50_000];
    let mut last = [0u8; 4];
    b.recv(0, &mut last, 5, 0, 5);
    both(&mut a, &mut b, |s| s[1].take(5).is_some());
    let c = Common { context: 4, peer: 0, flags: CLAIM, ..Common::default() };
    b.ep.trecv(&[iov(&to)], &c, &[], 5, 0).unwrap();
    both(&mut a, &mut b, |s| s[1].take(4).is_some() && s[0].done.len() == 3);
    assert_eq!(to, long);
    to.fill(0);
    assert!(b.ep.trecv(&[iov(&to)], &c, &[], 5, 0).is_err_and(|e| e.words.contains("GDRFAB_PEEK")), "claimed once");
    // Cancels a receive.
    b.recv(0, &mut to, 6, 0, 6);
    b.ep.cancel(6).unwrap();
    b.turn();
    assert_eq!(b.take_failed(6).unwrap().1.error.code, Code::Canceled);
    assert_eq!(b.ep.cancel(6).unwrap_err().errno, errno::ENOENT);
    // Messages to itself: short and long, with and without a posted receive.
    for (len, first) in [(8, true), (8, false), (100_000, true), (100_000, false)] {
        let from = bytes(len, len);
        if first {
            b.recv(1, &mut to[..len.min(50_000)], 9, 0, 7);
        }
        b.send(1, &from, 9, 8);
        if !first {
            b.recv(1, &mut to[..len.min(50_000)], 9, 0, 7);
        }
        b.turn();
        assert!(b.take(8).is_some());
        match len {
            8 => assert_eq!(b.take(7).unwrap().1, Origin { tag: 9, peer: 1 }),
            _ => assert_eq!(b.take_failed(7).unwrap().1.olen, 50_000),
        }
        assert_eq!(to[..8], from[..8]);
    }
}

#[test]
fn a_buffer_takes_several_messages() {
    let (mut a, mut b) = pair("shm+tcp");
    let send = |a: &Side, i: u8| a.ep.send(&[iov(&[i; 100])], &Common { peer: 0, flags: INJECT_FLAGS, ..Common::default() }, &[]).unwrap();
    let buffer = vec![0u8; 350];
    let c = Common { context: 1, peer: UNSPEC, flags: flags::MULTI_RECV, ..Common::default() };
    a.send(0, b"tagged, not for it", 1, 0);
    // Some messages come before the buffer is posted, and some after.
    send(&a, 0);
    send(&a, 1);
    both(&mut a, &mut b, |s| s[1].ep.stats().unexpected == 3);
    b.ep.recv(&[iov(&buffer)], &c, &[]).unwrap();
    send(&a, 2);
    send(&a, 3);
    both(&mut a, &mut b, |s| s[1].done.len() == 3);
    assert!(b.done.iter().enumerate().all(|(i, (c, _))| (c.context, c.buf, c.len) == (1, buffer.as_ptr() as usize + i * 100, 100)));
    assert!(b.done.iter().enumerate().all(|(i, (c, _))| (c.flags & flags::MULTI_RECV != 0) == (i == 2)), "less than the minimum is left");
    assert!(buffer[..300].iter().enumerate().all(|(i, byte)| usize::from(*byte) == i / 100));
    // The fourth message waits for the next buffer.
    let c = Common { context: 2, ..c };
    b.ep.recv(&[iov(&buffer)], &c, &[]).unwrap();
    both(&mut a, &mut b, |s| s[1].take(2).is_some());
    b.ep.cancel(2).unwrap();
}

fn register(side: &Side, bytes: &[u8]) -> RegionId {
    let list = [iov(bytes)];
    side.domain.register(&Attr { source: Source::Iov(&list), ..Attr::plain(Access::all()) }).unwrap()
}

#[test]
fn one_key_serves_all_lanes() {
    for set in SETS {
        let (mut a, mut b) = pair(set);
        let (mine, theirs) = (bytes(1 << 20, 1), vec![0u8; 1 << 20]);
        let (own, region) = (register(&a, &mine), register(&b, &theirs));
        let remote = [RmaIov { addr: theirs.as_ptr() as u64, len: 1 << 20, key: region.key }];
        let c = Common { context: 1, peer: 0, desc: own.desc, ..Common::default() };
        a.ep.rma(Dir::Write, &[iov(&mine)], &remote, &c, &[own.desc]).unwrap();
        // The message must not overtake the write.
        let mut word = [0u8; 4];
        b.recv(0, &mut word, 1, 0, 2);
        a.send(0, b"done", 1, 3);
        both(&mut a, &mut b, |s| s[1].take(2).is_some());
        assert!(theirs == mine, "{set}");
        let back = vec![0u8; 1000];
        let c = Common { context: 4, peer: 0, ..Common::default() };
        let remote = [RmaIov { addr: theirs.as_ptr() as u64 + 5, len: 1000, key: region.key }];
        a.ep.rma(Dir::Read, &[iov(&back)], &remote, &c, &[]).unwrap();
        both(&mut a, &mut b, |s| s[0].take(4).is_some());
        assert_eq!(back, mine[5..1005]);
        let c = Common { context: 5, peer: 0, data: 77, flags: flags::REMOTE_CQ_DATA, ..Common::default() };
        a.ep.rma(Dir::Write, &[iov(&back)], &remote, &c, &[]).unwrap();
        both(&mut a, &mut b, |s| s[1].done.iter().any(|(c, _)| c.flags & flags::REMOTE_WRITE != 0 && c.data == 77 && c.len == 1000));
        let wrong = [RmaIov { key: 12345, ..remote[0] }];
        let c = Common { context: 6, peer: 0, ..Common::default() };
        a.ep.rma(Dir::Write, &[iov(&back)], &wrong, &c, &[]).unwrap();
        both(&mut a, &mut b, |s| s[0].take_failed(6).is_some_and(|(_, why, _)| why.error.code == Code::Key));
        a.domain.close_region(own).unwrap();
        b.domain.close_region(region).unwrap();
        a.ep.close().unwrap();
        b.ep.close().unwrap();
    }
}

#[test]
fn a_bare_address_suffices_and_unknown_sources_get_their_index() {
    let info = info("shm+tcp");
    let (mut a, mut b) = (Side::open(&info), Side::open(&info));
    a.av.insert(Name::at(b.name.socket())).unwrap();
    a.send(0, b"one", 1, 1);
    a.send(0, b"two", 1, 2);
    let mut to = [0u8; 3];
    b.recv(UNSPEC, &mut to, 1, 0, 3);
    both(&mut a, &mut b, |s| s[1].done.len() == 1);
    assert_eq!(b.take(3).unwrap().1.peer, UNSPEC);
    (0..100).for_each(|_| b.turn());
    // The sender is in the address vector by now, so its second message has its index.
    assert_eq!(b.av.insert(a.name).unwrap(), 0);
    b.recv(0, &mut to, 1, 0, 4);
    both(&mut a, &mut b, |s| s[1].done.len() == 1);
    assert_eq!((b.take(4).unwrap().1.peer, &to), (0, b"two"));
    b.send(0, b"yes", 2, 5);
    a.recv(0, &mut to, 2, 0, 6);
    both(&mut a, &mut b, |s| s[0].take(6).is_some());
}

#[test]
fn both_call_at_once() {
    for set in SETS {
        for round in 0..20 {
            let (mut a, mut b) = pair(set);
            let mut to = [[0u8; 8]; 2];
            let [one, other] = &mut to;
            a.recv(0, one, 1, 0, 1);
            b.recv(0, other, 1, 0, 1);
            a.send(0, &[1; 8], 1, 2);
            b.send(0, &[2; 8], 1, 2);
            both(&mut a, &mut b, |s| s.iter().all(|s| s.done.len() == 2));
            assert_eq!(to, [[2; 8], [1; 8]], "{set} {round}");
            assert!(a.failed.is_empty() && b.failed.is_empty());
            a.ep.close().unwrap();
            b.ep.close().unwrap();
        }
    }
}

#[test]
fn messages_for_an_old_incarnation_never_reach_the_new_one() {
    for set in SETS {
        let info = info(set);
        let (mut a, mut b) = pair(set);
        let mut to = [0u8; 8];
        b.recv(0, &mut to, 1, 0, 1);
        a.send(0, &[1; 8], 1, 1);
        both(&mut a, &mut b, |s| s[1].take(1).is_some());
        // A message that waits at a peer that closes fails; receives from any source stay.
        let long = bytes(100_000, 1);
        a.send(0, &long, 9, 2);
        a.recv(UNSPEC, &mut to, 1, 0, 3);
        (0..50).for_each(|_| a.turn());
        b.ep.close().unwrap();
        until(&mut [&mut a], |s| s[0].take_failed(2).is_some_and(|(_, why, _)| why.error.code == Code::PeerGone));
        let place = b.name.socket();
        drop(b);
        let mut b = Side::open(&Info { src_addr: Some(format!("rdm://{place}")), ..info.clone() });
        assert_eq!(b.name.socket(), place);
        let mut never = [0u8; 8];
        b.recv(UNSPEC, &mut never, 0, u64::MAX, 1);
        a.send(0, &[7; 8], 1, 4);
        both(&mut a, &mut b, |s| s[0].take_failed(4).is_some_and(|(_, why, _)| why.error.words.contains("another one listens")));
        assert!(b.done.is_empty());
        // The new incarnation is reached under its own name, and its answer fills a receive from any source.
        assert_eq!(a.av.insert(b.name).unwrap(), 2);
        assert_eq!(b.av.insert(a.name).unwrap(), 0);
        a.send(2, &[8; 8], 1, 5);
        both(&mut a, &mut b, |s| s[1].take(1).is_some());
        assert_eq!(never, [8; 8]);
        b.send(0, &[9; 8], 1, 6);
        both(&mut a, &mut b, |s| s[0].take(3).is_some_and(|(_, from)| from.peer == 2));
    }
}

#[test]
fn eight_endpoints_all_to_all() {
    const N: usize = 8;
    for set in SETS {
        let info = info(set);
        let mut sides: Vec<Side> = (0..N).map(|_| Side::open(&info)).collect();
        let names: Vec<Name> = sides.iter().map(|s| s.name).collect();
        sides.iter().for_each(|s| names.iter().for_each(|n| assert!(s.av.insert(*n).is_ok())));
        let mut to = vec![[[0u8; 8]; N]; N];
        for (i, (side, to)) in sides.iter().zip(&mut to).enumerate() {
            for (k, to) in to.iter_mut().enumerate() {
                side.send(k as u64, &[i as u8 + 1; 8], 1, 1);
                side.recv(k as u64, to, 1, 0, 2);
            }
        }
        let mut all: Vec<&mut Side> = sides.iter_mut().collect();
        until(&mut all, |s| s.iter().all(|s| s.done.len() == 2 * N));
        for to in &to {
            assert!(to.iter().enumerate().all(|(k, word)| *word == [k as u8 + 1; 8]), "{set}");
        }
        sides.iter().for_each(|s| s.ep.close().unwrap());
    }
}
