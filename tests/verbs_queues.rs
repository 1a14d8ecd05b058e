// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Endpoints of the verbs provider, against the fake libibverbs of `c-tests/fakes`; `fakes` runs the cases. The fake moves no bytes, so
//! these tests check which requests are posted, what becomes of their completions, and with which words operations are refused. Failures
//! are in verbs_failures.rs. Real data transfer is tested in a virtual machine (tests/check-verbs.sh).

mod fakes;
#[path = "fakes/verbs.rs"]
mod world;

use fakes::{Case, fails, fault};
use gdrfab::error::{Code, errno};
use gdrfab::fabric::{Coop, Domain, Effort, Endpoint, Fabric, Info, PathStats, Stats};
use gdrfab::hmem::{self, Iface, Site};
use gdrfab::mr::{Access, Attr, Memory};
use gdrfab::mr::{PathPolicy, Paths};
use gdrfab::prov::atomic::{Atomic, AtomicOp, Datatype, Form, Op, Operands};
use gdrfab::prov::flags;
use gdrfab::prov::list::{Block, List};
use gdrfab::prov::op::{Common, Dir, Iov, RmaIov};
use gdrfab::prov::queue::Taken;
use std::sync::Arc;
use world::{LIB, World, fences, hints, iov, last_atomic, list, memory, named, posted, write};

const CASES: &[Case] = &[
    ("options", "verbs", &[LIB], options),
    ("paths", ":verbs", &[LIB, ("FAKE_IBVERBS_PEER_MEM", "1")], paths),
    ("posting", "verbs", &[LIB], posting),
    ("fences", "verbs", &[LIB], fence),
    ("a chain", "verbs", &[LIB], chain),
    ("atomics", "verbs", &[LIB], atomics),
    ("atomics in line", "verbs", &[LIB, ("GDRFAB_FAULT", "delay=1:write")], atomics),
    ("no atomics", "verbs", &[LIB, ("FAKE_IBVERBS_ATOMICS", "0")], no_atomics),
    ("a list", "verbs", &[LIB, ("FAKE_FAULT", "none=1")], lists),
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

    // An option of another provider is refused; its default is accepted.
    let ep = world.endpoint(false).unwrap();
    assert!(ep.coop() == Coop::Off && ep.stream() == 0);
    ep.set_coop(Coop::Off).unwrap();
    ep.set_stream(0).unwrap();
    fails(ep.set_coop(Coop::Waking), errno::EOPNOTSUPP, "GDRFAB_OPT_COOP");
    fails(ep.set_stream(7), errno::EOPNOTSUPP, "GDRFAB_OPT_STREAM");
    fails(ep.set_driver_calls(false), errno::EOPNOTSUPP, "optval");

    let shm = list(0, &Info { prov_name: Some("shm".into()), ..hints() }).unwrap().remove(0);
    let domain = Domain::open(&Fabric::open(&shm).unwrap(), &shm, None).unwrap();
    let ep = Endpoint::open(&domain, &shm, 0).unwrap();
    fails(ep.effort(Effort::Retries), errno::ENOPROTOOPT, "RDMA");
    fails(ep.set_effort(Effort::Retries, 1), errno::ENOPROTOOPT, "RDMA");
}

/// For every combination of local memory, key, restriction and shape of an operation: the operation takes the path that `query` names and
/// is counted there, or it ends with an error entry if `query` names none. The fake executes operations on a peer's device memory, but
/// not on a peer's staged region, so of those only refusals are posted.
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
    let restrictions = VERBS.into_iter().chain([Paths::DIRECT, Paths::empty()]).flat_map(|p| [(p, Paths::empty()), (Paths::empty(), p)]);
    for (require, forbid) in restrictions {
        a.set_policy(require, forbid);
        for ((path, at, mr), key) in local.iter().flat_map(|l| [(l, held_by_device), (l, staged)]) {
            let taken = if key == staged { Paths::STAGED } else { *path };
            let allowed = PathPolicy { require, forbid }.allowed().contains(taken);
            let answer = a.query(0, key, mr.desc()).unwrap();
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
                // Twice, so that the fast path is taken if it is possible.
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
                    let counts = before.of(one);
                    let more = if allowed && one == taken { 2 } else { 0 };
                    let expected = PathStats { ops: counts.ops + more, bytes: counts.bytes + 64 * more };
                    assert_eq!(after.of(one), expected, "{one:?} for {what}");
                }
                assert_eq!(after.errors, before.errors + if allowed { 0 } else { 2 }, "{what}");
            }
        }
    }
    // The bytes of an inject call are copied: from device memory they are staged, from host memory they count as nic.
    a.set_policy(Paths::empty(), Paths::STAGED);
    write(&a, named(on_device, 8), local[1].2.desc(), 3, flags::INJECT).unwrap();
    assert_eq!(world.cq.read_error().unwrap().1.error.code, Code::Path);
    a.set_policy(Paths::NIC, Paths::empty());
    write(&a, iov(&bytes), 0, 4, flags::INJECT).unwrap();
    assert_eq!(world.contexts(), [4]);
    fails(a.query(0, 1 << 40, 0).map(drop), errno::EKEYREJECTED, "not the key of a verbs region");
    fails(a.query(0, held_by_device, 0x1234).map(drop), errno::EINVAL, "desc[0]");
    // Paths are chosen and counted for RMA only.
    a.set_policy(Paths::DIRECT, Paths::empty());
    let before = a.stats();
    (0..2).for_each(|_| a.send(&[local[1].1], &Common::default(), &[local[1].2.desc()]).unwrap());
    assert_eq!(world.entries().len(), 2);
    assert_eq!(Stats { sends: before.sends + 2, ..before }, a.stats());
}

fn posting() {
    let world = World::small();
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

    // Receives, and arrivals in them.
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

    // Operations that cannot be posted.
    fails(write(&a, iov(&bytes), 0, 1, 0), errno::EINVAL, "desc[0]");
    fails(write(&a, iov(&bytes), desc, 1, flags::INJECT), errno::EMSGSIZE, "inject_size");
    fails(write(&a, iov(&bytes), desc, 1, flags::DELIVERY_COMPLETE), errno::EOPNOTSUPP, "TRANSMIT_COMPLETE");
    fails(a.send(&[iov(&bytes)], &common(flags::REMOTE_CQ_DATA, 1 << 32), &[desc]), errno::EINVAL, "cq_data_size");
    fails(a.rma(Dir::Write, &[iov(&bytes)], &[there[0], there[0]], &common(0, 0), &[desc]), errno::EINVAL, "rma_iov_limit");
    fails(a.rma(Dir::Write, &[iov(&bytes[..1])], &there, &common(0, 0), &[desc]), errno::EINVAL, "rma_iov");
    fails(a.cancel(1), errno::EOPNOTSUPP, "deadline");
    fails(a.connect_addr(&b.address().unwrap()), errno::EISCONN, "connected already");

    // Closing flushes posted operations.
    receive(103).unwrap();
    b.close().unwrap();
    let (failed, why) = world.cq.read_error().unwrap();
    assert_eq!((failed.context, why.error.errno, why.error.code), (103, errno::ECANCELED, Code::Canceled));
    a.shutdown(0).unwrap();
    fails(write(&a, iov(&bytes), desc, 1, 0), errno::ESHUTDOWN, "this side shut the connection down");
    fails(a.connect_addr("verbs-qp://nonsense"), errno::EOPBADSTATE, "over");
}

/// A queue pair executes operations behind a write in order; a fence has to wait only for a read.
fn fence() {
    let world = World::small();
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
    let what = Atomic { op: Op::Sum, datatype: Datatype::U64, form: Form::Plain, count: 1 };
    let with = Operands { operand: iov(&bytes[..8]), compare: Iov::EMPTY, old: Iov::EMPTY };
    a.atomic(&AtomicOp { what, with, addr: 0x1000, key: mr.key() }, &Common { context: 8, ..Common::default() }, &[]).unwrap();
    post(Dir::Write, 9, flags::FENCE);
    assert_eq!(fences(), 3, "an atomic is answered as a read is");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

/// The values that the card gets, and the operations that it cannot execute.
fn atomics() {
    let world = World::small();
    let (a, b) = world.pair(false);
    let (bytes, old) = ([7u8; 64], std::cell::UnsafeCell::new(1u64));
    let at = [iov(&bytes)];
    let mr = world.register(Attr { access: Access::ATOMIC, ..memory(&at) }).unwrap();
    assert_eq!((mr.facts().unwrap().access, mr.facts().unwrap().paths), (Access::ATOMIC, Paths::NIC));
    let op = |op, datatype, form, count| {
        let what = Atomic { op, datatype, form, count };
        // SAFETY: the numbers stay until the operations have ended.
        let of = |number: *const u64| unsafe { Iov::new(number as usize, 8) };
        let given = |is_there, number| if is_there { of(number) } else { Iov::EMPTY };
        let (operand, compare) = (given(what.writes(), &TWO), given(form == Form::Compare, &NINE));
        let with = Operands { operand, compare, old: given(what.fetches(), old.get()) };
        AtomicOp { what, with, addr: 0x1000, key: mr.key() }
    };
    let post = |op: AtomicOp, flags| a.atomic(&op, &Common { context: 5, flags, ..Common::default() }, &[]);
    let ended = |kind| {
        let found = world.entries_of(1);
        assert_eq!((found[0].context, found[0].flags, found[0].len), (5, flags::ATOMIC | kind, 8));
    };
    use Datatype::{I64, U32, U64};
    post(op(Op::Sum, U64, Form::Plain, 1), 0).unwrap();
    ended(flags::WRITE);
    assert_eq!(last_atomic(), [6, 0x1000, TWO, 0, mr.key(), 8]);
    post(op(Op::Sum, I64, Form::Fetch, 1), flags::MORE).unwrap();
    ended(flags::READ);
    post(op(Op::Read, U64, Form::Fetch, 1), 0).unwrap();
    ended(flags::READ);
    assert_eq!(last_atomic(), [6, 0x1000, 0, 0, mr.key(), 8]);
    post(op(Op::Cswap, U64, Form::Compare, 1), 0).unwrap();
    ended(flags::READ);
    assert_eq!(last_atomic(), [5, 0x1000, NINE, TWO, mr.key(), 8]);
    // The card fetches into memory of the library, from where the value is copied, so the caller's memory needs no registration.
    // SAFETY: all operations have ended.
    assert_eq!(unsafe { *old.get() }, 0);
    let before = posted();
    for (refused, number, words) in [
        (op(Op::Sum, U32, Form::Plain, 1), errno::EOPNOTSUPP, "64-bit integers, not Sum of U32"),
        (op(Op::Min, U64, Form::Fetch, 1), errno::EOPNOTSUPP, "op: RDMA devices have"),
        (op(Op::Write, U64, Form::Plain, 1), errno::EOPNOTSUPP, "op: RDMA devices have"),
        (op(Op::CswapNe, U64, Form::Compare, 1), errno::EOPNOTSUPP, "op: RDMA devices have"),
        (op(Op::Sum, U64, Form::Plain, 0), errno::EOPNOTSUPP, "count: 0"),
        (op(Op::Sum, U64, Form::Plain, 2), errno::EMSGSIZE, "count: 2"),
        (AtomicOp { addr: 0x1004, ..op(Op::Sum, U64, Form::Plain, 1) }, errno::EINVAL, "multiple"),
        (AtomicOp { key: 1 << 40, ..op(Op::Sum, U64, Form::Plain, 1) }, errno::EINVAL, "key"),
    ] {
        fails(post(refused, 0), number, words);
    }
    fails(post(op(Op::Sum, U64, Form::Plain, 1), flags::DELIVERY_COMPLETE), errno::EOPNOTSUPP, "DELIVERY_COMPLETE");
    assert_eq!(posted(), before);
    // No more operations are in flight than the queue holds.
    let most = (0..).take_while(|_| post(op(Op::Sum, U64, Form::Plain, 1), 0).is_ok()).count();
    assert!(post(op(Op::Sum, U64, Form::Plain, 1), 0).is_err_and(|e| e.is_again()) && (8..=16).contains(&most), "{most}");
    assert_eq!(world.entries_of(most).len(), most);
    a.set_policy(Paths::empty(), Paths::NIC);
    post(op(Op::Sum, U64, Form::Plain, 1), 0).unwrap();
    assert_eq!(world.cq.read_error().unwrap().1.error.code, Code::Path);
    // Memory that no card reaches, or that has several registrations, is no region for atomics.
    let staged = PathPolicy { require: Paths::STAGED, forbid: Paths::empty() };
    fails(world.register(Attr { access: Access::ATOMIC, policy: staged, ..memory(&at) }).map(drop), errno::EOPNOTSUPP, "cannot access");
    let two = [iov(&bytes), iov(&bytes)];
    fails(world.register(Attr { access: Access::ATOMIC, ..memory(&two) }).map(drop), errno::EOPNOTSUPP, "one range");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

static TWO: u64 = 2;
static NINE: u64 = 9;

fn no_atomics() {
    let world = World::new();
    let (a, b) = world.pair(false);
    let at = [iov(&[7u8; 64])];
    let declared = || world.register(Attr { access: Access::ATOMIC, ..memory(&at) });
    fails(declared().map(drop), errno::EOPNOTSUPP, "access: GDRFAB_ATOMIC: fake0 has no atomic operations");
    let what = Atomic { op: Op::Sum, datatype: Datatype::U64, form: Form::Plain, count: 1 };
    fails(a.atomic_valid(what).map(drop), errno::EOPNOTSUPP, "ep: fake0 has no atomic operations");
    let with = Operands { operand: iov(&[0; 8]), compare: Iov::EMPTY, old: Iov::EMPTY };
    let op = AtomicOp { what, with, addr: 0x1000, key: 0x100 };
    fails(a.atomic(&op, &Common::default(), &[]), errno::EOPNOTSUPP, "IBV_ATOMIC_NONE");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}

fn chain() {
    let world = World::small();
    let (a, _b) = world.pair(true);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    // Only operations that ask for an entry get one, and a queue of operations that do not ask empties all the same.
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
    // Operations that wait for the end of their batch are posted by progress as well.
    write(&a, iov(&bytes), mr.desc(), 1000, flags::MORE | flags::COMPLETION).unwrap();
    assert!(world.eq.read(|_| (true, ())).is_none());
    assert_eq!(world.contexts(), [1000]);
    // A failed operation has an entry, although it did not ask for one.
    assert_eq!(a.stats().errors, 0);
}

/// Many work requests are posted by one ring of the doorbell; the first failure is reported once all have ended.
fn lists() {
    let world = World::with_sends(64);
    let (a, b) = world.pair(false);
    let bytes = vec![7u8; 100 * 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    let mut came = Vec::new();
    let mut run = |stride: u64, pieces: usize, context: usize, flags: u64| {
        let block = |i| Block { buf: iov(&bytes).addr() + (i ^ 1) * 512, addr: 0x1000 + i as u64 * stride, len: 400 };
        let blocks: Vec<Block> = (0..pieces).map(block).collect();
        // SAFETY: the fake moves no bytes.
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
    // Each chain has a quarter of the queue of 64 work requests, so 100 blocks need 7 chains.
    assert!(matches!(run(512, 100, 1, 0), (7, 100, None)));
    // Blocks that adjoin at the peer become one request with as many pieces as the device takes.
    let pieces = world.info.tx_iov_limit;
    let requests = 100usize.div_ceil(pieces) as i32;
    assert_eq!((run(400, 100, 2, 0).1, pieces > 1), (requests, true));
    // A fence is set on the first request. A device that is full for the moment gets the rest later.
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
    assert_eq!(stats.of(Paths::NIC).bytes, (100 + 100 + 40 + 40) * 400 + 8);
    // The sixth work request of the second chain fails: the block is named once nothing is in flight.
    fault("wc=10@22");
    let (_, _, failed) = run(512, 100, 6, 0);
    let (entry, why) = failed.expect("a failure");
    assert_eq!((entry.context, why.block, why.error.errno), (6, 21, errno::EKEYREJECTED), "{}", why.error);
    assert!(why.error.words.contains("block 21") && why.error.words.contains("REM_ACCESS_ERR"), "{}", why.error);
    assert_eq!(came, [1, 2, 3, 4, 5]);
    assert!(world.cq.read_error().is_none());
    [a, b].iter().for_each(|ep| ep.close().unwrap());
}
