// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies that two sides carry: the initiator takes chunks from the front, a target that helps from the back. What one
//! operation and a list have in common.
//!
//! A helper that has claimed a chunk may be held up before it copies it, so the operation ends, whatever became of our own
//! part, only when the helper has reported or is known to be gone.

use crate::error::{Code, Error, Result};
use crate::prov::bind::Coop;
use crate::prov::op::Dir;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::HelperPart;
use crate::prov::shm::wire::message::{broken, mark, slot_word, status_of};
use crate::sync::ring::Header;
use crate::sys::time;

/// How long the initiator waits inside the posting call for the helper's last chunk.
const LINGER_NS: u64 = 200_000;

/// Bytes that are worth waking a sleeping target for: it takes as long as a tenth of them, and looks on for a while.
const WAKE_BYTES: usize = 1 << 20;

/// Bytes that a helper copies in one turn of its progress.
const HELP_BYTES: usize = 4 << 20;

/// The initiator's side of one offer.
pub struct Claim {
    pub slot: u16,
    generation: u16,
    pub chunks: u32,
    /// The next chunk from the front; in the end the first of the helper's part.
    pub front: u32,
}

impl Claim {
    /// Offers `len` bytes in `chunks`; the first of the words is filled in. `None`: there is no room for an offer.
    pub fn offer(conn: &mut Conn, coop: Coop, kind: u8, dir: Dir, chunks: u32, len: usize, words: &mut [u64]) -> Result<Option<Claim>> {
        // A peer that does not poll must not find its ring full of invitations.
        if !conn.tx.is_roomy().map_err(broken)? {
            return Ok(None);
        }
        let Some((slot, generation)) = conn.slots.reserve() else { return Ok(None) };
        conn.link.mine.slot(slot as usize).open(generation, chunks);
        words[0] = slot_word(slot, generation);
        let flags = if dir == Dir::Read { mark::READ } else { 0 };
        conn.tx.write(Header { kind, flags, words: words.len() as u8, ..Header::default() }, words, &[]);
        conn.offered += len;
        if coop == Coop::Waking && conn.offered >= WAKE_BYTES {
            conn.offered = 0;
            conn.link.nudge();
        }
        Ok(Some(Claim { slot, generation, chunks, front: 0 }))
    }

    /// Copies chunks until the helper has the rest; gives what ended that early.
    pub fn copy_front(&mut self, conn: &mut Conn, mut copy: impl FnMut(&mut Conn, u32) -> Result<()>) -> Option<Error> {
        let ours = conn.link.mine.clone();
        let slot = ours.slot(self.slot as usize);
        loop {
            match slot.claim_front(self.generation, self.front, self.chunks).map_err(broken) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => return Some(e),
            }
            let copied = copy(conn, self.front);
            self.front += 1;
            if let Err(e) = copied {
                // The gate closed or a page vanished: the helper begins nothing more.
                self.front = slot.stop(self.generation, self.front, self.chunks).unwrap_or(self.front);
                return Some(e);
            }
        }
    }

    /// Waits a little for the helper's part; gives its status, and the slot back.
    pub fn linger(&self, conn: &mut Conn) -> Option<u16> {
        let ours = conn.link.mine.clone();
        let until = time::now_ns() + LINGER_NS;
        loop {
            let reported = ours.slot(self.slot as usize).reported(self.generation);
            if reported.chunks >= self.chunks - self.front || reported.status != 0 {
                conn.slots.release(self.slot);
                return Some(reported.status);
            }
            if time::now_ns() > until {
                return None;
            }
            std::hint::spin_loop();
        }
    }
}

/// What a helper did in one turn.
pub struct HelpReport {
    before: u32,
    status: u16,
    over: bool,
}

/// Target's side: copies some chunks from the back, as `copy` does, which says how many bytes. [`report`] comes next.
pub fn copy_back(
    conn: &mut Conn,
    part: &mut HelperPart,
    mut copy: impl FnMut(&mut Conn, u32) -> std::result::Result<usize, Code>,
) -> HelpReport {
    let theirs = conn.link.peer.clone();
    let slot = theirs.slot(part.slot as usize);
    let (mut took, mut bytes) = (HelpReport { before: part.done, status: 0, over: false }, 0);
    // No more than there are chunks in all, whatever the peer writes into the claim meanwhile.
    while part.done < part.chunks && bytes < HELP_BYTES {
        let Some(i) = slot.claim_back(part.generation) else {
            took.over = true;
            break;
        };
        match if i < part.chunks { copy(conn, i) } else { Err(Code::PeerBroke) } {
            Ok(n) => bytes += n,
            Err(code) => {
                (took.status, took.over) = (status_of(code), true);
                break;
            }
        }
        part.done += 1;
    }
    took
}

/// Tells the initiator of a turn. True: the next one goes on.
pub fn report(conn: &Conn, part: &HelperPart, took: &HelpReport) -> bool {
    if part.done > took.before || took.status != 0 {
        conn.link.peer.slot(part.slot as usize).report(part.generation, took.status, part.done);
        conn.link.nudge();
    }
    !took.over && part.done < part.chunks
}
