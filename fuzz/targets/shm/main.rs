// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection over shared memory whose peer is the fuzzer. The library's endpoint is at one end of the socket. The input decides what
//! happens at the other end, in the endpoint's segment, and in a segment and a table of the peer's own: between operations and in the
//! middle of them, while regions come and go, files shrink, and deadlines pass.
//!
//! Invariants: nothing panics, overflows or faults. No memory is touched that is not, or no longer, lent to the library: guards show it,
//! and AddressSanitizer, because memory is freed as soon as its operation has ended or its region is closed. The peer reads no region
//! without the right to. No call takes long. The peer costs a bounded amount of memory. Every operation ends exactly once. No descriptor is
//! left open.
#![no_main]

#[path = "../connection/input.rs"]
mod input;
mod layout;
#[path = "../connection/memory.rs"]
mod memory;
mod peer;
#[path = "../connection/queues.rs"]
mod queues;
mod ring;
mod side;
mod world;

use gdrfab::prov::op::Dir;
use gdrfab::sync::primitive::watched;
use input::Input;
use libfuzzer_sys::fuzz_target;
use peer::Peer;
use side::Side;
use std::cell::RefCell;
use std::collections::VecDeque;
use world::world;

/// Memory that a peer may cost beyond the lent buffers: as many unexpected messages as the window allows, each as long as the ring's header
/// can say, and this side's own operations.
const COST_MAX: usize = 96 << 20;

unsafe extern "C" {
    safe fn __sanitizer_get_current_allocated_bytes() -> usize;
}

/// Actions of the peer in the middle of a call: after this many accesses of the library to shared memory, these choices.
type Plans = VecDeque<(u64, Vec<u8>)>;

thread_local! {
    static PEER: RefCell<Peer> = RefCell::default();
    static PLANS: RefCell<Plans> = RefCell::default();
}

fn peer<R>(act: impl FnOnce(&mut Peer) -> R) -> R {
    PEER.with_borrow_mut(act)
}

/// Called when the library accesses shared memory: the peer acts.
fn react() {
    let (_, bytes) = PLANS.with_borrow_mut(VecDeque::pop_front).unwrap_or_default();
    let mut input = Input(&bytes);
    // The peer's own accesses do not call this function.
    while !input.is_over() {
        peer(|p| p.act(&mut input));
    }
    arm();
}

fn arm() {
    watched::arm(PLANS.with_borrow(|p| p.front().map_or(0, |(after, _)| *after)), react);
}

fuzz_target!(init: world::begin(), |data: &[u8]| {
    let (before, fds) = (__sanitizer_get_current_allocated_bytes(), world::open_fds());
    world::reset();
    let mut input = Input(data);
    let mut side = Side::new(&mut input);
    // One region that peers may read and write, one that they may map, and others.
    for choices in [[0, 0, 11], [0, 1, 0]] {
        register(&mut Input(&choices), &mut side);
    }
    for _ in 0..input.below(4) {
        register(&mut input, &mut side);
    }
    greet(&mut input, &mut side);
    // If the peer knows the format, its first choices lead to a connection.
    assert!(side.is_connected() || !data.is_empty());
    match input.byte() {
        how if how & 1 == 0 => peer(|p| p.furnish(how)),
        _ => {}
    }
    let check = |side: &Side| {
        let now = __sanitizer_get_current_allocated_bytes();
        assert!(now < before + side.weight() + COST_MAX, "{} bytes, and {before} before", now);
    };
    for turn in 0..256 {
        if input.is_over() {
            break;
        }
        step(&mut input, &mut side);
        if turn % 16 == 15 {
            check(&side);
        }
    }
    // Data under way arrives, if the peer still exists.
    for _ in 0..4 {
        side.progress(false);
        side.take(usize::MAX);
    }
    side.progress(true);
    check(&side);
    peer(|p| p.search());
    PLANS.take();
    arm();
    side.close();
    peer(|p| p.land());
    drop(PEER.take());
    side.finish();
    // Descriptors that the peer had no business to send are closed by a thread.
    let mut left = world::open_fds();
    for _ in 0..1000 {
        if left <= fds {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        left = world::open_fds();
    }
    assert!(left <= fds, "{left} descriptors are open, and {fds} were before");
});

fn register(input: &mut Input<'_>, side: &mut Side) {
    if let Some(known) = side.register(input) {
        peer(|p| p.known.push(known));
    }
}

/// Connects the two in one of the possible ways, or nearly so.
fn greet(input: &mut Input<'_>, side: &mut Side) {
    let how = input.byte();
    let pid = std::process::id();
    match how & 15 {
        0..9 => {
            side.connect(&world().name);
            peer(|p| {
                p.accept();
                p.introduce(input, layout::ACCEPT, b"", false, true);
            });
        }
        9 => {
            side.connect(&world().name);
            peer(|p| {
                p.accept();
                p.refuse(input);
            });
        }
        10 => {
            side.connect_by_name(&world().name);
            peer(|p| {
                p.accept();
                p.introduce(input, layout::ACCEPT, world().name.as_bytes(), true, true);
            });
        }
        11 => {
            let name = side.connect_by_name("!");
            peer(|p| {
                p.call(&name);
                p.introduce(input, layout::HELLO, if how & 128 == 0 { b"!" } else { b"?" }, true, false);
            });
        }
        _ => {
            let name = format!("fuzzed.{pid}");
            side.listen(&name);
            peer(|p| {
                p.call(&name);
                p.introduce(input, layout::HELLO, b"", false, false);
            });
            for request in side.poll() {
                match how & 48 {
                    48 => drop(request.reject(b"no")),
                    _ => side.accept(request),
                }
            }
        }
    }
    if how & 64 == 0 {
        side.progress(true);
        peer(|p| {
            p.hear();
            // A calling peer sends READY once it knows the link.
            if how & 15 > 10 {
                p.send(&layout::packet(layout::READY), &[]);
            }
        });
        side.progress(true);
    }
}

fn step(input: &mut Input<'_>, side: &mut Side) {
    let targets = peer(|p| p.regions.clone());
    match input.below(32) {
        0..12 => peer(|p| p.act(input)),
        12..15 => {
            let how = input.byte();
            for _ in 0..=how & 7 {
                side.progress(how & 8 != 0);
                if how & 16 != 0 {
                    peer(|p| p.read(&mut Input(&[])));
                }
                if how & 32 != 0 {
                    side.take(usize::MAX);
                }
            }
        }
        15 | 16 => {
            // Acts in the middle of the next calls.
            let plan = (1 + input.number() % 4096, input.bytes());
            PLANS.with_borrow_mut(|p| p.push_back(plan));
            arm();
        }
        17 | 18 => side.receive(input),
        19..22 => side.post(input, &targets, Some(Dir::Write)),
        22 | 23 => side.post(input, &targets, Some(Dir::Read)),
        24 | 25 => side.post(input, &targets, None),
        26 => register(input, side),
        27 => drop(side.close_region(input.below(8))),
        28 => side.cancel(input.below(64)),
        29 => side.take(1 + input.below(4)),
        30 => side.look(input, &targets),
        _ => {
            if input.below(16) == 0 {
                side.shutdown();
            }
        }
    }
}
