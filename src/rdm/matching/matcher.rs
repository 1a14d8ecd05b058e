// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Matches messages and receives by source and tag, in the order of posting and of arrival, at a cost that does not grow with the number of
//! entries.
//!
//! A receive names one source or any source, and the bits of the tag to ignore (its mask). Programs use two or three
//! masks, so receives with the same mask form two classes: those that name one source, and those from any source. The
//! matcher learns a class when it meets the first receive of the class. Within a class, a hash finds the oldest receive
//! that fits a message, or the oldest stored message that fits a receive. An arriving message asks each class, and takes
//! the oldest receive of all answers. Receives that belong to none of the first eight classes are in one list, which is
//! walked in order.

use super::message_lists::{EMPTY, ListEnds, MessageLists, step};
use super::posted_receives;
use super::posted_receives::{MatchKey, NONE, NodeFilter, PostedReceives};
use super::tag_hash::TagHashBuilder;
use crate::error::Result;
use crate::prov::av::UNSPEC;
use std::collections::HashMap;

/// Number of classes whose receives are in the hash by source and tag.
const CLASSES: usize = 8;
/// The class of all receives that belong to none of these classes.
const OTHERS: u8 = CLASSES as u8;

/// The messages that a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvFilter {
    /// `UNSPEC` for any source.
    pub source: u64,
    pub tag: u64,
    pub ignore: u64,
}

impl RecvFilter {
    fn takes(&self, source: u64, tag: u64) -> bool {
        (self.source == UNSPEC || self.source == source) && (self.tag ^ tag) & !self.ignore == 0
    }
}

/// The number of a receive in the order of posting, and the messages that it takes.
pub type RecvPosition = (u64, RecvFilter);

/// Names a posted receive or an unexpected message as long as the matcher stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(u32);

/// Sorts receives by their numbers. The flag says whether a receive is tagged.
pub fn in_order(mut found: Vec<(u64, (bool, EntryId))>) -> Vec<(bool, EntryId)> {
    found.sort_unstable();
    found.into_iter().map(|(_, receive)| receive).collect()
}

#[derive(Clone, Copy)]
struct MatchClass {
    ignore: u64,
    any_source: bool,
    /// Posted receives of this class.
    posted: usize,
}

impl MatchClass {
    #[inline(always)]
    fn key(&self, class: usize, source: u64, tag: u64) -> MatchKey {
        MatchKey { class: class as u8, source: if self.any_source { 0 } else { source }, tag: tag & !self.ignore }
    }
}

/// `R` is the type of a posted receive, `U` the type of an unexpected message.
pub struct Matcher<R, U> {
    classes: Vec<MatchClass>,
    posted: PostedReceives<R>,
    unexpected: MessageLists<U, { CLASSES + 1 }>,
    /// Every message is in the list of all messages, `arrivals`. An indexed message is also in one list of each class,
    /// which `by_key` finds. The messages from `unindexed` on are in `arrivals` only, because most messages are received
    /// in the order of arrival, and then no class is asked.
    by_key: HashMap<MatchKey, ListEnds, TagHashBuilder>,
    arrivals: ListEnds,
    unindexed: u32,
    /// Number of messages stored so far. The number of a message is the count at its arrival.
    count_kept: u64,
    #[cfg(test)]
    probes: std::cell::Cell<usize>,
}

impl<R, U> Default for Matcher<R, U> {
    fn default() -> Self {
        Matcher {
            classes: Vec::new(),
            posted: PostedReceives::new(),
            unexpected: MessageLists::new(),
            by_key: HashMap::default(),
            arrivals: EMPTY,
            unindexed: NONE,
            count_kept: 0,
            #[cfg(test)]
            probes: std::cell::Cell::new(0),
        }
    }
}

fn want_of<R>(node: &posted_receives::RecvNode<R>) -> RecvFilter {
    let NodeFilter { source, tag, ignore } = node.filter;
    RecvFilter { source, tag, ignore }
}

const OTHER_KEY: MatchKey = MatchKey { class: OTHERS, source: 0, tag: 0 };

impl<R, U> Matcher<R, U> {
    #[inline]
    fn probe(&self) {
        #[cfg(test)]
        self.probes.set(self.probes.get() + 1);
    }

    /// The class of a receive. A new class is learned if there is room for one.
    #[inline(always)]
    fn class_of(&mut self, want: &RecvFilter) -> Option<usize> {
        let any = want.source == UNSPEC;
        match self.classes.iter().position(|c| c.ignore == want.ignore && c.any_source == any) {
            Some(c) => Some(c),
            None => self.learn(want, any),
        }
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, want: &RecvFilter, any_source: bool) -> Option<usize> {
        if self.classes.len() == CLASSES {
            return None;
        }
        self.index_all();
        let class = MatchClass { ignore: want.ignore, any_source, posted: 0 };
        let c = self.classes.len();
        self.classes.push(class);
        let mut at = self.arrivals.first;
        while let Some(node) = self.unexpected.get(at) {
            let key = class.key(c, node.source, node.tag);
            let next = node.links[CLASSES].next;
            self.unexpected.link(c, self.by_key.entry(key).or_insert(EMPTY), at);
            at = next;
        }
        Some(c)
    }

    /// Reserves memory for one more receive.
    #[inline(always)]
    pub fn room_to_post(&mut self) -> Result<()> {
        self.posted.room()
    }

    /// Reserves memory for one more message.
    #[inline]
    pub fn room_to_keep(&mut self) -> Result<()> {
        self.unexpected.room()
    }

    /// Posts a receive that fits no stored message. `number` is greater than the number of any receive before.
    #[inline(always)]
    pub fn post(&mut self, number: u64, want: RecvFilter, item: impl FnOnce() -> R) -> EntryId {
        let key = match self.class_of(&want) {
            Some(c) => match self.classes.get_mut(c) {
                Some(class) => {
                    class.posted += 1;
                    class.key(c, want.source, want.tag)
                }
                None => OTHER_KEY,
            },
            None => OTHER_KEY,
        };
        let filter = NodeFilter { source: want.source, tag: want.tag, ignore: want.ignore };
        EntryId(self.posted.add(key, number, filter, item))
    }

    /// The oldest receive that takes a message from `source` with `tag`.
    #[inline(always)]
    pub fn find_posted(&self, source: u64, tag: u64) -> Option<EntryId> {
        let [class] = &self.classes[..] else { return self.find_oldest(source, tag) };
        self.probe();
        let first = self.posted.first(&class.key(0, source, tag));
        (first != NONE).then_some(EntryId(first))
    }

    /// `find_posted` with several classes: the oldest of their candidates.
    #[inline(never)]
    fn find_oldest(&self, source: u64, tag: u64) -> Option<EntryId> {
        let mut best = NONE;
        let mut number = u64::MAX;
        for (c, class) in self.classes.iter().enumerate() {
            if class.posted == 0 {
                continue;
            }
            self.probe();
            let first = self.posted.first(&class.key(c, source, tag));
            if let Some(node) = self.posted.get(first)
                && node.number < number
            {
                (best, number) = (first, node.number);
            }
        }
        if self.classes.len() == CLASSES {
            best = self.find_other(source, tag, best, number);
        }
        (best != NONE).then_some(EntryId(best))
    }

    /// `find_posted` among the receives of class `OTHERS` that are older than number `number`. Returns `best` if none
    /// fits.
    #[cold]
    fn find_other(&self, source: u64, tag: u64, best: u32, number: u64) -> u32 {
        let mut at = self.posted.first(&OTHER_KEY);
        while let Some(node) = self.posted.get(at).filter(|n| n.number < number) {
            self.probe();
            let NodeFilter { source: wanted, tag: wanted_tag, ignore } = node.filter;
            if (RecvFilter { source: wanted, tag: wanted_tag, ignore }).takes(source, tag) {
                return at;
            }
            at = self.posted.next_of(at);
        }
        best
    }

    #[inline(always)]
    pub fn posted(&mut self, at: EntryId) -> Option<&mut R> {
        self.posted.get_mut(at.0).and_then(|n| n.item.as_mut())
    }

    /// Removes a receive as `remove_posted` does. The receive owns nothing, so nothing is dropped.
    #[inline(always)]
    pub fn forget_posted(&mut self, at: EntryId, source: u64) {
        if let Some(class) = self.posted.forget(at.0, source).and_then(|class| self.classes.get_mut(usize::from(class))) {
            class.posted -= 1;
        }
    }

    /// Removes a receive that a message of `source` fills.
    #[inline(always)]
    pub fn remove_posted(&mut self, at: EntryId, source: u64) -> Option<R> {
        self.posted.record_fill(self.posted.get(at.0)?.number, source);
        self.withdraw_posted(at)
    }

    /// Removes a receive that no message fills. Earlier receives can still be posted again (`can_repost`).
    #[inline(always)]
    pub fn withdraw_posted(&mut self, at: EntryId) -> Option<R> {
        let class = usize::from(self.posted.get(at.0)?.class());
        if let Some(class) = self.classes.get_mut(class) {
            class.posted -= 1;
        }
        self.posted.take(at.0)
    }

    /// Posted receives for which `which` holds, each with its number in the order of posting.
    pub fn search_posted(&self, mut which: impl FnMut(&R) -> bool) -> impl Iterator<Item = (u64, EntryId)> {
        self.posted.each().filter(move |(.., r)| which(r)).map(|(at, n, _)| (n.number, EntryId(at)))
    }

    /// The position of a receive, with which it can be posted again.
    pub fn position_of(&self, at: EntryId) -> Option<RecvPosition> {
        self.posted.get(at.0).map(|n| (n.number, want_of(n)))
    }

    /// Records that the receive of this number gets a message of `source`, whether or not it stays posted.
    #[inline(always)]
    pub fn record_fill(&mut self, number: u64, source: u64) {
        self.posted.record_fill(number, source);
    }

    /// True if a receive can be posted again at its old position: since then, no later receive has been filled by a
    /// message that this receive might have got. `source`: the sender's current index.
    pub fn can_repost(&self, (number, want): &RecvPosition, source: u64) -> bool {
        self.posted.newest_filled((want.source != UNSPEC).then_some(source)) <= *number
    }

    /// Receives that only messages of `source` can fill, in the order of posting.
    pub fn posted_for(&self, source: u64) -> Vec<EntryId> {
        let found = self.posted.each().filter(|(_, n, _)| n.filter.source == source);
        in_order(found.map(|(at, n, _)| (n.number, (false, EntryId(at)))).collect()).into_iter().map(|(_, at)| at).collect()
    }

    /// Removes the receives that only messages of `source` can fill, in the order of posting.
    pub fn take_posted_for(&mut self, source: u64) -> Vec<(u64, RecvFilter, R)> {
        let found = self.posted_for(source).into_iter();
        found.filter_map(|at| self.position_of(at).and_then(|(number, want)| Some((number, want, self.withdraw_posted(at)?)))).collect()
    }

    /// Posts receives again as receives from `source` (`UNSPEC` for any). The receives keep their positions, also
    /// relative to receives that are posted already.
    pub fn repost(&mut self, source: u64, receives: Vec<(u64, RecvFilter, R)>) {
        let mut all: Vec<_> = receives.into_iter().map(|(number, want, item)| (number, RecvFilter { source, ..want }, item)).collect();
        for k in 0..all.len() {
            let Some(key) = all.get(k).map(|(_, want, _)| *want).map(|want| self.key_of(&want)) else { continue };
            while let Some(n) = self.posted.get(self.posted.first(&key)) {
                let (at, number, want) = (self.posted.first(&key), n.number, want_of(n));
                all.extend(self.withdraw_posted(EntryId(at)).map(|item| (number, want, item)));
            }
        }
        all.sort_unstable_by_key(|(number, ..)| *number);
        for (number, want, item) in all {
            let key = self.key_of(&want);
            if let Some(class) = self.classes.get_mut(usize::from(key.class)) {
                class.posted += 1;
            }
            self.posted.add(key, number, NodeFilter { source: want.source, tag: want.tag, ignore: want.ignore }, || item);
        }
    }

    fn key_of(&mut self, want: &RecvFilter) -> MatchKey {
        let class = self.class_of(want).and_then(|c| Some((c, *self.classes.get(c)?)));
        class.map_or(OTHER_KEY, |(c, class)| class.key(c, want.source, want.tag))
    }

    pub fn posted_sources(&self) -> impl Iterator<Item = u64> {
        self.posted.each().map(|(_, n, _)| n.filter.source)
    }

    pub fn each_posted(&self) -> impl Iterator<Item = &R> {
        self.posted.each().map(|(.., r)| r)
    }

    /// Stores a message that no receive fits.
    pub fn keep(&mut self, source: u64, tag: u64, item: U) -> EntryId {
        self.count_kept += 1;
        let at = self.unexpected.add(self.count_kept, source, tag, item);
        self.unexpected.link(CLASSES, &mut self.arrivals, at);
        if self.unindexed == NONE {
            self.unindexed = at;
        }
        EntryId(at)
    }

    /// Puts a message into the lists of the classes. `moved`: only the message's source has changed, so the message is
    /// still in the lists of the classes with any source.
    fn index_message(&mut self, at: u32, source: u64, tag: u64, moved: bool) {
        for (c, class) in self.classes.iter().enumerate().filter(|(_, class)| !(moved && class.any_source)) {
            self.unexpected.link(c, self.by_key.entry(class.key(c, source, tag)).or_insert(EMPTY), at);
        }
        if let Some(node) = self.unexpected.get_mut(at) {
            node.indexed = true;
        }
    }

    /// Puts all unindexed messages into the lists of the classes. Each message is indexed once at most.
    #[inline(never)]
    fn index_all(&mut self) {
        let mut at = std::mem::replace(&mut self.unindexed, NONE);
        while let Some((source, tag, next)) = self.unexpected.get(at).map(|n| (n.source, n.tag, n.links[CLASSES].next)) {
            self.index_message(at, source, tag, false);
            at = next;
        }
    }

    fn remove_links(&mut self, at: u32, source: u64, tag: u64) {
        let Some((indexed, next)) = self.unexpected.get(at).map(|n| (n.indexed, n.links[CLASSES].next)) else { return };
        if self.unindexed == at {
            self.unindexed = next;
        }
        if indexed {
            self.unindex(at, source, tag, false);
        }
        self.unexpected.unlink(CLASSES, &mut self.arrivals, at);
    }

    /// Removes a message from the lists of the classes. `moves`: the message stays in the lists of the classes with any
    /// source.
    #[inline]
    fn unindex(&mut self, at: u32, source: u64, tag: u64, moves: bool) {
        for (c, class) in self.classes.iter().enumerate().filter(|(_, class)| !(moves && class.any_source)) {
            let key = class.key(c, source, tag);
            if let Some(ends) = self.by_key.get_mut(&key) {
                self.unexpected.unlink(c, ends, at);
                if ends.first == NONE {
                    self.by_key.remove(&key);
                }
            }
        }
    }

    /// The oldest message that fits a receive.
    #[inline]
    pub fn find_unexpected(&mut self, want: &RecvFilter) -> Option<EntryId> {
        let first = self.unexpected.get(self.arrivals.first)?;
        self.probe();
        if want.takes(first.source, first.tag) {
            return Some(EntryId(self.arrivals.first));
        }
        self.find_behind(want)
    }

    /// `find_unexpected` where the oldest message of all does not fit.
    #[inline(never)]
    fn find_behind(&mut self, want: &RecvFilter) -> Option<EntryId> {
        self.index_all();
        match self.class_of(want) {
            Some(c) => {
                self.probe();
                self.by_key.get(&self.classes[c].key(c, want.source, want.tag)).map(|ends| EntryId(ends.first))
            }
            None => {
                let mut at = self.arrivals.first;
                while let Some(node) = self.unexpected.get(at) {
                    self.probe();
                    if want.takes(node.source, node.tag) {
                        return Some(EntryId(at));
                    }
                    at = node.links[CLASSES].next;
                }
                None
            }
        }
    }

    /// A stored message: its source, its tag, and the message.
    pub fn unexpected(&mut self, at: EntryId) -> Option<(u64, u64, &mut U)> {
        self.unexpected.get_mut(at.0).and_then(|n| Some((n.source, n.tag, n.item.as_mut()?)))
    }

    pub fn remove_unexpected(&mut self, at: EntryId) -> Option<U> {
        let (source, tag) = self.unexpected.get(at.0).map(|n| (n.source, n.tag))?;
        self.remove_links(at.0, source, tag);
        self.unexpected.take(at.0)
    }

    /// Stored messages in the order of arrival.
    pub fn each_unexpected(&self) -> impl Iterator<Item = (EntryId, &U)> {
        let mut next = self.arrivals.first;
        std::iter::from_fn(move || {
            step();
            let (at, node) = (next, self.unexpected.get(next)?);
            next = node.links[CLASSES].next;
            Some((EntryId(at), node.item.as_ref()?))
        })
    }

    /// Files messages under their sources' new numbers. `source` gives the new number of a message. Messages keep their
    /// order. All of them leave their old lists before the first enters a new list, so that each finds its place at or
    /// near the end of the new list.
    pub fn refile(&mut self, source: impl Fn(&U) -> Option<u64>) {
        self.posted.forget_senders();
        let new = |(at, m): (EntryId, &U)| Some((at.0, source(m)?, self.unexpected.get(at.0)?));
        let moved = self.each_unexpected().filter_map(new).filter(|(_, to, n)| *to != n.source);
        let moved: Vec<_> = moved.map(|(at, to, n)| (at, n.source, to, n.tag, n.indexed)).collect();
        for (at, from, _, tag, _) in moved.iter().filter(|m| m.4) {
            self.unindex(*at, *from, *tag, true);
        }
        for (at, _, to, tag, indexed) in moved {
            if let Some(node) = self.unexpected.get_mut(at) {
                node.source = to;
            }
            if indexed {
                self.index_message(at, to, tag, true);
            }
        }
    }

    pub fn posted_count(&self) -> usize {
        self.posted.len()
    }

    #[inline(always)]
    pub fn unexpected_count(&self) -> usize {
        self.unexpected.count
    }
}

#[cfg(test)]
mod tests;
