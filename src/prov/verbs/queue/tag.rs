// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The number of a work request (`wr_id`), by which a completion finds its endpoint and its operation.

/// The upper half of a work request's number: direction, generation and member. The member is the index of the endpoint
/// in its completion queue; the generation distinguishes it from earlier endpoints with the same index.
///
/// `63: receive | 62..48: generation | 47..32: member | 31..0: sequence`
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    pub(in crate::prov::verbs) const RECV: u64 = 1 << 63;

    pub(in crate::prov::verbs) fn new(member: usize, generation: u16) -> Tag {
        Tag(u64::from(generation & 0x7fff) << 48 | (member as u64) << 32)
    }

    #[inline(always)]
    pub fn send(self, seq: u32) -> u64 {
        self.0 | u64::from(seq)
    }

    #[inline(always)]
    pub fn recv(self, seq: u32) -> u64 {
        self.0 | Tag::RECV | u64::from(seq)
    }

    #[inline(always)]
    pub fn member(wr_id: u64) -> usize {
        (wr_id >> 32 & 0xffff) as usize
    }

    #[inline(always)]
    pub(in crate::prov::verbs) fn is_of(self, wr_id: u64) -> bool {
        (wr_id ^ self.0) >> 32 & 0x7fff_ffff == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_knows_its_own_and_no_other() {
        let tag = Tag::new(7, 0x7fff);
        for wr_id in [tag.send(0), tag.recv(u32::MAX)] {
            assert!(tag.is_of(wr_id));
            assert_eq!(Tag::member(wr_id), 7);
            assert!(!Tag::new(7, 0x7ffe).is_of(wr_id) && !Tag::new(6, 0x7fff).is_of(wr_id));
        }
        assert_eq!(tag.recv(5) as u32, 5);
    }
}
