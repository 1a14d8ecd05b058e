// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parcels.

use super::nonsense;
use crate::error::{Code, Result};
use crate::prov::Parcel;
use crate::prov::op::{IOV_LIMIT, RmaIov};
use std::cell::Cell;

/// Kinds of parcels, in the first byte of the first word; flags are in the second.
pub mod kind {
    /// A message: its tag and data, then the bytes.
    pub const EAGER: u8 = 1;
    /// A message whose bytes the receiver reads: number, length, tag and data, then the places.
    pub const OFFER: u8 = 2;
    /// An offer was taken: number, status.
    pub const DONE: u8 = 3;
    /// What was consumed since the beginning, and the grant.
    pub const CREDIT: u8 = 4;
    /// An offer is not to be matched any more: number. DONE answers, now or when the read that had begun is over.
    pub const WITHDRAW: u8 = 5;
}

pub const TAGGED: u64 = 1 << 8;
pub const DATA: u64 = 1 << 9;
const FLAGS: u64 = TAGGED | DATA;

/// What is charged for a message beside its bytes.
pub const OVERHEAD: u64 = 64;

/// What a message carries beside its bytes.
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

/// Words of an eager message's parcel, and how many they are.
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

/// Words of one parcel.
pub struct Words {
    words: [u64; 4 + 2 + 3 * IOV_LIMIT],
    count: usize,
}

impl Words {
    fn of(first: u64) -> Words {
        let mut words = Words { words: [0; 4 + 2 + 3 * IOV_LIMIT], count: 0 };
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

    pub fn offer(label: &Label, number: u64, len: u64, places: &[RmaIov]) -> Words {
        let mut words = Words::of(u64::from(kind::OFFER) | label.flags());
        [number, len].iter().chain(&label.tag).chain(&label.data).for_each(|w| words.add(*w));
        for p in places {
            [p.addr, p.len as u64, p.key].into_iter().for_each(|w| words.add(w));
        }
        words
    }

    pub fn done(number: u64, status: Code) -> Words {
        let mut words = Words::of(u64::from(kind::DONE));
        [number, status.0 as u64].into_iter().for_each(|w| words.add(w));
        words
    }

    pub fn withdraw(number: u64) -> Words {
        let mut words = Words::of(u64::from(kind::WITHDRAW));
        words.add(number);
        words
    }

    pub fn credit(consumed: u64, grant: u64) -> Words {
        let mut words = Words::of(u64::from(kind::CREDIT));
        [consumed, grant].into_iter().for_each(|w| words.add(w));
        words
    }
}

/// What a sender offers to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    pub number: u64,
    pub len: u64,
    pub places: Vec<RmaIov>,
}

/// A parcel, as far as its words go.
#[derive(Debug, PartialEq)]
pub enum Head {
    Eager(Label),
    Offer(Label, Offer),
    Done(u64, Code),
    Credit(u64, u64),
    Withdraw(u64),
}

impl Head {
    #[inline]
    pub fn of(parcel: &dyn Parcel) -> Result<Head> {
        let first = parcel.word(0);
        if first & !(FLAGS | 0xff) != 0 {
            return Err(nonsense("a parcel with flags that do not exist"));
        }
        let at = Cell::new(1);
        let next = || parcel.word(at.replace(at.get() + 1));
        let kind = first as u8;
        let numbers = if kind == kind::OFFER { (next(), next()) } else { (0, 0) };
        let label = Label { tag: (first & TAGGED != 0).then(next), data: (first & DATA != 0).then(next) };
        let begin = at.get();
        let head = match kind {
            kind::EAGER => Head::Eager(label),
            kind::OFFER => {
                let count = parcel.words().saturating_sub(begin) / 3;
                if count > IOV_LIMIT || parcel.words() != begin + 3 * count || !parcel.is_empty() {
                    return Err(nonsense("an offer with places beyond the limit"));
                }
                let place = |k: usize| RmaIov {
                    addr: parcel.word(begin + 3 * k),
                    len: parcel.word(begin + 3 * k + 1) as usize,
                    key: parcel.word(begin + 3 * k + 2),
                };
                let places: Vec<RmaIov> = (0..count).map(place).collect();
                let sum = places.iter().try_fold(0u64, |sum, p| sum.checked_add(p.len as u64));
                if sum != Some(numbers.1) {
                    return Err(nonsense("an offer whose places do not make its length"));
                }
                return Ok(Head::Offer(label, Offer { number: numbers.0, len: numbers.1, places }));
            }
            kind::DONE if first & FLAGS == 0 => Head::Done(next(), Code(next() as u16 as i32)),
            kind::CREDIT if first & FLAGS == 0 => Head::Credit(next(), next()),
            kind::WITHDRAW if first & FLAGS == 0 => Head::Withdraw(next()),
            _ => return Err(nonsense("a parcel of a kind that does not exist")),
        };
        if at.get() != parcel.words() || (kind != kind::EAGER && !parcel.is_empty()) {
            return Err(nonsense("a parcel of another length than its kind has"));
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

    fn made(words: &Words, len: usize) -> Result<Head> {
        Head::of(&Made(words.as_slice().to_vec(), len))
    }

    #[test]
    fn parcels_survive_and_lies_do_not() {
        let place = |len| RmaIov { addr: 4096, len, key: 77 };
        for label in [None, Some(5)].iter().flat_map(|tag| [None, Some(9)].map(|data| Label { tag: *tag, data })) {
            let (words, count) = eager(&label);
            assert_eq!(Head::of(&Made(words[..count].to_vec(), 8)).unwrap(), Head::Eager(label));
            for places in [vec![], vec![place(10)], vec![place(1); 8]] {
                let len = places.iter().map(|p| p.len as u64).sum();
                let words = Words::offer(&label, 3, len, &places);
                assert_eq!(made(&words, 0).unwrap(), Head::Offer(label, Offer { number: 3, len, places: places.clone() }));
                assert!(made(&words, 1).is_err() && made(&Words::offer(&label, 3, len + 1, &places), 0).is_err());
                for cut in 0..words.as_slice().len() {
                    let head = Head::of(&Made(words.as_slice()[..cut].to_vec(), 0));
                    assert!(head.is_err() || (len == 0 && cut < 3), "{cut} of {label:?}");
                }
            }
        }
        assert_eq!(made(&Words::done(7, Code::Key), 0).unwrap(), Head::Done(7, Code::Key));
        assert_eq!(made(&Words::credit(7, 8), 0).unwrap(), Head::Credit(7, 8));
        assert_eq!(made(&Words::withdraw(7), 0).unwrap(), Head::Withdraw(7));
        assert!(made(&Words::withdraw(7), 1).is_err());
        for words in
            [vec![], vec![0], vec![9, 1], vec![1 | 1 << 20], vec![3 | TAGGED, 1, 1], vec![3, 1], vec![4, 1, 2, 3], vec![1, 1], vec![5]]
        {
            assert!(Head::of(&Made(words.clone(), 0)).is_err(), "{words:?}");
        }
        let wide = [vec![2, 1, u64::MAX], vec![1, u64::MAX, 1, 1, 2, 1]].concat();
        assert!(Head::of(&Made(wide, 0)).is_err());
    }
}
