// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stripes of a long body: the sender's record of them (`SentStripes`), and the receiver's (`ReceivedStripes`).

use crate::error::{Error, Result};
use crate::prov::tcp::memory::source::{BodySource, gather};
use crate::prov::tcp::wire::frame::{STRIPE, STRIPE_HEAD, protocol_error, status_of, two_words, word};

/// A stripe that a stream is sending.
pub struct Stripe {
    pub head: [u8; STRIPE_HEAD],
    /// Offset in the body of the stripe's first byte.
    pub begin: u64,
    pub len: u64,
    /// Number of bytes of head and stripe that are on the wire.
    pub at: u64,
    /// If the body was given up: a copy of the stripe's rest, and the offset in the body at which the copy begins.
    pub saved: Option<(Box<[u8]>, u64)>,
}

impl Stripe {
    /// Number of the stripe's bytes, without its head, that are on the wire.
    pub fn done(&self) -> u64 {
        self.at.saturating_sub(STRIPE_HEAD as u64)
    }
}

/// The sender's view of a body in stripes.
pub struct SentStripes {
    /// Number of the body, counted over all striped bodies of this direction.
    number: u64,
    /// Number of stripes that streams have begun so far.
    next: u64,
    /// Number of stripes that will be sent.
    limit: u64,
    /// The stripe that each stream is sending.
    under_way: Box<[Option<Stripe>]>,
    /// The two words that end the body: the number of stripes, and a status.
    end: [u8; STRIPE_HEAD],
}

impl SentStripes {
    /// The words that end the body on the first stream, once all stripes are out.
    pub fn end_words(&self) -> Option<&[u8; STRIPE_HEAD]> {
        self.are_out().then_some(&self.end)
    }

    /// True if all stripes are out.
    pub fn are_out(&self) -> bool {
        self.next == self.limit && self.under_way.iter().all(Option::is_none)
    }

    /// Gives the body up: no further stripe begins. A stripe that has begun is completed, from a copy if `keep` permits one.
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

    /// The record of a body of `len` bytes that goes over this number of streams.
    pub fn new(number: u64, len: u64, streams: usize) -> SentStripes {
        let total = len.div_ceil(STRIPE);
        let under_way = std::iter::repeat_with(|| None).take(streams).collect();
        SentStripes { number, next: 0, limit: total, under_way, end: two_words(total, 0) }
    }

    /// Takes the stripe that stream `index` is sending, or begins the next stripe. The caller returns the stripe by `put_back`.
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

    /// Returns a stripe to its stream, unless all of its bytes are on the wire.
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
    /// A bit for each stripe that has begun to come.
    begun: Box<[u64]>,
    /// Number of stripes that have come completely.
    pub came: u64,
    /// The highest index of a stripe that has begun to come, plus one.
    most: u64,
    /// The number of stripes that the sender has sent, once the words that end the body are here.
    sent: Option<u64>,
    /// The words that end the body.
    words: [u8; STRIPE_HEAD],
    /// Number of the bytes of `words` that are here.
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

    /// Takes bytes of the words that end the body, from the first stream. Returns the number of bytes taken, and the
    /// status; 0 until the words are complete.
    pub fn end(&mut self, bytes: &[u8]) -> Result<(usize, u64)> {
        let n = bytes.len().min(STRIPE_HEAD - self.have);
        self.words[self.have..self.have + n].copy_from_slice(&bytes[..n]);
        self.have += n;
        if self.have < STRIPE_HEAD || self.sent.is_some() {
            return Ok((n, 0));
        }
        let (count, status) = (word(&self.words, 0), word(&self.words, 1));
        if count > self.total || count < self.most || (status == 0 && count < self.total) {
            return Err(protocol_error("a wrong number of stripes"));
        }
        self.sent = Some(count);
        Ok((n, status))
    }

    /// Notes that stripe `index` begins to come. False: the stripe has to wait, because `in_order` demands all earlier
    /// stripes first.
    pub fn begin(&mut self, index: u64, in_order: bool) -> Result<bool> {
        if index >= self.sent.unwrap_or(self.total) {
            return Err(protocol_error("a stripe outside its transfer"));
        }
        let Some(bits) = self.begun.get_mut((index / 64) as usize) else { return Err(protocol_error("a stripe outside its transfer")) };
        if *bits & (1 << (index % 64)) != 0 {
            return Err(protocol_error("the same stripe twice"));
        }
        if in_order && index != self.came {
            return Ok(false);
        }
        *bits |= 1 << (index % 64);
        self.most = self.most.max(index + 1);
        Ok(true)
    }
}
