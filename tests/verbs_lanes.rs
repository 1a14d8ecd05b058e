// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lane over the fake libibverbs of `c-tests/fakes`; the tests play the peer. They check which operations end, how, and how often,
//! whatever the peer says or does not say. `fakes` runs the cases.

mod fakes;
#[path = "fakes/verbs.rs"]
mod world;

use fakes::Case;
use gdrfab::error::errno;
use gdrfab::hmem::{self, Iface, Site};
use gdrfab::mr::{Access, Attr, Memory, Source};
use gdrfab::prov::atomic::{Atomic, AtomicOp, Datatype, Form, Op, Operands};
use gdrfab::prov::bind::Binding;
use gdrfab::prov::info::{EP_RDM, Info};
use gdrfab::prov::op::{Common, Dir, Iov, RmaIov};
use gdrfab::prov::ops::OpFlags;
use gdrfab::prov::queue::{Completion, Taken};
use gdrfab::prov::{Domain, Endpoint, EventQueue, Parcel, ParcelSink, Queue, flags, get};
use gdrfab::sync::cursor::ShortMessage;
use gdrfab::sync::serial::Threading;
use gdrfab::sys::epoll::{Poller, Woken};
use libloading::os::unix::Library;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use world::{LIB, iov, posted};

const ENV: &[(&str, &str)] = &[LIB];

const RAILS: &[(&str, &str)] = &[LIB, ("FAKE_FAULT", "ibv_resize_cq=38"), ("FAKE_DEVICES", "2"), ("GDRFAB_VERBS_RAILS", "fake0:1,fake1:1")];

const CASES: &[Case] = &[
    ("an answer of another length", "verbs", ENV, another_length),
    ("a peer that takes nothing", "verbs", ENV, takes_nothing),
    ("more keys than answers", "verbs", ENV, many_keys),
    ("a card that resizes no queue", "verbs", &[LIB, ("FAKE_FAULT", "ibv_resize_cq=38")], || many_lanes(30)),
    ("rails whose cards resize no queue", "verbs", RAILS, || many_lanes(30)),
    ("a driver that hangs in an atomic", ":verbs", ENV, driver_hangs),
    ("a card of short queues", "verbs", &[LIB, ("FAKE_IBVERBS_CQE", "32767")], || many_lanes(200)),
];

#[test]
fn verbs_lanes() {
    world::each(CASES);
}

/// The kinds of parcels.
const CREDIT: u64 = 2;
const ASK: u64 = 3;
const TOLD: u64 = 4;
const ATOMIC: u64 = 8;
const DONE: u64 = 9;

const ADDR: u64 = 0x1000;
const KEY: u64 = 77;

struct Lane {
    ep: Box<dyn Endpoint>,
    domain: Arc<dyn Domain>,
    queue: Arc<Queue>,
    library: Library,
    number: u32,
    /// Parcels that were taken.
    taken: Cell<i32>,
}

struct Nobody;

impl ParcelSink for Nobody {
    fn take(&mut self, _: &dyn Parcel) -> bool {
        true
    }

    fn take_short(&mut self, _: ShortMessage<'_>) -> bool {
        true
    }
}

impl Lane {
    /// The info with which lanes are opened.
    fn info() -> Info {
        let info = world::list(0, &world::hints()).unwrap().remove(0);
        Info { mr_mode: info.mr_mode & !flags::MR_MODE_PROV_KEY, ep_type: EP_RDM, ..info }
    }

    fn open() -> Lane {
        let info = Lane::info();
        let domain = get(Some("verbs")).unwrap().open_domain(&info, Threading::Safe).unwrap();
        Lane::of(&domain, &info)
    }

    /// A lane that is connected to a peer that does not exist.
    fn of(domain: &Arc<dyn Domain>, info: &Info) -> Lane {
        let domain = domain.clone();
        let ep = domain.clone().open_endpoint(info, 0).unwrap();
        let queue = Arc::new(Queue::new(1000, Threading::Safe).unwrap());
        ep.bind(Binding::Cq { queue: queue.clone(), source: None, transmit: true, receive: true, selective: false }).unwrap();
        ep.bind(Binding::Eq(Arc::new(EventQueue::default()))).unwrap();
        ep.bind(Binding::Arrivals(1)).unwrap();
        ep.enable(OpFlags::default()).unwrap();
        let own = ep.address().unwrap();
        let number = own.split(['&', '?']).find_map(|f| f.strip_prefix("qpn=")).unwrap();
        let there = own.replace(&format!("qpn={number}"), "qpn=4001").replace("rd=16", "rd=3");
        ep.connect_addr(&there).unwrap();
        let number = number.parse().unwrap();
        // SAFETY: the fake is loaded already, and the prototype is the fake's own.
        let (library, reads) = unsafe {
            let library = Library::new("libibverbs.so.1").unwrap();
            let reads = library.get::<unsafe extern "C" fn(u32) -> i32>(b"fake_verbs_reads\0").unwrap()(number);
            (library, reads)
        };
        assert!(own.contains("rd=16") && reads == 3, "as many as the peer serves: {reads}");
        Lane { ep, domain, queue, library, number, taken: Cell::new(0) }
    }

    fn turn(&self) {
        self.ep.lane().unwrap().take(true, &mut Nobody);
    }

    /// A parcel of the peer arrives.
    fn hear(&self, kind: u64, words: &[u64], rest: &[u8]) {
        let header = kind | (words.len() as u64) << 8 | (self.taken.get() as u64) << 32;
        let words = std::iter::once(header).chain(words.iter().copied());
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).chain(rest.iter().copied()).collect();
        // SAFETY: the prototype is the fake's own.
        unsafe {
            let deliver = self.library.get::<unsafe extern "C" fn(u32, *const u8, u32)>(b"fake_verbs_deliver\0").unwrap();
            deliver(self.number, bytes.as_ptr(), bytes.len() as u32);
        }
        self.turn();
    }

    /// The peer answers that the key names 64 KiB; `counts`: the region counts writes.
    fn told(&self, counts: bool) {
        self.hear(TOLD, &[0, 0, 5, 0, ADDR, 1 << 16, Access::all().bits() | u64::from(counts) << 33], &[]);
    }

    fn write(&self, context: usize, flags: u64, bytes: &[u8]) {
        let to = [RmaIov { addr: ADDR, len: bytes.len(), key: KEY }];
        self.ep.rma(Dir::Write, &[iov(bytes)], &to, &Common { context, flags, ..Common::default() }, &[0]).unwrap();
    }

    /// The contexts of operations that succeeded, and of those that failed with their errno.
    fn ended(&self) -> (Vec<usize>, Vec<(usize, i32)>) {
        let (mut well, mut badly) = (Vec::new(), Vec::new());
        loop {
            match self.queue.take(100, |_, done: &Completion| well.push(done.context)) {
                Taken::Some(_) => {}
                Taken::ErrorFirst => {
                    let (done, failure, _) = self.queue.take_error().unwrap();
                    badly.push((done.context, failure.error.errno));
                }
                _ => return (well, badly),
            }
        }
    }
}

fn another_length() {
    let (lane, number) = (Lane::open(), [1u64]);
    let what = Atomic { op: Op::Sum, datatype: Datatype::U64, form: Form::Fetch, count: 1 };
    // SAFETY: the number stays until all operations have ended.
    let of = || unsafe { Iov::new(number.as_ptr() as usize, 8) };
    let with = Operands { operand: of(), compare: Iov::EMPTY, old: of() };
    lane.ep.atomic(&AtomicOp { what, with, addr: ADDR, key: KEY }, &Common { context: 3, ..Common::default() }).unwrap();
    lane.turn();
    assert_eq!(lane.ended(), (vec![], vec![]));
    lane.hear(DONE, &[1, 0], &[0; 7]);
    lane.ep.close().unwrap();
    assert_eq!(lane.ended(), (vec![], vec![(3, errno::ECANCELED)]), "it ends once");
}

/// For every successful operation the peer has been notified, and every posted operation ends once.
fn takes_nothing() {
    const MANY: usize = 40;
    for (counts, data) in [(false, true), (true, false), (true, true), (false, false)] {
        let (lane, bytes) = (Lane::open(), [7u8; 8]);
        let flags = if data { flags::REMOTE_CQ_DATA } else { 0 };
        let before = posted()[1];
        (0..MANY).for_each(|i| lane.write(i, flags, &bytes));
        assert_eq!(posted()[1] - before, 1, "it asks what the key names");
        lane.told(counts);
        (0..10).for_each(|_| lane.turn());
        let (well, badly) = lane.ended();
        // The lane may send 24 parcels at first: one of them was the question, one is reserved for credits.
        let each = usize::from(counts) + usize::from(data);
        let most = 22usize.checked_div(each).unwrap_or(MANY);
        assert_eq!((&well, badly), (&(0..most).collect(), vec![]), "{counts} {data}");
        lane.ep.close().unwrap();
        let (rest, badly) = lane.ended();
        assert_eq!((rest, badly), (vec![], (most..MANY).map(|i| (i, errno::ECANCELED)).collect()), "{counts} {data}");
    }
}

/// A peer that has used many keys is told that each of them is revoked, and may ask again.
fn many_keys() {
    const MANY: i32 = 300;
    let (lane, bytes) = (Lane::open(), [7u8; 8]);
    let at = [iov(&bytes)];
    let before = posted()[1];
    let sent = || posted()[1] - before;
    let register = |i| Attr { source: Source::Iov(&at), requested_key: 1000 + i as u64, ..Attr::plain(Access::REMOTE_WRITE) };
    let regions: Vec<_> = (0..MANY).map(|i| lane.domain.register(&register(i)).unwrap()).collect();
    for id in &regions {
        lane.taken.set(sent());
        lane.hear(ASK, &[0, id.key], &[]);
    }
    // Meanwhile the peer takes no parcels.
    regions.iter().for_each(|id| lane.domain.close_region(*id).unwrap());
    (0..100).for_each(|_| lane.hear(ASK, &[0, 1], &[]));
    assert!(lane.ep.peer_address().is_ok());
    while lane.taken.get() != sent() {
        lane.taken.set(sent());
        lane.hear(CREDIT, &[], &[]);
    }
    assert!(sent() >= 2 * MANY + 100, "{}", sent());
    lane.ep.close().unwrap();
}

/// Device memory that a peer's atomic changes stays registered while its driver hangs, and nothing else in the domain waits for that.
fn driver_hangs() {
    let (lane, file) = (Lane::open(), std::env::temp_dir().join(format!("gdrfab-hang-{}", std::process::id())));
    let bytes = [0u8; 64];
    let (host, device) = ([iov(&bytes)], [world::named(hmem::get(Iface::Cuda).unwrap().alloc(0, 4096).unwrap() as usize, 4096)]);
    let attr =
        |source, memory, requested_key| Attr { source: Source::Iov(source), memory, requested_key, ..Attr::plain(Access::REMOTE_WRITE) };
    let site = Memory::Device(Site { iface: Iface::Cuda, device: 0 });
    let region = lane.domain.register(&attr(&device, site, KEY)).unwrap();
    let other = lane.domain.register(&attr(&host, Memory::Host, KEY + 1)).unwrap();
    // SAFETY: no other thread of this process runs.
    unsafe { std::env::set_var("FAKE_HANG", format!("cuMemcpyDtoHAsync_v2@{}", file.display())) };
    std::fs::write(&file, "").unwrap();
    let wait = |what: &dyn Fn() -> bool| {
        (0..5000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            what()
        })
    };
    let domain = lane.domain.clone();
    std::thread::scope(|threads| {
        let watching = threads.spawn(|| {
            // The driver has removed the file: the call is inside.
            let inside = wait(&|| !file.exists());
            let others = threads.spawn(|| {
                domain.close_region(other).unwrap();
                domain.register(&attr(&host, Memory::Host, KEY + 2)).unwrap();
                domain.try_close_region(region).is_err_and(|e| e.errno == errno::EBUSY)
            });
            let went_on = wait(&|| others.is_finished());
            std::fs::write(&file, "").unwrap();
            (inside, went_on, others.join().unwrap())
        });
        let what = Atomic { op: Op::Sum, datatype: Datatype::U64, form: Form::Plain, count: 1 };
        lane.hear(ATOMIC, &[1, what.encode(), device[0].addr() as u64, KEY], &[1; 8]);
        assert_eq!(watching.join().unwrap(), (true, true, true), "the driver hung, others went on, the region stayed");
    });
    lane.domain.close_region(region).unwrap();
    lane.ep.close().unwrap();
    std::fs::remove_file(&file).unwrap();
}

/// A domain has more lanes than one queue of its card has room for: each lane hears its peer, ends its operations and wakes its sleeper,
/// and closed lanes make room for others.
fn many_lanes(count: usize) {
    let info = Lane::info();
    let domain = get(Some("verbs")).unwrap().open_domain(&info, Threading::Safe).unwrap();
    let mut lanes: Vec<_> = (0..count).map(|_| Lane::of(&domain, &info)).collect();
    let bytes = [7u8; 8];
    for lane in &lanes {
        let poller = Poller::new().unwrap();
        let woken = || matches!(poller.wait(Some(0)), Woken::Ready);
        // A completion of another lane of the same queue may come first.
        while {
            lane.ep.sleep(&poller).unwrap();
            lane.turn();
            woken()
        } {
            lane.ep.end_sleep(Some(&poller));
        }
        lane.write(1, 0, &bytes);
        assert!(woken());
        lane.ep.end_sleep(Some(&poller));
        lane.told(false);
        lane.turn();
        assert_eq!(lane.ended(), (vec![1], vec![]));
        lane.write(2, 0, &bytes);
        lane.ep.lane().unwrap().take(false, &mut Nobody);
        assert_eq!(lane.ended(), (vec![2], vec![]));
    }
    let before = world::lives();
    lanes.drain(count / 3..count / 2).for_each(|lane| lane.ep.close().unwrap());
    lanes.extend((lanes.len()..count).map(|_| Lane::of(&domain, &info)));
    assert!(world::lives() <= before, "a queue more than needed");
    lanes.iter().for_each(|lane| lane.ep.close().unwrap());
    drop((lanes, domain));
    assert_eq!(world::lives(), 0);
}
