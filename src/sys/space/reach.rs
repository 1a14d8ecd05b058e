// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection's access to its peer's memory: copies, and the check beforehand that no copy has to wait for a missing
//! page.

use super::address_space::{AddressSpace, STEP};
use super::batch::Batch;
use super::call::{Attach, Piece};
use super::pages::{self, PresentPages};
use super::populate::PageRequest;
use crate::error::{Code, Error, Result};
use crate::fallible::{MakeRoom, copied};
use crate::sys::iov::Iov;
use crate::sys::time;
use std::sync::Arc;

/// Time for which a caller waits for a peer's pages before it does other work.
const GLANCE_NS: u64 = 50_000;

/// The question of a caller that began to wait for pages, so that the same question is recognised later.
#[derive(PartialEq, Eq)]
struct WaitedFor {
    how: Attach,
    /// The first range of the question, present or not.
    first: Option<(u64, usize)>,
    /// Address of the first missing range, and bytes of all missing ranges.
    missing: (u64, usize),
}

/// The peer's address space, the pages that were seen there, and the pages that this connection waits for.
pub struct Reach {
    space: Result<Arc<AddressSpace>>,
    seen: PresentPages,
    /// Time (in ticks) at which the guard's page was last seen present.
    guarded: u64,
    waits: Option<(WaitedFor, Arc<PageRequest>)>,
}

impl Reach {
    pub fn new(space: Result<Arc<AddressSpace>>) -> Reach {
        Reach { space, seen: PresentPages::default(), guarded: 0, waits: None }
    }

    fn space(&self) -> Result<&AddressSpace> {
        self.space.as_deref().map_err(|e| Error::coded(e.errno, Code::Path, e.words.clone()))
    }

    /// The error of a copy that found the peer's process ended or executing another program.
    pub fn end(&self) -> Option<&Error> {
        self.space.as_ref().ok()?.why_over().filter(|e| e.code == Code::PeerGone)
    }

    #[inline]
    fn saw_guard(&self, now: u64) -> bool {
        now.wrapping_sub(self.guarded) < pages::FRESH_TICKS
    }

    /// True if the pages of a range were seen a moment ago, so that a copy waits for none of them.
    #[inline]
    pub fn saw(&self, how: Attach, addr: u64, len: usize) -> bool {
        let now = time::ticks();
        self.saw_guard(now) && self.seen.has(how, addr, len, now)
    }

    /// True if the pages of the ranges are present, so that a copy waits for none of them. False: the missing ones are
    /// being faulted in, or will never come; ask again later.
    pub fn has(&mut self, how: Attach, ranges: impl Iterator<Item = (u64, usize)> + Clone) -> bool {
        let (Ok(space), now) = (&self.space, time::ticks()) else { return true };
        let ranges = ranges.filter(|(_, len)| *len > 0);
        if self.saw_guard(now) && self.seen.has_all(how, ranges.clone(), now) {
            return true;
        }
        let first = ranges.clone().next();
        if self.waits.as_ref().is_some_and(|(wanted, request)| wanted.how == how && wanted.first == first && !request.is_finished()) {
            return false;
        }
        if !self.saw_guard(now) && space.has_guard() {
            self.guarded = now;
        }
        let mut missing = Vec::new();
        for (addr, len) in ranges {
            if !self.seen.look(space.page_map(), how, addr, len, now) {
                if missing.room(1).is_err() {
                    return false;
                }
                missing.push((addr, len));
            }
        }
        if missing.is_empty() && self.saw_guard(now) {
            return true;
        }
        let total = missing.iter().map(|(_, len)| len).sum();
        let wanted = WaitedFor { how, first, missing: (missing.first().map_or(0, |(addr, _)| *addr), total) };
        let finished = self.waits.take_if(|(_, request)| request.is_finished());
        if finished.is_none_or(|(before, _)| before != wanted) && !self.wait(wanted, &missing) {
            return false;
        }
        // Pages that have not come by now do not exist, and a copy finds that out without waiting.
        self.note(how, &missing);
        true
    }

    /// Records that the guard and the pages of the ranges were present just now.
    fn note(&mut self, how: Attach, ranges: &[(u64, usize)]) {
        let now = time::ticks();
        self.guarded = now;
        ranges.iter().for_each(|(addr, len)| self.seen.note(how, *addr, *len, now));
    }

    /// Has missing pages faulted in, and waits a short time. False: they have not come yet.
    #[cold]
    fn wait(&mut self, wanted: WaitedFor, ranges: &[(u64, usize)]) -> bool {
        let Ok(space) = &self.space else { return true };
        let request = match copied(ranges).and_then(|ranges| space.request_pages(wanted.how, ranges)) {
            Ok(Some(request)) => request,
            Ok(None) => return false,
            Err(e) => {
                crate::log!(Warn, "{e}");
                return false;
            }
        };
        let until = time::now_ns() + GLANCE_NS;
        while !request.is_finished() {
            if time::now_ns() > until {
                self.waits = Some((wanted, request));
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Copies all bytes, or fails. Code `PeerGone`: the address space has ended. Code `Path`: the kernel no longer
    /// copies this memory, or any of the peer's.
    #[inline]
    pub fn copy(&self, how: Attach, local: &[Iov], remote: &[Piece]) -> Result<()> {
        self.space()?.copy(how, local, remote)
    }

    /// Like `copy`, for many pieces, `len` bytes in all.
    pub fn copy_batch(&self, how: Attach, batch: &mut Batch, len: usize) -> Result<()> {
        let space = self.space()?;
        match len <= STEP {
            true => space.once(how, &mut batch.ours, &mut batch.theirs, len),
            false => space.in_steps(how, &batch.ours[1..], &batch.theirs[1..], len, STEP),
        }
    }
}
