// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Joins messages and receives by source and tag, in the order of posting and of arriving, at a cost that does not grow with
//! how many wait.
//!
//! Receives name a source or any, and bits of the tag to ignore. Programs use two or three such masks, so each pair of mask and
//! "any source" is learned as a class, in which a hash finds the oldest candidate; an arrival asks each class and takes the
//! oldest of what they give. Beyond eight masks the rest is one list, walked in order.

use crate::prov::av::UNSPEC;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Masks that are found by a hash.
const CLASSES: usize = 8;
/// The class of receives with other masks.
const OTHERS: u8 = CLASSES as u8;
const NONE: u32 = u32::MAX;

/// What a receive is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// `UNSPEC`: any.
    pub source: u64,
    pub tag: u64,
    pub ignore: u64,
}

impl Want {
    fn takes(&self, source: u64, tag: u64) -> bool {
        (self.source == UNSPEC || self.source == source) && (self.tag ^ tag) & !self.ignore == 0
    }
}

/// A posted receive or an unexpected message, while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(u32);

#[derive(Clone, Copy)]
struct Class {
    ignore: u64,
    any: bool,
    /// Receives of it that wait.
    posted: usize,
}

impl Class {
    fn key(&self, class: usize, source: u64, tag: u64) -> Key {
        Key { class: class as u8, source: if self.any { 0 } else { source }, tag: tag & !self.ignore }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    class: u8,
    source: u64,
    tag: u64,
}

/// Folded multiplications with secret numbers: peers choose tags, and must not choose where they fall.
struct Mix {
    secret: [u64; 2],
    state: u64,
}

#[derive(Clone)]
struct Mixer([u64; 2]);

impl Default for Mixer {
    fn default() -> Self {
        Mixer([RandomState::new().hash_one(1u8), RandomState::new().hash_one(2u8) | 1])
    }
}

impl BuildHasher for Mixer {
    type Hasher = Mix;
    fn build_hasher(&self) -> Mix {
        Mix { secret: self.0, state: self.0[0] }
    }
}

impl Hasher for Mix {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.secret[1]);
        self.state = (product as u64 ^ (product >> 64) as u64).wrapping_add(self.secret[0]);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u8(*b));
    }

    fn finish(&self) -> u64 {
        let product = u128::from(self.state) * u128::from(self.secret[0] | 1);
        product as u64 ^ (product >> 64) as u64
    }
}

#[derive(Clone, Copy)]
struct Link {
    before: u32,
    behind: u32,
}

const FREE: Link = Link { before: NONE, behind: NONE };

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

struct Node<T, const LISTS: usize> {
    number: u64,
    want: Want,
    links: [Link; LISTS],
    item: T,
}

/// Nodes in lists of several kinds; list `k` of a node is threaded through its link `k`.
struct Nodes<T, const LISTS: usize> {
    all: Vec<Option<Node<T, LISTS>>>,
    free: Vec<u32>,
    count: usize,
}

impl<T, const LISTS: usize> Nodes<T, LISTS> {
    fn new() -> Self {
        Nodes { all: Vec::new(), free: Vec::new(), count: 0 }
    }

    fn get(&self, at: u32) -> Option<&Node<T, LISTS>> {
        self.all.get(at as usize)?.as_ref()
    }

    fn get_mut(&mut self, at: u32) -> Option<&mut Node<T, LISTS>> {
        self.all.get_mut(at as usize)?.as_mut()
    }

    fn number(&self, at: u32) -> u64 {
        self.get(at).map_or(u64::MAX, |n| n.number)
    }

    fn add(&mut self, number: u64, want: Want, item: T) -> u32 {
        let node = Some(Node { number, want, links: [FREE; LISTS], item });
        self.count += 1;
        match self.free.pop() {
            Some(at) => {
                if let Some(place) = self.all.get_mut(at as usize) {
                    *place = node;
                }
                at
            }
            None => {
                self.all.push(node);
                (self.all.len() - 1) as u32
            }
        }
    }

    fn take(&mut self, at: u32) -> Option<Node<T, LISTS>> {
        let node = self.all.get_mut(at as usize)?.take()?;
        self.free.push(at);
        self.count -= 1;
        Some(node)
    }

    /// Puts a node into a list by its number: nearly always at the end.
    fn link(&mut self, k: usize, ends: &mut Ends, at: u32) {
        let number = self.number(at);
        let mut before = ends.last;
        while before != NONE && self.number(before) > number {
            before = self.get(before).map_or(NONE, |n| n.links[k].before);
        }
        let behind = match before {
            NONE => std::mem::replace(&mut ends.first, at),
            _ => self.get_mut(before).map_or(NONE, |n| std::mem::replace(&mut n.links[k].behind, at)),
        };
        match behind {
            NONE => ends.last = at,
            _ => {
                if let Some(n) = self.get_mut(behind) {
                    n.links[k].before = at;
                }
            }
        }
        if let Some(n) = self.get_mut(at) {
            n.links[k] = Link { before, behind };
        }
    }

    fn unlink(&mut self, k: usize, ends: &mut Ends, at: u32) {
        let Some(Link { before, behind }) = self.get(at).map(|n| n.links[k]) else { return };
        match self.get_mut(before) {
            Some(n) => n.links[k].behind = behind,
            None => ends.first = behind,
        }
        match self.get_mut(behind) {
            Some(n) => n.links[k].before = before,
            None => ends.last = before,
        }
    }
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

/// `R`: a posted receive, `U`: an unexpected message.
pub struct Matcher<R, U> {
    classes: Vec<Class>,
    posted: Nodes<R, 1>,
    /// Each receive is in one list.
    wanting: HashMap<Key, Ends, Mixer>,
    unexpected: Nodes<U, { CLASSES + 1 }>,
    /// Each message is in a list of each class, and behind those in the list of all.
    waiting: HashMap<Key, Ends, Mixer>,
    everything: Ends,
    next: u64,
    #[cfg(test)]
    probes: std::cell::Cell<usize>,
}

impl<R, U> Default for Matcher<R, U> {
    fn default() -> Self {
        Matcher {
            classes: Vec::new(),
            posted: Nodes::new(),
            wanting: HashMap::default(),
            unexpected: Nodes::new(),
            waiting: HashMap::default(),
            everything: EMPTY,
            next: 0,
            #[cfg(test)]
            probes: std::cell::Cell::new(0),
        }
    }
}

const OTHER_KEY: Key = Key { class: OTHERS, source: 0, tag: 0 };

impl<R, U> Matcher<R, U> {
    #[inline]
    fn probe(&self) {
        #[cfg(test)]
        self.probes.set(self.probes.get() + 1);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The class of a receive, learned if there is room for one more.
    fn class_of(&mut self, want: &Want) -> Option<usize> {
        let any = want.source == UNSPEC;
        if let Some(c) = self.classes.iter().position(|c| c.ignore == want.ignore && c.any == any) {
            return Some(c);
        }
        if self.classes.len() == CLASSES {
            return None;
        }
        let class = Class { ignore: want.ignore, any, posted: 0 };
        let c = self.classes.len();
        self.classes.push(class);
        let mut at = self.everything.first;
        while let Some(node) = self.unexpected.get(at) {
            let key = class.key(c, node.want.source, node.want.tag);
            let behind = node.links[CLASSES].behind;
            self.unexpected.link(c, self.waiting.entry(key).or_insert(EMPTY), at);
            at = behind;
        }
        Some(c)
    }

    /// Posts a receive, for which no message waits.
    pub fn post(&mut self, want: Want, item: R) -> At {
        let key = match self.class_of(&want) {
            Some(c) => {
                self.classes[c].posted += 1;
                self.classes[c].key(c, want.source, want.tag)
            }
            None => OTHER_KEY,
        };
        let number = self.number();
        let at = self.posted.add(number, want, item);
        self.posted.link(0, self.wanting.entry(key).or_insert(EMPTY), at);
        At(at)
    }

    /// The oldest receive that a message from `source` with `tag` fits.
    pub fn find_posted(&self, source: u64, tag: u64) -> Option<At> {
        let mut best = NONE;
        let mut number = u64::MAX;
        for (c, class) in self.classes.iter().enumerate() {
            if class.posted == 0 {
                continue;
            }
            self.probe();
            if let Some(ends) = self.wanting.get(&class.key(c, source, tag)) {
                let n = self.posted.number(ends.first);
                if n < number {
                    (best, number) = (ends.first, n);
                }
            }
        }
        if self.classes.len() == CLASSES
            && let Some(ends) = self.wanting.get(&OTHER_KEY)
        {
            let mut at = ends.first;
            while let Some(node) = self.posted.get(at).filter(|n| n.number < number) {
                self.probe();
                if node.want.takes(source, tag) {
                    best = at;
                    break;
                }
                at = node.links[0].behind;
            }
        }
        (best != NONE).then_some(At(best))
    }

    pub fn posted(&mut self, at: At) -> Option<&mut R> {
        self.posted.get_mut(at.0).map(|n| &mut n.item)
    }

    pub fn remove_posted(&mut self, at: At) -> Option<R> {
        let want = self.posted.get(at.0)?.want;
        let key = match self.class_of(&want) {
            Some(c) => {
                self.classes[c].posted -= 1;
                self.classes[c].key(c, want.source, want.tag)
            }
            None => OTHER_KEY,
        };
        if let Some(ends) = self.wanting.get_mut(&key) {
            self.posted.unlink(0, ends, at.0);
            if ends.first == NONE {
                self.wanting.remove(&key);
            }
        }
        self.posted.take(at.0).map(|n| n.item)
    }

    /// The first posted receive for which `which` holds, and what it was for; in no particular order.
    pub fn search_posted(&self, mut which: impl FnMut(&R) -> bool) -> Option<At> {
        let found = self.posted.all.iter().position(|n| n.as_ref().is_some_and(|n| which(&n.item)))?;
        Some(At(found as u32))
    }

    /// Receives that only messages of `source` can fill.
    pub fn posted_for(&self, source: u64) -> Vec<At> {
        let waiting = self.posted.all.iter().enumerate().filter(|(_, n)| n.as_ref().is_some_and(|n| n.want.source == source));
        waiting.map(|(at, _)| At(at as u32)).collect()
    }

    pub fn search_all(&self, mut which: impl FnMut(&R) -> bool) -> Vec<At> {
        let waiting = self.posted.all.iter().enumerate().filter(|(_, n)| n.as_ref().is_some_and(|n| which(&n.item)));
        waiting.map(|(at, _)| At(at as u32)).collect()
    }

    pub fn each_posted(&self) -> impl Iterator<Item = &R> {
        self.posted.all.iter().flatten().map(|n| &n.item)
    }

    /// Keeps a message for which no receive waits.
    pub fn keep(&mut self, source: u64, tag: u64, item: U) -> At {
        let number = self.number();
        let at = self.unexpected.add(number, Want { source, tag, ignore: 0 }, item);
        self.thread(at, source, tag);
        At(at)
    }

    fn thread(&mut self, at: u32, source: u64, tag: u64) {
        for (c, class) in self.classes.iter().enumerate() {
            self.unexpected.link(c, self.waiting.entry(class.key(c, source, tag)).or_insert(EMPTY), at);
        }
        self.unexpected.link(CLASSES, &mut self.everything, at);
    }

    fn unthread(&mut self, at: u32, source: u64, tag: u64) {
        for (c, class) in self.classes.iter().enumerate() {
            let key = class.key(c, source, tag);
            if let Some(ends) = self.waiting.get_mut(&key) {
                self.unexpected.unlink(c, ends, at);
                if ends.first == NONE {
                    self.waiting.remove(&key);
                }
            }
        }
        self.unexpected.unlink(CLASSES, &mut self.everything, at);
    }

    /// The oldest message that a receive fits.
    pub fn find_unexpected(&mut self, want: &Want) -> Option<At> {
        if self.unexpected.count == 0 {
            return None;
        }
        match self.class_of(want) {
            Some(c) => {
                self.probe();
                self.waiting.get(&self.classes[c].key(c, want.source, want.tag)).map(|ends| At(ends.first))
            }
            None => {
                let mut at = self.everything.first;
                while let Some(node) = self.unexpected.get(at) {
                    self.probe();
                    if want.takes(node.want.source, node.want.tag) {
                        return Some(At(at));
                    }
                    at = node.links[CLASSES].behind;
                }
                None
            }
        }
    }

    /// A message that waits: its source, its tag, and itself.
    pub fn unexpected(&mut self, at: At) -> Option<(u64, u64, &mut U)> {
        self.unexpected.get_mut(at.0).map(|n| (n.want.source, n.want.tag, &mut n.item))
    }

    pub fn remove_unexpected(&mut self, at: At) -> Option<U> {
        let Want { source, tag, .. } = self.unexpected.get(at.0)?.want;
        self.unthread(at.0, source, tag);
        self.unexpected.take(at.0).map(|n| n.item)
    }

    /// Messages that wait, in no particular order.
    pub fn each_unexpected(&self) -> impl Iterator<Item = (At, u64, &U)> {
        let nodes = self.unexpected.all.iter().enumerate();
        nodes.filter_map(|(at, n)| n.as_ref().map(|n| (At(at as u32), n.want.source, &n.item)))
    }

    /// A message's source got another number; the message keeps its turn.
    pub fn refile(&mut self, at: At, source: u64) {
        let Some(want) = self.unexpected.get(at.0).map(|n| n.want) else { return };
        self.unthread(at.0, want.source, want.tag);
        if let Some(node) = self.unexpected.get_mut(at.0) {
            node.want.source = source;
        }
        self.thread(at.0, source, want.tag);
    }

    pub fn posted_count(&self) -> usize {
        self.posted.count
    }

    pub fn unexpected_count(&self) -> usize {
        self.unexpected.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }
    }

    /// What the matcher is held against: two lists, walked from their beginning.
    #[derive(Default)]
    struct Model {
        posted: Vec<(Want, u32)>,
        unexpected: Vec<(u64, u64, u32)>,
    }

    impl Model {
        fn arrive(&mut self, source: u64, tag: u64, id: u32) -> Option<u32> {
            match self.posted.iter().position(|(w, _)| w.takes(source, tag)) {
                Some(at) => Some(self.posted.remove(at).1),
                None => {
                    self.unexpected.push((source, tag, id));
                    None
                }
            }
        }

        fn peek(&self, want: &Want) -> Option<usize> {
            self.unexpected.iter().position(|(s, t, _)| want.takes(*s, *t))
        }
    }

    fn run(seed: u64, masks: &[u64], steps: u32) {
        let (mut matcher, mut model, mut random) = (Matcher::<u32, u32>::default(), Model::default(), Random(seed));
        for id in 0..steps {
            let source = random.below(4);
            let tag = random.below(3) << 60 | random.below(3) << 8 | random.below(3);
            let source_wanted = if random.below(3) == 0 { UNSPEC } else { source };
            let want = Want { source: source_wanted, tag, ignore: masks[random.below(masks.len() as u64) as usize] };
            match random.below(20) {
                0..8 => {
                    let found = matcher.find_posted(source, tag).and_then(|at| matcher.remove_posted(at));
                    if found.is_none() {
                        matcher.keep(source, tag, id);
                    }
                    assert_eq!(found, model.arrive(source, tag, id));
                }
                8..16 => {
                    let found = matcher.find_unexpected(&want).and_then(|at| matcher.remove_unexpected(at));
                    if found.is_none() {
                        matcher.post(want, id);
                    }
                    match model.peek(&want) {
                        Some(at) => assert_eq!(found, Some(model.unexpected.remove(at).2)),
                        None => {
                            assert_eq!(found, None);
                            model.posted.push((want, id));
                        }
                    }
                }
                16 => {
                    // Peek; half of them claim.
                    let found = matcher.find_unexpected(&want);
                    let seen = found.and_then(|at| matcher.unexpected(at)).map(|(s, t, u)| (s, t, *u));
                    let there = model.peek(&want);
                    assert_eq!(seen, there.map(|at| model.unexpected[at]));
                    if let (Some(at), Some(there), 0) = (found, there, random.below(2)) {
                        assert_eq!(matcher.remove_unexpected(at), Some(model.unexpected.remove(there).2));
                    }
                }
                17 | 18 => {
                    // Cancel one of those that were posted.
                    let victim = random.below(u64::from(id) + 1) as u32;
                    let found = matcher.search_posted(|r| *r == victim).and_then(|at| matcher.remove_posted(at));
                    let there = model.posted.iter().position(|(_, r)| *r == victim);
                    assert_eq!(found, there.map(|at| model.posted.remove(at).1));
                }
                _ => {
                    let other = random.below(4);
                    let moved: Vec<At> = matcher.each_unexpected().filter(|(_, s, _)| *s == source).map(|(at, ..)| at).collect();
                    moved.into_iter().for_each(|at| matcher.refile(at, other));
                    model.unexpected.iter_mut().filter(|(s, ..)| *s == source).for_each(|(s, ..)| *s = other);
                }
            }
            assert_eq!(matcher.posted_count(), model.posted.len());
            assert_eq!(matcher.unexpected_count(), model.unexpected.len());
            assert_eq!(matcher.each_posted().count(), model.posted.len());
            if random.below(400) == 0 {
                while let Some(at) = matcher.search_posted(|_| true) {
                    matcher.remove_posted(at);
                }
                model.posted.clear();
            }
        }
    }

    #[test]
    fn it_matches_as_two_lists_do() {
        for seed in 0..6 {
            run(seed, &[0], 4_000);
            run(seed, &[0, u64::MAX, 0xff, 0xf << 60], 4_000);
        }
    }

    #[test]
    fn more_masks_than_classes_match_as_well() {
        let masks: Vec<u64> = (0..40).map(|i| (1u64 << i) - 1).chain([u64::MAX]).collect();
        for seed in 0..6 {
            run(seed, &masks, 4_000);
        }
    }

    #[test]
    fn lists_are_freed() {
        let mut m = Matcher::<(), ()>::default();
        for tag in 0..1000 {
            let at = m.post(Want { source: 1, tag, ignore: 0 }, ());
            m.remove_posted(at);
            let at = m.keep(1, tag, ());
            m.remove_unexpected(at);
        }
        assert!(m.wanting.is_empty() && m.waiting.is_empty() && m.posted.all.len() == 1 && m.unexpected.all.len() == 1);
    }

    /// Looks into lists and hashes, whatever time they take.
    #[test]
    fn a_match_costs_the_same_with_10000_waiting() {
        let exact = |tag| Want { source: 1, tag, ignore: 0 };
        let wild = |tag| Want { source: UNSPEC, tag, ignore: 0xffff };
        for many in [1u64, 10_000] {
            let mut m = Matcher::<u64, u64>::default();
            for i in 0..many {
                m.post(exact(1 << 40 | i), i);
                m.post(wild(2 << 40 | i << 16), i);
                m.post(exact(7), i);
            }
            for i in [0, many / 2, many - 1] {
                m.probes.set(0);
                let at = m.find_posted(1, 1 << 40 | i).expect("exact");
                assert_eq!(m.remove_posted(at), Some(i));
                let at = m.find_posted(3, 2 << 40 | i << 16 | 5).expect("wild");
                assert_eq!(m.remove_posted(at), Some(i));
                assert!(m.find_posted(3, 1 << 50).is_none());
                assert!(m.probes.get() <= 6, "{} probes of {many}", m.probes.get());
                m.post(exact(1 << 40 | i), i);
                m.post(wild(2 << 40 | i << 16), i);
            }
            for i in 0..many {
                m.keep(1, 3 << 40 | i, i);
                m.keep(2, 4 << 40 | i << 16 | 9, i);
                m.keep(9, 8, i);
            }
            for i in [0, many / 2, many - 1] {
                m.probes.set(0);
                let at = m.find_unexpected(&exact(3 << 40 | i)).expect("exact");
                assert_eq!(m.remove_unexpected(at), Some(i));
                let at = m.find_unexpected(&wild(4 << 40 | i << 16)).expect("wild");
                assert_eq!(m.remove_unexpected(at), Some(i));
                assert!(m.find_unexpected(&exact(5 << 40)).is_none());
                assert!(m.probes.get() <= 6, "{} probes of {many}", m.probes.get());
                m.keep(1, 3 << 40 | i, i);
                m.keep(2, 4 << 40 | i << 16 | 9, i);
            }
        }
    }
}
