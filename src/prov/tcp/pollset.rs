// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One epoll set for the lanes of a domain. With many lanes, one system call finds the lanes with arrivals, instead of
//! one call for each lane. A few lanes are read directly, which is faster.

use crate::error::Result;
use crate::sys::epoll::Edges;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Up to this many connections are read directly.
const FEW: usize = 4;

/// The poll set of a domain.
#[derive(Default)]
pub struct PollSet {
    edges: OnceLock<Edges>,
    /// A flag for each member, indexed by the member's number: something may have arrived for the member.
    members: Mutex<Vec<Option<Arc<AtomicBool>>>>,
    count: AtomicUsize,
    /// Number of the current round. A round ends when a member takes its second turn in the round; then the set is polled.
    round: AtomicUsize,
}

/// A connection's membership in the set, until `leave` ends it.
pub struct Member {
    number: usize,
    came: Arc<AtomicBool>,
    /// The member's socket is in the epoll set.
    asked: bool,
    /// The round in which the member took its last turn.
    round: usize,
}

impl Member {
    /// Notes that more has arrived than was read.
    pub fn put_back(&self) {
        self.came.store(true, Ordering::Relaxed);
    }
}

impl PollSet {
    /// Makes a connection a member of the set.
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

    /// Ends a membership. The socket leaves the epoll set when it is closed.
    pub fn leave(&self, member: &Member) {
        if let Some(place) = self.members.lock().get_mut(member.number) {
            *place = None;
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if the members are so few that each is read directly.
    #[inline(always)]
    pub fn is_small(&self) -> bool {
        self.count.load(Ordering::Relaxed) <= FEW
    }

    /// Takes a turn of one member. True: something may have arrived for the member. The set is polled once in each round.
    #[inline]
    pub fn turn(&self, member: &mut Member, fd: BorrowedFd<'_>) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        count <= FEW || self.turn_of_many(member, fd)
    }

    /// As `turn`, with more than `FEW` members.
    #[cold]
    fn turn_of_many(&self, member: &mut Member, fd: BorrowedFd<'_>) -> bool {
        // The socket is added only now, because the kernel does more work for each packet of a socket in an epoll set.
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
        // Relaxed is enough: the flag carries no data, and the socket orders its own.
        member.came.swap(false, Ordering::Relaxed)
    }

    /// Adds the member's socket to the epoll set.
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

    /// Polls the epoll set, and sets the flags of the members with arrivals.
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
