// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which keys go together, as the two sides tell each other: of the peer's regions, what it was asked for; of this side's, what
//! the peer may have kept. All is bounded: the peer is asked for a key once in a while, and who keeps keys of closed regions
//! breaks the protocol.

use crate::error::{Code, Error, Result, errno};
use crate::prov::verbs::device::rail_names::RAILS_MAX;
use crate::prov::verbs::memory::keys::Keys;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keys of the other side that each keeps, at most.
const MAX_PEER_KEYS: usize = 4096;
/// Keys of closed regions that are not forgotten yet: one that makes no progress may have all that it kept, and those that it
/// kept before.
const MAX_REVOKED: usize = 2 * MAX_PEER_KEYS;
/// Operations on a key without fellows, or without an answer, after which the peer is asked again.
const ASK_AGAIN_AFTER: u32 = 64;

/// What is known of a key of the peer's.
enum PeerKeys {
    /// There is no answer yet; so often used.
    Asked(u32),
    /// The rail of this key alone; so often used.
    Alone(u32),
    Keys(Arc<Keys>),
}

pub struct RailKeys {
    told: HashMap<u32, PeerKeys>,
    /// Keys of this side that the peer may keep, which are the last that it has asked for, and in which order.
    shown: HashMap<u32, (u64, Arc<Keys>)>,
    order: BTreeMap<u64, u32>,
    last: u64,
    /// Of regions that are gone; and what each rail of theirs calls them, which no region is called by until they are forgotten.
    gone: HashMap<u32, Arc<Keys>>,
    names: HashSet<(usize, u32)>,
    /// How many those are in the domain.
    stale: Arc<AtomicUsize>,
}

impl RailKeys {
    pub fn new(stale: Arc<AtomicUsize>) -> RailKeys {
        let (told, shown, order) = Default::default();
        let (gone, names) = Default::default();
        RailKeys { told, shown, order, last: 0, gone, names, stale }
    }

    /// All of the peer's keys that go with this one of the first rail; none if there are none. True: the peer is to be asked.
    pub fn lookup(&mut self, rkey: u32) -> (Option<Arc<Keys>>, bool) {
        match self.told.get_mut(&rkey) {
            Some(PeerKeys::Keys(keys)) => return (Some(keys.clone()), false),
            Some(PeerKeys::Alone(uses) | PeerKeys::Asked(uses)) if *uses < ASK_AGAIN_AFTER => *uses += 1,
            _ => {
                if self.told.len() >= MAX_PEER_KEYS {
                    self.told.clear();
                }
                self.told.insert(rkey, PeerKeys::Asked(0));
                return (None, true);
            }
        }
        (None, false)
    }

    /// The peer's answer, if it was asked.
    pub fn learn(&mut self, rkey: u32, mask: u8, rkeys: [u32; RAILS_MAX]) {
        let Some(known) = self.told.get_mut(&rkey).filter(|known| matches!(known, PeerKeys::Asked(_))) else { return };
        *known = match mask & !1 {
            0 => PeerKeys::Alone(0),
            further => PeerKeys::Keys(Arc::new(Keys { mask: further | 1, lkeys: [0; RAILS_MAX], rkeys })),
        };
    }

    pub fn forget(&mut self, rkey: u32) {
        self.told.remove(&rkey);
    }

    /// The peer has asked for them.
    pub fn record_shown(&mut self, keys: &Arc<Keys>) {
        self.last += 1;
        if let Some((before, _)) = self.shown.insert(keys.rkeys[0], (self.last, keys.clone())) {
            self.order.remove(&before);
        }
        self.order.insert(self.last, keys.rkeys[0]);
        if self.order.len() > MAX_PEER_KEYS
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.shown.remove(&oldest);
        }
    }

    /// A region of these keys goes; whether the peer is to be told. An error: it forgets none.
    pub fn revoke(&mut self, keys: &Arc<Keys>) -> Result<bool> {
        let Some((place, _)) = self.shown.remove(&keys.rkeys[0]) else { return Ok(false) };
        self.order.remove(&place);
        if self.gone.insert(keys.rkeys[0], keys.clone()).is_none() {
            self.names.extend(keys.names());
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
        match self.gone.len() > MAX_REVOKED {
            false => Ok(true),
            true => Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer keeps keys of regions that it was told are closed")),
        }
    }

    /// The peer has forgotten them.
    pub fn on_forgotten(&mut self, rkey: u32) {
        if let Some(keys) = self.gone.remove(&rkey) {
            keys.names().for_each(|name| _ = self.names.remove(&name));
            self.stale.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the peer may take one of these keys for another region's.
    pub fn may_confuse(&self, keys: &Keys) -> bool {
        keys.names().any(|name| self.names.contains(&name))
    }
}

impl Drop for RailKeys {
    fn drop(&mut self) {
        self.stale.fetch_sub(self.gone.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(n: u32) -> Arc<Keys> {
        Arc::new(Keys { mask: 3, lkeys: [n; 8], rkeys: [n, !n, 0, 0, 0, 0, 0, 0] })
    }

    #[test]
    fn an_answer_counts_only_where_one_is_awaited() {
        let mut f = RailKeys::new(Arc::default());
        f.learn(7, 0xff, [1; 8]);
        assert!(matches!(f.lookup(7), (None, true)) && matches!(f.lookup(7), (None, false)));
        f.learn(8, 3, [1; 8]);
        f.learn(7, 3, [7, 70, 0, 0, 0, 0, 0, 0]);
        let keys = f.lookup(7).0.expect("told");
        f.learn(7, 0xff, [9; 8]);
        assert_eq!((f.lookup(7).0.expect("as before"), f.told.len()), (keys, 1));
        f.forget(u32::MAX);
        f.forget(7);
        assert!(f.lookup(7).1, "asked anew");
        assert_eq!((0..=ASK_AGAIN_AFTER).filter(|_| f.lookup(7).1).count(), 1, "an answer that was lost is asked for again");
        f.learn(7, 1, [0; 8]);
        assert_eq!((0..=ASK_AGAIN_AFTER).filter(|_| f.lookup(7).1).count(), 1, "and so is one that names no fellows");
        (0..100_000).for_each(|key| _ = f.lookup(key));
        assert!(f.told.len() <= MAX_PEER_KEYS);
    }

    #[test]
    fn a_peer_that_asks_for_all_and_forgets_nothing_costs_so_much_and_no_more() {
        let stale = Arc::<AtomicUsize>::default();
        let mut f = RailKeys::new(stale.clone());
        (0..3 * MAX_PEER_KEYS as u32).map(region).for_each(|keys| (0..2).for_each(|_| f.record_shown(&keys)));
        assert_eq!((f.shown.len(), f.order.len()), (MAX_PEER_KEYS, MAX_PEER_KEYS));
        assert_eq!(f.revoke(&region(0)).ok(), Some(false), "it asked for so many since that it has not kept this one");
        assert_eq!(f.revoke(&region(3 * MAX_PEER_KEYS as u32 - 1)).ok(), Some(true));
        (0..u32::MAX).step_by(1 << 20).for_each(|key| f.on_forgotten(key));
        f.on_forgotten(3 * MAX_PEER_KEYS as u32 - 1);
        assert_eq!((f.gone.len(), f.names.len(), stale.load(Ordering::Relaxed)), (0, 0, 0));
        let refused = (0..3 * MAX_PEER_KEYS as u32).map(region).find_map(|keys| {
            f.record_shown(&keys);
            f.revoke(&keys).err()
        });
        let refused = refused.expect("an end");
        assert!(refused.errno == errno::EPROTO && refused.words.contains("keys of regions"), "{refused}");
        assert!(f.gone.len() == MAX_REVOKED + 1 && f.may_confuse(&region(0)) && !f.may_confuse(&region(u32::MAX)));
        drop(f);
        assert_eq!(stale.load(Ordering::Relaxed), 0);
    }
}
