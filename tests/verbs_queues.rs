// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Endpoints of the verbs provider against the fake libibverbs of `c-tests/fakes`; `fakes` says how the cases run. The
//! fake moves no byte, so what is tested is which work is posted, what its completions become, and what is refused in
//! which words. What bytes do is tested in a virtual machine (tests/check-verbs.sh).

mod fakes;
#[path = "fakes/verbs.rs"]
mod world;

use fakes::{Case, fails, fault};
use gdrfab::error::{Code, errno};
use gdrfab::fabric::{Cq, CqFormat, Domain, Effort, Endpoint, Fabric, Info, Stats};
use gdrfab::hmem::{self, Iface, Site};
use gdrfab::mr::{Attr, Memory};
use gdrfab::mr::{PathPolicy, Paths};
use gdrfab::prov::flags;
use gdrfab::prov::list::{Block, List};
use gdrfab::prov::op::{Common, Dir, RmaIov};
use gdrfab::prov::queue::Taken;
use std::sync::Arc;
use world::{LIB, NO_CM, SMALL, World, fences, hints, iov, list, lives, memory, named, posted, raise, write};

const CASES: &[Case] = &[
    ("options", "verbs", &[LIB, NO_CM], options),
    ("paths", ":verbs", &[LIB, NO_CM, ("FAKE_IBVERBS_PEER_MEM", "1")], paths),
    ("posting", "verbs", &[LIB, NO_CM, SMALL], posting),
    ("fences", "verbs", &[LIB, NO_CM, SMALL], fence),
    ("a chain", "verbs", &[LIB, NO_CM, SMALL], chain),
    ("a chain that breaks", "verbs", &[LIB, NO_CM, SMALL, ("FAKE_FAULT", "none=1")], chain_breaks),
    ("a list", "verbs", &[LIB, NO_CM, ("GDRFAB_VERBS_TX_SIZE", "64"), ("FAKE_FAULT", "none=1")], lists),
    ("a failed completion", "verbs", &[LIB, NO_CM, SMALL, ("FAKE_FAULT", "none=1")], completion_fails),
    ("an event before its completion", "verbs", &[LIB, NO_CM, SMALL, ("FAKE_FAULT", "none=1")], event_first),
    ("an event without a completion", "verbs", &[LIB, NO_CM, SMALL, ("FAKE_FAULT", "none=1")], event_alone),
    ("a small queue", "verbs", &[LIB, NO_CM, ("GDRFAB_VERBS_TX_SIZE", "8192")], small_queue),
    ("creation fails", "verbs", &[LIB, NO_CM], creation_fails),
    ("events of the device", "verbs", &[LIB, NO_CM, SMALL], events),
    ("the device is gone", "verbs", &[LIB, NO_CM, SMALL], device_gone),
];

#[test]
fn verbs_queues() {
    world::each(CASES);
}

fn options() {
    let world = World::new();
    let ep = world.endpoint(false).unwrap();
    assert_eq!(
        [Effort::AckTimeout, Effort::Retries, Effort::RnrRetries, Effort::MinRnrTimer].map(|o| ep.effort(o).unwrap()),
        [14, 7, 7, 12]
    );
    for (what, most) in [(Effort::AckTimeout, 31), (Effort::Retries, 7), (Effort::RnrRetries, 7), (Effort::MinRnrTimer, 31)] {
        ep.set_effort(what, most).unwrap();
        assert_eq!(ep.effort(what).unwrap(), most);
        ep.set_effort(what, 1).unwrap();
        fails(ep.set_effort(what, most + 1), errno::EINVAL, "optval");
        fails(ep.set_effort(what, 257), errno::EINVAL, "optval");
    }
    let (a, b) = world.pair(false);
    fails(a.set_effort(Effort::Retries, 1), errno::EOPBADSTATE, "before connecting");
    a.close().unwrap();
    fails(b.set_effort(Effort::Retries, 1), errno::EOPBADSTATE, "before connecting");

    // What only another provider keeps to is refused, and its absence is not.
    let ep = world.endpoint(false).unwrap();
    assert!(!ep.coop() && ep.stream() == 0);
    ep.set_coop(false).unwrap();
    ep.set_stream(0).unwrap();
    fails(ep.set_coop(true), errno::EOPNOTSUPP, "GDRFAB_OPT_COOP");
    fails(ep.set_stream(7), errno::EOPNOTSUPP, "GDRFAB_OPT_STREAM");
    fails(ep.set_driver_calls(false), errno::EOPNOTSUPP, "optval");

    let shm = list(0, &Info { prov_name: Some("shm".into()), ..hints() }).unwrap().remove(0);
    let domain = Domain::open(&Fabric::open(&shm).unwrap(), &shm, None).unwrap();
    let ep = Endpoint::open(&domain, &shm, 0).unwrap();
    fails(ep.effort(Effort::Retries), errno::ENOPROTOOPT, "RDMA");
    fails(ep.set_effort(Effort::Retries, 1), errno::ENOPROTOOPT, "RDMA");
}

/// Whatever memory of this side, key, restriction and shape of an operation: it is carried out by the path that `query`
/// tells, and counted there, or it is an error entry if `query` tells that there is none. What a peer's device holds is
/// carried out by the fake; a staged region of a peer's is not, so of those only the refusals are posted.
fn paths() {
    const VERBS: [Paths; 4] = [Paths::NIC, Paths::DMABUF, Paths::PEER_MEM, Paths::STAGED];
    let world = World::new();
    let (a, _b) = world.pair(false);
    let bytes = [7u8; 64];
    let on_device = hmem::get(Iface::Cuda).unwrap().alloc(0, 4096).unwrap() as usize;
    let device = Memory::Device(Site { iface: Iface::Cuda, device: 0 });
    let local = VERBS.map(|path| {
        let at = if path == Paths::NIC { iov(&bytes) } else { named(on_device, 64) };
        let memory_is = if path == Paths::NIC { Memory::Host } else { device };
        let policy = PathPolicy { require: path, forbid: Paths::empty() };
        let mr = world.register(Attr { memory: memory_is, policy, ..memory(&[at]) }).unwrap();
        assert_eq!(mr.facts().unwrap().paths, path);
        (path, at, mr)
    });
    let held_by_device = local[0].2.key();
    let staged = local[3].2.key();
    let of_one = |s: Stats, path| match path {
        Paths::NIC => (s.ops_nic, s.bytes_nic),
        Paths::DMABUF => (s.ops_dmabuf, s.bytes_dmabuf),
        Paths::PEER_MEM => (s.ops_peer_mem, s.bytes_peer_mem),
        _ => (s.ops_staged, s.bytes_staged),
    };
    let restrictions = VERBS.into_iter().chain([Paths::DIRECT, Paths::empty()]).flat_map(|p| [(p, Paths::empty()), (Paths::empty(), p)]);
    for (require, forbid) in restrictions {
        a.set_policy(require, forbid);
        for ((path, at, mr), key) in local.iter().flat_map(|l| [(l, held_by_device), (l, staged)]) {
            let taken = if key == staged { Paths::STAGED } else { *path };
            let allowed = PathPolicy { require, forbid }.allowed().contains(taken);
            let answer = a.query(key, mr.desc()).unwrap();
            let what = format!("{path:?} to {key:#x}, require {require:?} forbid {forbid:?}: {}", answer.text);
            assert_eq!(answer.path, if allowed { taken } else { Paths::empty() }, "{what}");
            assert_eq!(answer.paths, answer.path, "{what}");
            assert!(answer.offered.contains(answer.path), "{what}");
            for one in Paths::ALL {
                let no = format!("  {}: no: ", one.words());
                assert_eq!(answer.text.contains(&no), one != answer.path, "{what}");
            }
            if allowed && key == staged {
                continue;
            }
            for (dir, flags) in [(Dir::Write, 0), (Dir::Read, 0), (Dir::Write, flags::COMPLETION), (Dir::Write, flags::MORE)] {
                let before = a.stats();
                let there = [RmaIov { addr: 0x1000, len: 64, key }];
                // Twice, so that the fast path is taken if it is open.
                for context in [1, 2] {
                    let last = if context == 2 { flags & !flags::MORE } else { flags };
                    a.rma(dir, &[*at], &there, &Common { context, flags: last, ..Common::default() }, &[mr.desc()]).unwrap();
                }
                if allowed {
                    assert_eq!(world.contexts(), [1, 2], "{what}");
                } else {
                    for context in [1, 2] {
                        let (failed, why) = world.cq.read_error().unwrap();
                        assert_eq!((failed.context, why.error.errno, why.error.code), (context, errno::EOPNOTSUPP, Code::Path), "{what}");
                        assert!(why.error.words.contains("GDRFAB_OPT_"), "{}", why.error);
                    }
                }
                let after = a.stats();
                for one in VERBS {
                    let (ops, sum) = of_one(before, one);
                    let more = if allowed && one == taken { 2 } else { 0 };
                    assert_eq!(of_one(after, one), (ops + more, sum + 64 * more), "{one:?} for {what}");
                }
                assert_eq!(after.errors, before.errors + if allowed { 0 } else { 2 }, "{what}");
            }
        }
    }
    // Bytes of an inject call are copied out of device memory, so they are staged; out of host memory they are the nic's.
    a.set_policy(Paths::empty(), Paths::STAGED);
    write(&a, named(on_device, 8), local[1].2.desc(), 3, flags::INJECT).unwrap();
    assert_eq!(world.cq.read_error().unwrap().1.error.code, Code::Path);
    a.set_policy(Paths::NIC, Paths::empty());
    write(&a, iov(&bytes), 0, 4, flags::INJECT).unwrap();
    assert_eq!(world.contexts(), [4]);
    fails(a.query(1 << 40, 0).map(drop), errno::EKEYREJECTED, "no key of a verbs region");
    fails(a.query(held_by_device, 0x1234).map(drop), errno::EINVAL, "desc[0]");
    // A message has no path to choose or to count.
    a.set_policy(Paths::DIRECT, Paths::empty());
    let before = a.stats();
    (0..2).for_each(|_| a.send(&[local[1].1], &Common::default(), &[local[1].2.desc()]).unwrap());
    assert_eq!(world.entries().len(), 2);
    assert_eq!(Stats { sends: before.sends + 2, ..before }, a.stats());
}

fn posting() {
    let world = World::new();
    let (a, b) = world.pair(false);
    assert_eq!(a.peer_address().unwrap(), b.address().unwrap());
    let bytes = vec![7u8; 4096];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    let (desc, key) = (mr.desc(), mr.key());
    for context in 1..=8 {
        write(&a, iov(&bytes), desc, context, 0).unwrap();
    }
    assert!(write(&a, iov(&bytes), desc, 9, 0).is_err_and(|e| e.is_again()), "eight can be outstanding");
    assert_eq!(world.contexts(), [1, 2, 3, 4, 5, 6, 7, 8]);
    write(&a, iov(&bytes), desc, 9, 0).unwrap();
    let there = [RmaIov { addr: 0x1000, len: 4096, key }];
    a.rma(Dir::Read, &[iov(&bytes)], &there, &Common { context: 10, ..Common::default() }, &[desc]).unwrap();
    let (_, found) = world.read();
    assert_eq!([found[0].flags, found[1].flags], [flags::RMA | flags::WRITE, flags::RMA | flags::READ]);
    assert_eq!((found[1].context, found[1].len), (10, 4096));

    // Receives, and what arrives in them.
    let receive = |context| b.recv(&[iov(&bytes)], &Common { context, ..Common::default() }, &[desc]);
    (0..3).for_each(|i| receive(100 + i).unwrap());
    let common = |flags, data| Common { context: 20, flags, data, ..Common::default() };
    a.send(&[iov(&bytes[..100])], &common(0, 0), &[desc]).unwrap();
    a.send(&[iov(&bytes[..100])], &common(flags::REMOTE_CQ_DATA, 0x1234_5678), &[desc]).unwrap();
    a.rma(Dir::Write, &[iov(&bytes)], &there, &common(flags::REMOTE_CQ_DATA, 5), &[desc]).unwrap();
    let found = world.entries();
    let got: Vec<_> = found.iter().filter(|c| c.context >= 100).map(|c| (c.context, c.flags, c.data)).collect();
    let recv = flags::RECV | flags::MSG;
    assert_eq!(got[..2], [(100, recv, 0), (101, recv | flags::REMOTE_CQ_DATA, 0x1234_5678)]);
    assert_eq!(got[2], (102, flags::REMOTE_WRITE | flags::RMA | flags::REMOTE_CQ_DATA, 5));

    // What cannot be posted.
    fails(write(&a, iov(&bytes), 0, 1, 0), errno::EINVAL, "desc[0]");
    fails(write(&a, iov(&bytes), desc, 1, flags::INJECT), errno::EMSGSIZE, "inject_size");
    fails(write(&a, iov(&bytes), desc, 1, flags::DELIVERY_COMPLETE), errno::EOPNOTSUPP, "TRANSMIT_COMPLETE");
    fails(a.send(&[iov(&bytes)], &common(flags::REMOTE_CQ_DATA, 1 << 32), &[desc]), errno::EINVAL, "cq_data_size");
    fails(a.rma(Dir::Write, &[iov(&bytes)], &[there[0], there[0]], &common(0, 0), &[desc]), errno::EINVAL, "rma_iov_limit");
    fails(a.rma(Dir::Write, &[iov(&bytes[..1])], &there, &common(0, 0), &[desc]), errno::EINVAL, "rma_iov");
    fails(a.cancel(1), errno::EOPNOTSUPP, "deadline");
    fails(a.connect_addr(&b.address().unwrap()), errno::EISCONN, "connected already");

    // Closing flushes what is posted.
    receive(103).unwrap();
    b.close().unwrap();
    let (failed, why) = world.cq.read_error().unwrap();
    assert_eq!((failed.context, why.error.errno, why.error.code), (103, errno::ECANCELED, Code::Canceled));
    a.shutdown(0).unwrap();
    fails(write(&a, iov(&bytes), desc, 1, 0), errno::ESHUTDOWN, "this side shut the connection down");
    fails(a.connect_addr("verbs-qp://nonsense"), errno::EOPBADSTATE, "over");
}

/// A queue pair executes in order what follows a write; only a read has to be waited for.
fn fence() {
    let world = World::new();
    let (a, b) = world.pair(false);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    let there = [RmaIov { addr: 0x1000, len: 512, key: mr.key() }];
    let post = |dir, context, flags| {
        a.rma(dir, &[iov(&bytes)], &there, &Common { context, flags, ..Common::default() }, &[mr.desc()]).unwrap();
    };
    post(Dir::Write, 1, 0);
    post(Dir::Write, 2, flags::FENCE);
    post(Dir::Read, 3, flags::FENCE);
    assert_eq!(fences(), 0);
    post(Dir::Write, 4, 0);
    post(Dir::Write, 5, flags::FENCE);
    post(Dir::Read, 6, flags::FENCE);
    assert_eq!(fences(), 2);
    assert_eq!(world.contexts(), [1, 2, 3, 4, 5, 6]);
    post(Dir::Write, 7, flags::FENCE);
    assert_eq!(fences(), 2, "the reads are over");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

fn chain() {
    let world = World::new();
    let (a, _b) = world.pair(true);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    // Only those that ask have entries, and a queue of unasked ones empties all the same.
    for turn in 0..200 {
        let asked = if turn % 50 == 49 { flags::COMPLETION } else { 0 };
        let more = if turn % 5 == 4 { 0 } else { flags::MORE };
        while let Err(e) = write(&a, iov(&bytes), mr.desc(), turn, asked | more) {
            assert!(e.is_again(), "{e}");
            assert_eq!(world.read().0, Taken::Empty);
        }
        if asked != 0 {
            assert_eq!(world.contexts(), [turn]);
        }
    }
    // What waits for the end of its chain goes out by progress as well.
    write(&a, iov(&bytes), mr.desc(), 1000, flags::MORE | flags::COMPLETION).unwrap();
    assert!(world.eq.read(|_| (true, ())).is_none());
    assert_eq!(world.contexts(), [1000]);
    // A failure of an operation that asked for no entry has one.
    assert_eq!(a.stats().errors, 0);
}

fn chain_breaks() {
    let world = World::new();
    let (a, _b) = world.pair(false);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    let post = |context, flags| write(&a, iov(&bytes), mr.desc(), context, flags);
    fault("post_send=22@3");
    (1..=4).for_each(|context| post(context, flags::MORE).unwrap());
    fails(post(5, 0), errno::EINVAL, "posting a work request");
    fault("none=1");
    // Known at once, so before what the device has yet to give back.
    let mut failed: Vec<_> = (0..2).map(|_| world.cq.read_error().unwrap()).map(|(c, why)| (c.context, why.error.errno)).collect();
    failed.sort();
    assert_eq!(failed, [(3, errno::EINVAL), (4, errno::EINVAL)], "what was promised is told, what was refused is not");
    assert_eq!(world.contexts(), [1, 2]);
    // A device that is full for the moment is back-pressure.
    fault("post_send=12@4");
    assert!(post(6, 0).is_err_and(|e| e.is_again()));
    post(6, 0).unwrap();
    (7..=10).for_each(|context| post(context, flags::MORE).unwrap());
    post(11, 0).unwrap();
    assert_eq!(world.contexts(), [6, 7, 8, 9, 10, 11]);
    // A chain whose last one never came is posted by progress: then all of it was promised, the last one too.
    fault("post_send=22");
    (12..=13).for_each(|context| post(context, flags::MORE).unwrap());
    world.cq.sread(1, 10, |_, _| ()).unwrap();
    let mut failed: Vec<_> = (0..2).map(|_| world.cq.read_error().unwrap()).map(|(c, why)| (c.context, why.error.errno)).collect();
    failed.sort();
    assert_eq!(failed, [(12, errno::EINVAL), (13, errno::EINVAL)]);
    fault("post_recv=12@1");
    let receive = || a.recv(&[iov(&bytes)], &Common { context: 1, ..Common::default() }, &[mr.desc()]);
    assert!(receive().is_err_and(|e| e.is_again()));
    fault("post_recv=22@2");
    fails(receive(), errno::EINVAL, "posting a receive");
    receive().unwrap();
}

/// Many work requests and one ring of the doorbell; the first that fails is named once all have ended.
fn lists() {
    let world = World::new();
    let (a, b) = world.pair(false);
    let bytes = vec![7u8; 100 * 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    let mut came = Vec::new();
    let mut run = |apart: u64, pieces: usize, context: usize, flags: u64| {
        let block = |i| Block { buf: iov(&bytes).addr() + (i ^ 1) * 512, addr: 0x1000 + i as u64 * apart, len: 400 };
        let blocks: Vec<Block> = (0..pieces).map(block).collect();
        // SAFETY: the fake moves no byte.
        let list = unsafe { List::new(&blocks, &[mr.desc()], &[0x100], 1 << 20) }.unwrap();
        let before = posted();
        a.list(Dir::Write, &Arc::new(list), &Common { context, flags, ..Common::default() }).unwrap();
        let mut failed = None;
        for _ in 0..1000 {
            match world.read() {
                (Taken::Some(_), found) => came.extend(found.iter().map(|c| c.context)),
                (Taken::ErrorFirst, _) => failed = world.cq.read_error(),
                _ => {}
            }
        }
        let after = posted();
        (after[0] - before[0], after[1] - before[1], failed)
    };
    // A quarter of the queue of 64 in each chain; and the path says nothing of who posts.
    assert!(matches!(run(512, 100, 1, 0), (7, 100, None)));
    // Those that adjoin at the peer are one request of as many pieces as the device takes.
    let pieces = world.info.tx_iov_limit;
    let requests = 100usize.div_ceil(pieces) as i32;
    assert_eq!((run(400, 100, 2, 0).1, pieces > 1), (requests, true));
    // A fence is for the first; a device that is full for the moment takes the rest later.
    let before = fences();
    a.rma(Dir::Read, &[iov(&bytes[..8])], &[RmaIov { addr: 0, len: 8, key: 1 }], &Common { context: 3, ..Common::default() }, &[mr.desc()])
        .unwrap();
    assert!(matches!(run(512, 40, 4, flags::FENCE), (3, 40, None)));
    assert_eq!(fences() - before, 1);
    fault("post_send=12@6");
    let (bells, requests, failed) = run(512, 40, 5, 0);
    assert!(failed.is_none() && bells > 3 && requests >= 40, "{bells} {requests}");
    fault("none=1");
    let stats = a.stats();
    assert_eq!(stats.bytes_nic, (100 + 100 + 40 + 40) * 400 + 8);
    // The sixth work request of the second chain: the block is named once nothing is under way.
    fault("wc=10@22");
    let (_, _, failed) = run(512, 100, 6, 0);
    let (entry, why) = failed.expect("a failure");
    assert_eq!((entry.context, why.block, why.error.errno), (6, 21, errno::EKEYREJECTED), "{}", why.error);
    assert!(why.error.words.contains("block 21") && why.error.words.contains("REM_ACCESS_ERR"), "{}", why.error);
    assert_eq!(came, [1, 2, 3, 4, 5]);
    assert!(world.cq.read_error().is_none());
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

fn completion_fails() {
    let world = World::new();
    let (a, b) = world.pair(false);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    a.recv(&[iov(&bytes)], &Common { context: 9, ..Common::default() }, &[mr.desc()]).unwrap();
    fault("wc=10@2");
    (1..=3).for_each(|context| write(&a, iov(&bytes), mr.desc(), context, 0).unwrap());
    let (_, found) = world.read();
    assert_eq!(found.iter().map(|c| c.context).collect::<Vec<_>>(), [1]);
    let mut failed: Vec<_> = (0..3).map(|_| world.cq.read_error().unwrap()).collect();
    let at = failed.iter().position(|(c, _)| c.context == 2).unwrap();
    let (_, why) = failed.remove(at);
    assert_eq!((why.error.errno, why.error.code), (errno::EKEYREJECTED, Code::verbs(10)));
    for part in ["write on queue pair", "REM_ACCESS_ERR", "vendor error 0x5a"] {
        assert!(why.error.words.contains(part), "{part}: {}", why.error);
    }
    assert!(failed.iter().all(|(_, why)| why.error.errno == errno::ECANCELED), "the rest is flushed");
    loop {
        let (kind, _, error) = world.event();
        assert_eq!(kind, 3);
        match error {
            Some(e) => assert_eq!(e.errno, errno::EKEYREJECTED),
            None => break,
        }
    }
    fails(write(&a, iov(&bytes), mr.desc(), 4, 0), errno::ESHUTDOWN, "REM_ACCESS_ERR");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

/// The device says that the queue pair failed before the completion is there that says why.
fn event_first() {
    let world = World::new();
    let (a, b) = world.pair(false);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    fault("qp_event=1@2,wc=10@2");
    (1..=2).for_each(|context| write(&a, iov(&bytes), mr.desc(), context, 0).unwrap());
    let (kind, _, error) = world.event();
    assert!(kind == 3 && error.is_none(), "the completion says it: {error:?}");
    assert_eq!(world.contexts(), [1]);
    let (failed, why) = world.cq.read_error().unwrap();
    assert_eq!((failed.context, why.error.errno, why.error.code), (2, errno::EKEYREJECTED, Code::verbs(10)));
    fails(write(&a, iov(&bytes), mr.desc(), 3, 0), errno::ESHUTDOWN, "REM_ACCESS_ERR");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

/// It says so, and no completion says why.
fn event_alone() {
    let world = World::new();
    let (a, b) = world.pair(false);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    a.recv(&[iov(&bytes)], &Common { context: 9, ..Common::default() }, &[mr.desc()]).unwrap();
    fault("qp_event=3@1");
    write(&a, iov(&bytes), mr.desc(), 1, 0).unwrap();
    let (kind, _, error) = world.event();
    let error = error.expect("a reason");
    assert!(kind == 3 && error.errno == errno::EACCES && error.words.contains("access rights forbid"), "{error}");
    let (kind, _, error) = world.event();
    assert!(kind == 3 && error.is_none(), "and the end: {error:?}");
    assert_eq!(world.contexts(), [1]);
    let (failed, why) = world.cq.read_error().unwrap();
    assert_eq!((failed.context, why.error.errno), (9, errno::ECANCELED));
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

fn small_queue() {
    let world = World::new();
    fault("ibv_resize_cq=22");
    fails(world.endpoint(false).map(drop), errno::ENOSPC, "open it with a larger size");
    fault("");
    world.endpoint(false).unwrap().close().unwrap();
    let large = World::of(hints(), 20_000);
    fault("ibv_resize_cq=22");
    large.endpoint(false).unwrap().close().unwrap();
}

fn creation_fails() {
    let world = World::new();
    // The domain keeps registered buffers, so what a pair leaves behind is counted beforehand.
    let (a, b) = world.pair(false);
    [a, b].iter().for_each(|ep| ep.close().unwrap());
    let before = lives();
    fault("ibv_alloc_pd=12");
    let fabric = Fabric::open(&world.info).unwrap();
    fails(Domain::open(&fabric, &world.info, None).map(drop), errno::ENOMEM, "allocating a protection domain");
    fault("ibv_create_cq=12");
    fails(Cq::open(&world.domain, 8, CqFormat::Data, false).map(drop), errno::ENOMEM, "creating a completion queue");
    fault("ibv_create_comp_channel=24");
    fails(Cq::open(&world.domain, 8, CqFormat::Data, false).map(drop), errno::EMFILE, "RLIMIT_NOFILE");
    fault("ibv_create_qp=12");
    fails(world.endpoint(false).map(drop), errno::ENOMEM, "creating a queue pair of 512 sends and 512 receives with fake0");
    fault("ibv_modify_qp=22");
    fails(world.endpoint(false).map(drop), errno::EINVAL, "INIT");
    fault("");
    let (a, b) = (world.endpoint(false).unwrap(), world.endpoint(false).unwrap());
    fails(a.connect_addr(&a.address().unwrap()), errno::EINVAL, "own address");
    fails(a.connect_addr("verbs://127.0.0.1:1"), errno::EINVAL, "gdrfab_ep_connect");
    fails(a.connect("verbs://127.0.0.1:1", b""), errno::ENOSYS, "librdmacm");
    fault("ibv_modify_qp=110");
    fails(a.connect_addr(&b.address().unwrap()), errno::ETIMEDOUT, "RTR");
    fault("");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
    assert_eq!(lives(), before);
}

fn events() {
    let world = World::new();
    let (a, _b) = world.pair(false);
    let quiet = || assert!(world.eq.sread(20, |_| (true, ())).unwrap().is_none(), "an event that concerns nobody");
    // A sleeper hears at once.
    let late = std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        raise(10, 1);
    });
    let begin = std::time::Instant::now();
    for _ in 0..2 {
        let (kind, _, error) = world.event();
        let error = error.unwrap();
        assert!(kind == 0 && error.errno == errno::ENETDOWN && error.words.contains("port 1 of fake0 went down"), "{error}");
    }
    assert!(begin.elapsed().as_millis() < 900, "{:?}", begin.elapsed());
    late.join().unwrap();
    raise(9, 1);
    for _ in 0..2 {
        let (kind, words, error) = world.event();
        assert!(kind == 0 && error.is_none() && words == b"port 1 of fake0 is active", "{words:?}");
    }
    // Of another port; addresses that this domain does not use; an event that nobody knows.
    for (kind, port) in [(10, 2), (18, 1), (11, 1), (99, 1)] {
        raise(kind, port);
        quiet();
    }
    let bytes = [0u8; 8];
    write(&a, iov(&bytes), 0, 1, flags::INJECT).unwrap();
    assert_eq!(world.contexts(), [1], "the connection goes on");
}

fn device_gone() {
    let world = World::new();
    let (a, b) = world.pair(false);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    a.recv(&[iov(&bytes)], &Common { context: 9, ..Common::default() }, &[mr.desc()]).unwrap();
    raise(8, 0);
    let told: Vec<_> = (0..4).map(|_| world.event()).collect();
    let errors: Vec<_> = told.iter().filter_map(|(_, _, e)| e.as_ref()).collect();
    assert!(told.iter().all(|(kind, ..)| *kind == 3) && errors.len() == 2, "each has its reason and its end");
    assert!(errors.iter().all(|e| e.errno == errno::ENODEV && e.words.contains("fake0")), "{errors:?}");
    let (failed, why) = world.cq.read_error().unwrap();
    assert_eq!((failed.context, why.error.errno, why.error.code), (9, errno::ECANCELED, Code::PeerGone));
    fails(write(&a, iov(&bytes), mr.desc(), 1, 0), errno::ESHUTDOWN, "removed");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
    mr.close().unwrap();
}
