// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shm listener that refuses every caller. Depending on the reason, the caller tries the next lane, or the same lane
//! again.

use super::*;
use crate::sys::socket;

/// Takes the place of the shm listener of an endpoint that does not use shm, and answers each caller with a refusal of
/// docs/shm-format.md.
struct RefusingListener {
    listener: std::os::fd::OwnedFd,
    why: u32,
    calls: usize,
}

impl RefusingListener {
    fn at(side: &Side, why: u32) -> RefusingListener {
        let name = format!("gdrfab/rdm.{}", side.name.socket().to_string().replace(':', "_"));
        RefusingListener { listener: socket::listen(&name, 8).unwrap(), why, calls: 0 }
    }

    fn turn(&mut self) {
        use std::os::fd::AsFd;
        while let Some(caller) = socket::accept(self.listener.as_fd()).unwrap() {
            let packet: Vec<u8> = [0x6764_7266u32, 9, self.why].iter().flat_map(|word| word.to_le_bytes()).collect();
            socket::send(caller.as_fd(), &packet, &[]).unwrap();
            self.calls += 1;
        }
    }
}

/// Has `a` dial `b`, whose shm listener refuses with `why`. Returns both, the listener, and whether `b` was reached
/// within `seconds`.
fn call(why: u32, seconds: u64) -> (Side, Side, RefusingListener, bool) {
    let (mut a, mut b) = (Side::open(&info("shm+tcp")), Side::open(&info("tcp")));
    assert_eq!(a.av.insert(b.name).unwrap(), 0);
    let mut refuses = RefusingListener::at(&b, why);
    let mut to = [0u8; 8];
    b.recv(UNSPEC, &mut to, 1, 0, 2);
    a.send(0, &[7; 8], 1, 1);
    let begun = Instant::now();
    let mut heard = false;
    while !heard && begun.elapsed() < Duration::from_secs(seconds) {
        refuses.turn();
        a.turn();
        b.turn();
        heard = b.take(2).is_some();
    }
    // The receive of `b` points to `to`, which ends with this function.
    b.ep.close().unwrap();
    (a, b, refuses, heard)
}

#[test]
fn a_caller_refused_over_shm_connects_over_tcp_and_reports_why() {
    for (why, words) in [(3, "GDRFAB_SHM_USERS"), (4, "version")] {
        let (a, _b, refuses, heard) = call(why, 5);
        assert!(heard && refuses.calls == 1, "{} calls", refuses.calls);
        let text = a.ep.report(0, 0, 0).unwrap().text;
        assert!(text.starts_with("over tcp (shm: the listener") && text.contains(words), "{text}");
    }
}

#[test]
fn a_shm_listener_without_room_is_dialed_again() {
    for why in [1, 2] {
        let (_a, _b, refuses, heard) = call(why, 1);
        assert!(!heard && refuses.calls > 2, "{} calls", refuses.calls);
    }
}
