// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flow control of eager messages. Each side grants the other a number of bytes. The sender charges each message against
//! the grant, and the receiver returns the credit once the message was matched (consumed).

use crate::error::{Code, Error, Result, errno};
use crate::rdm::limits::{CREDIT_WAIT_TURNS, FIRST_GRANT, GRANT_LIMIT, MOST_GRANT};
use crate::rdm::wire::parcel::{OVERHEAD, ParcelWords};

/// Credit of both directions, counted in bytes since the lane was connected.
#[derive(Default)]
pub struct Credit {
    /// For sending. `granted`: the peer's grant. `charged`: bytes of the messages sent so far. `returned`: the part of
    /// these that the peer has reported as consumed.
    granted: u64,
    charged: u64,
    returned: u64,
    /// Turns in which a message waited for credit since the peer last returned some; not counted beyond
    /// `CREDIT_WAIT_TURNS`.
    waited: u32,
    /// For receiving. `grant`: this side's grant. `received`: bytes received so far. `consumed`: the part of these that
    /// was consumed. `advertised`: the number of consumed bytes that the peer was last told.
    grant: u64,
    received: u64,
    consumed: u64,
    advertised: u64,
    /// `headroom`: bytes that can still be received and consumed at once by a single subtraction, because they neither
    /// exceed the grant nor make a message to the peer necessary. `measured`: the headroom when `measure` computed it.
    /// `received` and `consumed` do not contain the difference of the two until `settle`.
    headroom: u64,
    measured: u64,
}

impl Credit {
    pub fn new(granted: u64) -> Credit {
        let mut credit = Credit { granted: granted.min(GRANT_LIMIT), grant: FIRST_GRANT, ..Credit::default() };
        credit.measure();
        credit
    }

    /// Adds to `received` and `consumed` what was subtracted from `headroom`.
    #[inline]
    fn settle(&mut self) {
        let passed = self.measured - self.headroom;
        (self.received, self.consumed, self.measured) = (self.received + passed, self.consumed + passed, self.headroom);
    }

    /// Computes the headroom anew.
    #[inline]
    fn measure(&mut self) {
        let (granted, untold) = (self.grant.saturating_sub(self.received - self.advertised), self.consumed - self.advertised);
        self.headroom = granted.min((self.grant / 2).saturating_sub(untold + 1));
        self.measured = self.headroom;
    }

    /// True if the peer's grant has room for a message of this length.
    #[inline]
    pub fn may_send(&self, len: usize) -> bool {
        self.charged - self.returned + len as u64 + OVERHEAD <= self.granted
    }

    /// Charges a message that was sent.
    #[inline]
    pub fn sent(&mut self, len: usize) {
        self.charged += len as u64 + OVERHEAD;
    }

    /// Called when a message has no credit. True if the message should go on waiting; false if credit did not come for
    /// `CREDIT_WAIT_TURNS` turns, and the message is to be offered instead.
    pub fn is_worth_waiting(&mut self) -> bool {
        self.waited += u32::from(self.waited < CREDIT_WAIT_TURNS);
        self.waited < CREDIT_WAIT_TURNS
    }

    /// Handles the peer's report of the bytes that it has consumed so far, and of its grant.
    pub fn returned(&mut self, consumed: u64, grant: u64) -> Result<()> {
        if consumed < self.returned || consumed > self.charged || grant < self.granted {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer takes back what it granted, or counts what was not sent"));
        }
        (self.returned, self.granted, self.waited) = (consumed, grant.min(GRANT_LIMIT), 0);
        Ok(())
    }

    /// As `try_receive`, but a message beyond the grant is an error.
    #[inline]
    pub fn receive(&mut self, len: usize) -> Result<()> {
        if !self.try_receive(len) {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer sent more than it was granted"));
        }
        Ok(())
    }

    /// Counts a message that arrives. False if it exceeds the grant; then nothing was counted.
    #[inline]
    pub fn try_receive(&mut self, len: usize) -> bool {
        self.settle();
        let received = self.received + len as u64 + OVERHEAD;
        if received - self.advertised > self.grant {
            return false;
        }
        self.received = received;
        self.measure();
        true
    }

    /// Counts a message that is matched as it arrives. False if the message exceeds the headroom, so that the grant has
    /// to be checked or the peer told; then nothing was counted.
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

    /// Counts a message as consumed. Returns the parcel that tells the peer, once half of the grant has accumulated.
    /// `widen` decides whether the grant may grow by the amount that it is called with.
    #[inline]
    pub fn consumed(&mut self, len: usize, widen: impl FnOnce(u64) -> bool) -> Option<ParcelWords> {
        self.settle();
        self.consumed += len as u64 + OVERHEAD;
        let words = if self.consumed - self.advertised < self.grant / 2 { None } else { Some(self.advertise(widen)) };
        self.measure();
        words
    }

    /// Builds the parcel that returns credit. The grant doubles up to `MOST_GRANT`, if `widen` permits.
    #[cold]
    #[inline(never)]
    fn advertise(&mut self, widen: impl FnOnce(u64) -> bool) -> ParcelWords {
        // A peer that uses up its grant gains from a larger one.
        if self.grant < MOST_GRANT && widen(self.grant) {
            self.grant *= 2;
        }
        self.advertised = self.consumed;
        ParcelWords::credit(self.advertised, self.grant)
    }

    pub fn grant(&self) -> u64 {
        self.grant
    }

    /// Bytes that were received and are not consumed.
    pub fn unconsumed(&mut self) -> u64 {
        self.settle();
        self.received - self.consumed
    }
}

#[cfg(test)]
mod tests;
