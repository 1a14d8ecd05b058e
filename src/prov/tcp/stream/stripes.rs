// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stripes of a long body: which are sent (`SentStripes`) and which have come (`ReceivedStripes`).

use crate::error::{Error, Result};
use crate::prov::tcp::memory::source::{BodySource, gather};
use crate::prov::tcp::wire::frame::{STRIPE, STRIPE_HEAD, protocol_error, status_of, two_words, word};

/// A stripe that a stream is sending.
pub struct Stripe {
    pub head: [u8; STRIPE_HEAD],
    /// Its first byte in the body, and its length.
    pub begin: u64,
    pub len: u64,
    /// Bytes of head and stripe that are on the wire.
    pub at: u64,
    /// A copy of its rest, from this byte of the body on, if the body was given up.
    pub saved: Option<(Box<[u8]>, u64)>,
}

impl Stripe {
    /// Bytes of the stripe itself that are on the wire.
    pub fn done(&self) -> u64 {
        self.at.saturating_sub(STRIPE_HEAD as u64)
    }
}

/// The sender's view of a body in stripes.
pub struct SentStripes {
    /// Number of the body among those in stripes of this direction.
    number: u64,
    /// Number of stripes given to streams so far, and in all.
    next: u64,
    limit: u64,
    /// The stripe that each stream is sending.
    under_way: Box<[Option<Stripe>]>,
    /// The last words of the body: the number of stripes, and a status.
    end: [u8; STRIPE_HEAD],
}

impl SentStripes {
    /// The words for the first stream, once all stripes are out.
    pub fn end_words(&self) -> Option<&[u8; STRIPE_HEAD]> {
        self.are_out().then_some(&self.end)
    }

    pub fn are_out(&self) -> bool {
        self.next == self.limit && self.under_way.iter().all(Option::is_none)
    }

    /// Begins no further stripe. Begun ones are completed from a copy, if `keep` allows one.
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

    /// Cuts a body of `len` bytes for this many streams.
    pub fn new(number: u64, len: u64, streams: usize) -> SentStripes {
        let total = len.div_ceil(STRIPE);
        let under_way = std::iter::repeat_with(|| None).take(streams).collect();
        SentStripes { number, next: 0, limit: total, under_way, end: two_words(total, 0) }
    }

    /// The stripe that this stream goes on with, or the next one. The caller returns it by `put_back`.
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

/// The receiver's view of a body in stripes.
pub struct ReceivedStripes {
    pub number: u64,
    /// Number of stripes of the whole body.
    total: u64,
    /// A bit for each stripe that has begun to come; and the number of complete ones.
    begun: Box<[u64]>,
    pub came: u64,
    /// The highest index that has begun, plus one.
    most: u64,
    /// The number of stripes that the sender has sent, once its last words are here.
    sent: Option<u64>,
    words: [u8; STRIPE_HEAD],
    have: usize,
}

impl ReceivedStripes {
    pub fn new(number: u64, len: u64) -> ReceivedStripes {
        let total = len.div_ceil(STRIPE);
        let begun = vec![0; total.div_ceil(64) as usize].into();
        ReceivedStripes { number, total, begun, came: 0, most: 0, sent: None, words: [0; STRIPE_HEAD], have: 0 }
    }

    pub fn all_came(&self) -> bool {
        self.sent == Some(self.came)
    }

    /// Takes bytes of the last words from the first stream. Returns how many, and the status.
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

    /// A stripe begins. False: it has to wait, because `in_order` demands that others come first.
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
