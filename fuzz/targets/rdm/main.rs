// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connectionless endpoint whose peer is the fuzzer. At the other end of its lane an endpoint of the lane's own provider sends whatever
//! the input says, true or false, while messages and receives of this side come, wait and are cancelled.
//!
//! Invariants: nothing panics or overflows, and no memory is touched that is not lent. The peer costs a bounded amount of memory. Every
//! operation ends exactly once. No descriptor is left open.
#![no_main]

#[path = "../connection/input.rs"]
#[allow(dead_code)]
mod input;
mod peer;
mod side;

use gdrfab::rdm::wire::parcel::{Label, ParcelWords, eager};
use input::Input;
use libfuzzer_sys::fuzz_target;
use peer::Peer;
use side::Side;

/// Memory beyond the operations of this side: grants, offers, and the lanes' own buffers.
const COST_MAX: usize = 64 << 20;

unsafe extern "C" {
    safe fn __sanitizer_get_current_allocated_bytes() -> usize;
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn label(input: &mut Input<'_>) -> Label {
    let how = input.byte();
    Label { tag: (how & 1 != 0).then(|| input.number()), data: (how & 2 != 0).then(|| input.number()) }
}

fn step(input: &mut Input<'_>, side: &mut Side, peer: &mut Peer) {
    match input.below(13) {
        0 | 1 => {
            let (words, count) = eager(&label(input));
            peer.put(&words[..count], input.size());
        }
        2 => {
            let (label, number, places) = (label(input), input.number(), peer.places(input));
            let sum = places.iter().fold(0u64, |sum, p| sum.wrapping_add(p.len as u64));
            let len = if input.below(8) == 0 { input.number() } else { sum };
            peer.put(ParcelWords::offer(&label, number, len, &places).as_slice(), 0);
        }
        3 => peer.answer(input),
        4 => {
            let words = ParcelWords::credit(input.number(), input.number() << input.below(24));
            peer.put(words.as_slice(), 0);
        }
        5 => {
            let words: Vec<u64> = (0..input.below(32)).map(|_| input.number() | u64::from(input.byte()) << 8).collect();
            peer.put(&words, if input.flag() { input.size() } else { 0 });
        }
        11 => peer.withdraw(input),
        6 | 7 => side.recv(input),
        8 => side.send(input),
        9 => side.cancel(input),
        10 => side.peek(input),
        _ => peer.hear(),
    }
    side.turn();
}

fuzz_target!(|data: &[u8]| {
    // Objects that the library makes once and keeps are no leak, so they are made before the first count.
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| ["shm", "tcp"].into_iter().for_each(|lane| run(lane, &[9, 0, 6, 1, 8, 3])));
    let Some((first, rest)) = data.split_first() else { return };
    let (before, fds) = (__sanitizer_get_current_allocated_bytes(), open_fds());
    run(if first & 1 == 0 { "shm" } else { "tcp" }, rest);
    let now = __sanitizer_get_current_allocated_bytes();
    assert!(now < before + COST_MAX, "{now} bytes, and {before} before");
    assert!(open_fds() <= fds, "{} descriptors are open, and {fds} were before", open_fds());
});

fn run(lane: &'static str, data: &[u8]) {
    let before = __sanitizer_get_current_allocated_bytes();
    let mut input = Input(data);
    let mut side = Side::open(lane);
    let Some(mut peer) = Peer::dial(lane, &mut side, &mut input) else { return side.close() };
    for _ in 0..256 {
        if input.is_over() {
            break;
        }
        step(&mut input, &mut side, &mut peer);
    }
    let now = __sanitizer_get_current_allocated_bytes();
    assert!(now < before + side.weight() + COST_MAX, "{now} bytes, and {before} before");
    if input.flag() {
        drop(peer);
        (0..4).for_each(|_| side.turn());
    }
    side.close();
}
