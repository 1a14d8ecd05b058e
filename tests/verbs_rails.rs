// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages about rails, against the fake libibverbs of `c-tests/fakes`; the tests play the peer. One peer keeps to the protocol
//! while the kernel takes its time; others do not. `fakes` runs the cases.

mod fakes;
#[path = "fakes/verbs.rs"]
mod world;

use fakes::Case;
use gdrfab::error::{Code, errno};
use gdrfab::fabric::{Endpoint, Info};
use gdrfab::prov::flags;
use gdrfab::prov::op::Common;
use libloading::os::unix::Library;
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::{LIB, World, hints, iov, list, lives, memory, posted, raise, write};

/// Turns on the fake's faults, and its record of sent messages.
const HEARD: (&str, &str) = ("FAKE_FAULT", "none=1");
const ENV: &[(&str, &str)] = &[LIB, ("FAKE_DEVICES", "2"), ("GDRFAB_VERBS_RAILS", "fake0:1,fake1:1"), HEARD];

const CASES: &[Case] = &[
    ("a peer that is slow to find", "verbs", ENV, slow),
    ("words that make no sense", "verbs", ENV, nonsense),
    ("a rail that comes and goes", "verbs", ENV, comes_and_goes),
    ("a peer that asks and does not listen", "verbs", ENV, deaf),
    ("a peer that keeps keys", "verbs", ENV, keeps),
    ("a fence", "verbs", ENV, fenced),
    ("a rail's queue fails", "verbs", ENV, queue_fails),
    ("a peer that lies about the first rail", "verbs", ENV, lies_about_the_first),
    ("a peer that is back on the first rail", "verbs", ENV, back_on_the_first),
    ("the longest queue", "verbs", ENV, longest),
    ("a peer that loses the first rail and does not listen", "verbs", ENV, deaf_to_losses),
];

#[test]
fn verbs_rails() {
    world::each(CASES);
}

/// The kinds of messages.
const OFFER: u64 = 8;
const READY: u64 = 9;
const GONE: u64 = 10;
const ASK: u64 = 11;
const TOLD: u64 = 12;
const KEY_GONE: u64 = 13;
const FORGOT: u64 = 14;
const FIRST_LOST: u64 = 15;

type Words = [u64; 8];

fn rail(kind: u64, number: u64, life: u32, more: [u64; 4]) -> Words {
    [kind | number << 8 | u64::from(life) << 32, more[0], more[1], more[2], more[3], 0, 0, 0]
}

fn offer(number: u64, life: u32) -> Words {
    rail(OFFER, number, life, [0, 0xffff_7f00_0001, 0x4711, 4096 << 32])
}

fn key(kind: u64, key: u64) -> Words {
    [kind, key, 0, 0, 0, 0, 0, 0]
}

/// The peer's end of an endpoint's service queue pair, or of a rail.
struct Peer {
    library: Library,
    service: u32,
    heard: u32,
}

impl Peer {
    fn new(service: u32) -> Peer {
        // SAFETY: the fake is loaded already.
        Peer { library: unsafe { Library::new("libibverbs.so.1").unwrap() }, service, heard: 0 }
    }

    fn bytes(&self, bytes: &[u8]) {
        // SAFETY: the prototype is the fake's own.
        unsafe {
            let deliver = self.library.get::<unsafe extern "C" fn(u32, *const u8, u32)>(b"fake_verbs_deliver\0").unwrap();
            deliver(self.service, bytes.as_ptr(), bytes.len() as u32);
        }
    }

    fn say(&self, words: Words) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.bytes(&bytes);
    }

    /// The next message to the peer, without signs of life.
    fn hear(&mut self) -> Option<Words> {
        let mut words = [0; 8];
        // SAFETY: the prototype is the fake's own.
        while unsafe {
            self.library.get::<unsafe extern "C" fn(u32, u32, *mut Words) -> bool>(b"fake_verbs_said\0").unwrap()(
                self.service,
                self.heard,
                &mut words,
            )
        } {
            self.heard += 1;
            if words[0] != 1 {
                return Some(words);
            }
        }
        None
    }

    fn deafen(&self) {
        // SAFETY: the prototype is the fake's own.
        unsafe { self.library.get::<unsafe extern "C" fn(u32)>(b"fake_verbs_deafen\0").unwrap()(self.service) }
    }
}

fn turn(world: &World) {
    world.cq.sread(1, 1, |_, _| ()).ok();
}

/// The next message to the peer, within five seconds.
fn next(world: &World, peer: &mut Peer) -> Words {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if let Some(words) = peer.hear() {
            return words;
        }
        turn(world);
    }
    panic!("nothing was said");
}

/// An endpoint, and the peer to which it is connected.
fn connect(world: &World) -> (Arc<Endpoint>, Peer) {
    let ep = world.endpoint(false).unwrap();
    let own = ep.address().unwrap();
    let field = |name: &str| own.split('&').find_map(|f| f.strip_prefix(name)).unwrap();
    let service = field("svc=");
    let there = own.replace(&format!("qpn={}", field("qpn=")), "qpn=4001").replace(&format!("svc={service}"), "svc=4002");
    ep.connect_addr(&there).unwrap();
    assert_eq!(world.event().0, 2, "connected");
    (ep, Peer::new(service.parse().unwrap()))
}

fn is_up(ep: &Endpoint) -> bool {
    ep.rail_reports(0).unwrap()[1].up
}

/// Brings the second rail up; `mine` is this side's offer.
fn bring_up(world: &World, ep: &Endpoint, peer: &mut Peer, mine: Words, life: u32) {
    peer.say(offer(1, life));
    let ready = next(world, peer);
    assert_eq!((ready[0] & 0xffff, ready[0] >> 32, ready[1]), (READY | 1 << 8, mine[0] >> 32, u64::from(life)));
    peer.say(rail(READY, 1, life, [mine[0] >> 32, 0, 0, 0]));
    while !is_up(ep) {
        turn(world);
    }
}

fn works(world: &World, ep: &Endpoint) {
    let bytes = [0u8; 8];
    (1..=3).for_each(|context| write(ep, iov(&bytes), 0, context, flags::INJECT).unwrap());
    assert_eq!(world.contexts(), [1, 2, 3]);
}

fn slow() {
    // A thread that waits for the driver under the endpoint's lock would wait for ever.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
        std::process::abort();
    });
    let file = std::env::temp_dir().join(format!("gdrfab-rails-{}", std::process::id()));
    // SAFETY: no other thread of this process runs.
    unsafe { std::env::set_var("FAKE_HANG", format!("ibv_modify_qp@{}", file.display())) };
    let world = World::new();
    let (ep, mut peer) = connect(&world);
    let mine = next(&world, &mut peer);
    assert_eq!(mine, rail(OFFER, 1, 1, mine[1..5].try_into().unwrap()));
    let hang = |peer: &Peer, life| {
        std::fs::write(&file, "").unwrap();
        peer.say(offer(1, life));
        // The driver has removed the file: the call is inside, and stays there.
        while file.exists() {
            turn(&world);
        }
    };
    let let_go = |objects: i32| {
        while lives() > objects {
            std::fs::write(&file, "").unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        _ = std::fs::remove_file(&file);
    };
    hang(&peer, 5);
    (0..50).for_each(|_| works(&world, &ep));
    assert!(!is_up(&ep) && peer.hear().is_none());
    // The peer loses the rail meanwhile: the queue pair that is being connected is abandoned, and the next one does not wait for it.
    peer.say(rail(GONE, 1, 5, [0; 4]));
    assert_eq!(next(&world, &mut peer), rail(GONE, 1, 1, [0; 4]));
    let mine = next(&world, &mut peer);
    bring_up(&world, &ep, &mut peer, mine, 6);
    let_go(lives() - 1);
    works(&world, &ep);
    // An endpoint that is closed leaves the queue pair to the thread that connects it, which destroys it.
    peer.say(rail(GONE, 1, 6, [0; 4]));
    assert_eq!(next(&world, &mut peer), rail(GONE, 1, 2, [0; 4]));
    assert_eq!(next(&world, &mut peer)[0] & 0xff, OFFER);
    hang(&peer, 7);
    let before = lives();
    ep.close().unwrap();
    assert_eq!(lives(), before - 4, "its own two queue pairs, their buffer and the rail's");
    let_go(before - 5);
}

fn nonsense() {
    let world = World::new();
    let (ep, mut peer) = connect(&world);
    let mine = next(&world, &mut peer);
    // Messages about rails and queue pairs that do not exist, and answers without a question.
    for number in [0, 2, 7, 8, 255] {
        for kind in [READY, GONE, OFFER] {
            peer.say(rail(kind, number, 1, [1, 2, 3, 4]));
            peer.say(rail(kind, number, u32::MAX, [u64::MAX; 4]));
        }
        (0..10).for_each(|_| turn(&world));
    }
    assert!(peer.hear().is_none(), "none of these is to be joined");
    for life in [0, 1, 2, u32::MAX] {
        peer.say(rail(GONE, 1, life, [0; 4]));
        peer.say(rail(READY, 1, life, [1, 0, 0, 0]));
        peer.say(rail(READY, 1, life, [u64::MAX; 4]));
    }
    for number in [0, 1, u64::from(u32::MAX), u64::MAX] {
        peer.say([TOLD | 0xff << 8, number, u64::MAX, u64::MAX, u64::MAX, u64::MAX, 0, 0]);
        peer.say(key(FORGOT, number));
    }
    // Messages of no kind, and of other lengths.
    peer.say([0; 8]);
    peer.say([u64::MAX; 8]);
    for len in [0, 1, 63, 65, 4096] {
        peer.bytes(&vec![OFFER as u8; len]);
    }
    (0..10).for_each(|_| turn(&world));
    assert!(!is_up(&ep) && peer.hear().is_none(), "none of this has an answer");
    let bytes = vec![7u8; 512];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    // The key of a region, a key that names none, and a key of too many bits.
    for (asked, mask) in [(mr.key(), 3), (mr.key() + 1, 0), (mr.key() | 1 << 32, 3)] {
        peer.say(key(ASK, asked));
        let told = next(&world, &mut peer);
        assert_eq!((told[0], told[1]), (TOLD | mask << 8, asked & u64::from(u32::MAX)), "{asked:#x}");
    }
    peer.say(key(KEY_GONE, u64::MAX));
    assert_eq!(next(&world, &mut peer), key(FORGOT, u64::from(u32::MAX)));
    works(&world, &ep);
    bring_up(&world, &ep, &mut peer, mine, 9);
    // A second offer for a rail means its loss, and so does the peer's GONE.
    peer.say(offer(1, 9));
    assert_eq!(next(&world, &mut peer), rail(GONE, 1, 1, [0; 4]));
    let mine = next(&world, &mut peer);
    assert_eq!(mine[0], OFFER | 1 << 8 | 2 << 32);
    let ready = next(&world, &mut peer);
    assert_eq!(ready, rail(READY, 1, 2, [9, 0, 0, 0]), "the second offer counts");
    // Random numbers in random order.
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let objects = lives();
    for i in 0..5_000 {
        let odd = |n: u64| [n, n & 3, 0, u64::MAX, n >> 32, u64::from(u32::MAX)][(n >> 48) as usize % 6];
        let mut words: Words = std::array::from_fn(|_| odd(random()));
        words[0] = (OFFER + random() % 7) | (random() & 3) << 8 | (random() % 12) << 32;
        peer.say(words);
        if i % 16 == 0 {
            turn(&world);
        }
    }
    (0..100).for_each(|_| turn(&world));
    assert!(lives() <= objects + 1, "{} objects, there were {objects}", lives());
    works(&world, &ep);
    ep.close().unwrap();
    mr.close().unwrap();
}

/// Each loss of a rail is an event, and the rate at which a peer can cause them is limited.
fn comes_and_goes() {
    let world = World::new();
    let (ep, mut peer) = connect(&world);
    let until = Instant::now() + Duration::from_secs(2);
    let mut times = 0;
    'all: for life in 1.. {
        let mine = loop {
            match peer.hear() {
                Some(words) if words[0] & 0xff == OFFER => break words,
                _ if Instant::now() > until => break 'all,
                _ => turn(&world),
            }
        };
        bring_up(&world, &ep, &mut peer, mine, life);
        times += 1;
        peer.say(rail(GONE, 1, life, [0; 4]));
    }
    assert!((10..140).contains(&times), "{times}");
    works(&world, &ep);
    ep.close().unwrap();
}

fn deaf() {
    let world = World::new();
    let (ep, mut peer) = connect(&world);
    next(&world, &mut peer);
    peer.deafen();
    for i in 0..5_000 {
        peer.say(key(if i % 2 == 0 { ASK } else { KEY_GONE }, i));
        if i % 16 == 0 {
            turn(&world);
        }
    }
    let (kind, _, error) = world.event();
    assert!(kind == 3 && error.is_none());
    let why = write(&ep, iov(&[0u8; 8]), 0, 1, flags::INJECT).unwrap_err();
    assert!(why.errno == errno::ESHUTDOWN && why.code == Code::PeerBroke && why.words.contains("without receiving the answers"), "{why}");
    ep.close().unwrap();
}

fn keeps() {
    let world = World::new();
    let (ep, mut peer) = connect(&world);
    next(&world, &mut peer);
    let bytes = vec![7u8; 512];
    let why = (0..1000).find_map(|_| {
        let regions: Vec<_> = (0..16).map(|_| world.register(memory(&[iov(&bytes)])).unwrap()).collect();
        regions.iter().for_each(|mr| peer.say(key(ASK, mr.key())));
        turn(&world);
        regions.iter().for_each(|mr| mr.close().unwrap());
        ep.rail_reports(0).err()
    });
    let why = why.expect("an end");
    assert!(why.code == Code::PeerBroke && why.words.contains("keys of regions"), "{why}");
    ep.close().unwrap();
}

/// A striped operation overtakes neither a fenced one nor one whose order is promised.
fn fenced() {
    let mut world = World::new();
    world.info.msg_order = 0;
    let bytes = vec![7u8; 2 << 20];
    let at = iov(&bytes);
    let mr = world.register(memory(&[at])).unwrap();
    for fence in [0, flags::FENCE] {
        let (ep, mut peer) = connect(&world);
        let mine = next(&world, &mut peer);
        bring_up(&world, &ep, &mut peer, mine, 1);
        Peer::new(mine[3] as u32).deafen();
        write(&ep, at, mr.desc(), 1, 0).unwrap();
        assert_eq!(next(&world, &mut peer), key(ASK, 0x100));
        peer.say([TOLD | 3 << 8, 0x100, 0x101 << 32, 0, 0, 0, 0, 0]);
        while world.contexts() != [1] {}
        turn(&world);
        let before = posted()[1];
        write(&ep, at, mr.desc(), 2, 0).unwrap();
        let first = posted()[1];
        write(&ep, at, mr.desc(), 3, fence).unwrap();
        assert!(first > before && (posted()[1] > first) == (fence == 0), "{fence:#x}");
        ep.close().unwrap();
        while world.cq.read_error().is_some() || !world.contexts().is_empty() {}
    }
}

fn queue_fails() {
    const CQ_ERR: i32 = 0;
    let world = World::new();
    let (ep, mut peer) = connect(&world);
    let mine = next(&world, &mut peer);
    bring_up(&world, &ep, &mut peer, mine, 1);
    // Events of both devices, about queues that are not the first rail's.
    raise(CQ_ERR, 1);
    assert_eq!(next(&world, &mut peer), rail(GONE, 1, 1, [0; 4]));
    assert!(!is_up(&ep));
    works(&world, &ep);
    ep.close().unwrap();
}

/// The peer's message that it has lost the first rail for the `epoch`th time, with the receives and service messages that it has used.
fn lost(epoch: u32, used: u64, words: u64) -> Words {
    [FIRST_LOST | u64::from(epoch) << 32, used, words, 0, 0, 0, 0, 0]
}

/// With the second rail up: the peer at the service queue pair, and the peer at the second rail.
fn both(world: &World) -> (Arc<Endpoint>, Peer, Peer) {
    let (ep, mut peer) = connect(world);
    let mine = next(world, &mut peer);
    bring_up(world, &ep, &mut peer, mine, 1);
    assert!(peer.hear().is_none());
    (ep, peer, Peer::new(mine[3] as u32))
}

fn first_is_up(ep: &Endpoint) -> bool {
    ep.rail_reports(0).unwrap()[0].up
}

/// Waits until the first rail is up and `entries` entries have come, for five seconds.
fn until_up(world: &World, ep: &Endpoint, entries: usize) -> Vec<usize> {
    let (mut came, until) = (Vec::new(), Instant::now() + Duration::from_secs(5));
    while Instant::now() < until && (!first_is_up(ep) || came.len() < entries) {
        world.cq.sread(1, 1, |_, entry| came.push(entry.context)).ok();
    }
    assert!(first_is_up(ep));
    came
}

fn lies_about_the_first() {
    let world = World::new();
    let (ep, peer, mut second) = both(&world);
    // Messages about other losses than the next one, and about a return without a loss.
    for epoch in [0, 2, 3, u32::MAX] {
        second.say(lost(epoch, 0, 0));
        second.say(offer(0, epoch));
        second.say(rail(READY, 0, epoch, [0; 4]));
        (0..10).for_each(|_| turn(&world));
    }
    assert!(first_is_up(&ep) && second.hear().is_none());
    works(&world, &ep);
    // A true message, which the peer repeats with a lie that comes too late.
    let heard = u64::from(peer.heard);
    for epoch in 1..=3 {
        second.say(lost(epoch, 0, heard));
        assert_eq!(next(&world, &mut second), lost(epoch, 0, 2));
        assert!(!first_is_up(&ep));
        second.say(lost(epoch, 7, 7));
        let mine = next(&world, &mut second);
        assert_eq!(mine[0], OFFER | u64::from(epoch) << 32);
        // An operation that is posted meanwhile waits.
        let bytes = [0u8; 8];
        write(&ep, iov(&bytes), 0, 9, flags::INJECT).unwrap();
        // A message that arrives twice counts once.
        (0..2).for_each(|_| second.say(offer(0, epoch)));
        assert_eq!(next(&world, &mut second)[0], READY | u64::from(epoch) << 32);
        assert!(!first_is_up(&ep));
        (0..2).for_each(|_| second.say(rail(READY, 0, epoch, [0; 4])));
        assert_eq!(until_up(&world, &ep, 1), [9]);
        works(&world, &ep);
        assert!(second.hear().is_none());
    }
    ep.close().unwrap();
    // More messages than were sent, or fewer than were acknowledged.
    for (used, words) in [(1, 0), (u64::from(u32::MAX), 0), (0, 1), (0, u64::MAX)] {
        let (ep, peer, second) = both(&world);
        second.say(lost(1, used, u64::from(peer.heard).wrapping_add(words)));
        while ep.rail_reports(0).is_ok() {
            turn(&world);
        }
        let why = write(&ep, iov(&[0u8; 8]), 0, 1, flags::INJECT).unwrap_err();
        assert!(
            why.errno == errno::ESHUTDOWN && why.code == Code::PeerBroke && why.words.contains("contradicts what this side sent"),
            "{why}"
        );
        ep.close().unwrap();
    }
}

/// The peer has READY and goes on, so it finds receives that are posted from then on. If the peer's own READY is lost, this side learns
/// from an arrival that the peer goes on; that holds, too, if the last of the other rails was lost with the message, which does not end
/// the connection then.
fn back_on_the_first() {
    let world = World::new();
    let (ep, peer, mut second) = both(&world);
    let bytes = [0u8; 8];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    for epoch in 1..=3 {
        second.say(lost(epoch, 0, u64::from(peer.heard)));
        assert_eq!(next(&world, &mut second)[0], lost(epoch, 0, 0)[0]);
        let mine = next(&world, &mut second);
        second.say(offer(0, epoch));
        assert_eq!(next(&world, &mut second)[0], READY | u64::from(epoch) << 32);
        ep.recv(&[iov(&bytes)], &Common { context: 5, ..Common::default() }, &[mr.desc()]).unwrap();
        let message = || Peer::new(mine[3] as u32).bytes(&[1; 8]);
        match epoch {
            1 => message(),
            _ => peer.say(rail(GONE, if epoch == 2 { 2 } else { 1 }, 1, [0; 4])),
        }
        assert_eq!(until_up(&world, &ep, usize::from(epoch == 1)), vec![5; usize::from(epoch == 1)]);
        if epoch > 1 {
            message();
            assert_eq!(world.entries_of(1)[0].context, 5);
        }
    }
    assert!(!is_up(&ep));
    ep.close().unwrap();
    mr.close().unwrap();
}

/// A rail can carry a limited number of unacknowledged messages; a peer that loses the first rail again and again causes more.
fn deaf_to_losses() {
    let world = World::new();
    let (ep, peer, second) = both(&world);
    second.deafen();
    let losses = (1..100).take_while(|epoch| {
        second.say(lost(*epoch, 0, u64::from(peer.heard)));
        turn(&world);
        ep.rail_reports(0).is_ok()
    });
    assert!((4..=8).contains(&losses.count()));
    let why = write(&ep, iov(&[0u8; 8]), 0, 1, flags::INJECT).unwrap_err();
    assert!(why.words.contains("stopped acknowledging rail messages"), "{why}");
    ep.close().unwrap();
}

/// The library uses one place of the device's queue.
fn longest() {
    let most = gdrfab::fabric::nic(&list(0, &hints()).unwrap()[0]).unwrap().max_qp_wr as usize;
    assert!(list(0, &Info { tx_size: most, ..hints() }).is_err());
    let world = World::of(Info { tx_size: most - 1, ..hints() }, 64);
    world.endpoint(true).unwrap().close().unwrap();
}
