// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many connections of a domain that are lanes: then one question tells which of them have something, in place of one to each.
//! Few are asked directly, which is sooner.

use crate::error::Result;
use crate::sys::epoll::Edges;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Up to so many connections are asked one by one.
const FEW: usize = 4;

#[derive(Default)]
pub struct PollSet {
    edges: OnceLock<Edges>,
    /// By their numbers in the set: who is told that something came.
    members: Mutex<Vec<Option<Arc<AtomicBool>>>>,
    count: AtomicUsize,
    /// Begins anew when somebody has his second turn in it: then the question is asked.
    round: AtomicUsize,
}

/// A place in the set; given back with `leave`.
pub struct Member {
    number: usize,
    came: Arc<AtomicBool>,
    /// Its socket is in the set.
    asked: bool,
    /// Of its last turn.
    round: usize,
}

impl Member {
    /// There is more than was taken.
    pub fn put_back(&self) {
        self.came.store(true, Ordering::Relaxed);
    }
}

impl PollSet {
    pub fn join(&self) -> Member {
        let came = Arc::new(AtomicBool::new(true));
        let mut members = self.members.lock();
        let number = members.iter().position(Option::is_none).unwrap_or(members.len());
        match members.get_mut(number) {
            Some(place) => *place = Some(came.clone()),
            None => members.push(Some(came.clone())),
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        Member { number, came, asked: false, round: usize::MAX }
    }

    /// The connection is over; its socket leaves the set when it is closed.
    pub fn leave(&self, member: &Member) {
        if let Some(place) = self.members.lock().get_mut(member.number) {
            *place = None;
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn is_small(&self) -> bool {
        self.count.load(Ordering::Relaxed) <= FEW
    }

    /// A turn of one of the connections: whether something may have come. In each round of those that have turns the
    /// question is asked once.
    #[inline]
    pub fn turn(&self, member: &mut Member, fd: BorrowedFd<'_>) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        count <= FEW || self.turn_of_many(member, fd)
    }

    #[cold]
    fn turn_of_many(&self, member: &mut Member, fd: BorrowedFd<'_>) -> bool {
        // Only now: a socket that is in a set costs each packet a look at it.
        if !member.asked && self.enter(member, fd).is_err() {
            return true;
        }
        let round = self.round.load(Ordering::Relaxed);
        if member.round == round {
            self.round.store(round.wrapping_add(1), Ordering::Relaxed);
            member.round = round.wrapping_add(1);
            self.ask();
        } else {
            member.round = round;
        }
        // Acquire is not needed: the socket itself orders what it brings.
        member.came.swap(false, Ordering::Relaxed)
    }

    fn enter(&self, member: &mut Member, fd: BorrowedFd<'_>) -> Result<()> {
        let edges = match self.edges.get() {
            Some(edges) => edges,
            None => {
                let fresh = Edges::new()?;
                self.edges.get_or_init(|| fresh)
            }
        };
        edges.add(fd, member.number as u64)?;
        member.asked = true;
        Ok(())
    }

    fn ask(&self) {
        let Some(edges) = self.edges.get() else { return };
        let members = self.members.lock();
        edges.poll(|number| {
            if let Some(Some(came)) = members.get(number as usize) {
                came.store(true, Ordering::Relaxed);
            }
        });
    }
}
