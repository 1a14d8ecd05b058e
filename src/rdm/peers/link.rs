// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An endpoint of a provider, as the lane to one peer.

use crate::prov::bind::Options;
use crate::prov::{Endpoint, Lane};
use crate::rdm::limits::{EAGER_MAX, PARCEL_HEAD};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// An endpoint of a provider that leads to one peer.
pub struct Link {
    pub ep: Box<dyn Endpoint>,
    /// Of `ep`: its lane, found once.
    lane: Option<NonNull<dyn Lane>>,
    /// Which of the domain's lanes it is of.
    pub lane_index: usize,
    /// What its events name.
    pub number: usize,
    /// Bytes up to which a message goes as one parcel.
    pub eager_max: usize,
    /// When its peer called, if the address vector did not name it; 0: it does, or this side called.
    pub unlisted: AtomicU64,
    /// Its place in the rota, and how many looks in a row were in vain.
    slot: AtomicUsize,
    empty_polls: AtomicU32,
    /// The endpoint's last turn in which it filled a receive.
    last_fill_turn: AtomicU32,
}

// SAFETY: `lane` is a part of `ep`, which is both.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

impl Link {
    pub fn new(ep: Box<dyn Endpoint>, lane_index: usize, number: usize) -> Link {
        let eager_max = ep.lane().map_or(0, |lane| lane.max().saturating_sub(PARCEL_HEAD).min(EAGER_MAX));
        let lane = ep.lane().map(|lane| {
            // SAFETY: only the lifetime changes; it lies in what `ep` owns, and that stays as long as the link (`lane` below).
            NonNull::from(unsafe { std::mem::transmute::<&dyn Lane, &'static dyn Lane>(lane) })
        });
        Link {
            ep,
            lane,
            lane_index,
            number,
            eager_max,
            unlisted: AtomicU64::new(0),
            slot: AtomicUsize::new(0),
            empty_polls: AtomicU32::new(0),
            last_fill_turn: AtomicU32::new(u32::MAX / 2),
        }
    }

    /// The endpoint's options, but for who calls drivers: that is settled where a lane is opened.
    pub fn set_options(&self, options: Options) {
        self.ep.set_options(&mut |o| *o = Options { driver_calls: o.driver_calls, ..options });
    }

    pub fn unlisted_since(&self) -> u64 {
        // Relaxed: read and written under the endpoint's lock.
        self.unlisted.load(Ordering::Relaxed)
    }

    pub fn set_unlisted(&self, since: u64) {
        self.unlisted.store(since, Ordering::Relaxed);
    }

    // Relaxed: as above, also the next two.
    #[inline]
    pub fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Turns since it filled a receive.
    #[inline(always)]
    pub fn turns_since_fill(&self, turn: u32) -> u32 {
        turn.wrapping_sub(self.last_fill_turn.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub fn set_last_fill(&self, turn: u32) {
        self.last_fill_turn.store(turn, Ordering::Relaxed);
    }

    #[inline]
    pub fn set_empty_polls(&self, looks: u32) {
        self.empty_polls.store(looks, Ordering::Relaxed);
    }

    /// One more look was in vain: how many there were.
    #[inline]
    pub fn count_empty_poll(&self) -> u32 {
        let looks = self.empty_polls.load(Ordering::Relaxed).saturating_add(1);
        self.set_empty_polls(looks);
        looks
    }

    #[inline(always)]
    pub fn lane(&self) -> Option<&dyn Lane> {
        // SAFETY: it lies in what `ep` owns, which is never replaced; borrowed no longer than the link.
        self.lane.map(|lane| unsafe { &*lane.as_ptr() })
    }
}
