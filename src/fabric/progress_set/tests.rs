// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests count turns on fake endpoints, which only say whether they may be idle.

use super::*;
use crate::error::Result;
use crate::prov::bind::{Binding, Options};
use crate::prov::general::EndpointCore;
use crate::prov::op::{Common, Dir, Iov, RmaIov};
use crate::prov::ops::{OpFlags, Owner};
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
    idle_set: Mutex<Option<(Arc<IdleSet>, u64)>>,
    socket: UnixStream,
}

struct Fake(Arc<Seen>);

impl Endpoint for Fake {
    fn progress(&self, _force: bool) {
        self.0.turns.fetch_add(1, Relaxed);
        let mut bytes = [0; 16];
        self.0.taken.fetch_add((&self.0.socket).read(&mut bytes).unwrap_or(0), Relaxed);
    }
    fn can_be_idle(&self) -> bool {
        true
    }
    fn join_idle_set(&self, at: &Arc<IdleSet>, number: u64) -> Option<u64> {
        if self.0.busy.load(Relaxed) {
            return None;
        }
        at.watch(self.0.socket.as_fd(), number).unwrap();
        *self.0.idle_set.lock().unwrap() = Some((at.clone(), number));
        Some(self.0.due.load(Relaxed))
    }
    fn set_object(&self, _: usize) {}
    fn bind(&self, _: Binding) -> Result<()> {
        Ok(())
    }
    fn enable(&self, _: OpFlags) -> Result<()> {
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
    fn report(&self, _: u64, _: u64, _: u64) -> Result<PathReport> {
        unreachable!("nobody asks")
    }
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// A set of fake endpoints, the record of each, their peers, and the number of times that sleeping threads were woken.
struct Group {
    set: ProgressSet,
    eps: Vec<EpRef>,
    seen: Vec<Arc<Seen>>,
    peers: Vec<UnixStream>,
    wakes: Arc<AtomicUsize>,
}

impl Group {
    fn of(count: usize) -> Group {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = wakes.clone();
        let set = ProgressSet::new(Threading::Safe, move || {
            counted.fetch_add(1, Relaxed);
        });
        let mut group = Group { set, eps: Vec::new(), seen: Vec::new(), peers: Vec::new(), wakes };
        for _ in 0..count {
            let (socket, peer) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let seen = Arc::new(Seen {
                turns: AtomicUsize::new(0),
                taken: AtomicUsize::new(0),
                busy: AtomicBool::new(false),
                due: AtomicU64::new(u64::MAX),
                idle_set: Mutex::new(None),
                socket,
            });
            let core = Arc::new(EndpointCore::new(Box::new(Fake(seen.clone())), Owner::here(), OpFlags::default(), 1).unwrap());
            let ep = EpRef::new(&core, |p| p);
            group.set.attach(&ep);
            // An endpoint that is bound twice, as for sends and receives, has one turn.
            group.set.attach(&ep);
            group.eps.push(ep);
            group.seen.push(seen);
            group.peers.push(peer);
        }
        group
    }

    /// The number of turns of all endpoints since the last call.
    fn turns(&self) -> usize {
        self.seen.iter().map(|s| s.turns.swap(0, Relaxed)).sum()
    }

    fn turned(&self, i: usize) -> bool {
        self.seen[i].turns.load(Relaxed) > 0
    }
}

#[test]
fn few_endpoints_have_every_turn() {
    let group = Group::of(FEW);
    for _ in 0..10 {
        group.set.turn();
        assert_eq!(group.turns(), FEW);
    }
    assert!(group.set.active_and_idle_set().1.is_none());
}

#[test]
fn of_many_endpoints_only_the_active_have_turns() {
    let group = Group::of(100);
    group.seen[7].busy.store(true, Relaxed);
    group.set.turn();
    assert_eq!(group.turns(), 100);
    for _ in 0..10 {
        group.set.turn();
        assert_eq!(group.turns(), 2, "the busy one, and the last");
    }
    assert!(group.set.active_and_idle_set().0.len() <= FEW && group.set.active_and_idle_set().1.is_some());
}

#[test]
fn arriving_bytes_end_idleness() {
    let mut group = Group::of(50);
    // Bytes arrive before the first endpoint becomes idle, and after.
    group.seen.iter().take(49).for_each(|s| s.busy.store(true, Relaxed));
    group.set.turn();
    group.peers[3].write_all(b"early").unwrap();
    group.seen.iter().for_each(|s| s.busy.store(false, Relaxed));
    group.set.active_and_idle_set();
    group.turns();
    let woken = group.wakes.load(Relaxed);
    assert!(group.set.turn(), "it came before the endpoint rested");
    assert_eq!((group.seen[3].taken.load(Relaxed), group.wakes.load(Relaxed)), (5, woken + 1));
    for i in (0..50).rev() {
        group.peers[i].write_all(b"later").unwrap();
        group.set.turn();
        assert!(group.turned(i), "{i}");
        assert!(group.turns() <= FEW + 2);
    }
    assert!(group.seen.iter().all(|s| s.taken.load(Relaxed) >= 5));
    // The end of a connection activates an endpoint as well.
    drop(group.peers.remove(0));
    group.set.turn();
    assert!(group.turned(0));
}

#[test]
fn a_call_or_a_time_ends_idleness() {
    let group = Group::of(20);
    group.seen[4].due.store(time::now_ns() + 5_000_000, Relaxed);
    group.set.turn();
    assert!(group.set.sleep_limit_ns() <= 5_000_000);
    group.turns();
    let (at, number) = group.seen[9].idle_set.lock().unwrap().clone().unwrap();
    at.call(number);
    group.set.turn();
    assert!(group.turned(9));
    group.turns();
    group.seen[4].due.store(u64::MAX, Relaxed);
    std::thread::sleep(std::time::Duration::from_millis(6));
    group.set.turn();
    assert!(group.turned(4));
    assert_eq!(group.set.sleep_limit_ns(), u64::MAX);
}

#[test]
fn a_detached_endpoint_makes_no_progress() {
    let mut group = Group::of(20);
    group.set.turn();
    for i in [2, 19] {
        group.set.detach(&group.eps[i]);
        group.peers[i].write_all(b"too late").unwrap();
        let joined = group.seen[i].idle_set.lock().unwrap().clone();
        if let Some((at, number)) = joined {
            at.call(number);
        }
    }
    group.turns();
    group.set.turn();
    assert!(!group.turned(2) && !group.turned(19));
    assert_eq!(group.set.len(), 18);
    group.set.attach(&group.eps[2]);
    group.set.turn();
    assert!(group.turned(2) && group.set.len() == 19);
}
