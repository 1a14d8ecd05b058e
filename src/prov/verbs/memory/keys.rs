// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of one region on all rails: each rail's device has its own keys for the region.

use crate::prov::verbs::device::rail_names::RAILS_MAX;

/// The keys of a region by rail; 0 where the rail's bit in `mask` is not set.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Keys {
    /// A bit for each rail that can carry the region.
    pub mask: u8,
    /// For local operations.
    pub lkeys: [u32; RAILS_MAX],
    /// For operations of peers.
    pub rkeys: [u32; RAILS_MAX],
}

impl Keys {
    /// Makes the keys from pairs of local and remote keys, the first rail first; `None` for a rail that does not carry
    /// the region.
    pub fn of(all: impl Iterator<Item = Option<(u32, u32)>>) -> Keys {
        let mut keys = Keys::default();
        for (i, (lkey, rkey)) in all.take(RAILS_MAX).enumerate().filter_map(|(i, both)| Some((i, both?))) {
            (keys.lkeys[i], keys.rkeys[i]) = (lkey, rkey);
            keys.mask |= 1 << i;
        }
        keys
    }

    /// The remote keys, each with the number of its rail.
    pub fn names(&self) -> impl Iterator<Item = (usize, u32)> {
        (0..RAILS_MAX).filter(|i| self.mask & 1 << i != 0).map(|i| (i, self.rkeys[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_carries_nothing_has_no_name() {
        let (a, b) = (Keys::of([Some((1, 2)), None, Some((3, 4))].into_iter()), Keys::of([Some((5, 6)), Some((7, 0))].into_iter()));
        assert_eq!((a.mask, a.lkeys[2], a.rkeys[2], b.mask), (5, 3, 4, 3));
        assert_eq!([a, b].map(|keys| keys.names().collect::<Vec<_>>()), [[(0, 2), (2, 4)], [(0, 6), (1, 0)]]);
    }
}
