// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The grants of both sides for unexpected messages.

use crate::error::{Code, Error, Result, errno};
use crate::rdm::limits::{CREDIT_WAIT_TURNS, FIRST_GRANT, GRANT_LIMIT, MOST_GRANT};
use crate::rdm::wire::parcel::{OVERHEAD, ParcelWords};

/// Bytes of unexpected messages, counted since the lane was connected.
#[derive(Default)]
pub struct Credit {
    /// What this side may send: the peer's grant, what was charged to it, what the peer has consumed of it.
    granted: u64,
    charged: u64,
    returned: u64,
    /// Turns in which something waited for more, since some came.
    waited: u32,
    /// What the peer may send: our grant, what came, what was consumed of it, and what the peer was told of.
    grant: u64,
    received: u64,
    consumed: u64,
    advertised: u64,
    /// What may come and be consumed at once before more than a subtraction is due, and how much that was when it was measured:
    /// what has passed since is not in `came` and `consumed` yet.
    headroom: u64,
    measured: u64,
}

impl Credit {
    pub fn new(granted: u64) -> Credit {
        let mut credit = Credit { granted: granted.min(GRANT_LIMIT), grant: FIRST_GRANT, ..Credit::default() };
        credit.measure();
        credit
    }

    /// Counts what has passed.
    #[inline]
    fn settle(&mut self) {
        let passed = self.measured - self.headroom;
        (self.received, self.consumed, self.measured) = (self.received + passed, self.consumed + passed, self.headroom);
    }

    #[inline]
    fn measure(&mut self) {
        let (granted, untold) = (self.grant.saturating_sub(self.received - self.advertised), self.consumed - self.advertised);
        self.headroom = granted.min((self.grant / 2).saturating_sub(untold + 1));
        self.measured = self.headroom;
    }

    #[inline]
    pub fn may_send(&self, len: usize) -> bool {
        self.charged - self.returned + len as u64 + OVERHEAD <= self.granted
    }

    #[inline]
    pub fn sent(&mut self, len: usize) {
        self.charged += len as u64 + OVERHEAD;
    }

    /// There is none for a message; whether it is worth waiting for some.
    pub fn is_worth_waiting(&mut self) -> bool {
        self.waited += u32::from(self.waited < CREDIT_WAIT_TURNS);
        self.waited < CREDIT_WAIT_TURNS
    }

    /// The peer tells what it has consumed, and its grant.
    pub fn returned(&mut self, consumed: u64, grant: u64) -> Result<()> {
        if consumed < self.returned || consumed > self.charged || grant < self.granted {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer takes back what it granted, or counts what was not sent"));
        }
        (self.returned, self.granted, self.waited) = (consumed, grant.min(GRANT_LIMIT), 0);
        Ok(())
    }

    #[inline]
    pub fn receive(&mut self, len: usize) -> Result<()> {
        if !self.try_receive(len) {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer sent more than it was granted"));
        }
        Ok(())
    }

    /// A message comes. False: it is more than was granted, and nothing was done.
    #[inline]
    pub fn try_receive(&mut self, len: usize) -> bool {
        self.settle();
        let came = self.received + len as u64 + OVERHEAD;
        if came - self.advertised > self.grant {
            return false;
        }
        self.received = came;
        self.measure();
        true
    }

    /// A message comes and is matched at once, of which nobody need be told: false if it is not that simple, and nothing was done.
    #[inline(always)]
    pub fn receive_and_consume(&mut self, len: usize) -> bool {
        match self.headroom.checked_sub(len as u64 + OVERHEAD) {
            Some(left) => {
                self.headroom = left;
                true
            }
            None => false,
        }
    }

    /// A message was matched. Gives what to tell the peer, when it is worth it; `widen`: how much more may be granted.
    #[inline]
    pub fn consumed(&mut self, len: usize, widen: impl FnOnce(u64) -> bool) -> Option<ParcelWords> {
        self.settle();
        self.consumed += len as u64 + OVERHEAD;
        let words = if self.consumed - self.advertised < self.grant / 2 { None } else { Some(self.advertise(widen)) };
        self.measure();
        words
    }

    #[cold]
    #[inline(never)]
    fn advertise(&mut self, widen: impl FnOnce(u64) -> bool) -> ParcelWords {
        // It uses what it has.
        if self.grant < MOST_GRANT && widen(self.grant) {
            self.grant *= 2;
        }
        self.advertised = self.consumed;
        ParcelWords::credit(self.advertised, self.grant)
    }

    pub fn grant(&self) -> u64 {
        self.grant
    }

    /// What came and was not consumed.
    pub fn unconsumed(&mut self) -> u64 {
        self.settle();
        self.received - self.consumed
    }
}

#[cfg(test)]
mod tests;
