// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receives that wait, found by what they are for: a hash whose places lead to the oldest of each sort, and the oldest to those
//! behind it. All of it lies in one array, so that posting and taking one allocates nothing.

use crate::error::Result;
use crate::fallible::{MakeRoom, filled};
use std::hash::{BuildHasher, RandomState};

pub const NONE: u32 = u32::MAX;
/// Places of the hash at first.
const BUCKETS: usize = 64;
/// Sorts of senders that are told from each other.
const SENDER_CLASSES: usize = 64;

/// What a sort of receives is for. Peers choose tags, and must not choose where they fall: the hash has a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub class: u8,
    pub source: u64,
    pub tag: u64,
}

/// What one was asked for: the source, the tag, and its bits that are not compared.
#[derive(Clone, Copy)]
pub struct NodeFilter {
    pub source: u64,
    pub tag: u64,
    pub ignore: u64,
}

pub struct RecvNode<R> {
    /// None: it is free, and `next` leads to the next free one.
    pub item: Option<R>,
    /// In the order of posting.
    pub number: u64,
    key: Key,
    hash: u32,
    pub asked: NodeFilter,
    /// Those of the same sort before and behind it.
    before: u32,
    next: u32,
    /// Of the oldest: the last of its sort, and the oldest of the next sort at this place of the hash.
    last: u32,
    chain: u32,
}

pub struct Posted<R> {
    nodes: Vec<RecvNode<R>>,
    free: u32,
    count: usize,
    /// Sorts that have receives.
    keys: usize,
    /// The highest number of a receive that got a message of such a sender's.
    newest: [u64; SENDER_CLASSES],
    buckets: Box<[u32]>,
    /// The oldest of the only sort, which the hash does not lead to yet: a program that posts one sort at a time hashes nothing.
    sole: u32,
    secret: [u64; 2],
}

impl<R> RecvNode<R> {
    #[inline(always)]
    pub fn class(&self) -> u8 {
        self.key.class
    }
}

impl<R> Posted<R> {
    pub fn new() -> Self {
        let secret = [1u8, 2].map(|n| RandomState::new().hash_one(n));
        Posted {
            nodes: Vec::new(),
            free: NONE,
            count: 0,
            keys: 0,
            newest: [0; SENDER_CLASSES],
            buckets: vec![NONE; BUCKETS].into(),
            sole: NONE,
            secret,
        }
    }

    #[inline(always)]
    fn hash_of(&self, key: &Key) -> u32 {
        let [one, two] = self.secret;
        let product = u128::from(one ^ key.source.wrapping_add(u64::from(key.class) << 48)) * u128::from(two ^ key.tag);
        (product as u64 ^ (product >> 64) as u64) as u32
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn node(&mut self, at: u32) -> Option<&mut RecvNode<R>> {
        self.nodes.get_mut(at as usize)
    }

    #[inline(always)]
    pub fn get(&self, at: u32) -> Option<&RecvNode<R>> {
        self.nodes.get(at as usize).filter(|n| n.item.is_some())
    }

    #[inline(always)]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut RecvNode<R>> {
        self.nodes.get_mut(at as usize).filter(|n| n.item.is_some())
    }

    /// The one behind it of the same sort.
    pub fn behind(&self, at: u32) -> u32 {
        self.get(at).map_or(NONE, |n| n.next)
    }

    /// The oldest of its sort, or `NONE`.
    #[inline(always)]
    pub fn first(&self, key: &Key) -> u32 {
        match self.nodes.get(self.sole as usize) {
            Some(node) => {
                if node.key == *key {
                    self.sole
                } else {
                    NONE
                }
            }
            None => self.first_at(self.hash_of(key), key),
        }
    }

    #[inline(always)]
    fn first_at(&self, hash: u32, key: &Key) -> u32 {
        let mut at = self.buckets.get(hash as usize & (self.buckets.len() - 1)).copied().unwrap_or(NONE);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.key == *key {
                return at;
            }
            at = node.chain;
        }
        NONE
    }

    /// Adds one behind those of its sort. `number` grows from one to the next.
    #[inline(always)]
    pub fn add(&mut self, key: Key, number: u64, asked: NodeFilter, item: impl FnOnce() -> R) -> u32 {
        // What could fail has asked for room.
        if self.free == NONE {
            self.put_free();
        }
        let at = self.free;
        let (before, last) = if self.count == 0 {
            self.sole = at;
            (NONE, at)
        } else {
            let Some(sole) = self.nodes.get_mut(self.sole as usize).filter(|sole| sole.key == key) else {
                return self.add_hashed(key, number, asked, item());
            };
            let before = std::mem::replace(&mut sole.last, at);
            if let Some(node) = self.node(before) {
                node.next = at;
            }
            (before, NONE)
        };
        self.place(at, (key, 0, NONE), number, asked, (before, last), item);
        at
    }

    /// Room for one more.
    #[inline(always)]
    pub fn room(&mut self) -> Result<()> {
        if self.free != NONE { Ok(()) } else { self.grow() }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Result<()> {
        self.nodes.room(1)?;
        self.put_free();
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn put_free(&mut self) {
        let (key, asked) = (Key { class: 0, source: 0, tag: 0 }, NodeFilter { source: 0, tag: 0, ignore: 0 });
        self.free = self.nodes.len() as u32;
        self.nodes.push(RecvNode { item: None, number: 0, key, hash: 0, asked, before: NONE, next: NONE, last: NONE, chain: NONE });
    }

    /// The same of one of several sorts.
    #[inline(never)]
    fn add_hashed(&mut self, key: Key, number: u64, asked: NodeFilter, item: R) -> u32 {
        if self.sole != NONE {
            self.hash_sole();
        }
        let (at, hash) = (self.free, self.hash_of(&key));
        let first = self.first_at(hash, &key);
        let (chain, before, last) = if first == NONE {
            if self.keys >= self.buckets.len() {
                self.grow_buckets();
            }
            (self.insert_in_bucket(at, hash), NONE, at)
        } else {
            let before = self.node(first).map_or(NONE, |n| std::mem::replace(&mut n.last, at));
            if let Some(node) = self.node(before) {
                node.next = at;
            }
            (NONE, before, NONE)
        };
        self.place(at, (key, hash, chain), number, asked, (before, last), || item);
        at
    }

    /// Makes it the first at its place of the hash; gives what was that.
    #[inline(always)]
    fn insert_in_bucket(&mut self, at: u32, hash: u32) -> u32 {
        let mask = self.buckets.len() - 1;
        self.keys += 1;
        self.buckets.get_mut(hash as usize & mask).map_or(NONE, |head| std::mem::replace(head, at))
    }

    /// Puts one where `free` leads to. Field by field: what is made elsewhere and copied waits for its stores.
    #[inline(always)]
    fn place(
        &mut self,
        at: u32,
        (key, hash, chain): (Key, u32, u32),
        number: u64,
        asked: NodeFilter,
        (before, last): (u32, u32),
        item: impl FnOnce() -> R,
    ) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        self.free = node.next;
        // SAFETY: what is free has no item, so there is nothing to drop.
        unsafe { std::ptr::write(&mut node.item, Some(item())) };
        (node.key.class, node.key.source, node.key.tag) = (key.class, key.source, key.tag);
        (node.asked.source, node.asked.tag, node.asked.ignore) = (asked.source, asked.tag, asked.ignore);
        (node.number, node.hash) = (number, hash);
        (node.before, node.next, node.last, node.chain) = (before, NONE, last, chain);
        self.count += 1;
    }

    /// Another sort comes: from now on the hash leads to the first.
    #[inline(never)]
    fn hash_sole(&mut self) {
        let at = std::mem::replace(&mut self.sole, NONE);
        let Some(hash) = self.get(at).map(|node| self.hash_of(&node.key)) else { return };
        let chain = self.insert_in_bucket(at, hash);
        if let Some(node) = self.node(at) {
            (node.hash, node.chain) = (hash, chain);
        }
    }

    /// Takes one out, whether it is to be filled or not.
    #[inline(always)]
    pub fn take(&mut self, at: u32) -> Option<R> {
        let item = self.nodes.get_mut(at as usize)?.item.take()?;
        self.release(at);
        Some(item)
    }

    /// Takes one out that a message of `source` fills, whose item has nothing to be dropped; gives its class.
    #[inline(always)]
    pub fn forget(&mut self, at: u32, source: u64) -> Option<u8> {
        let node = self.nodes.get_mut(at as usize)?;
        let (class, number) = (node.key.class, node.number);
        std::mem::forget(node.item.take());
        self.record_fill(number, source);
        self.release(at);
        Some(class)
    }

    /// Takes one out whose item is gone.
    #[inline(always)]
    fn release(&mut self, at: u32) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        let (hash, before, last, chain) = (node.hash, node.before, node.last, node.chain);
        let next = std::mem::replace(&mut node.next, std::mem::replace(&mut self.free, at));
        self.count -= 1;
        if before != NONE {
            return self.unlink(at, before, next);
        }
        // The next of its sort takes its place.
        let heir = match self.nodes.get_mut(next as usize) {
            Some(node) => {
                (node.hash, node.before, node.last, node.chain) = (hash, NONE, last, chain);
                next
            }
            None => chain,
        };
        if at == self.sole {
            self.sole = heir;
            return;
        }
        self.keys -= usize::from(next == NONE);
        let place = hash as usize & (self.buckets.len() - 1);
        match self.buckets.get_mut(place) {
            Some(head) if *head == at => *head = heir,
            _ => self.relink_chain(place, at, heir),
        }
    }

    /// Takes one, which is not the first of its sort, from between its neighbours.
    #[inline(never)]
    fn unlink(&mut self, at: u32, before: u32, next: u32) {
        if let Some(node) = self.node(before) {
            node.next = next;
        }
        match self.node(next) {
            Some(node) => node.before = before,
            None => {
                let key = self.nodes.get(at as usize).map(|n| n.key);
                let first = key.map_or(NONE, |key| self.first(&key));
                if let Some(node) = self.node(first) {
                    node.last = before;
                }
            }
        }
    }

    /// What led to `at` in a chain leads to `heir`.
    #[inline(never)]
    fn relink_chain(&mut self, place: usize, at: u32, heir: u32) {
        let mut before = self.buckets.get(place).copied().unwrap_or(NONE);
        while let Some(node) = self.nodes.get_mut(before as usize) {
            if node.chain == at {
                node.chain = heir;
                return;
            }
            before = node.chain;
        }
    }

    #[cold]
    #[inline(never)]
    fn grow_buckets(&mut self) {
        // Without memory for more places, each has more receives.
        let Ok(buckets) = filled(NONE, self.buckets.len() * 2) else { return };
        self.buckets = buckets.into();
        for at in 0..self.nodes.len() {
            let Some(hash) = self.nodes.get(at).filter(|n| n.item.is_some() && n.before == NONE).map(|n| n.hash) else { continue };
            let place = hash as usize & (self.buckets.len() - 1);
            let chain = self.buckets.get_mut(place).map_or(NONE, |head| std::mem::replace(head, at as u32));
            if let Some(node) = self.nodes.get_mut(at) {
                node.chain = chain;
            }
        }
    }

    /// The receive of this number gets a message of `source`.
    #[inline(always)]
    pub fn record_fill(&mut self, number: u64, source: u64) {
        let newest = &mut self.newest[source as usize % SENDER_CLASSES];
        *newest = number.max(*newest);
    }

    /// The highest number of a receive that got a message of such a sender's, or of any.
    pub fn newest(&self, source: Option<u64>) -> u64 {
        let of_all = || self.newest.iter().copied().max().unwrap_or(0);
        source.map_or_else(of_all, |source| self.newest[source as usize % SENDER_CLASSES])
    }

    /// Senders have other numbers: what each got is not known any more.
    pub fn forget_senders(&mut self) {
        self.newest = [self.newest(None); SENDER_CLASSES];
    }

    /// All of them, in no particular order.
    pub fn each(&self) -> impl Iterator<Item = (u32, &RecvNode<R>, &R)> {
        self.nodes.iter().enumerate().filter_map(|(at, n)| Some((at as u32, n, n.item.as_ref()?)))
    }

    #[cfg(test)]
    pub fn is_as_new(&self) -> bool {
        self.count == 0 && self.keys == 0 && self.sole == NONE && self.nodes.len() <= 1 && self.buckets.iter().all(|p| *p == NONE)
    }
}
