// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that arrived before their receives. Short data lies inside the record, so that it needs no allocation.

use super::peer::Id;
use crate::prov::Parcel;
use crate::prov::op::Iov;
use crate::rdm::wire::parcel::MessageOffer;

/// Length in bytes of the longest message that lies inside its record.
const FEW: usize = 40;

/// A message that arrived before its receive.
pub enum Unexpected {
    Eager {
        from: Id,
        link: usize,
        bytes: UnexpectedData,
        data: Option<u64>,
    },
    Offered {
        from: Id,
        link: usize,
        offer: MessageOffer,
        data: Option<u64>,
    },
    /// A message of this endpoint to itself. The bytes stay in the sender's buffer, or in the operation's own copy.
    Loopback {
        number: u64,
        data: Option<u64>,
    },
}

impl Unexpected {
    /// The peer that sent the message; `None` for this endpoint itself.
    pub fn from(&self) -> Option<Id> {
        match self {
            Unexpected::Eager { from, .. } | Unexpected::Offered { from, .. } => Some(*from),
            Unexpected::Loopback { .. } => None,
        }
    }
}

/// The bytes of a message: inside the record, or on the heap.
pub enum UnexpectedData {
    Few { bytes: [u8; FEW], len: u8 },
    Many(Box<[u8]>),
}

impl UnexpectedData {
    #[inline]
    pub fn of<P: Parcel + ?Sized>(parcel: &P) -> UnexpectedData {
        let len = parcel.len();
        if len > FEW {
            return UnexpectedData::Many(parcel.bytes(len));
        }
        let mut bytes = [0; FEW];
        // SAFETY: `bytes` outlives the call, and nothing else refers to it meanwhile.
        parcel.copy_all(unsafe { Iov::of_mut(&mut bytes) });
        UnexpectedData::Few { bytes, len: len as u8 }
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            UnexpectedData::Few { bytes, len } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            UnexpectedData::Many(bytes) => bytes,
        }
    }

    pub fn len(&self) -> usize {
        self.as_slice().len()
    }
}
