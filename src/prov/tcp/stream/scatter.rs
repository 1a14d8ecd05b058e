// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sending a long body over several streams. The body is cut into stripes. A stream that has sent a stripe takes the
//! next one, so a slow stream carries fewer stripes and delays no other stream.

use super::body::Body;
use super::stripes::SentStripes;
use crate::error::{Code, Error, Result, errno};
use crate::prov::op::Iov;
use crate::prov::tcp::memory::source::{BodySource, GatherCall, leave};
use crate::prov::tcp::memory::staging::StagingLanes;
use crate::prov::tcp::secure::seal::FILL;
use crate::prov::tcp::secure::sealed::SealedOut;
use crate::prov::tcp::wire::frame::{STRIPE, STRIPE_HEAD, STRIPED_MIN};
use crate::sys::stream::{self, Moved};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most pieces of memory of one call.
const PIECES: usize = 64;

/// The outcome of one call for a stream.
#[derive(PartialEq, Eq)]
enum StripeStep {
    /// The stream has nothing to send.
    Idle,
    Moved,
    Blocked,
}

/// The sending ends of the further streams.
pub struct Scatter {
    fds: Box<[Arc<OwnedFd>]>,
    /// The seal of each stream, and the number of a stripe's bytes in the seal's current record, which do not count as sent yet.
    seals: Box<[Option<(SealedOut, u64)>]>,
    /// Number of the last body that was cut into stripes.
    number: u64,
    /// The streams that take no more for now.
    blocked: Box<[bool]>,
}

impl Scatter {
    pub fn new(streams: Vec<(Arc<OwnedFd>, Option<SealedOut>)>) -> Scatter {
        let blocked = vec![false; streams.len()].into();
        let (fds, seals): (Vec<_>, Vec<_>) = streams.into_iter().map(|(fd, seal)| (fd, seal.map(|seal| (seal, 0)))).unzip();
        Scatter { fds: fds.into(), seals: seals.into(), number: 0, blocked }
    }

    /// True if a body can go in stripes. A device's staging slots are filled in order, so a body from a device uses the
    /// first stream.
    pub fn takes(body: &Body) -> bool {
        body.len >= STRIPED_MIN && !matches!(body.source, BodySource::Device(_) | BodySource::Nothing)
    }

    /// Cuts a body into stripes, if `takes` permits.
    pub fn cut_up(&mut self, body: &mut Body) {
        if !Scatter::takes(body) {
            return;
        }
        self.number += 1;
        body.cut_up(SentStripes::new(self.number, body.len, self.fds.len()));
    }

    /// True if the stream with this index waits for room.
    pub fn is_blocked(&self, index: usize) -> bool {
        self.blocked.get(index).is_some_and(|b| *b)
    }

    /// A stream that waits for room, if there is one.
    pub fn first_blocked(&self) -> Option<BorrowedFd<'_>> {
        self.fds.iter().zip(&self.blocked).find_map(|(fd, blocked)| blocked.then(|| fd.as_fd()))
    }

    /// Sends as much of a body as the streams have room for.
    pub fn send(&mut self, body: &mut Body, lanes: &mut StagingLanes, short: usize) -> Result<()> {
        self.blocked.fill(false);
        let mut left = self.fds.len();
        while left > 0 {
            left = 0;
            let streams = self.fds.iter().zip(&mut self.blocked).zip(&mut self.seals);
            for (index, ((fd, blocked), seal)) in streams.enumerate().filter(|(_, ((_, b), _))| !**b) {
                let step = match seal {
                    None => body.send_stripe(index, fd.as_fd(), lanes, short, None),
                    Some(seal) => body.send_sealed(index, fd.as_fd(), lanes, short, seal),
                };
                let step = step.map_err(|e| e.context(format_args!("stream {} of the connection", index + 1)))?;
                *blocked = step == StripeStep::Blocked;
                left += usize::from(step == StripeStep::Moved);
            }
        }
        Ok(())
    }
}

impl Body {
    /// Sends one record on a sealed stream. The record's bytes count as sent only when the whole record is out, so that
    /// the stripe does not end earlier.
    fn send_sealed(
        &mut self,
        index: usize,
        fd: BorrowedFd<'_>,
        lanes: &mut StagingLanes,
        short: usize,
        (seal, carried): &mut (SealedOut, u64),
    ) -> Result<StripeStep> {
        let mut step = StripeStep::Moved;
        if *carried == 0 {
            step = self.send_stripe(index, fd, lanes, short, Some((&mut *seal, &mut *carried)))?;
        }
        if !seal.push(fd, short)? {
            return Ok(StripeStep::Blocked);
        }
        if *carried > 0 {
            let len = self.len;
            if let Some(stripes) = &mut self.stripes
                && let Some(mut stripe) = stripes.take(index, len)
            {
                stripe.at += std::mem::take(carried);
                stripes.put_back(index, stripe);
            }
        }
        Ok(step)
    }

    /// Makes one system call for the stream with this index, or one record for the stream's seal.
    fn send_stripe(
        &mut self,
        index: usize,
        fd: BorrowedFd<'_>,
        lanes: &mut StagingLanes,
        short: usize,
        seal: Option<(&mut SealedOut, &mut u64)>,
    ) -> Result<StripeStep> {
        let mut pieces = [Iov::EMPTY; PIECES];
        let most = if seal.is_some() { FILL as u64 } else { STRIPE + STRIPE_HEAD as u64 };
        let limit = most.min(short as u64);
        let mut call = GatherCall { pieces: &mut pieces, count: 0, bytes: 0, limit, entered: Vec::new() };
        // `enter` may give the body up, so it comes before the choice of the bytes.
        self.enter(&mut call, lanes);
        let len = self.len;
        let taken = self.stripes.as_mut().and_then(|s| s.take(index, len));
        let Some(mut stripe) = taken else {
            call.entered.iter().for_each(|r| leave(r));
            return Ok(StripeStep::Idle);
        };
        let head = stripe.head.get(stripe.at as usize..).unwrap_or(&[]);
        // SAFETY: `stripe` is not changed before the call that uses the pieces is over.
        if unsafe { call.add_own(head) } == head.len() {
            let (first, run) = (stripe.begin + stripe.done(), stripe.len - stripe.done());
            match &stripe.saved {
                Some((bytes, begin)) => {
                    let rest = bytes.get((first - begin) as usize..).unwrap_or(&[]);
                    // SAFETY: `stripe` is not changed before the call that uses the pieces is over.
                    unsafe { call.add_own(rest) };
                }
                None => {
                    self.add_bytes(&mut call, lanes, first, run);
                }
            }
        }
        let GatherCall { count, bytes, entered, .. } = call;
        debug_assert!(count > 0);
        let is_sealed = seal.is_some();
        let moved = match seal {
            None => stream::send_pieces(fd, &pieces[..count]),
            Some((seal, carried)) => {
                let moved = seal.gather(&pieces[..count]);
                *carried = if let Ok(Moved::Bytes(n)) = moved { n as u64 } else { 0 };
                moved
            }
        };
        entered.iter().for_each(|r| leave(r));
        if let Ok(Moved::Bytes(n)) = moved
            && !is_sealed
        {
            stripe.at += n as u64;
        }
        if let Some(stripes) = &mut self.stripes {
            stripes.put_back(index, stripe);
        }
        Ok(match moved? {
            Moved::Bytes(n) if (is_sealed || n as u64 == bytes) && n > 0 => StripeStep::Moved,
            Moved::Fault => {
                self.spoil(lanes)?;
                StripeStep::Moved
            }
            _ => StripeStep::Blocked,
        })
    }

    /// Handles memory of the body that the kernel could not read. A body without status words cannot end early, and the
    /// framing demands its bytes, so the connection ends.
    #[cold]
    pub fn spoil(&mut self, lanes: &mut StagingLanes) -> Result<()> {
        let why = Error::coded(
            errno::EFAULT,
            Code::Fault,
            "the kernel cannot read the operation's source memory: it is not mapped, or not readable",
        );
        if self.is_whole() && !self.is_cut() {
            return Err(why.context("the connection must end in the middle of an operation"));
        }
        // A body that was given up before has its begun part in the same unreadable memory: zeros are sent instead.
        match self.is_cut() {
            false => self.give_up(lanes, why, false),
            true => self.source = BodySource::Nothing,
        }
        Ok(())
    }
}
