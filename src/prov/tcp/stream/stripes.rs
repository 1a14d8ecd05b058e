// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A long body that goes over several streams, cut into stripes: which of them are on their way, as its sender and as its
//! receiver see it.

use crate::error::{Error, Result};
use crate::prov::tcp::memory::source::{BodySource, gather};
use crate::prov::tcp::wire::frame::{STRIPE, STRIPE_HEAD, protocol_error, status_of, two_words, word};

/// A stripe that a stream has begun to send.
pub struct Stripe {
    pub head: [u8; STRIPE_HEAD],
    /// Byte of the body that it begins with, and how many it has.
    pub begin: u64,
    pub len: u64,
    /// Bytes of head and stripe that are on the wire.
    pub at: u64,
    /// The rest of it, from this byte on, of a body that was given up.
    pub saved: Option<(Box<[u8]>, u64)>,
}

impl Stripe {
    /// Bytes of the body that are on the wire.
    pub fn done(&self) -> u64 {
        self.at.saturating_sub(STRIPE_HEAD as u64)
    }
}

/// The stripes of a body.
pub struct Stripes {
    /// Of the bodies in stripes of this direction.
    number: u64,
    /// Given to streams; there will be so many.
    next: u64,
    limit: u64,
    /// What each stream is sending.
    under_way: Box<[Option<Stripe>]>,
    /// How many there were, and a status.
    end: [u8; STRIPE_HEAD],
}

impl Stripes {
    /// What stands on the first stream behind the frame, once all stripes are out.
    pub fn end_words(&self) -> Option<&[u8; STRIPE_HEAD]> {
        self.are_out().then_some(&self.end)
    }

    pub fn are_out(&self) -> bool {
        self.next == self.limit && self.under_way.iter().all(Option::is_none)
    }

    /// No stripe begins any more, and those that have end from a copy, if `keep` lets one be made.
    pub fn give_up(&mut self, source: &BodySource, len: u64, why: &Error, keep: bool) {
        for stripe in self.under_way.iter_mut().flatten() {
            let first = stripe.begin + stripe.done();
            if let BodySource::Pieces(pieces) = source
                && keep
            {
                let rest = (stripe.begin + stripe.len).min(len) - first;
                stripe.saved = Some((gather(pieces.as_slice(), first, rest), first));
            }
        }
        self.limit = self.next;
        self.end = two_words(self.limit, status_of(why.code));
    }

    /// Those of a body of `len` bytes, for so many streams.
    pub fn new(number: u64, len: u64, streams: usize) -> Stripes {
        let total = len.div_ceil(STRIPE);
        let under_way = std::iter::repeat_with(|| None).take(streams).collect();
        Stripes { number, next: 0, limit: total, under_way, end: two_words(total, 0) }
    }

    /// What the stream with this index has to send next, out of its place while it is sent.
    pub fn take(&mut self, index: usize, len: u64) -> Option<Stripe> {
        let place = self.under_way.get_mut(index)?;
        if place.is_none() && self.next < self.limit {
            let begin = self.next * STRIPE;
            let head = two_words(self.number, self.next);
            *place = Some(Stripe { head, begin, len: (len - begin).min(STRIPE), at: 0, saved: None });
            self.next += 1;
        }
        place.take()
    }

    pub fn put_back(&mut self, index: usize, stripe: Stripe) {
        if let Some(place) = self.under_way.get_mut(index)
            && stripe.done() < stripe.len
        {
            *place = Some(stripe);
        }
    }
}

/// How far a body is.
pub struct Gathering {
    pub number: u64,
    /// Stripes that it has.
    total: u64,
    /// Those that have begun to come, and how many have come whole.
    begun: Box<[u64]>,
    pub came: u64,
    /// One behind the last that has begun.
    most: u64,
    /// How many its sender has sent, once it has said so.
    sent: Option<u64>,
    words: [u8; STRIPE_HEAD],
    have: usize,
}

impl Gathering {
    pub fn new(number: u64, len: u64) -> Gathering {
        let total = len.div_ceil(STRIPE);
        let begun = vec![0; total.div_ceil(64) as usize].into();
        Gathering { number, total, begun, came: 0, most: 0, sent: None, words: [0; STRIPE_HEAD], have: 0 }
    }

    pub fn all_came(&self) -> bool {
        self.sent == Some(self.came)
    }

    /// Takes what the first stream has of the words that end the body; gives how many bytes, and the status.
    pub fn end(&mut self, bytes: &[u8]) -> Result<(usize, u64)> {
        let n = bytes.len().min(STRIPE_HEAD - self.have);
        self.words[self.have..self.have + n].copy_from_slice(&bytes[..n]);
        self.have += n;
        if self.have < STRIPE_HEAD || self.sent.is_some() {
            return Ok((n, 0));
        }
        let (count, status) = (word(&self.words, 0), word(&self.words, 1));
        if count > self.total || count < self.most || (status == 0 && count < self.total) {
            return Err(protocol_error("a number of stripes that the body does not have"));
        }
        self.sent = Some(count);
        Ok((n, status))
    }

    /// A stripe begins; false: not before others, where they have to come in order.
    pub fn begin(&mut self, index: u64, in_order: bool) -> Result<bool> {
        if index >= self.sent.unwrap_or(self.total) {
            return Err(protocol_error("a stripe outside of its body"));
        }
        let Some(bits) = self.begun.get_mut((index / 64) as usize) else { return Err(protocol_error("a stripe outside of its body")) };
        if *bits & (1 << (index % 64)) != 0 {
            return Err(protocol_error("a stripe a second time"));
        }
        if in_order && index != self.came {
            return Ok(false);
        }
        *bits |= 1 << (index % 64);
        self.most = self.most.max(index + 1);
        Ok(true)
    }
}
