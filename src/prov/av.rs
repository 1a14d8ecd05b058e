// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address vector: gives each name of a connectionless endpoint an index, by which callers address the peer. The
//! vector only stores names, and connects nothing.

use super::name::Key;
pub use super::name::{NAME_LEN, Name, SCHEME};
use crate::error::{Error, Result, errno};
use crate::fallible::{MakeRoom, filled, with_room};
use crate::reserve::enough;
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Not an index: any peer, or a peer that is not in the vector.
pub const UNSPEC: u64 = u64::MAX;

/// The entry of one index.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Entry {
    name: Name,
    /// Counts the names that have had this index, so that an operation meant for one of them never goes to the next.
    generation: u32,
}

const _: () = assert!(size_of::<Entry>() == 44);

/// The number of latest changes that are kept, so that an endpoint can look at them one by one.
const RECENT: usize = 64;

/// Entries of a block. The vector grows by blocks, so that growing never copies entries.
const BLOCK: usize = 64;

#[derive(Default)]
struct Entries {
    blocks: Vec<Vec<Entry>>,
    count: usize,
}

impl Entries {
    fn get(&self, at: usize) -> Option<Entry> {
        self.blocks.get(at / BLOCK)?.get(at % BLOCK).copied()
    }

    /// The name of an index that is in use.
    fn name(&self, at: u32) -> Option<Name> {
        self.get(at as usize).map(|entry| entry.name).filter(|name| *name != Name::NOBODY)
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut Entry> {
        self.blocks.get_mut(at / BLOCK)?.get_mut(at % BLOCK)
    }

    fn push(&mut self) -> Result<()> {
        if self.count.is_multiple_of(BLOCK) {
            self.blocks.room(1)?;
            self.blocks.push(with_room(BLOCK)?);
        }
        if let Some(block) = self.blocks.last_mut() {
            block.push(Entry { name: Name::NOBODY, generation: 0 });
            self.count += 1;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Inner {
    entries: Entries,
    /// Free indexes. The index that was freed last is reused first.
    free: Vec<u32>,
    index: Index,
    /// For names with several indexes, the indexes other than the one in `index`.
    twins: HashMap<Key, BTreeSet<u32>>,
    /// The latest changes: the name, and the index that it got or lost.
    recent: VecDeque<(u64, Name)>,
}

/// An address vector. Processes that insert and remove the same names in the same order get the same indexes.
#[derive(Default)]
pub struct Av {
    inner: RwLock<Inner>,
    changes: AtomicU64,
}

impl Av {
    /// Inserts a name, and returns its index: the one that was freed last, or the next new one.
    pub fn insert(&self, name: Name) -> Result<u64> {
        let name = name.check()?;
        let mut av = self.inner.write();
        let Inner { entries, free, index, twins, recent } = &mut *av;
        let first = index.find(&name, entries);
        match first {
            None => index.room_for_one(entries)?,
            // A set allocates its small nodes without a check, and one call may insert many names, so each insertion
            // first checks that memory is left.
            Some(_) => enough().and_then(|()| twins.room(1))?,
        }
        // Room for every index, so that a removal never needs memory.
        free.room(entries.count + 1 - free.len())?;
        let at = match free.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(entries.count).ok().filter(|at| *at < Index::GONE);
                let at = at.ok_or_else(|| Error::new(errno::ENOSPC, "av: the address vector is full"))?;
                entries.push()?;
                at
            }
        };
        if let Some(entry) = entries.get_mut(at as usize) {
            entry.name = name;
        }
        // Of equal names, `index` has the one with the smallest index.
        match first {
            Some((slot, first)) => {
                index.set(slot, first.min(at));
                twins.entry(name.key()).or_default().insert(first.max(at));
            }
            None => index.put(&name, at),
        }
        note(recent, u64::from(at), name);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(u64::from(at))
    }

    /// Removes the name of an index, which may then be given to another name.
    pub fn remove(&self, peer: u64) -> Result<()> {
        let mut av = self.inner.write();
        let Inner { entries, free, index, twins, recent } = &mut *av;
        let found = u32::try_from(peer).ok().and_then(|at| entries.name(at).map(|name| (at, name)));
        let Some((at, name)) = found else {
            return Err(Error::invalid(format!("fi_addr: {peer} names no peer of this address vector")));
        };
        let others = twins.get_mut(&name.key());
        match (index.find(&name, entries), others) {
            (Some((slot, first)), Some(others)) => {
                if first != at {
                    others.remove(&at);
                } else if let Some(next) = others.pop_first() {
                    index.set(slot, next);
                }
                if others.is_empty() {
                    twins.remove(&name.key());
                }
            }
            (Some((slot, _)), None) => index.set(slot, Index::GONE),
            (None, _) => {}
        }
        if let Some(entry) = entries.get_mut(at as usize) {
            entry.name = Name::NOBODY;
            entry.generation = entry.generation.wrapping_add(1);
        }
        free.push(at);
        note(recent, peer, name);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub fn lookup(&self, peer: u64) -> Result<Name> {
        self.get(peer).map(|(name, _)| name)
    }

    /// The name of an index, and the generation of the index.
    pub fn get(&self, peer: u64) -> Result<(Name, u32)> {
        let av = self.inner.read();
        let entry = usize::try_from(peer).ok().and_then(|at| av.entries.get(at));
        match entry.map(|entry| (entry.name, entry.generation)).filter(|(name, _)| *name != Name::NOBODY) {
            Some(found) => Ok(found),
            None => Err(Error::invalid(format!("fi_addr: {peer} names no peer of the address vector"))),
        }
    }

    /// The index of the endpoint that `name` names in full. A complete name in the vector is preferred to a bare
    /// address, and a smaller index to a larger one.
    pub fn find(&self, name: &Name) -> Option<u64> {
        let av = self.inner.read();
        let found = av.index.find(name, &av.entries).or_else(|| av.index.find(&name.bare(), &av.entries));
        found.map(|(_, at)| u64::from(at))
    }

    /// Counts insertions and removals.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The present count of changes, and the changes since the count was `seen`. `None`: there were too many to list.
    pub fn since(&self, seen: u64) -> (u64, Option<Vec<(u64, Name)>>) {
        let av = self.inner.read();
        let now = self.changes();
        let count = usize::try_from(now.wrapping_sub(seen)).unwrap_or(usize::MAX);
        let first = av.recent.len().checked_sub(count);
        (now, first.map(|first| av.recent.iter().skip(first).copied().collect()))
    }

    pub fn len(&self) -> usize {
        let av = self.inner.read();
        av.entries.count - av.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Adds a change to the latest ones.
fn note(recent: &mut VecDeque<(u64, Name)>, index: u64, name: Name) {
    if recent.len() == RECENT {
        recent.pop_front();
    }
    recent.push_back((index, name));
}

/// A hash table from names to indexes, with open addressing. The table is at most two thirds full, and takes 6 to 12
/// bytes for each name.
#[derive(Default)]
struct Index {
    slots: Vec<u32>,
    /// The number of slots that are not `EMPTY`; some may be `GONE`.
    taken: usize,
    hasher: RandomState,
}

impl Index {
    const GONE: u32 = u32::MAX - 1;
    const EMPTY: u32 = u32::MAX;

    /// The slots where a name may be, in the order of probing.
    fn walk(&self, name: &Name) -> impl Iterator<Item = usize> + use<> {
        let (start, count) = (self.hasher.hash_one(name.key()) as usize, self.slots.len());
        (0..count).map(move |i| start.wrapping_add(i) & (count - 1))
    }

    /// The slot and the index of a name.
    fn find(&self, name: &Name, entries: &Entries) -> Option<(usize, u32)> {
        for slot in self.walk(name) {
            match *self.slots.get(slot)? {
                Index::EMPTY => return None,
                Index::GONE => {}
                at if entries.name(at).is_some_and(|n| n.key() == name.key()) => return Some((slot, at)),
                _ => {}
            }
        }
        None
    }

    fn set(&mut self, slot: usize, at: u32) {
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = at;
        }
    }

    fn put(&mut self, name: &Name, at: u32) {
        for slot in self.walk(name) {
            if self.slots.get(slot) == Some(&Index::EMPTY) {
                self.taken += 1;
                return self.set(slot, at);
            }
        }
    }

    /// Makes room for one more name.
    fn room_for_one(&mut self, entries: &Entries) -> Result<()> {
        if 3 * (self.taken + 1) <= 2 * self.slots.len() {
            return Ok(());
        }
        let kept = self.slots.iter().filter(|at| **at < Index::GONE).count();
        // Some spare room keeps the next few insertions and removals from rebuilding the table again.
        let room = 3 * (kept + 1) + kept / 16;
        let wider = filled(Index::EMPTY, room.div_ceil(2).next_power_of_two().max(16))?;
        let before = std::mem::replace(&mut self.slots, wider);
        self.taken = 0;
        for at in before.into_iter().filter(|at| *at < Index::GONE) {
            if let Some(name) = entries.name(at) {
                self.put(&name, at);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    const FULL: &str = "rdm://192.0.2.1:7000/0123456789abcdef/fedcba9876543210";

    fn name(text: &str) -> Name {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn a_bare_address_means_any_endpoint_at_that_address() {
        let av = Av::default();
        let full = name(FULL);
        let other = full.of(1);
        let bare = Name::at(full.socket());
        assert_eq!(av.insert(other).unwrap(), 0);
        assert_eq!(av.find(&full), None);
        assert_eq!(av.insert(bare).unwrap(), 1);
        assert_eq!((av.find(&full), av.find(&other)), (Some(1), Some(0)));
        assert_eq!(av.insert(full).unwrap(), 2);
        assert_eq!(av.find(&full), Some(2));
        av.remove(2).unwrap();
        assert_eq!(av.find(&full), Some(1));
        assert!(av.get(2).is_err() && av.remove(2).is_err() && av.get(UNSPEC).is_err());
    }

    #[test]
    fn indexes_are_dense_and_reused_with_a_new_generation() {
        let (one, other) = (Av::default(), Av::default());
        let mut model: BTreeMap<u64, Name> = BTreeMap::new();
        let mut random = 7u64;
        for step in 0..20_000u32 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = random >> 33;
            if model.len() < 300 && at % 5 < 3 {
                let nonce = at % 3;
                let name = Name::at(SocketAddr::from(([10, 0, (at >> 8) as u8 & 3, at as u8 | 1], 7000))).of(nonce);
                let index = one.insert(name).unwrap();
                assert_eq!(other.insert(name).unwrap(), index);
                assert!(model.insert(index, name).is_none() && index < 300);
            } else if let Some(index) = model.keys().nth(at as usize % model.len().max(1)).copied() {
                let (name, generation) = one.get(index).unwrap();
                assert_eq!(Some(name), model.remove(&index));
                one.remove(index).unwrap();
                other.remove(index).unwrap();
                if step % 7 == 0 {
                    assert_eq!(one.insert(name).unwrap(), index);
                    assert_eq!(one.get(index).unwrap(), (name, generation + 1));
                    one.remove(index).unwrap();
                }
                let best = model.iter().filter(|(_, n)| n.means(&name)).min_by_key(|(at, n)| (n.nonce == 0, **at));
                assert_eq!(one.find(&name), best.map(|(at, _)| *at));
            }
        }
        assert_eq!(one.len(), model.len());
    }

    #[test]
    fn a_name_costs_at_most_57_bytes() {
        let av = Av::default();
        for n in 1..=100_000u32 {
            av.insert(name(FULL).of(n.into())).unwrap();
            let inner = av.inner.read();
            let blocks = inner.entries.blocks.len() * (BLOCK * size_of::<Entry>() + size_of::<Vec<Entry>>());
            assert!(n < 10_000 || (blocks + 4 * inner.index.slots.len()) as u32 <= 57 * n, "{n}");
        }
    }

    #[test]
    fn the_same_name_many_times_is_no_walk() {
        const COUNT: u64 = 200_000;
        let av = Av::default();
        (0..COUNT).for_each(|i| assert_eq!(av.insert(name(FULL)).unwrap(), i));
        for i in 0..COUNT {
            assert_eq!(av.find(&name(FULL)), Some(i));
            av.remove(i).unwrap();
        }
        assert_eq!((av.find(&name(FULL)), av.len()), (None, 0));
        assert!(av.inner.read().twins.is_empty());
    }
}
