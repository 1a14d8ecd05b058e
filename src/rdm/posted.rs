// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receives that wait, found by what they are for: a hash whose places lead to the oldest of each sort, and the oldest to those
//! behind it. All of it lies in one array, so that posting and taking one allocates nothing.

use std::hash::{BuildHasher, RandomState};

pub const NONE: u32 = u32::MAX;
/// Places of the hash at first.
const PLACES: usize = 64;

/// What a sort of receives is for. Peers choose tags, and must not choose where they fall: the hash has a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub class: u8,
    pub source: u64,
    pub tag: u64,
}

/// What one was asked for: the source, the tag, and its bits that are not compared.
#[derive(Clone, Copy)]
pub struct Asked {
    pub source: u64,
    pub tag: u64,
    pub ignore: u64,
}

pub struct Node<R> {
    /// None: it is free, and `next` leads to the next free one.
    pub item: Option<R>,
    /// In the order of posting.
    pub number: u64,
    key: Key,
    hash: u32,
    pub asked: Asked,
    /// Those of the same sort before and behind it.
    before: u32,
    next: u32,
    /// Of the oldest: the last of its sort, and the oldest of the next sort at this place of the hash.
    last: u32,
    chain: u32,
}

pub struct Posted<R> {
    nodes: Vec<Node<R>>,
    free: u32,
    count: usize,
    /// Sorts that have receives.
    sorts: usize,
    /// The highest number among those that were taken out.
    newest: u64,
    places: Box<[u32]>,
    /// The only one, which the hash does not lead to yet: a program that posts one at a time hashes nothing.
    lone: u32,
    secret: [u64; 2],
}

impl<R> Node<R> {
    #[inline(always)]
    pub fn class(&self) -> u8 {
        self.key.class
    }
}

impl<R> Posted<R> {
    pub fn new() -> Self {
        let secret = [1u8, 2].map(|n| RandomState::new().hash_one(n));
        Posted { nodes: Vec::new(), free: NONE, count: 0, sorts: 0, newest: 0, places: vec![NONE; PLACES].into(), lone: NONE, secret }
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
    fn node(&mut self, at: u32) -> Option<&mut Node<R>> {
        self.nodes.get_mut(at as usize)
    }

    #[inline(always)]
    pub fn get(&self, at: u32) -> Option<&Node<R>> {
        self.nodes.get(at as usize).filter(|n| n.item.is_some())
    }

    #[inline(always)]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Node<R>> {
        self.nodes.get_mut(at as usize).filter(|n| n.item.is_some())
    }

    /// The one behind it of the same sort.
    pub fn behind(&self, at: u32) -> u32 {
        self.get(at).map_or(NONE, |n| n.next)
    }

    /// The oldest of its sort, or `NONE`.
    #[inline(always)]
    pub fn first(&self, key: &Key) -> u32 {
        match self.nodes.get(self.lone as usize) {
            Some(node) => {
                if node.key == *key {
                    self.lone
                } else {
                    NONE
                }
            }
            None => self.first_at(self.hash_of(key), key),
        }
    }

    #[inline(always)]
    fn first_at(&self, hash: u32, key: &Key) -> u32 {
        let mut at = self.places.get(hash as usize & (self.places.len() - 1)).copied().unwrap_or(NONE);
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
    pub fn add(&mut self, key: Key, number: u64, asked: Asked, item: R) -> u32 {
        if self.count == 0 && self.free != NONE {
            let at = self.free;
            self.place(at, Node { item: Some(item), number, key, hash: 0, asked, before: NONE, next: NONE, last: at, chain: NONE });
            self.lone = at;
            return at;
        }
        if self.lone != NONE {
            self.hash_lone();
        }
        let hash = self.hash_of(&key);
        if self.first_at(hash, &key) != NONE || self.sorts >= self.places.len() || self.free == NONE {
            return self.add_slowly(hash, key, number, asked, item);
        }
        let at = self.free;
        self.fill(at, hash, key, number, asked, item);
        at
    }

    /// Makes a free one the first of its sort.
    #[inline(always)]
    fn fill(&mut self, at: u32, hash: u32, key: Key, number: u64, asked: Asked, item: R) {
        let chain = self.lead_to(at, hash);
        self.place(at, Node { item: Some(item), number, key, hash, asked, before: NONE, next: NONE, last: at, chain });
    }

    /// Makes it the first at its place of the hash; gives what was that.
    #[inline(always)]
    fn lead_to(&mut self, at: u32, hash: u32) -> u32 {
        let mask = self.places.len() - 1;
        self.sorts += 1;
        self.places.get_mut(hash as usize & mask).map_or(NONE, |head| std::mem::replace(head, at))
    }

    /// Puts one where `free` leads to.
    #[inline(always)]
    fn place(&mut self, at: u32, new: Node<R>) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        self.free = node.next;
        // SAFETY: what is free has no item, so there is nothing to drop.
        unsafe { std::ptr::write(node, new) };
        self.count += 1;
    }

    /// Another one comes: from now on the hash leads to the first.
    #[inline(never)]
    fn hash_lone(&mut self) {
        let at = std::mem::replace(&mut self.lone, NONE);
        let Some(hash) = self.get(at).map(|node| self.hash_of(&node.key)) else { return };
        let chain = self.lead_to(at, hash);
        if let Some(node) = self.node(at) {
            (node.hash, node.chain) = (hash, chain);
        }
    }

    /// The same where the array or the hash has to grow, or others of its sort wait.
    #[inline(never)]
    fn add_slowly(&mut self, hash: u32, key: Key, number: u64, asked: Asked, item: R) -> u32 {
        if self.sorts >= self.places.len() {
            self.widen();
        }
        if self.free == NONE {
            self.free = self.nodes.len() as u32;
            self.nodes.push(Node { item: None, number, key, hash, asked, before: NONE, next: NONE, last: NONE, chain: NONE });
        }
        let (at, first) = (self.free, self.first_at(hash, &key));
        if first == NONE {
            self.fill(at, hash, key, number, asked, item);
            return at;
        }
        let last = self.node(first).map_or(NONE, |n| std::mem::replace(&mut n.last, at));
        if let Some(node) = self.node(last) {
            node.next = at;
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            self.free = node.next;
            *node = Node { item: Some(item), number, key, hash, asked, before: last, next: NONE, last: NONE, chain: NONE };
            self.count += 1;
        }
        at
    }

    /// Takes one out.
    #[inline(always)]
    pub fn take(&mut self, at: u32) -> Option<R> {
        let item = self.nodes.get_mut(at as usize)?.item.take()?;
        self.release(at);
        Some(item)
    }

    /// The same of an item that has nothing to be dropped.
    #[inline(always)]
    pub fn forget(&mut self, at: u32) {
        if let Some(node) = self.nodes.get_mut(at as usize) {
            std::mem::forget(node.item.take());
            self.release(at);
        }
    }

    /// Takes one out whose item is gone.
    #[inline(always)]
    fn release(&mut self, at: u32) {
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        let next = std::mem::replace(&mut node.next, std::mem::replace(&mut self.free, at));
        self.newest = self.newest.max(node.number);
        self.count -= 1;
        if at == self.lone {
            self.lone = NONE;
            return;
        }
        let Some(node) = self.nodes.get(at as usize) else { return };
        let (hash, before, last, chain) = (node.hash, node.before, node.last, node.chain);
        if before != NONE {
            return self.unlink(at, before, next);
        }
        // The next of its sort takes its place in the hash.
        let heir = match self.nodes.get_mut(next as usize) {
            Some(node) => {
                (node.before, node.last, node.chain) = (NONE, last, chain);
                next
            }
            None => {
                self.sorts -= 1;
                chain
            }
        };
        let place = hash as usize & (self.places.len() - 1);
        match self.places.get_mut(place) {
            Some(head) if *head == at => *head = heir,
            _ => self.lead(place, at, heir),
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
    fn lead(&mut self, place: usize, at: u32, heir: u32) {
        let mut before = self.places.get(place).copied().unwrap_or(NONE);
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
    fn widen(&mut self) {
        self.places = vec![NONE; self.places.len() * 2].into();
        for at in 0..self.nodes.len() {
            let Some(hash) = self.nodes.get(at).filter(|n| n.item.is_some() && n.before == NONE).map(|n| n.hash) else { continue };
            let place = hash as usize & (self.places.len() - 1);
            let chain = self.places.get_mut(place).map_or(NONE, |head| std::mem::replace(head, at as u32));
            if let Some(node) = self.nodes.get_mut(at) {
                node.chain = chain;
            }
        }
    }

    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// All of them, in no particular order.
    pub fn each(&self) -> impl Iterator<Item = (u32, &Node<R>, &R)> {
        self.nodes.iter().enumerate().filter_map(|(at, n)| Some((at as u32, n, n.item.as_ref()?)))
    }

    #[cfg(test)]
    pub fn is_as_new(&self) -> bool {
        self.count == 0 && self.sorts == 0 && self.lone == NONE && self.nodes.len() <= 1 && self.places.iter().all(|p| *p == NONE)
    }
}
