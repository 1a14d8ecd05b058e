// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Doubly linked lists of stored messages. A message is in several lists at once, and its node stays at one index from arrival to removal.

use super::posted_receives::NONE;
use crate::error::Result;
use crate::fallible::MakeRoom;

/// The previous and the next node in one list.
#[derive(Clone, Copy)]
pub struct Neighbours {
    pub prev: u32,
    pub next: u32,
}

const FREE: Neighbours = Neighbours { prev: NONE, next: NONE };

/// The first and the last node of a list.
#[derive(Clone, Copy)]
pub struct ListEnds {
    pub first: u32,
    pub last: u32,
}

pub const EMPTY: ListEnds = ListEnds { first: NONE, last: NONE };

/// A stored message. List `k` runs through `links[k]` of its nodes.
pub struct MessageNode<T, const LISTS: usize> {
    /// `None` if the node is free.
    pub item: Option<T>,
    pub number: u64,
    pub source: u64,
    pub tag: u64,
    /// The node is in the lists of the matcher's classes as well as in the list of all messages.
    pub indexed: bool,
    pub links: [Neighbours; LISTS],
}

#[cfg(test)]
thread_local! {
    /// Counts steps through lists, so that tests can bound them.
    pub static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[inline(always)]
pub fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// The nodes of all stored messages. The caller keeps the ends of the lists.
pub struct MessageLists<T, const LISTS: usize> {
    all: Vec<MessageNode<T, LISTS>>,
    free: Vec<u32>,
    pub count: usize,
}

impl<T, const LISTS: usize> MessageLists<T, LISTS> {
    pub fn new() -> Self {
        MessageLists { all: Vec::new(), free: Vec::new(), count: 0 }
    }

    #[inline(always)]
    pub fn get(&self, at: u32) -> Option<&MessageNode<T, LISTS>> {
        self.all.get(at as usize).filter(|n| n.item.is_some())
    }

    #[inline(always)]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut MessageNode<T, LISTS>> {
        self.all.get_mut(at as usize).filter(|n| n.item.is_some())
    }

    #[cfg(test)]
    pub fn is_as_new(&self) -> bool {
        self.count == 0 && self.all.len() <= 1 && self.free.len() == self.all.len()
    }

    #[inline]
    fn number(&self, at: u32) -> u64 {
        self.get(at).map_or(u64::MAX, |n| n.number)
    }

    /// Reserves memory for one more node, and for the list of free nodes to hold all of them.
    #[inline]
    pub fn room(&mut self) -> Result<()> {
        if self.free.is_empty() {
            self.all.room(1)?;
            self.free.room(self.all.len() + 1)?;
        }
        Ok(())
    }

    #[inline]
    pub fn add(&mut self, number: u64, source: u64, tag: u64, item: T) -> u32 {
        self.count += 1;
        let Some(at) = self.free.pop() else {
            self.all.push(MessageNode { item: Some(item), number, source, tag, indexed: false, links: [FREE; LISTS] });
            return (self.all.len() - 1) as u32;
        };
        if let Some(n) = self.all.get_mut(at as usize) {
            (n.number, n.source, n.tag, n.indexed, n.item) = (number, source, tag, false, Some(item));
        }
        at
    }

    #[inline]
    pub fn take(&mut self, at: u32) -> Option<T> {
        let item = self.all.get_mut(at as usize)?.item.take()?;
        self.free.push(at);
        self.count -= 1;
        Some(item)
    }

    /// Inserts a node into list `k` by its number, which is nearly always at the end.
    #[inline]
    pub fn link(&mut self, k: usize, ends: &mut ListEnds, at: u32) {
        let number = self.number(at);
        let mut prev = ends.last;
        while prev != NONE && self.number(prev) > number {
            prev = self.get(prev).map_or(NONE, |n| n.links[k].prev);
            step();
        }
        let next = match prev {
            NONE => std::mem::replace(&mut ends.first, at),
            _ => self.get_mut(prev).map_or(NONE, |n| std::mem::replace(&mut n.links[k].next, at)),
        };
        match next {
            NONE => ends.last = at,
            _ => {
                if let Some(n) = self.get_mut(next) {
                    n.links[k].prev = at;
                }
            }
        }
        if let Some(n) = self.get_mut(at) {
            n.links[k] = Neighbours { prev, next };
        }
    }

    #[inline]
    pub fn unlink(&mut self, k: usize, ends: &mut ListEnds, at: u32) {
        let Some(Neighbours { prev, next }) = self.get(at).map(|n| n.links[k]) else { return };
        match self.get_mut(prev) {
            Some(n) => n.links[k].next = next,
            None => ends.first = next,
        }
        match self.get_mut(next) {
            Some(n) => n.links[k].prev = prev,
            None => ends.last = prev,
        }
    }
}
