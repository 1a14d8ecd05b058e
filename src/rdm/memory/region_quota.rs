// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many regions of a domain the program may have, and how many its messages may have lent to peers. Neither takes the other's.

use crate::error::{Error, errno};
use crate::mr::key::OWN_REGIONS;
use crate::prov::Reach;
use crate::rdm::limits::{LENT_FLOOR, LENT_MAX};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One part of so many of a card's regions is for messages: cards count both together.
const CARDS_PART: usize = 4;

pub struct Room {
    lent: AtomicUsize,
    most_lent: usize,
    most_own: usize,
}

/// Regions that the program may have, of `all` that a lane has.
pub fn own_of(reach: Reach, all: usize) -> usize {
    if reach == Reach::Devices { all - lent_of_card(all) } else { all }
}

fn lent_of_card(all: usize) -> usize {
    (all / CARDS_PART).min(LENT_MAX)
}

impl Room {
    /// Of a domain over lanes that have so many regions each.
    pub fn of(lanes: impl Iterator<Item = (Reach, usize)>) -> Room {
        let mut room = Room { lent: AtomicUsize::new(0), most_lent: LENT_MAX, most_own: OWN_REGIONS };
        for (reach, all) in lanes.filter(|(reach, _)| *reach == Reach::Devices) {
            room.most_lent = room.most_lent.min(lent_of_card(all).max(1));
            room.most_own = room.most_own.min(own_of(reach, all));
        }
        room
    }

    /// Regions that the program may have.
    pub fn most_own(&self) -> usize {
        self.most_own
    }

    /// Whether `more` may be lent to a peer that has `has`. Of one half a peer takes no more than it leaves; the other half is for
    /// peers that have few, so that those which are late do not stop the messages to others.
    pub fn may_lend(&self, more: usize, has: usize) -> bool {
        let (all, has) = (self.lent(), has.saturating_add(more));
        let fits = all.saturating_add(more) <= self.most_lent;
        fits && (has <= LENT_FLOOR || has <= (self.most_lent / 2).saturating_sub(all))
    }

    /// Regions that are lent. Relaxed, here and below: a number, by which nothing else is ordered.
    pub fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    pub fn add(&self, more: usize) {
        self.lent.fetch_add(more, Ordering::Relaxed);
    }

    pub fn give_back(&self) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether an error says that there is no room now, where waiting may help.
pub fn is_want_of_room(e: &Error) -> bool {
    e.is_again() || matches!(e.errno, errno::ENOSPC | errno::ENOMEM | errno::EMFILE | errno::ENFILE | errno::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_peer_leaves_room_for_the_others() {
        let room = Room::of([(Reach::Host, OWN_REGIONS), (Reach::Ports, OWN_REGIONS)].into_iter());
        assert_eq!(room.most_own(), OWN_REGIONS);
        let mut has = [0usize; 20];
        for (peer, lent) in has.iter_mut().enumerate() {
            while room.may_lend(8, *lent) {
                room.add(8);
                *lent += 8;
            }
            assert!(*lent >= LENT_FLOOR, "peer {peer} got {lent} of {LENT_MAX}");
        }
        assert!(room.lent() <= LENT_MAX && has[0] <= LENT_MAX / 2);
        (0..has[0]).for_each(|_| room.give_back());
        assert!(room.may_lend(8, has[19]));
    }

    #[test]
    fn a_card_keeps_regions_for_the_program() {
        let room = Room::of([(Reach::Host, OWN_REGIONS), (Reach::Devices, 400)].into_iter());
        assert_eq!((room.most_own(), own_of(Reach::Devices, 400), own_of(Reach::Host, 400)), (300, 300, 400));
        assert!(room.may_lend(50, 0) && !room.may_lend(51, 0));
    }
}
