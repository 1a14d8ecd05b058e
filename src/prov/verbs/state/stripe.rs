// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A striped operation: a read or write cut into parts that go over several rails. A part is one or several work
//! requests of one rail. A part names memory by its keys on all rails, so another rail can carry the part again.

use crate::error::Error;
use crate::prov::bind::Ending;
use crate::prov::op::Dir;
use crate::prov::verbs::memory::keys::Keys;
use crate::prov::verbs::sys::abi::ibv_sge;
use std::collections::VecDeque;
use std::sync::Arc;

/// The smallest part, in bytes.
const MIN_PART: usize = 64 << 10;
/// The largest part, in bytes.
const MAX_PART: usize = 1 << 20;
/// An operation is cut into at least this many parts per rail, unless the parts would be shorter than `MIN_PART`.
const PARTS_PER_RAIL: usize = 4;
/// Most work requests of a part.
pub const MAX_REQUESTS: usize = 16;

/// A piece of local memory. `of`: index into `local_keys`.
#[derive(Clone, Copy)]
pub struct LocalPiece {
    pub addr: u64,
    pub len: u32,
    pub of: u16,
}

pub struct StripeRequest {
    /// The address at the peer.
    pub addr: u64,
    /// Index into `remote_keys`.
    pub of: u16,
    /// The index after the last piece of this request. The first piece follows the last piece of the request before.
    pub pieces: usize,
}

pub struct StripePart {
    /// The index after the last request of this part. The first request follows the last request of the part before.
    pub requests: usize,
    pub len: usize,
    /// A bit for each rail that can carry the part.
    pub mask: u8,
    /// In a list: the index of its first run.
    pub run: u16,
    /// The part has succeeded.
    pub over: bool,
}

/// The receiver of the operation's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeOrigin {
    /// The caller.
    Caller,
    /// The caller; and the lane, because the operation is the lane's read of a long message.
    Fetch,
    /// The lane's job, which then goes on.
    LaneJob,
}

pub struct Stripe {
    pub id: u64,
    pub dir: Dir,
    /// The keys of the local regions.
    pub local_keys: Vec<Arc<Keys>>,
    /// The keys of the remote regions.
    pub remote_keys: Vec<Arc<Keys>>,
    pub pieces: Vec<LocalPiece>,
    pub requests: Vec<StripeRequest>,
    pub parts: Vec<StripePart>,
    /// Parts that still have to be posted.
    pub todo: VecDeque<u16>,
    /// Parts that have not ended.
    pub left: usize,
    pub failed: Option<Error>,
    pub end: Ending,
    pub total: usize,
    /// The path to the local memory (`mr::path_of`).
    pub path_bits: u8,
    /// The operation may overtake others of this kind (a list, whose blocks have no order).
    pub unordered: bool,
    /// The operation overtakes nothing, whatever order the endpoint promises.
    pub fenced: bool,
    pub whose: StripeOrigin,
    /// Fault injection: the operation does not begin before this time; 0: no delay.
    pub held_until: u64,
    /// Bytes of a part.
    size: usize,
    /// Most work requests of a part.
    most: usize,
}

/// The bytes of a part, for an operation of `total` bytes over `rails` rails.
fn size_of_part(total: usize, rails: usize) -> usize {
    (total / (PARTS_PER_RAIL * rails.max(1)))
        .next_multiple_of(MIN_PART)
        .clamp(MIN_PART, MAX_PART)
        .max(total.div_ceil(usize::from(u16::MAX)))
}

impl Stripe {
    /// A new operation without bytes. `most`: work requests that a part may have.
    pub fn new(dir: Dir, total: usize, rails: usize, most: usize, end: Ending, how: u8) -> Stripe {
        Stripe {
            id: 0,
            dir,
            local_keys: Vec::new(),
            remote_keys: Vec::new(),
            pieces: Vec::new(),
            requests: Vec::new(),
            parts: Vec::new(),
            todo: VecDeque::new(),
            left: 0,
            failed: None,
            end,
            total,
            path_bits: how,
            unordered: false,
            fenced: false,
            whose: StripeOrigin::Caller,
            held_until: 0,
            size: size_of_part(total, rails),
            most: most.clamp(1, MAX_REQUESTS),
        }
    }

    /// Adds bytes that lie together at the peer, from `addr` on. Each piece names its local keys. `of` is the index of
    /// the remote keys.
    pub fn add(&mut self, mut addr: u64, of: u16, run: u16, local: impl Iterator<Item = LocalPiece>) {
        let mut fresh = true;
        for mut piece in local {
            while piece.len > 0 {
                let room = self.room();
                let take = (piece.len as usize).min(room);
                let begins = room == self.size || fresh;
                if room == self.size {
                    self.parts.push(StripePart { requests: self.requests.len(), len: 0, mask: u8::MAX, run, over: false });
                }
                if begins {
                    self.requests.push(StripeRequest { addr, of, pieces: self.pieces.len() });
                }
                self.pieces.push(LocalPiece { len: take as u32, ..piece });
                let mask =
                    self.local_keys.get(piece.of as usize).map_or(1, |k| k.mask) & self.remote_keys.get(of as usize).map_or(1, |k| k.mask);
                let requests = self.requests.len();
                if let (Some(part), Some(request)) = (self.parts.last_mut(), self.requests.last_mut()) {
                    (part.len, part.mask, part.requests) = (part.len + take, part.mask & mask, requests);
                    request.pieces = self.pieces.len();
                }
                (piece.addr, piece.len, addr) = (piece.addr + take as u64, piece.len - take as u32, addr + take as u64);
                fresh = false;
            }
        }
    }

    /// Bytes that the last part still takes; the size of a whole part if the next bytes begin a new part.
    fn room(&self) -> usize {
        let before = self.parts.len().checked_sub(2).map_or(0, |i| self.parts[i].requests);
        match self.parts.last() {
            Some(part) if part.len < self.size && part.requests - before < self.most => self.size - part.len,
            _ => self.size,
        }
    }

    /// Ends the adding of bytes: all parts can now be posted.
    pub fn close(&mut self) {
        self.left = self.parts.len();
        self.todo = (0..self.parts.len() as u16).collect();
    }

    fn first_request(&self, part: usize) -> usize {
        part.checked_sub(1).map_or(0, |before| self.parts[before].requests)
    }

    /// The number of work requests of a part.
    pub fn requests_of(&self, part: usize) -> usize {
        self.parts.get(part).map_or(0, |p| p.requests - self.first_request(part))
    }

    /// Calls `each` for every work request of a part on one rail, with the remote address and key and the local pieces.
    pub fn for_each_request(&self, part: usize, rail: usize, mut each: impl FnMut(u64, u32, &mut dyn Iterator<Item = ibv_sge>)) {
        let first = self.first_request(part);
        let mut piece = first.checked_sub(1).map_or(0, |before| self.requests[before].pieces);
        for request in &self.requests[first..self.parts[part].requests] {
            let rkey = self.remote_keys.get(request.of as usize).map_or(0, |k| k.rkeys[rail]);
            let lkey = |p: &LocalPiece| self.local_keys.get(p.of as usize).map_or(0, |k| k.lkeys[rail]);
            let pieces = &self.pieces[piece..request.pieces];
            each(request.addr, rkey, &mut pieces.iter().map(|p| ibv_sge { addr: p.addr, length: p.len, lkey: lkey(p) }));
            piece = request.pieces;
        }
    }

    /// Records the success of a part. False: the part had succeeded before.
    pub fn end_part(&mut self, part: u16) -> bool {
        let Some(p) = self.parts.get_mut(part as usize).filter(|p| !p.over) else { return false };
        p.over = true;
        self.left -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(n: u32, mask: u8) -> Arc<Keys> {
        Arc::new(Keys { mask, lkeys: [n; 8], rkeys: [n + 100; 8] })
    }

    fn stripe(total: usize) -> Stripe {
        let mut s = Stripe::new(Dir::Write, total, 2, MAX_REQUESTS, Ending::default(), 0);
        (s.local_keys, s.remote_keys) = (vec![keys(1, 3), keys(2, 1)], vec![keys(3, 7)]);
        s
    }

    /// Every byte of the peer's range is in one part, and comes from the right local byte.
    #[test]
    fn all_bytes_once_and_where_they_belong() {
        for lens in [vec![3 << 20], vec![100_001, 7, 900_000, 64 << 10], vec![5000; 500]] {
            let total: usize = lens.iter().sum();
            let mut s = stripe(total);
            let mut at = 0;
            let pieces: Vec<_> =
                lens.iter().map(|len| (LocalPiece { addr: 0x10_0000 + at as u64, len: *len as u32, of: 0 }, at += len).0).collect();
            s.add(0x9000_0000, 0, 0, pieces.into_iter());
            s.close();
            let mut seen = 0;
            for part in 0..s.parts.len() {
                let mut bytes = 0;
                assert!(s.requests_of(part) <= MAX_REQUESTS && s.parts[part].mask == 3);
                s.for_each_request(part, 1, |addr, rkey, pieces| {
                    assert_eq!((addr, rkey), (0x9000_0000 + seen as u64 + bytes as u64, 103));
                    for p in pieces {
                        assert_eq!((p.addr, p.lkey), (0x10_0000 + (seen + bytes) as u64, 1));
                        bytes += p.length as usize;
                    }
                });
                assert!(bytes == s.parts[part].len && bytes <= MAX_PART);
                seen += bytes;
            }
            assert_eq!(seen, total);
        }
    }

    #[test]
    fn blocks_share_a_part_until_it_is_long_enough() {
        let mut s = stripe(100 * 16384);
        for i in 0..100u64 {
            let of = if i < 50 { 0 } else { 1 };
            s.add(0x9000_0000 + i * 65536, 0, i as u16, std::iter::once(LocalPiece { addr: 4096 + i * 32768, len: 16384, of }));
        }
        s.close();
        assert!(s.parts.iter().all(|p| p.len <= s.size) && s.requests.len() >= 100);
        assert_eq!((0..s.parts.len()).map(|i| s.requests_of(i)).sum::<usize>(), s.requests.len());
        assert_eq!((s.parts[0].run, s.parts[0].mask, s.parts.last().map(|p| p.mask)), (0, 3, Some(1)));
        assert!(s.end_part(0) && !s.end_part(0) && s.left == s.parts.len() - 1);
    }
}
