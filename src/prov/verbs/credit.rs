// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Credits: how many parcels a side of a lane may send, so that none ever meets a peer without a receive for it.

use crate::error::{Code, Error, Result, errno};

/// Receives that are posted for parcels, always.
pub const RECEIVES: u32 = 48;

/// What a parcel is for: the later ones have receives that the earlier ones leave to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The caller's.
    Caller = 12,
    /// The lane's own questions and answers.
    Own = 4,
    /// Says that receives are free again, and nothing else.
    Credit = 0,
}

/// All counted since the connection began.
#[derive(Default)]
pub struct Credit {
    sent: u32,
    /// Of those, the receives that the peer says it has posted anew.
    returned: u32,
    /// Receives that were posted anew here, and what the peer was told of that.
    freed: u32,
    told: u32,
}

impl Credit {
    pub fn may_send(&self, class: Class) -> bool {
        self.sent.wrapping_sub(self.returned) < RECEIVES - class as u32
    }

    /// A parcel goes out; gives what it says of receives here.
    pub fn send(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.told = self.freed;
        self.freed
    }

    /// What a parcel of the peer's says of its receives.
    pub fn heard(&mut self, returned: u32) -> Result<()> {
        if returned.wrapping_sub(self.returned) > self.sent.wrapping_sub(self.returned) {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer has taken more parcels than it was sent"));
        }
        self.returned = returned;
        Ok(())
    }

    /// A receive was posted anew here.
    pub fn freed(&mut self) {
        self.freed = self.freed.wrapping_add(1);
    }

    /// So much is free again that the peer is told by a parcel of its own.
    pub fn owes(&self) -> bool {
        self.freed.wrapping_sub(self.told) >= RECEIVES / 4
    }
}

/// Bytes of offered messages under way beyond which no further read is begun, but for a second one.
const FETCHED: usize = 256 << 10;

/// Reads of what the peer has offered. The device sends a parcel after all reads that it was given before, so a side with many
/// of them hardly has a turn to offer anything itself, and the other side offers all the more.
#[derive(Default)]
pub struct Fetches {
    count: u32,
    bytes: usize,
}

impl Fetches {
    /// `most`: reads that the device has under way at once.
    pub fn may_begin(&self, most: u8) -> bool {
        self.count < u32::from(most) && (self.count < 2 || self.bytes < FETCHED)
    }

    pub fn begin(&mut self, len: usize) {
        (self.count, self.bytes) = (self.count + 1, self.bytes.saturating_add(len));
    }

    pub fn end(&mut self, len: usize) {
        (self.count, self.bytes) = (self.count.saturating_sub(1), self.bytes.saturating_sub(len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A side with what is on its way to it.
    #[derive(Default)]
    struct Side {
        credit: Credit,
        inbox: VecDeque<u32>,
    }

    fn send(from: &mut Side, to: &mut Side, class: Class) -> bool {
        let may = from.credit.may_send(class);
        if may {
            to.inbox.push_back(from.credit.send());
            assert!(to.inbox.len() <= RECEIVES as usize, "a parcel without a receive");
        }
        may
    }

    fn take(side: &mut Side) {
        while let Some(returned) = side.inbox.pop_front() {
            side.credit.heard(returned).unwrap();
            side.credit.freed();
        }
    }

    #[test]
    fn both_sides_full_go_on_again() {
        let (mut a, mut b) = (Side::default(), Side::default());
        for round in 0..1000 {
            let class = if round % 3 == 0 { Class::Own } else { Class::Caller };
            while send(&mut a, &mut b, class) {}
            while round % 2 == 0 && send(&mut b, &mut a, class) {}
            take(&mut a);
            take(&mut b);
            for _ in 0..3 {
                if a.credit.owes() {
                    assert!(send(&mut a, &mut b, Class::Credit));
                }
                if b.credit.owes() {
                    assert!(send(&mut b, &mut a, Class::Credit));
                }
                take(&mut a);
                take(&mut b);
            }
            assert!(!a.credit.owes() && !b.credit.owes(), "credits alone are not answered for ever");
            assert!(a.credit.may_send(Class::Caller) && b.credit.may_send(Class::Caller));
        }
    }

    #[test]
    fn reads_leave_room_for_parcels() {
        let all = |len: usize, most: u8| {
            let mut fetches = Fetches::default();
            let begun = (0..1000).take_while(|_| fetches.may_begin(most).then(|| fetches.begin(len)).is_some()).count();
            (0..begun).for_each(|_| fetches.end(len));
            assert!((fetches.count, fetches.bytes) == (0, 0) && fetches.may_begin(most));
            begun
        };
        assert_eq!([all(5 << 10, 16), all(64 << 10, 16), all(1 << 30, 16), all(1 << 30, 1)], [16, 4, 2, 1]);
    }

    #[test]
    fn lies_about_receives_are_found() {
        let mut credit = Credit::default();
        assert!(credit.heard(1).is_err() && credit.heard(u32::MAX).is_err());
        credit.send();
        assert!(credit.heard(2).is_err() && credit.heard(1).is_ok() && credit.heard(0).is_err());
    }
}
