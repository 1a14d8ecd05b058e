// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of regions on all rails, as the two sides exchange them: keys of the peer's regions that this side has
//! asked for, and keys of this side's regions that the peer may have stored. Both tables are bounded. The peer is asked
//! about the same key only once in a while. A peer that keeps too many keys of closed regions breaks the protocol.

use crate::error::{Code, Error, Result, errno};
use crate::prov::verbs::device::rail_names::RAILS_MAX;
use crate::prov::verbs::memory::keys::Keys;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most keys of the other side that each side stores.
const MAX_PEER_KEYS: usize = 4096;
/// Most revoked keys per peer. A peer that makes no progress can hold one full table of current keys and one of older
/// keys.
const MAX_REVOKED: usize = 2 * MAX_PEER_KEYS;
/// After this many operations on a key that has no further rails, or has no answer yet, the peer is asked again.
const ASK_AGAIN_AFTER: u32 = 64;

/// Knowledge about a key of the peer.
enum PeerKeys {
    /// The peer was asked and has not answered; uses since then.
    Asked(u32),
    /// The region has a key on the first rail only; uses since the answer.
    Alone(u32),
    Keys(Arc<Keys>),
}

pub struct RailKeys {
    /// The peer's keys, by the key on the first rail.
    told: HashMap<u32, PeerKeys>,
    /// Keys of this side that the peer may have stored (the last ones that it asked for), with their position in `order`.
    shown: HashMap<u32, (u64, Arc<Keys>)>,
    /// The keys of `shown` by position, the oldest first.
    order: BTreeMap<u64, u32>,
    last: u64,
    /// Keys of closed regions that the peer has not confirmed to have forgotten, by the key on the first rail.
    gone: HashMap<u32, Arc<Keys>>,
    /// The same keys, each with the number of its rail. No new region gets one of them until the peer confirms.
    names: HashSet<(usize, u32)>,
    /// The number of keys in `gone`, for all connections of the domain.
    stale: Arc<AtomicUsize>,
}

impl RailKeys {
    pub fn new(stale: Arc<AtomicUsize>) -> RailKeys {
        let (told, shown, order) = Default::default();
        let (gone, names) = Default::default();
        RailKeys { told, shown, order, last: 0, gone, names, stale }
    }

    /// The keys on all rails that belong to this key of the first rail, if known. True: the caller has to ask the peer.
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

    /// Stores the peer's answer, if it was asked.
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

    /// Records that the peer has asked for these keys.
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

    /// Revokes the keys of a region that is being closed; returns whether the peer has to be told. An error: the peer
    /// confirms too few of the revoked keys.
    pub fn revoke(&mut self, keys: &Arc<Keys>) -> Result<bool> {
        let Some((place, _)) = self.shown.remove(&keys.rkeys[0]) else { return Ok(false) };
        self.order.remove(&place);
        if self.gone.insert(keys.rkeys[0], keys.clone()).is_none() {
            self.names.extend(keys.names());
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
        match self.gone.len() > MAX_REVOKED {
            false => Ok(true),
            true => {
                Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer does not forget the keys of regions whose closing it was told"))
            }
        }
    }

    /// The peer has confirmed that it has forgotten these keys.
    pub fn on_forgotten(&mut self, rkey: u32) {
        if let Some(keys) = self.gone.remove(&rkey) {
            keys.names().for_each(|name| _ = self.names.remove(&name));
            self.stale.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// True if the peer may take one of these keys for a key of a closed region.
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
