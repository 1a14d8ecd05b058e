// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits on the regions of a domain: one on the regions that the program registers, and one on those that its messages
//! expose to peers. Neither kind takes the other's part.

use crate::error::{Error, errno};
use crate::mr::key::OWN_REGIONS;
use crate::prov::Reach;
use crate::rdm::limits::{EXPOSED_FLOOR, EXPOSED_MAX};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Messages may use one `CARD_FRACTION`-th of a card's regions, because a card has one limit for both kinds together.
const CARD_FRACTION: usize = 4;

pub struct RegionQuota {
    exposed: AtomicUsize,
    most_exposed: usize,
    most_program: usize,
}

/// Regions that the program may register, of `all` that a lane offers.
pub fn program_share(reach: Reach, all: usize) -> usize {
    if reach == Reach::Devices { all - exposed_of_card(all) } else { all }
}

fn exposed_of_card(all: usize) -> usize {
    (all / CARD_FRACTION).min(EXPOSED_MAX)
}

impl RegionQuota {
    /// The quota of a domain. `lanes`: the reach of each lane, and the number of regions that it offers.
    pub fn of(lanes: impl Iterator<Item = (Reach, usize)>) -> RegionQuota {
        let mut quota = RegionQuota { exposed: AtomicUsize::new(0), most_exposed: EXPOSED_MAX, most_program: OWN_REGIONS };
        for (reach, all) in lanes.filter(|(reach, _)| *reach == Reach::Devices) {
            quota.most_exposed = quota.most_exposed.min(exposed_of_card(all).max(1));
            quota.most_program = quota.most_program.min(program_share(reach, all));
        }
        quota
    }

    /// Regions that the program may register.
    pub fn most_program(&self) -> usize {
        self.most_program
    }

    /// True if `more` regions may be exposed to a peer that has `has` already. A peer with more than `EXPOSED_FLOOR`
    /// regions may have at most as many as the first half of all regions leaves free. The second half is for peers that
    /// have few, so that slow peers do not stop the messages to others.
    pub fn may_expose(&self, more: usize, has: usize) -> bool {
        let (all, has) = (self.exposed(), has.saturating_add(more));
        let fits = all.saturating_add(more) <= self.most_exposed;
        fits && (has <= EXPOSED_FLOOR || has <= (self.most_exposed / 2).saturating_sub(all))
    }

    /// Number of exposed regions. All accesses are relaxed: the count is only compared with limits, and orders nothing
    /// else.
    pub fn exposed(&self) -> usize {
        self.exposed.load(Ordering::Relaxed)
    }

    pub fn add(&self, more: usize) {
        self.exposed.fetch_add(more, Ordering::Relaxed);
    }

    pub fn give_back(&self) {
        self.exposed.fetch_sub(1, Ordering::Relaxed);
    }
}

/// True if an error means a lack of room at present, so that waiting may help.
pub fn is_out_of_room(e: &Error) -> bool {
    e.is_again() || matches!(e.errno, errno::ENOSPC | errno::ENOMEM | errno::EMFILE | errno::ENFILE | errno::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_peer_leaves_room_for_the_others() {
        let quota = RegionQuota::of([(Reach::Host, OWN_REGIONS), (Reach::Ports, OWN_REGIONS)].into_iter());
        assert_eq!(quota.most_program(), OWN_REGIONS);
        let mut has = [0usize; 20];
        for (peer, exposed) in has.iter_mut().enumerate() {
            while quota.may_expose(8, *exposed) {
                quota.add(8);
                *exposed += 8;
            }
            assert!(*exposed >= EXPOSED_FLOOR, "peer {peer} got {exposed} of {EXPOSED_MAX}");
        }
        assert!(quota.exposed() <= EXPOSED_MAX && has[0] <= EXPOSED_MAX / 2);
        (0..has[0]).for_each(|_| quota.give_back());
        assert!(quota.may_expose(8, has[19]));
    }

    #[test]
    fn a_card_keeps_regions_for_the_program() {
        let quota = RegionQuota::of([(Reach::Host, OWN_REGIONS), (Reach::Devices, 400)].into_iter());
        assert_eq!((quota.most_program(), program_share(Reach::Devices, 400), program_share(Reach::Host, 400)), (300, 300, 400));
        assert!(quota.may_expose(50, 0) && !quota.may_expose(51, 0));
    }
}
