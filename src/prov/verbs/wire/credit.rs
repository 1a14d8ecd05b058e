// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Credits: the number of parcels that a side of a lane may send, so that each parcel finds a receive. A peer gets few
//! credits at first, and more once it has used those, because each credit is a buffer on this side. A shared receive
//! queue would need as many buffers, because a receive that was promised to one peer cannot serve another.

use crate::error::{Code, Error, Result, errno};

/// Receives posted for parcels at first. Injected messages should leave during the call, so several in a row must find
/// receives before the peer reports free ones.
pub const FIRST: u32 = 24;
/// Receives posted for parcels at most.
pub const RECEIVES: u32 = 48;

/// The purpose of a parcel. The value is the number of credits that a parcel of this purpose must leave for the more
/// urgent purposes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A parcel of the caller.
    Caller = 3,
    /// A question or answer of the lane.
    Own = 1,
    /// A report of free receives, and nothing else.
    Credit = 0,
}

/// Counters since the beginning of the connection.
pub struct Credit {
    /// Parcels sent.
    sent: u32,
    /// Receives that the peer has reported beyond the first ones.
    returned: u32,
    /// Receives posted here beyond the first ones.
    freed: u32,
    /// The value of `freed` that the peer was last told.
    reported: u32,
    /// Receives here.
    receives: u32,
    /// Parcels received since `receives` last changed.
    parcels_since_growth: u32,
}

impl Default for Credit {
    fn default() -> Credit {
        Credit { sent: 0, returned: 0, freed: 0, reported: 0, receives: FIRST, parcels_since_growth: 0 }
    }
}

impl Credit {
    /// The number of parcels for which the peer has receives.
    fn left(&self) -> u32 {
        self.returned.wrapping_add(FIRST).wrapping_sub(self.sent)
    }

    pub fn may_send(&self, class: Class) -> bool {
        self.left() > class as u32
    }

    /// Counts a parcel that is sent. Returns the count of receives for the parcel's header.
    pub fn send(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.reported = self.freed;
        self.freed
    }

    /// Handles the count of receives in the header of a parcel of the peer.
    pub fn on_report(&mut self, returned: u32) -> Result<()> {
        if returned.wrapping_sub(self.returned) > RECEIVES - self.left() {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer reports more free receives than a lane has"));
        }
        self.returned = returned;
        Ok(())
    }

    /// Counts a receive that was posted again after a parcel.
    pub fn on_receive_posted(&mut self) {
        self.freed = self.freed.wrapping_add(1);
        self.parcels_since_growth = self.parcels_since_growth.saturating_add(1);
    }

    /// The number of further receives that the peer has earned by using the existing ones.
    pub fn take_earned(&mut self) -> u32 {
        if self.parcels_since_growth < 2 * self.receives {
            return 0;
        }
        self.parcels_since_growth = 0;
        self.receives.min(RECEIVES - self.receives)
    }

    /// Counts `by` receives that were posted in addition.
    pub fn on_growth(&mut self, by: u32) {
        (self.receives, self.freed) = (self.receives + by, self.freed.wrapping_add(by));
    }

    /// True if so many receives are free again that the peer is told by a parcel of its own.
    pub fn must_report(&self) -> bool {
        self.freed.wrapping_sub(self.reported) >= self.receives / 4
    }
}

/// While long messages of this many bytes are being read, no further read begins, except for a second one.
const FETCHED: usize = 256 << 10;

/// The reads of long messages that the peer has offered. The device sends a parcel only after all reads that it was
/// given before the parcel. So a side with many reads hardly gets to offer messages itself, and the other side offers
/// all the more.
#[derive(Default)]
pub struct Fetches {
    count: u32,
    bytes: usize,
}

impl Fetches {
    /// True if another read may begin. `most`: reads that the device can have in flight.
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

    /// One side, with the parcels in flight to it.
    #[derive(Default)]
    struct Side {
        credit: Credit,
        inbox: VecDeque<u32>,
    }

    fn send(from: &mut Side, to: &mut Side, class: Class) -> bool {
        let may = from.credit.may_send(class);
        if may {
            to.inbox.push_back(from.credit.send());
            assert!(to.inbox.len() <= to.credit.receives as usize, "a parcel without a receive");
        }
        may
    }

    fn take_one(side: &mut Side) {
        if let Some(returned) = side.inbox.pop_front() {
            side.credit.on_report(returned).unwrap();
            side.credit.on_receive_posted();
            let more = side.credit.take_earned();
            side.credit.on_growth(more);
        }
    }

    fn take(side: &mut Side) {
        while !side.inbox.is_empty() {
            take_one(side);
        }
    }

    #[test]
    fn few_receives_at_first_and_more_with_use_in_any_order() {
        for seed in 1..200u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut pick = |n: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % n
            };
            let mut sides = [Side::default(), Side::default()];
            for _ in 0..2000 {
                let [a, b] = &mut sides;
                let (me, other) = if pick(2) == 0 { (a, b) } else { (b, a) };
                match pick(4) {
                    0 => drop(send(me, other, Class::Caller)),
                    1 => drop(send(me, other, Class::Own)),
                    _ => take_one(me),
                }
                if me.credit.must_report() {
                    send(me, other, Class::Credit);
                }
            }
            let [a, b] = &mut sides;
            for _ in 0..4 {
                for k in 0..2 {
                    let (me, other) = if k == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
                    take(me);
                    if me.credit.must_report() {
                        send(me, other, Class::Credit);
                    }
                }
            }
            assert!(a.credit.may_send(Class::Caller) && b.credit.may_send(Class::Caller), "seed {seed}: they do not go on");
            assert!(a.credit.receives == RECEIVES && b.credit.receives == RECEIVES, "seed {seed}: in use, and no larger");
        }
        let mut silent = Credit::default();
        (0..2 * FIRST - 1).for_each(|_| silent.on_receive_posted());
        assert_eq!(silent.take_earned(), 0);
    }

    /// A wrong count changes nothing: the earlier count still holds.
    #[test]
    fn a_peer_that_lies_of_its_receives_is_caught() {
        let mut credit = Credit::default();
        for _ in 0..5 {
            credit.send();
        }
        let most = RECEIVES - FIRST + 5;
        for lie in [most + 1, u32::MAX, 1 << 31] {
            let e = credit.on_report(lie).unwrap_err();
            assert!(e.code == Code::PeerBroke && e.to_string().contains("reports more free"), "{lie}: {e}");
        }
        credit.on_report(most).unwrap();
        assert!(credit.on_report(most - 1).is_err(), "it takes back what it promised");
        let sent = (0..).take_while(|_| credit.may_send(Class::Credit) && credit.send() == 0).count();
        assert_eq!(sent, RECEIVES as usize);
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
                if a.credit.must_report() {
                    assert!(send(&mut a, &mut b, Class::Credit));
                }
                if b.credit.must_report() {
                    assert!(send(&mut b, &mut a, Class::Credit));
                }
                take(&mut a);
                take(&mut b);
            }
            assert!(!a.credit.must_report() && !b.credit.must_report(), "credits alone are not answered for ever");
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
        let most = RECEIVES - FIRST;
        assert!(credit.on_report(most + 1).is_err() && credit.on_report(u32::MAX).is_err());
        credit.send();
        assert!(credit.on_report(most + 2).is_err() && credit.on_report(most + 1).is_ok() && credit.on_report(most).is_err());
    }
}
