// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies that both sides of a connection make together, of single operations (`coop.rs`) and of lists
//! (`coop_list.rs`): the initiator claims chunks from the front, and the target, as helper, claims chunks from the
//! back.
//!
//! A helper can be delayed between the claim of a chunk and its copy. So the initiator ends the operation only when the
//! helper has reported all claimed chunks or has left, even if the initiator's own part has failed.

use crate::error::{Code, Error, Result};
use crate::prov::bind::Coop;
use crate::prov::op::Dir;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::HelperPart;
use crate::prov::shm::wire::message::{broken, mark, slot_word, status_of};
use crate::sync::ring::Header;
use crate::sys::time;

/// Longest wait of the initiator for the helper's last chunk inside the posting call (200 us).
const LINGER_NS: u64 = 200_000;

/// Offered bytes from which the initiator wakes a sleeping target. A wake-up takes about a tenth of the time in which
/// so many bytes are copied, and a woken target polls for a while.
const WAKE_BYTES: usize = 1 << 20;

/// Bytes after which a helper ends its turn of progress.
const HELP_BYTES: usize = 4 << 20;

/// The initiator's side of one offer.
pub struct Claim {
    pub slot: u16,
    generation: u16,
    pub chunks: u32,
    /// The next chunk that the initiator claims. Once all chunks are claimed, the first chunk of the helper's part.
    pub front: u32,
}

impl Claim {
    /// Offers `len` bytes in `chunks` chunks, by a ring message of `words`, whose first word is filled in here. `None`:
    /// the ring or the slots have no room for an offer.
    pub fn offer(conn: &mut Conn, coop: Coop, kind: u8, dir: Dir, chunks: u32, len: usize, words: &mut [u64]) -> Result<Option<Claim>> {
        // Offers leave room in the ring, so that a peer that does not poll later finds more than offers.
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

    /// Claims and copies chunks until none is left to claim. `Some`: the error that ended the copying early.
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
                // The region was closed or a page is gone, so the helper is kept from claiming more chunks.
                self.front = slot.stop(self.generation, self.front, self.chunks).unwrap_or(self.front);
                return Some(e);
            }
        }
    }

    /// Waits up to `LINGER_NS` for the helper's report of all its chunks; returns the status and frees the slot.
    /// `None`: the time is over.
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

/// The work of a helper in one turn, for its report to the initiator.
pub struct HelpReport {
    /// Chunks that were done before the turn.
    before: u32,
    status: u16,
    /// True if the helper has no more to do: no chunk was left, or a copy failed.
    over: bool,
}

/// Target's side: claims chunks from the back and copies each by `copy`, which returns the bytes copied. The caller calls [`report`]
/// next.
pub fn copy_back(
    conn: &mut Conn,
    part: &mut HelperPart,
    mut copy: impl FnMut(&mut Conn, u32) -> std::result::Result<usize, Code>,
) -> HelpReport {
    let theirs = conn.link.peer.clone();
    let slot = theirs.slot(part.slot as usize);
    let (mut took, mut bytes) = (HelpReport { before: part.done, status: 0, over: false }, 0);
    // The loop ends after all chunks, even if the peer keeps writing free chunks into the claim.
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

/// Reports a turn to the initiator. True: chunks are left for the next turn.
pub fn report(conn: &Conn, part: &HelperPart, took: &HelpReport) -> bool {
    if part.done > took.before || took.status != 0 {
        conn.link.peer.slot(part.slot as usize).report(part.generation, took.status, part.done);
        conn.link.nudge();
    }
    !took.over && part.done < part.chunks
}
