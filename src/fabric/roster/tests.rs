// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns are counted, on endpoints that do nothing but tell whether they may rest.

use super::*;
use crate::error::Result;
use crate::prov::bind::{Binding, Options};
use crate::prov::general::Posting;
use crate::prov::op::{Common, Dir, Iov, RmaIov};
use crate::prov::ops::Owner;
use crate::prov::report::{PathReport, Stats};
use crate::prov::{Endpoint, Request};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

struct Seen {
    turns: AtomicUsize,
    taken: AtomicUsize,
    busy: AtomicBool,
    due: AtomicU64,
    rests: Mutex<Option<(Arc<Rest>, u64)>>,
    socket: UnixStream,
}

struct Fake(Arc<Seen>);

impl Endpoint for Fake {
    fn progress(&self, _force: bool) {
        self.0.turns.fetch_add(1, Relaxed);
        let mut bytes = [0; 16];
        self.0.taken.fetch_add((&self.0.socket).read(&mut bytes).unwrap_or(0), Relaxed);
    }
    fn can_rest(&self) -> bool {
        true
    }
    fn rest(&self, at: &Arc<Rest>, number: u64) -> Option<u64> {
        if self.0.busy.load(Relaxed) {
            return None;
        }
        at.watch(self.0.socket.as_fd(), number).unwrap();
        *self.0.rests.lock().unwrap() = Some((at.clone(), number));
        Some(self.0.due.load(Relaxed))
    }
    fn set_object(&self, _: usize) {}
    fn bind(&self, _: Binding) -> Result<()> {
        Ok(())
    }
    fn enable(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn connect(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn accept(&self, _: Box<dyn Request>, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn address(&self) -> Result<String> {
        Ok(String::new())
    }
    fn peer_address(&self) -> Result<String> {
        Ok(String::new())
    }
    fn shutdown(&self) -> Result<()> {
        Ok(())
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
    fn rma(&self, _: Dir, _: &[Iov], _: &[RmaIov], _: &Common, _: &[u64]) -> Result<()> {
        Ok(())
    }
    fn send(&self, _: &[Iov], _: &Common, _: &[u64]) -> Result<()> {
        Ok(())
    }
    fn recv(&self, _: &[Iov], _: &Common, _: &[u64]) -> Result<()> {
        Ok(())
    }
    fn options(&self) -> Options {
        Options::default()
    }
    fn set_options(&self, _: &mut dyn FnMut(&mut Options)) {}
    fn report(&self, _: u64, _: u64) -> Result<PathReport> {
        unreachable!("nobody asks")
    }
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// A roster of `count`, what was seen of each, their peers, and how often sleepers were woken.
struct Crowd {
    roster: Roster,
    eps: Vec<EpRef>,
    seen: Vec<Arc<Seen>>,
    peers: Vec<UnixStream>,
    wakes: Arc<AtomicUsize>,
}

impl Crowd {
    fn of(count: usize) -> Crowd {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = wakes.clone();
        let roster = Roster::new(Threading::Safe, move || {
            counted.fetch_add(1, Relaxed);
        });
        let mut crowd = Crowd { roster, eps: Vec::new(), seen: Vec::new(), peers: Vec::new(), wakes };
        for _ in 0..count {
            let (socket, peer) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let seen = Arc::new(Seen {
                turns: AtomicUsize::new(0),
                taken: AtomicUsize::new(0),
                busy: AtomicBool::new(false),
                due: AtomicU64::new(u64::MAX),
                rests: Mutex::new(None),
                socket,
            });
            let posting = Arc::new(Posting::new(Box::new(Fake(seen.clone())), Owner::here(), 0, 1).unwrap());
            let ep = EpRef::new(&posting, |p| p);
            crowd.roster.attach(&ep);
            // Bound twice, as for sends and receives, it has one turn.
            crowd.roster.attach(&ep);
            crowd.eps.push(ep);
            crowd.seen.push(seen);
            crowd.peers.push(peer);
        }
        crowd
    }

    /// Turns of all since the last call.
    fn turns(&self) -> usize {
        self.seen.iter().map(|s| s.turns.swap(0, Relaxed)).sum()
    }

    fn turned(&self, i: usize) -> bool {
        self.seen[i].turns.load(Relaxed) > 0
    }
}

#[test]
fn few_have_every_turn() {
    let crowd = Crowd::of(FEW);
    for _ in 0..10 {
        crowd.roster.turn();
        assert_eq!(crowd.turns(), FEW);
    }
    assert!(crowd.roster.awake().1.is_none());
}

#[test]
fn of_many_only_the_active_have_turns() {
    let crowd = Crowd::of(100);
    crowd.seen[7].busy.store(true, Relaxed);
    crowd.roster.turn();
    assert_eq!(crowd.turns(), 100);
    for _ in 0..10 {
        crowd.roster.turn();
        assert_eq!(crowd.turns(), 2, "the busy one, and the last");
    }
    assert!(crowd.roster.awake().0.len() <= FEW && crowd.roster.awake().1.is_some());
}

#[test]
fn what_comes_ends_the_rest() {
    let mut crowd = Crowd::of(50);
    // Before the first of them rests, and after.
    crowd.seen.iter().take(49).for_each(|s| s.busy.store(true, Relaxed));
    crowd.roster.turn();
    crowd.peers[3].write_all(b"early").unwrap();
    crowd.seen.iter().for_each(|s| s.busy.store(false, Relaxed));
    crowd.roster.awake();
    crowd.turns();
    let woken = crowd.wakes.load(Relaxed);
    assert!(crowd.roster.turn(), "it came before the endpoint rested");
    assert_eq!((crowd.seen[3].taken.load(Relaxed), crowd.wakes.load(Relaxed)), (5, woken + 1));
    for i in (0..50).rev() {
        crowd.peers[i].write_all(b"later").unwrap();
        crowd.roster.turn();
        assert!(crowd.turned(i), "{i}");
        assert!(crowd.turns() <= FEW + 2);
    }
    assert!(crowd.seen.iter().all(|s| s.taken.load(Relaxed) >= 5));
    // An end as well.
    drop(crowd.peers.remove(0));
    crowd.roster.turn();
    assert!(crowd.turned(0));
}

#[test]
fn a_call_or_a_time_ends_the_rest() {
    let crowd = Crowd::of(20);
    crowd.seen[4].due.store(time::now_ns() + 5_000_000, Relaxed);
    crowd.roster.turn();
    assert!(crowd.roster.nap_ns() <= 5_000_000);
    crowd.turns();
    let (at, number) = crowd.seen[9].rests.lock().unwrap().clone().unwrap();
    at.call(number);
    crowd.roster.turn();
    assert!(crowd.turned(9));
    crowd.turns();
    crowd.seen[4].due.store(u64::MAX, Relaxed);
    std::thread::sleep(std::time::Duration::from_millis(6));
    crowd.roster.turn();
    assert!(crowd.turned(4));
    assert_eq!(crowd.roster.nap_ns(), u64::MAX);
}

#[test]
fn who_leaves_is_not_called() {
    let mut crowd = Crowd::of(20);
    crowd.roster.turn();
    for i in [2, 19] {
        crowd.roster.detach(&crowd.eps[i]);
        crowd.peers[i].write_all(b"too late").unwrap();
        let rest = crowd.seen[i].rests.lock().unwrap().clone();
        if let Some((at, number)) = rest {
            at.call(number);
        }
    }
    crowd.turns();
    crowd.roster.turn();
    assert!(!crowd.turned(2) && !crowd.turned(19));
    assert_eq!(crowd.roster.len(), 18);
    crowd.roster.attach(&crowd.eps[2]);
    crowd.roster.turn();
    assert!(crowd.turned(2) && crowd.roster.len() == 19);
}
