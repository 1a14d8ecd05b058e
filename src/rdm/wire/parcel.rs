// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parcels: the packets of a connected lane. The first word has the kind in its lowest byte, and flags above the kind.
//! The other words depend on the kind.

use super::protocol_error;
use crate::error::{Code, Result};
use crate::prov::Parcel;
use crate::prov::op::{IOV_LIMIT, RmaIov};
use std::cell::Cell;

/// Kinds of parcels: the lowest byte of the first word. The words listed here follow the first word.
pub mod kind {
    /// A message with its bytes. Words: tag and data, if the first word has their flags; then the bytes.
    pub const EAGER: u8 = 1;
    /// A message that the receiver reads from the sender's memory. Words: number and length; tag and data, if the first
    /// word has their flags; then address, length and key of each piece.
    pub const OFFER: u8 = 2;
    /// Answer to an offer, after which the receiver no longer reads the memory. Words: number, status.
    pub const DONE: u8 = 3;
    /// Return of credit. Words: bytes consumed since the lane was connected, and the grant.
    pub const CREDIT: u8 = 4;
    /// The sender takes an offer back. Word: number. The receiver answers with DONE, at once or when a read that has
    /// begun is over.
    pub const WITHDRAW: u8 = 5;
}

pub const TAGGED: u64 = 1 << 8;
pub const DATA: u64 = 1 << 9;
const FLAGS: u64 = TAGGED | DATA;

/// Bytes of credit that a message costs in addition to its own bytes.
pub const OVERHEAD: u64 = 64;

/// Tag of a message, and its remote data (`GDRFAB_REMOTE_CQ_DATA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Label {
    pub tag: Option<u64>,
    pub data: Option<u64>,
}

impl Label {
    fn flags(&self) -> u64 {
        self.tag.map_or(0, |_| TAGGED) | self.data.map_or(0, |_| DATA)
    }
}

/// The words of an eager parcel, and the number of words in use.
#[inline]
pub fn eager(label: &Label) -> ([u64; 3], usize) {
    let first = u64::from(kind::EAGER) | label.flags();
    match (label.tag, label.data) {
        (Some(tag), None) => ([first, tag, 0], 2),
        (Some(tag), Some(data)) => ([first, tag, data], 3),
        (None, Some(data)) => ([first, data, 0], 2),
        (None, None) => ([first, 0, 0], 1),
    }
}

/// The words of one parcel.
pub struct ParcelWords {
    words: [u64; 4 + 2 + 3 * IOV_LIMIT],
    count: usize,
}

impl ParcelWords {
    fn of(first: u64) -> ParcelWords {
        let mut words = ParcelWords { words: [0; 4 + 2 + 3 * IOV_LIMIT], count: 0 };
        words.add(first);
        words
    }

    fn add(&mut self, word: u64) {
        if let Some(place) = self.words.get_mut(self.count) {
            *place = word;
            self.count += 1;
        }
    }

    pub fn as_slice(&self) -> &[u64] {
        self.words.get(..self.count).unwrap_or_default()
    }

    fn is(&self, kind: u8) -> bool {
        self.as_slice().first().is_some_and(|first| *first as u8 == kind)
    }

    pub fn is_done(&self) -> bool {
        self.is(kind::DONE)
    }

    pub fn is_credit(&self) -> bool {
        self.is(kind::CREDIT)
    }

    pub fn offer(label: &Label, number: u64, len: u64, pieces: &[RmaIov]) -> ParcelWords {
        let mut words = ParcelWords::of(u64::from(kind::OFFER) | label.flags());
        [number, len].iter().chain(&label.tag).chain(&label.data).for_each(|w| words.add(*w));
        for p in pieces {
            [p.addr, p.len as u64, p.key].into_iter().for_each(|w| words.add(w));
        }
        words
    }

    pub fn done(number: u64, status: Code) -> ParcelWords {
        let mut words = ParcelWords::of(u64::from(kind::DONE));
        [number, status.0 as u64].into_iter().for_each(|w| words.add(w));
        words
    }

    pub fn withdraw(number: u64) -> ParcelWords {
        let mut words = ParcelWords::of(u64::from(kind::WITHDRAW));
        words.add(number);
        words
    }

    pub fn credit(consumed: u64, grant: u64) -> ParcelWords {
        let mut words = ParcelWords::of(u64::from(kind::CREDIT));
        [consumed, grant].into_iter().for_each(|w| words.add(w));
        words
    }
}

/// A message that the sender offers for reading.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageOffer {
    pub number: u64,
    pub len: u64,
    pub pieces: Vec<RmaIov>,
}

/// The words of a parcel, decoded.
#[derive(Debug, PartialEq)]
pub enum ParcelHead {
    Eager(Label),
    Offer(Label, MessageOffer),
    Done(u64, Code),
    Credit(u64, u64),
    Withdraw(u64),
}

impl ParcelHead {
    #[inline]
    pub fn of(parcel: &dyn Parcel) -> Result<ParcelHead> {
        let first = parcel.word(0);
        if first & !(FLAGS | 0xff) != 0 {
            return Err(protocol_error("a parcel with flags that do not exist"));
        }
        let at = Cell::new(1);
        let next = || parcel.word(at.replace(at.get() + 1));
        let kind = first as u8;
        let numbers = if kind == kind::OFFER { (next(), next()) } else { (0, 0) };
        let label = Label { tag: (first & TAGGED != 0).then(next), data: (first & DATA != 0).then(next) };
        let begin = at.get();
        let head = match kind {
            kind::EAGER => ParcelHead::Eager(label),
            kind::OFFER => {
                let count = parcel.words().saturating_sub(begin) / 3;
                if count > IOV_LIMIT || parcel.words() != begin + 3 * count || !parcel.is_empty() {
                    return Err(protocol_error("an offer with places beyond the limit"));
                }
                let place = |k: usize| RmaIov {
                    addr: parcel.word(begin + 3 * k),
                    len: parcel.word(begin + 3 * k + 1) as usize,
                    key: parcel.word(begin + 3 * k + 2),
                };
                let pieces: Vec<RmaIov> = (0..count).map(place).collect();
                let sum = pieces.iter().try_fold(0u64, |sum, p| sum.checked_add(p.len as u64));
                if sum != Some(numbers.1) {
                    return Err(protocol_error("an offer whose places do not make its length"));
                }
                return Ok(ParcelHead::Offer(label, MessageOffer { number: numbers.0, len: numbers.1, pieces }));
            }
            kind::DONE if first & FLAGS == 0 => ParcelHead::Done(next(), Code(next() as u16 as i32)),
            kind::CREDIT if first & FLAGS == 0 => ParcelHead::Credit(next(), next()),
            kind::WITHDRAW if first & FLAGS == 0 => ParcelHead::Withdraw(next()),
            _ => return Err(protocol_error("a parcel of a kind that does not exist")),
        };
        if at.get() != parcel.words() || (kind != kind::EAGER && !parcel.is_empty()) {
            return Err(protocol_error("a parcel of another length than its kind has"));
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::op::Iov;

    struct Made(Vec<u64>, usize);

    impl Parcel for Made {
        fn words(&self) -> usize {
            self.0.len()
        }
        fn word(&self, i: usize) -> u64 {
            self.0.get(i).copied().unwrap_or(0)
        }
        fn len(&self) -> usize {
            self.1
        }
        fn copy(&self, _skip: usize, _to: Iov) {}
    }

    fn made(words: &ParcelWords, len: usize) -> Result<ParcelHead> {
        ParcelHead::of(&Made(words.as_slice().to_vec(), len))
    }

    #[test]
    fn parcels_survive_and_lies_do_not() {
        let place = |len| RmaIov { addr: 4096, len, key: 77 };
        for label in [None, Some(5)].iter().flat_map(|tag| [None, Some(9)].map(|data| Label { tag: *tag, data })) {
            let (words, count) = eager(&label);
            assert_eq!(ParcelHead::of(&Made(words[..count].to_vec(), 8)).unwrap(), ParcelHead::Eager(label));
            for pieces in [vec![], vec![place(10)], vec![place(1); 8]] {
                let len = pieces.iter().map(|p| p.len as u64).sum();
                let words = ParcelWords::offer(&label, 3, len, &pieces);
                assert_eq!(made(&words, 0).unwrap(), ParcelHead::Offer(label, MessageOffer { number: 3, len, pieces: pieces.clone() }));
                assert!(made(&words, 1).is_err() && made(&ParcelWords::offer(&label, 3, len + 1, &pieces), 0).is_err());
                for cut in 0..words.as_slice().len() {
                    let head = ParcelHead::of(&Made(words.as_slice()[..cut].to_vec(), 0));
                    assert!(head.is_err() || (len == 0 && cut < 3), "{cut} of {label:?}");
                }
            }
        }
        assert_eq!(made(&ParcelWords::done(7, Code::Key), 0).unwrap(), ParcelHead::Done(7, Code::Key));
        assert_eq!(made(&ParcelWords::credit(7, 8), 0).unwrap(), ParcelHead::Credit(7, 8));
        assert_eq!(made(&ParcelWords::withdraw(7), 0).unwrap(), ParcelHead::Withdraw(7));
        assert!(made(&ParcelWords::withdraw(7), 1).is_err());
        for words in
            [vec![], vec![0], vec![9, 1], vec![1 | 1 << 20], vec![3 | TAGGED, 1, 1], vec![3, 1], vec![4, 1, 2, 3], vec![1, 1], vec![5]]
        {
            assert!(ParcelHead::of(&Made(words.clone(), 0)).is_err(), "{words:?}");
        }
        let wide = [vec![2, 1, u64::MAX], vec![1, u64::MAX, 1, 1, 2, 1]].concat();
        assert!(ParcelHead::of(&Made(wide, 0)).is_err());
    }
}
