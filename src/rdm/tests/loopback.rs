// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages, RMA and atomics of an endpoint to itself.

use super::*;
use crate::prov::atomic::{Atomic, AtomicOp, Datatype, Form, Op, Operands};
use crate::prov::queue::Counter;
use crate::sys::mem;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::sync::atomic::{AtomicBool, Ordering};

/// The pieces of a message end at other bytes than the pieces of its receive.
#[test]
fn a_message_in_pieces_is_copied_into_pieces() {
    let (_a, mut b) = pair("shm");
    let (from, mut to) = (bytes(1000, 3), vec![0u8; 1001]);
    let cut = |bytes: &[u8], at: [usize; 2]| [iov(&bytes[..at[0]]), Iov::EMPTY, iov(&bytes[at[0]..at[1]]), iov(&bytes[at[1]..])];
    for (sent, asked) in [([1, 999], [500, 500]), ([333, 700], [334, 699]), ([0, 1000], [1, 2])] {
        for expected in [true, false] {
            to.fill(0);
            let recv = |b: &Side| {
                let c = Common { context: 1, peer: 1, ..Common::default() };
                b.ep.trecv(&cut(&to, asked), &c, &[], 7, 0).unwrap();
            };
            if expected {
                recv(&b);
            }
            b.ep.tsend(&cut(&from, sent), &Common { context: 2, peer: 1, ..Common::default() }, &[], 7).unwrap();
            if !expected {
                recv(&b);
            }
            b.turn();
            assert_eq!((b.take(1).unwrap().0.len, b.take(2).is_some()), (1000, true));
            assert!(to[..1000] == from && to[1000] == 0, "{sent:?} {asked:?}");
        }
    }
    b.ep.close().unwrap();
}

/// Maps two pages. The first can only be read, and the second cannot be accessed.
fn half_gone() -> (*mut std::ffi::c_void, usize) {
    let page = mem::page_size();
    // SAFETY: the mapping is fresh, and no other thread uses the page that becomes inaccessible.
    unsafe {
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * page, flags.0, flags.1).unwrap();
        rustix::mm::mprotect(at, page, MprotectFlags::READ).unwrap();
        rustix::mm::mprotect(at.wrapping_byte_add(page), page, MprotectFlags::empty()).unwrap();
        (at, page)
    }
}

/// Pages may be missing on either side, as with another peer.
#[test]
fn rma_on_missing_pages_is_an_error() {
    let (_a, mut b) = pair("shm");
    let (at, page) = half_gone();
    let mut good = vec![0u8; 2 * page];
    // SAFETY: the vector outlives the operations. The pages at the other address may be missing: the test is about the
    // error that the library reports.
    let [gone, fine] = [at as usize, good.as_mut_ptr() as usize].map(|at| unsafe { Iov::new(at, 2 * page) });
    let register = |iov| b.domain.register(&Attr { source: Source::Iov(&[iov]), ..Attr::plain(Access::all() - Access::ATOMIC) }).unwrap();
    let (lost, kept) = (register(gone), register(fine));
    for len in [8, page + 8, 2 * page] {
        for (dir, local, remote, key, fault) in [
            (Dir::Write, fine, gone, lost.key, true),
            (Dir::Read, gone, fine, kept.key, true),
            (Dir::Read, fine, gone, lost.key, len > page),
            (Dir::Write, gone, fine, kept.key, len > page),
        ] {
            let to = RmaIov { addr: remote.addr() as u64, len, key };
            b.ep.rma(dir, &[local.part(0, len)], &[to], &Common { context: 3, peer: 1, ..Common::default() }, &[]).unwrap();
            b.turn();
            let failed = b.take_failed(3).map(|(_, why, _)| (why.error.errno, why.error.code));
            assert_eq!(failed, fault.then_some((errno::EFAULT, Code::Fault)), "{dir:?} of {len} bytes");
            assert_eq!(b.take(3).is_some(), !fault);
        }
    }
    for region in [lost, kept] {
        b.domain.close_region(region).unwrap();
    }
    b.ep.close().unwrap();
    // SAFETY: nothing refers to the mapping any more.
    unsafe { rustix::mm::munmap(at, 2 * page).unwrap() };
}

#[test]
fn a_long_message_from_missing_pages_is_an_error() {
    let (_a, mut b) = pair("shm");
    let (at, page) = half_gone();
    let mut to = vec![0u8; 3 * page];
    // SAFETY: the second page is missing on purpose; the library copies by system calls, which report it.
    let pieces = [iov(&to[..page]), unsafe { Iov::new(at as usize, 2 * page) }];
    b.ep.trecv(&[iov(&to)], &Common { context: 1, peer: 1, ..Common::default() }, &[], 7, 0).unwrap();
    b.ep.tsend(&pieces, &Common { context: 2, peer: 1, ..Common::default() }, &[], 7).unwrap();
    b.turn();
    for context in [1, 2] {
        let (_, why, _) = b.take_failed(context).unwrap();
        assert_eq!((why.error.errno, why.error.code), (errno::EFAULT, Code::Fault));
        assert!(context == 1 || why.error.words.starts_with("iov[1]: "), "{}", why.error.words);
    }
    b.ep.close().unwrap();
    to.clear();
    // SAFETY: nothing refers to the mapping any more.
    unsafe { rustix::mm::munmap(at, 2 * page).unwrap() };
}

/// Pages may be missing, as with another peer.
#[test]
fn an_atomic_on_missing_pages_is_an_error() {
    let (_a, mut b) = pair("shm");
    let (at, page) = half_gone();
    // SAFETY: the second page is missing on purpose; the library copies by system calls, which report it.
    let all = [unsafe { Iov::new(at as usize, 2 * page) }];
    let region = b.domain.register(&Attr { source: Source::Iov(&all), ..Attr::plain(Access::all() - Access::ATOMIC) }).unwrap();
    let word = [1u64];
    // SAFETY: the word outlives the operations.
    let operand = unsafe { Iov::new(word.as_ptr() as usize, 8) };
    for (op, skip, fault) in [(Op::Sum, 0, true), (Op::Sum, page, true), (Op::Read, page, true), (Op::Read, 0, false)] {
        let what = Atomic { op, datatype: Datatype::U64, form: Form::Fetch, count: 1 };
        let with = Operands { operand, compare: Iov::EMPTY, old: operand };
        let op = AtomicOp { what, with, addr: (at as usize + skip) as u64, key: region.key };
        b.ep.atomic(&op, &Common { context: 3, peer: 1, ..Common::default() }).unwrap();
        b.turn();
        let failed = b.take_failed(3).map(|(_, why, _)| (why.error.errno, why.error.code));
        assert_eq!(failed, fault.then_some((errno::EFAULT, Code::Fault)), "{what:?} at {skip}");
        assert_eq!(b.take(3).is_some(), !fault);
    }
    b.domain.close_region(region).unwrap();
    b.ep.close().unwrap();
    // SAFETY: nothing refers to the mapping any more.
    unsafe { rustix::mm::munmap(at, 2 * page).unwrap() };
}

/// A close that finds the region busy keeps out new accesses of peers and of this process.
#[test]
fn a_region_whose_close_was_busy_stays_closed_to_peers() {
    let info = info("shm");
    let domain = open_domain(&info);
    let (mut a, mut b) = (Side::open(&info), Side::open_in(domain.clone(), &info));
    assert_eq!((a.av.insert(b.name).unwrap(), b.av.insert(a.name).unwrap()), (0, 0));
    let at = domain.allocate(4096).unwrap();
    // SAFETY: the memory stays until it is freed below.
    let all = [unsafe { Iov::new(at, 4096) }];
    let region = b.domain.register(&Attr { source: Source::Iov(&all), ..Attr::plain(Access::all() - Access::ATOMIC) }).unwrap();
    let remote = [RmaIov { addr: at as u64, len: 8, key: region.key }];
    let write = |a: &mut Side, b: &mut Side| {
        let c = Common { context: 3, peer: 0, ..Common::default() };
        a.ep.rma(Dir::Write, &[iov(&[7; 8])], &remote, &c, &[]).unwrap();
        let mut ended = None;
        both(a, b, |s| {
            ended = s[0].take(3).map(|_| Code::None).or_else(|| s[0].take_failed(3).map(|(_, why, _)| why.error.code));
            ended.is_some()
        });
        ended.unwrap()
    };
    assert_eq!(write(&mut a, &mut b), Code::None);
    let inside = domain.regions.lock().range(&remote[0], Access::REMOTE_READ, Default::default()).unwrap();
    for _ in 0..2 {
        assert!(b.domain.try_close_region(region).is_err_and(|e| e.errno == errno::EBUSY && e.words.contains("of this process")));
        assert_eq!(write(&mut a, &mut b), Code::Key);
    }
    // The region counts as open until it is closed.
    assert_eq!((b.domain.in_use().0, b.domain.regions_covering(at as u64 + 8, 1)), (0, 1));
    assert!(b.domain.free(at).is_err_and(|e| e.errno == errno::EBUSY));
    drop(inside);
    b.domain.close_region(region).unwrap();
    assert_eq!(b.domain.regions_covering(at as u64, 4096), 0);
    b.domain.free(at).unwrap();
    assert_eq!(b.domain.in_use(), (0, 0));
    a.ep.close().unwrap();
    b.ep.close().unwrap();
}

/// A key that the program chooses may name another region when the write ends. That region's counter must not count the
/// write, since the region may not be written to.
#[test]
fn a_write_is_counted_by_its_own_region() {
    const KEY: u64 = 77;
    let info = Info { mr_mode: info("shm").mr_mode & !flags::MR_MODE_PROV_KEY, ..info("shm") };
    let mut b = Side::open(&info);
    let own = b.av.insert(b.name).unwrap();
    let domain = b.domain.clone();
    let (from, into) = (bytes(1 << 20, 1), vec![0u8; 1 << 20]);
    let remote = [RmaIov { addr: into.as_ptr() as u64, len: into.len(), key: KEY }];
    let (stop, mut busy) = (AtomicBool::new(false), 0);
    let counter = || Arc::new(Counter::default());
    let (ours, other) = (counter(), counter());
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut done = 0u64;
            while !stop.load(Ordering::Relaxed) {
                b.ep.rma(Dir::Write, &[iov(&from)], &remote, &Common { context: 3, peer: own, ..Common::default() }, &[]).unwrap();
                b.turn();
                done += b.done.drain(..).count() as u64;
                b.failed.clear();
            }
            b.ep.close().unwrap();
            done
        });
        let register = |access, counter: &Arc<Counter>| {
            let list = [iov(&into)];
            let attr = Attr { source: Source::Iov(&list), requested_key: KEY, ..Attr::plain(access) };
            let id = domain.register(&attr).unwrap();
            domain.bind_counter(id, counter.clone()).unwrap();
            id
        };
        let start = Instant::now();
        for round in 0u64.. {
            if busy > 20 || start.elapsed() > Duration::from_secs(20) {
                break;
            }
            let first = register(Access::REMOTE_WRITE, &ours);
            std::thread::sleep(Duration::from_micros(round * 37 % 500));
            if domain.try_close_region(first).is_ok() {
                continue;
            }
            busy += 1;
            let second = register(Access::REMOTE_READ, &other);
            domain.close_region(first).unwrap();
            domain.close_region(second).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        // Some writes may end before the counter is bound.
        assert!((1..=writer.join().unwrap()).contains(&ours.value.get()));
    });
    assert!(busy > 20, "{busy}");
    assert_eq!(other.value.get(), 0);
}
