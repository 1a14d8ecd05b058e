// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failures of a queue pair, and events of the device, against the fake libibverbs of `c-tests/fakes`; `fakes` runs the cases. The
//! successful cases are in verbs_queues.rs.

mod fakes;
#[path = "fakes/verbs.rs"]
mod world;

use fakes::{Case, fails, fault};
use gdrfab::error::{Code, errno};
use gdrfab::fabric::{Cq, CqFormat, Domain, Fabric, Info};
use gdrfab::prov::flags;
use gdrfab::prov::op::Common;
use world::{LIB, World, hints, iov, lives, memory, raise, write};

const CASES: &[Case] = &[
    ("a chain that breaks", "verbs", &[LIB, ("FAKE_FAULT", "none=1")], chain_breaks),
    ("a failed completion", "verbs", &[LIB, ("FAKE_FAULT", "none=1")], completion_fails),
    ("an event before its completion", "verbs", &[LIB, ("FAKE_FAULT", "none=1")], event_first),
    ("an event without a completion", "verbs", &[LIB, ("FAKE_FAULT", "none=1")], event_alone),
    ("a small queue", "verbs", &[LIB], small_queue),
    ("creation fails", "verbs", &[LIB], creation_fails),
    ("events of the device", "verbs", &[LIB], events),
    ("the device is gone", "verbs", &[LIB], device_gone),
];

#[test]
fn verbs_failures() {
    world::each(CASES);
}

fn chain_breaks() {
    let world = World::small();
    let (a, _b) = world.pair(false);
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    let post = |context, flags| write(&a, iov(&bytes), mr.desc(), context, flags);
    fault("post_send=22@3");
    (1..=4).for_each(|context| post(context, flags::MORE).unwrap());
    fails(post(5, 0), errno::EINVAL, "posting a work request");
    fault("none=1");
    // Known at once, so before the requests that the device has yet to return.
    let mut failed: Vec<_> = (0..2).map(|_| world.cq.read_error().unwrap()).map(|(c, why)| (c.context, why.error.errno)).collect();
    failed.sort();
    assert_eq!(failed, [(3, errno::EINVAL), (4, errno::EINVAL)], "what was promised is told, what was refused is not");
    assert_eq!(world.contexts(), [1, 2]);
    // A device that is full for the moment means back-pressure.
    fault("post_send=12@4");
    assert!(post(6, 0).is_err_and(|e| e.is_again()));
    post(6, 0).unwrap();
    (7..=10).for_each(|context| post(context, flags::MORE).unwrap());
    post(11, 0).unwrap();
    assert_eq!(world.contexts(), [6, 7, 8, 9, 10, 11]);
    // A batch whose last operation never came is posted by progress. All of its operations were accepted then, the last one too.
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

fn completion_fails() {
    let world = World::small();
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

/// The device reports the failure of the queue pair before the completion that gives the reason.
fn event_first() {
    let world = World::small();
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

/// The device reports the failure, and no completion gives the reason.
fn event_alone() {
    let world = World::small();
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
    let world = World::with_sends(8192);
    fault("ibv_resize_cq=22");
    fails(world.endpoint(false).map(drop), errno::ENOSPC, "open it with a larger size");
    fault("");
    world.endpoint(false).unwrap().close().unwrap();
    let large = World::of(Info { tx_size: 8192, ..hints() }, 20_000);
    fault("ibv_resize_cq=22");
    large.endpoint(false).unwrap().close().unwrap();
}

fn creation_fails() {
    let world = World::new();
    // The domain keeps registered buffers, so objects that a pair leaves behind are counted before.
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
    let world = World::small();
    let (a, _b) = world.pair(false);
    let quiet = || assert!(world.eq.sread(20, |_| (true, ())).unwrap().is_none(), "an event that concerns nobody");
    // A sleeper wakes at once, and not after the second that it sleeps at most. A busy machine may spoil two of three attempts.
    let took = [(); 3].map(|()| {
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
        let took = begin.elapsed().as_millis();
        late.join().unwrap();
        raise(9, 1);
        for _ in 0..2 {
            let (kind, words, error) = world.event();
            assert!(kind == 0 && error.is_none() && words == b"port 1 of fake0 is active", "{words:?}");
        }
        took
    });
    assert!(took.iter().any(|ms| *ms < 900), "{took:?} ms");
    // Events of another port, of addresses that this domain does not use, and of an unknown kind.
    for (kind, port) in [(10, 2), (18, 1), (11, 1), (99, 1)] {
        raise(kind, port);
        quiet();
    }
    let bytes = [0u8; 8];
    write(&a, iov(&bytes), 0, 1, flags::INJECT).unwrap();
    assert_eq!(world.contexts(), [1], "the connection goes on");
}

fn device_gone() {
    let world = World::small();
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
