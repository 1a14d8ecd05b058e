// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of posted receives. A hash leads from a key to the oldest receive with that key, and this receive leads to
//! the later ones. All nodes lie in one array, so that posting and removing a receive allocate nothing.

use crate::error::Result;
use crate::fallible::{MakeRoom, filled};
use std::hash::{BuildHasher, RandomState};

/// The index of no node.
pub const NONE: u32 = u32::MAX;
/// Buckets of the hash at first.
const BUCKETS: usize = 64;
/// Groups into which senders are divided. For each group, the table records the newest filled receive.
const SENDER_CLASSES: usize = 64;

/// Class, source and tag of a receive, without the bits that the class ignores. Peers choose tags and must not be able to
/// choose buckets, so the hash has a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatchKey {
    pub class: u8,
    pub source: u64,
    pub tag: u64,
}

/// The source, the tag and the ignored bits of the tag that the receive was posted with.
#[derive(Clone, Copy)]
pub struct NodeFilter {
    pub source: u64,
    pub tag: u64,
    pub ignore: u64,
}

pub struct RecvNode<R> {
    /// `None` if the node is free; then `next` is the next free node.
    pub item: Option<R>,
    /// Number in the order of posting.
    pub number: u64,
    key: MatchKey,
    hash: u32,
    pub filter: NodeFilter,
    /// The previous and the next receive with the same key.
    prev: u32,
    next: u32,
    /// Only the oldest receive with its key uses these two fields. `last`: the newest receive with the key.
    /// `next_in_bucket`: the oldest receive with another key in the same bucket.
    last: u32,
    next_in_bucket: u32,
}

pub struct PostedReceives<R> {
    nodes: Vec<RecvNode<R>>,
    free: u32,
    count: usize,
    /// Distinct keys that have receives in the hash.
    keys: usize,
    /// For each group of senders, the highest number of a receive that got one of their messages.
    newest_filled: [u64; SENDER_CLASSES],
    buckets: Box<[u32]>,
    /// The oldest receive of the only key. This key is not in the hash, so a program that posts receives of one key at a
    /// time computes no hash.
    sole: u32,
    secret: [u64; 2],
}

impl<R> RecvNode<R> {
    #[inline(always)]
    pub fn class(&self) -> u8 {
        self.key.class
    }
}

impl<R> PostedReceives<R> {
    pub fn new() -> Self {
        let secret = [1u8, 2].map(|n| RandomState::new().hash_one(n));
        PostedReceives {
            nodes: Vec::new(),
            free: NONE,
            count: 0,
            keys: 0,
            newest_filled: [0; SENDER_CLASSES],
            buckets: vec![NONE; BUCKETS].into(),
            sole: NONE,
            secret,
        }
    }

    #[inline(always)]
    fn hash_of(&self, key: &MatchKey) -> u32 {
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

    /// The next receive with the same key.
    pub fn next_of(&self, at: u32) -> u32 {
        self.get(at).map_or(NONE, |n| n.next)
    }

    /// The oldest receive with this key, or `NONE`.
    #[inline(always)]
    pub fn first(&self, key: &MatchKey) -> u32 {
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
    fn first_at(&self, hash: u32, key: &MatchKey) -> u32 {
        let mut at = self.buckets.get(hash as usize & (self.buckets.len() - 1)).copied().unwrap_or(NONE);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.key == *key {
                return at;
            }
            at = node.next_in_bucket;
        }
        NONE
    }

    /// Adds a receive behind the receives with the same key. `number` is greater than the numbers of those receives.
    #[inline(always)]
    pub fn add(&mut self, key: MatchKey, number: u64, filter: NodeFilter, item: impl FnOnce() -> R) -> u32 {
        // A caller that must not fail has called `room` before, so that a node is free.
        if self.free == NONE {
            self.put_free();
        }
        let at = self.free;
        let (prev, last) = if self.count == 0 {
            self.sole = at;
            (NONE, at)
        } else {
            let Some(sole) = self.nodes.get_mut(self.sole as usize).filter(|sole| sole.key == key) else {
                return self.add_hashed(key, number, filter, item());
            };
            let prev = std::mem::replace(&mut sole.last, at);
            if let Some(node) = self.node(prev) {
                node.next = at;
            }
            (prev, NONE)
        };
        self.place(at, (key, 0, NONE), number, filter, (prev, last), item);
        at
    }

    /// Reserves memory for one more receive.
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
        let (key, filter) = (MatchKey { class: 0, source: 0, tag: 0 }, NodeFilter { source: 0, tag: 0, ignore: 0 });
        self.free = self.nodes.len() as u32;
        self.nodes.push(RecvNode { item: None, number: 0, key, hash: 0, filter, prev: NONE, next: NONE, last: NONE, next_in_bucket: NONE });
    }

    /// `add` while there are several keys.
    #[inline(never)]
    fn add_hashed(&mut self, key: MatchKey, number: u64, filter: NodeFilter, item: R) -> u32 {
        if self.sole != NONE {
            self.move_sole_to_hash();
        }
        let (at, hash) = (self.free, self.hash_of(&key));
        let first = self.first_at(hash, &key);
        let (next_in_bucket, prev, last) = if first == NONE {
            if self.keys >= self.buckets.len() {
                self.grow_buckets();
            }
            (self.insert_in_bucket(at, hash), NONE, at)
        } else {
            let prev = self.node(first).map_or(NONE, |n| std::mem::replace(&mut n.last, at));
            if let Some(node) = self.node(prev) {
                node.next = at;
            }
            (NONE, prev, NONE)
        };
        self.place(at, (key, hash, next_in_bucket), number, filter, (prev, last), || item);
        at
    }

    /// Makes a node the first of its bucket. Returns the node that was first.
    #[inline(always)]
    fn insert_in_bucket(&mut self, at: u32, hash: u32) -> u32 {
        let mask = self.buckets.len() - 1;
        self.keys += 1;
        self.buckets.get_mut(hash as usize & mask).map_or(NONE, |head| std::mem::replace(head, at))
    }

    /// Fills the node at `at`, the first of the free list. The fields are written one by one, because the copy of a node
    /// built elsewhere would have to wait until the stores that built it are done.
    #[inline(always)]
    fn place(
        &mut self,
        at: u32,
        (key, hash, next_in_bucket): (MatchKey, u32, u32),
        number: u64,
        filter: NodeFilter,
        (prev, last): (u32, u32),
        item: impl FnOnce() -> R,
    ) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        self.free = node.next;
        // SAFETY: the node is free, so its `item` is `None` and nothing needs to be dropped.
        unsafe { std::ptr::write(&mut node.item, Some(item())) };
        (node.key.class, node.key.source, node.key.tag) = (key.class, key.source, key.tag);
        (node.filter.source, node.filter.tag, node.filter.ignore) = (filter.source, filter.tag, filter.ignore);
        (node.number, node.hash) = (number, hash);
        (node.prev, node.next, node.last, node.next_in_bucket) = (prev, NONE, last, next_in_bucket);
        self.count += 1;
    }

    /// Moves the only key into the hash, because a second key appears.
    #[inline(never)]
    fn move_sole_to_hash(&mut self) {
        let at = std::mem::replace(&mut self.sole, NONE);
        let Some(hash) = self.get(at).map(|node| self.hash_of(&node.key)) else { return };
        let next_in_bucket = self.insert_in_bucket(at, hash);
        if let Some(node) = self.node(at) {
            (node.hash, node.next_in_bucket) = (hash, next_in_bucket);
        }
    }

    /// Removes a receive, without recording whether a message fills it.
    #[inline(always)]
    pub fn take(&mut self, at: u32) -> Option<R> {
        let item = self.nodes.get_mut(at as usize)?.item.take()?;
        self.release(at);
        Some(item)
    }

    /// Removes a receive that a message of `source` fills and whose item owns nothing. Returns its class.
    #[inline(always)]
    pub fn forget(&mut self, at: u32, source: u64) -> Option<u8> {
        let node = self.nodes.get_mut(at as usize)?;
        let (class, number) = (node.key.class, node.number);
        std::mem::forget(node.item.take());
        self.record_fill(number, source);
        self.release(at);
        Some(class)
    }

    /// Puts a node whose item is gone into the free list.
    #[inline(always)]
    fn release(&mut self, at: u32) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        let (hash, prev, last, next_in_bucket) = (node.hash, node.prev, node.last, node.next_in_bucket);
        let next = std::mem::replace(&mut node.next, std::mem::replace(&mut self.free, at));
        self.count -= 1;
        if prev != NONE {
            return self.unlink(at, prev, next);
        }
        // The next receive with the same key becomes the oldest.
        let successor = match self.nodes.get_mut(next as usize) {
            Some(node) => {
                (node.hash, node.prev, node.last, node.next_in_bucket) = (hash, NONE, last, next_in_bucket);
                next
            }
            None => next_in_bucket,
        };
        if at == self.sole {
            self.sole = successor;
            return;
        }
        self.keys -= usize::from(next == NONE);
        let place = hash as usize & (self.buckets.len() - 1);
        match self.buckets.get_mut(place) {
            Some(head) if *head == at => *head = successor,
            _ => self.relink_chain(place, at, successor),
        }
    }

    /// Takes a node that is not the oldest of its key out from between its neighbours.
    #[inline(never)]
    fn unlink(&mut self, at: u32, prev: u32, next: u32) {
        if let Some(node) = self.node(prev) {
            node.next = next;
        }
        match self.node(next) {
            Some(node) => node.prev = prev,
            None => {
                let key = self.nodes.get(at as usize).map(|n| n.key);
                let first = key.map_or(NONE, |key| self.first(&key));
                if let Some(node) = self.node(first) {
                    node.last = prev;
                }
            }
        }
    }

    /// Makes the node that leads to `at` in the bucket `place` lead to `successor` instead.
    #[inline(never)]
    fn relink_chain(&mut self, place: usize, at: u32, successor: u32) {
        let mut prev = self.buckets.get(place).copied().unwrap_or(NONE);
        while let Some(node) = self.nodes.get_mut(prev as usize) {
            if node.next_in_bucket == at {
                node.next_in_bucket = successor;
                return;
            }
            prev = node.next_in_bucket;
        }
    }

    #[cold]
    #[inline(never)]
    fn grow_buckets(&mut self) {
        // Without memory for more buckets, the existing ones get longer.
        let Ok(buckets) = filled(NONE, self.buckets.len() * 2) else { return };
        self.buckets = buckets.into();
        for at in 0..self.nodes.len() {
            let Some(hash) = self.nodes.get(at).filter(|n| n.item.is_some() && n.prev == NONE).map(|n| n.hash) else { continue };
            let place = hash as usize & (self.buckets.len() - 1);
            let next_in_bucket = self.buckets.get_mut(place).map_or(NONE, |head| std::mem::replace(head, at as u32));
            if let Some(node) = self.nodes.get_mut(at) {
                node.next_in_bucket = next_in_bucket;
            }
        }
    }

    /// Records that the receive of this number gets a message of `source`.
    #[inline(always)]
    pub fn record_fill(&mut self, number: u64, source: u64) {
        let newest_filled = &mut self.newest_filled[source as usize % SENDER_CLASSES];
        *newest_filled = number.max(*newest_filled);
    }

    /// The highest number of a receive that got a message from the group of `source`; without `source`, from any sender.
    pub fn newest_filled(&self, source: Option<u64>) -> u64 {
        let of_all = || self.newest_filled.iter().copied().max().unwrap_or(0);
        source.map_or_else(of_all, |source| self.newest_filled[source as usize % SENDER_CLASSES])
    }

    /// The senders have got other numbers, so the groups mean other senders. Each group takes the highest number of all
    /// groups.
    pub fn forget_senders(&mut self) {
        self.newest_filled = [self.newest_filled(None); SENDER_CLASSES];
    }

    /// All posted receives, in no particular order.
    pub fn each(&self) -> impl Iterator<Item = (u32, &RecvNode<R>, &R)> {
        self.nodes.iter().enumerate().filter_map(|(at, n)| Some((at as u32, n, n.item.as_ref()?)))
    }

    #[cfg(test)]
    pub fn is_as_new(&self) -> bool {
        self.count == 0 && self.keys == 0 && self.sole == NONE && self.nodes.len() <= 1 && self.buckets.iter().all(|p| *p == NONE)
    }
}
