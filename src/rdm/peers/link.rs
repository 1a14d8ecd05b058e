// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lane to one peer: the connected endpoint of a provider, and the data by which progress decides how often to poll it.

use crate::prov::bind::Options;
use crate::prov::{Endpoint, Lane};
use crate::rdm::limits::{EAGER_MAX, PARCEL_HEAD};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A lane to one peer.
pub struct Link {
    pub ep: Box<dyn Endpoint>,
    /// The lane interface of `ep`, looked up once.
    lane: Option<NonNull<dyn Lane>>,
    /// Index of the lane's provider in `Domain::lanes`.
    pub lane_index: usize,
    /// Identifies this link in the events and results of `ep`. No other link gets the same number.
    pub number: usize,
    /// Length in bytes of the longest eager message of this lane.
    pub eager_max: usize,
    /// Time at which the peer called without being named by the address vector; 0 if the vector names it, or if this side
    /// dialed.
    pub unlisted: AtomicU64,
    /// `slot`: index in the poll schedule. `empty_polls`: number of consecutive polls that found nothing.
    slot: AtomicUsize,
    empty_polls: AtomicU32,
    /// The last turn of the endpoint in which this lane filled a receive.
    last_fill_turn: AtomicU32,
}

// SAFETY: `lane` points into `ep`, which is `Send`, and moves with it.
unsafe impl Send for Link {}
// SAFETY: `lane` points into `ep`, which is `Sync`.
unsafe impl Sync for Link {}

impl Link {
    pub fn new(ep: Box<dyn Endpoint>, lane_index: usize, number: usize) -> Link {
        let eager_max = ep.lane().map_or(0, |lane| lane.max().saturating_sub(PARCEL_HEAD).min(EAGER_MAX));
        let lane = ep.lane().map(|lane| {
            // SAFETY: only the lifetime changes. The lane lies in memory that `ep` owns, which lives as long as this link; `Link::lane`
            // lends it no longer.
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

    /// Applies the endpoint's options. The lane keeps the `driver_calls` that was chosen when it was opened.
    pub fn set_options(&self, options: Options) {
        self.ep.set_options(&mut |o| *o = Options { driver_calls: o.driver_calls, ..options });
    }

    pub fn unlisted_since(&self) -> u64 {
        // Relaxed, because every access holds the endpoint's lock.
        self.unlisted.load(Ordering::Relaxed)
    }

    pub fn set_unlisted(&self, since: u64) {
        self.unlisted.store(since, Ordering::Relaxed);
    }

    // Relaxed here and in the methods below, because every access holds the endpoint's lock.
    #[inline]
    pub fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Turns since the lane last filled a receive.
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

    /// Counts a poll that found nothing, and returns the number of such polls in a row.
    #[inline]
    pub fn count_empty_poll(&self) -> u32 {
        let looks = self.empty_polls.load(Ordering::Relaxed).saturating_add(1);
        self.set_empty_polls(looks);
        looks
    }

    #[inline(always)]
    pub fn lane(&self) -> Option<&dyn Lane> {
        // SAFETY: the lane lies in memory that `ep` owns. `ep` is never replaced, and the borrow ends with that of the link.
        self.lane.map(|lane| unsafe { &*lane.as_ptr() })
    }
}
