// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posted receives, in the order of posting: a ring buffer that grows.
//!
//! `PostedReceives::post` makes a receive in its place. A `VecDeque` would not do: its `push_back` copies a receive
//! that the CPU has just written elsewhere, and the CPU stalls on reading bytes that it has just written.

use super::arrivals::Recv;
use crate::error::Result;
use crate::fallible::with_room;

/// Places that the first receive allocates.
const FIRST: usize = 4;

#[derive(Default)]
pub struct PostedReceives {
    /// No places, or a power of two of them.
    places: Box<[Option<Recv>]>,
    /// Count of receives taken so far, which is the number of the first one.
    taken: usize,
    /// Count of receives posted so far. Receive number n lies at place n modulo the count of places.
    posted: usize,
}

impl PostedReceives {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.posted.wrapping_sub(self.taken)
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.posted == self.taken
    }

    #[inline(always)]
    fn at(&self, number: usize) -> usize {
        number & self.places.len().wrapping_sub(1)
    }

    /// Posts the receive that `make` makes. False: nothing was done, because the ring would have to grow.
    #[inline(always)]
    pub fn post(&mut self, make: impl FnOnce() -> Recv) -> bool {
        if self.len() >= self.places.len() {
            return false;
        }
        let at = self.at(self.posted);
        // The replaced value is `None`, or a receive that `pass` took and that owns nothing, so it needs no drop.
        std::mem::forget(self.places[at].replace(make()));
        self.posted = self.posted.wrapping_add(1);
        true
    }

    /// Makes room for one more receive.
    pub fn room(&mut self) -> Result<()> {
        if self.len() == self.places.len() { self.grow() } else { Ok(()) }
    }

    /// Posts a receive, for which there is room.
    pub fn push_back(&mut self, recv: Recv) {
        let at = self.at(self.posted);
        self.places[at] = Some(recv);
        self.posted = self.posted.wrapping_add(1);
    }

    #[cold]
    fn grow(&mut self) -> Result<()> {
        let most = (self.places.len() * 2).max(FIRST);
        let mut places = with_room(most)?;
        places.resize_with(most, || None);
        for number in 0..self.len() {
            let number = self.taken.wrapping_add(number);
            places[number & (most - 1)] = self.places[self.at(number)].take();
        }
        self.places = places.into();
        Ok(())
    }

    /// Takes the first receive.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Recv> {
        if self.is_empty() {
            return None;
        }
        let at = self.at(self.taken);
        self.taken = self.taken.wrapping_add(1);
        self.places[at].take()
    }

    /// The first receives, up to `most` and up to the end of the buffer.
    #[inline(always)]
    pub fn first(&self, most: usize) -> &[Option<Recv>] {
        let rest = self.places.get(self.at(self.taken)..).unwrap_or_default();
        &rest[..rest.len().min(self.len()).min(most)]
    }

    /// Takes the first `n` receives and leaves them in their places. Each has one piece, so it owns nothing that a drop
    /// would free.
    #[inline(always)]
    pub fn pass(&mut self, n: usize) {
        self.taken = self.taken.wrapping_add(n);
    }

    /// Takes the first receive that `which` picks; receives in front of it move up by one.
    pub fn remove(&mut self, which: impl Fn(&Recv) -> bool) -> Option<Recv> {
        let at = |i: usize| self.at(self.taken.wrapping_add(i));
        let found = (0..self.len()).find(|i| self.places[at(*i)].as_ref().is_some_and(&which))?;
        for i in (0..found).rev() {
            let (here, behind) = (self.at(self.taken.wrapping_add(i)), self.at(self.taken.wrapping_add(i + 1)));
            self.places.swap(here, behind);
        }
        self.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hmem::Site;
    use crate::mr::Iov;
    use crate::prov::op::Pieces;
    use std::collections::VecDeque;

    /// A receive that owns memory if `context` is odd.
    fn recv(context: usize) -> Recv {
        let pieces = if context.is_multiple_of(2) { Pieces::One(Iov::EMPTY) } else { Pieces::Many([Iov::EMPTY; 2].into()) };
        Recv { pieces, site: Site::HOST, room: 0, context, wanted: true, deadline: 0, ticket: None }
    }

    /// A ring of 8 places whose receives 6 to 13 lie across its end.
    fn wrapped() -> PostedReceives {
        let mut ring = PostedReceives::default();
        (0..8).for_each(|i| add(&mut ring, recv(i)));
        (0..6).for_each(|i| assert_eq!(ring.pop_front().map(|r| r.context), Some(i)));
        (8..14).for_each(|i| assert!(ring.post(|| recv(i))));
        ring
    }

    fn add(ring: &mut PostedReceives, recv: Recv) {
        ring.room().unwrap();
        ring.push_back(recv);
    }

    fn firsts(ring: &PostedReceives) -> Vec<usize> {
        ring.first(usize::MAX).iter().flatten().map(|r| r.context).collect()
    }

    fn contexts(mut ring: PostedReceives) -> Vec<usize> {
        std::iter::from_fn(|| ring.pop_front()).map(|r| r.context).collect()
    }

    #[test]
    fn posting_in_place_never_grows() {
        let mut ring = PostedReceives::default();
        assert!(ring.is_empty() && ring.pop_front().is_none() && ring.first(9).is_empty());
        assert!(!ring.post(|| unreachable!("there is no place")));
        assert_eq!(ring.len(), 0);
        let mut ring = wrapped();
        assert!(ring.len() == 8 && !ring.post(|| unreachable!("there is no place")));
        assert_eq!(contexts(ring), Vec::from_iter(6..14));
    }

    #[test]
    fn a_ring_that_lies_across_its_end_grows_in_order() {
        let mut ring = wrapped();
        assert_eq!(firsts(&ring), [6, 7]);
        add(&mut ring, recv(14));
        assert!(ring.post(|| recv(15)) && ring.len() == 10 && ring.places.len() == 16);
        assert_eq!(contexts(ring), Vec::from_iter(6..16));
    }

    #[test]
    fn one_that_is_taken_from_anywhere_leaves_no_hole() {
        for gone in 6..14 {
            let mut ring = wrapped();
            assert!(ring.remove(|r| r.context == 99).is_none() && ring.len() == 8);
            assert_eq!(ring.remove(|r| r.context >= gone).map(|r| r.context), Some(gone));
            assert!(ring.post(|| recv(14)));
            assert_eq!(contexts(ring), Vec::from_iter((6..15).filter(|i| *i != gone)));
        }
    }

    #[test]
    fn any_steps_do_what_they_do_to_a_queue() {
        let (mut ring, mut queue, mut random) = (PostedReceives::default(), VecDeque::new(), 1u64);
        for i in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = (random >> 33) as usize;
            // Many are posted for a while, then few.
            match draw % 8 {
                0..2 => assert_eq!(ring.pop_front().map(|r| r.context), queue.pop_front()),
                2 => {
                    let n = queue.iter().take(draw / 8 % 4).take_while(|c| *c % 2 == 0).count();
                    ring.pass(n);
                    drop(queue.drain(..n));
                }
                3 => {
                    let at = queue.iter().position(|c| c % 7 == draw / 8 % 7);
                    assert_eq!(ring.remove(|r| r.context % 7 == draw / 8 % 7).map(|r| r.context), at.and_then(|at| queue.remove(at)));
                }
                _ if i / 1000 % 2 == 1 && (draw / 8).is_multiple_of(2) => {}
                _ => {
                    if !ring.post(|| recv(i)) {
                        add(&mut ring, recv(i));
                    }
                    queue.push_back(i);
                }
            }
            assert!(ring.len() == queue.len() && ring.is_empty() == queue.is_empty());
            let some = firsts(&ring);
            assert!(queue.iter().take(some.len()).eq(&some) && some.is_empty() == queue.is_empty());
            assert!(ring.first(2).len() == some.len().min(2));
        }
        assert_eq!(contexts(ring), Vec::from(queue));
    }
}
