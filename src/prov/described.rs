// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With GDRFAB_DEBUG=desc, the open regions of a domain by their descriptors (`gdrfab_mr_desc()`), against which the local
//! descriptors of every operation are checked. Without that word, a provider that needs no descriptor does not look
//! at descriptors.

use super::atomic::AtomicOp;
use super::list::List;
use super::op::Iov;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;

/// The open regions of a domain, by descriptor: the pieces of each.
#[derive(Default)]
pub struct Described(Mutex<HashMap<u64, Vec<Iov>>>);

/// True if every byte of `range` lies in one of the pieces.
fn covers(pieces: &[Iov], range: Iov) -> bool {
    let (mut at, end) = (range.addr(), range.addr().saturating_add(range.len()));
    while at < end {
        let Some(piece) = pieces.iter().find(|p| (p.addr()..p.addr().saturating_add(p.len())).contains(&at)) else { return false };
        at = piece.addr().saturating_add(piece.len());
    }
    true
}

impl Described {
    /// Adds a region; `pieces` is empty if it has no addresses in this process.
    pub fn open(&self, desc: u64, pieces: &[Iov]) {
        self.0.lock().insert(desc, pieces.to_vec());
    }

    pub fn close(&self, desc: u64) {
        self.0.lock().remove(&desc);
    }

    /// Checks the descriptors of local pieces. `descs` may have fewer elements than there are pieces; 0 names no region.
    #[cold]
    #[inline(never)]
    pub fn check(&self, local: &[Iov], descs: &[u64]) -> Result<()> {
        local.iter().zip(descs).try_for_each(|(piece, desc)| self.check_one(*piece, *desc))
    }

    #[cold]
    #[inline(never)]
    pub fn check_one(&self, local: Iov, desc: u64) -> Result<()> {
        if desc == 0 {
            return Ok(());
        }
        let regions = self.0.lock();
        let Some(pieces) = regions.get(&desc) else {
            return Err(Error::invalid(format!(
                "desc: {desc:#x} names no open region of this domain; use the result of gdrfab_mr_desc() until the region is closed"
            )));
        };
        if pieces.is_empty() || covers(pieces, local) {
            return Ok(());
        }
        let words: Vec<String> = pieces.iter().map(|p| format!("[{:#x}, +{})", p.addr(), p.len())).collect();
        Err(Error::invalid(format!(
            "desc: {desc:#x} names the region {}, which does not hold the buffer [{:#x}, +{})",
            words.join(" and "),
            local.addr(),
            local.len()
        )))
    }

    /// Checks the descriptors of an atomic operation's buffers: of operand, compare and result, or of operand and result if
    /// there are two.
    #[cold]
    #[inline(never)]
    pub fn check_atomic(&self, op: &AtomicOp, descs: &[u64]) -> Result<()> {
        let (operand, compare, old) = (op.with.operand, op.with.compare, op.with.old);
        let buffers = if descs.len() == 2 { [operand, old, old] } else { [operand, compare, old] };
        let used = buffers.into_iter().zip(descs).filter(|(buffer, _)| !buffer.is_empty());
        used.into_iter().try_for_each(|(buffer, desc)| self.check_one(buffer, *desc))
    }

    #[cold]
    #[inline(never)]
    pub fn check_list(&self, list: &List) -> Result<()> {
        list.runs.iter().try_for_each(|run| self.check_one(run.local, list.pair(run).desc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_lies_in_the_region_that_its_descriptor_names() {
        static BYTES: [u8; 64] = [0; 64];
        // SAFETY: the pieces are never used as memory.
        let piece = |from: usize, len: usize| unsafe { Iov::new(BYTES.as_ptr() as usize + from, len) };
        let all = Described::default();
        all.open(7, &[piece(0, 16), piece(16, 16), piece(48, 16)]);
        all.open(8, &[]);
        for (from, len, fits) in
            [(0, 16, true), (8, 24, true), (0, 33, false), (40, 4, false), (48, 16, true), (60, 8, false), (90, 0, true)]
        {
            assert_eq!(all.check_one(piece(from, len), 7).is_ok(), fits, "{from} {len}");
        }
        all.check(&[piece(0, 4), piece(40, 4)], &[7]).unwrap();
        all.check(&[piece(0, 4), piece(40, 4)], &[7, 0]).unwrap();
        let e = all.check(&[piece(0, 4), piece(40, 4)], &[7, 7]).unwrap_err();
        assert!(e.words.starts_with("desc: 0x7 names the region [") && e.words.contains("+4)"), "{e}");
        all.check_one(piece(40, 4), 8).unwrap();
        all.close(7);
        assert!(all.check_one(piece(0, 1), 7).is_err() && all.check_one(piece(0, 1), 9).is_err());
    }
}
