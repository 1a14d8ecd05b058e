// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tcp connection whose peer is the fuzzer. An endpoint of the library is at one end of a socket pair. At the other end the input chooses
//! frames and bytes, sent in pieces of any size or in segments over several rails. Meanwhile operations are posted and cancelled, regions
//! come and go, and deadlines pass.
//!
//! Invariants: nothing panics or overflows. No memory is touched that is not, or no longer, lent to the library: guards show it, and
//! AddressSanitizer, because memory is freed as soon as its operation has ended or its region is closed. The peer writes and reads no
//! region without the right to. The peer costs a bounded amount of memory. Every operation ends exactly once.
#![no_main]

mod input;
mod links;
mod memory;
mod peer;
mod queues;
mod side;

use gdrfab::prov::op::Dir;
use input::Input;
use libfuzzer_sys::fuzz_target;
use peer::Peer;
use side::Side;
use std::os::unix::net::UnixStream;

/// Memory that a peer may cost beyond the lent buffers: answers that it does not read (8 MiB, in a buffer that may double), messages within
/// their budget, and this side's own operations.
const COST_MAX: usize = 40 << 20;

unsafe extern "C" {
    safe fn __sanitizer_get_current_allocated_bytes() -> usize;
}

fuzz_target!(|data: &[u8]| {
    let before = __sanitizer_get_current_allocated_bytes();
    let mut input = Input(data);
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.set_nonblocking(true).expect("a socket that does not block");
    let mut peer = Peer::new(theirs);
    let mut side = Side::new(&mut input, ours.into(), &mut peer);
    let check = |side: &Side, peer: &Peer| {
        let now = __sanitizer_get_current_allocated_bytes();
        assert!(now < before + side.weight() + peer.links.weight() + COST_MAX, "{} bytes, and {before} before", now);
    };
    for turn in 0..256 {
        if input.is_over() {
            break;
        }
        step(&mut input, &mut side, &mut peer);
        if turn % 16 == 15 {
            check(&side, &peer);
        }
    }
    // Data under way arrives, if the peer still exists.
    peer.chunk = 0;
    for _ in 0..8 {
        peer.push();
        side.progress(false);
        side.take(usize::MAX);
        peer.pull(usize::MAX);
    }
    side.progress(true);
    check(&side, &peer);
    // A goodbye waits for a peer that does not read; with rails it also waits for the peer's answer.
    if peer.pull(usize::MAX) > 0 || peer.links.are_rails() {
        peer.links.end(false);
    }
    side.close();
});

fn step(input: &mut Input<'_>, side: &mut Side, peer: &mut Peer) {
    match input.below(20) {
        0..4 => peer.frame(input, &side.known),
        4 => peer.put(&input.bytes()),
        5 => peer.fill(input.size()),
        6..9 => {
            let how = input.byte();
            for _ in 0..=how & 7 {
                peer.push();
                side.progress(how & 8 != 0);
                if how & 16 != 0 {
                    peer.pull(usize::MAX);
                }
                if how & 32 != 0 {
                    side.take(usize::MAX);
                }
            }
        }
        9 => peer.chunk = [0, 1, 2, 7, 8, 15, 100, 5000, 65_536][input.below(9)],
        10 => side.receive(input),
        11 => side.post(input, peer, Some(Dir::Write)),
        12 => side.post(input, peer, Some(Dir::Read)),
        13 => side.post(input, peer, None),
        14 => side.register(input),
        15 => side.close_region(input.below(8)),
        16 => side.cancel(input.below(64)),
        17 => side.take(1 + input.below(4)),
        18 => drop(peer.pull(1 + input.size())),
        _ => match input.below(8) {
            0 if !peer.links.are_rails() => side.shutdown_when_heard(peer),
            1 => peer.links.end(true),
            2 => peer.links.end(false),
            3 => side.post_list(input, peer, Dir::Write),
            4 => side.post_list(input, peer, Dir::Read),
            0 | 5.. if peer.links.are_rails() => peer.links.vary(input, |rail, generation, socket| side.join(rail, generation, socket)),
            _ => side.look(input.number()),
        },
    }
}
