// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that an operation of the peer names: checked, and held for as long as it is touched.

use super::conn::Conn;
use super::domain::Domain;
use super::frame::{self, Header, broken, word};
use super::mr::Region;
use super::slots::Place;
use super::source::Run;
use crate::error::{Code, Result};
use crate::hmem::Site;
use crate::mr::{Access, Paths};
use std::sync::Arc;

/// Answers up to this are copied, so that they leave together.
pub const ANSWER_COPY: u64 = 4 << 10;

pub fn paths_of(bits: u8) -> Paths {
    let mut paths = Paths::empty();
    paths.set(Paths::SOCKET, bits & frame::SOCKET != 0);
    paths.set(Paths::STAGED, bits & frame::STAGED != 0);
    paths
}

/// Where an operation of a peer goes.
pub(super) enum Target {
    Host(Box<[Run]>),
    Device(Site, Box<[Run]>),
}

impl Conn {
    /// The region that a key names.
    #[inline]
    pub fn look_up(&mut self, domain: &Domain, key: u64) -> Option<Arc<Region>> {
        if let Some(last) = self.region.upgrade().filter(|r| r.is(key)) {
            return Some(last);
        }
        let found = domain.regions.lock().find(key).cloned()?;
        self.region = Arc::downgrade(&found);
        Some(found)
    }

    /// Checks the pieces that a WRITE or READ names.
    pub(super) fn target(&mut self, domain: &Domain, h: &Header, words: &[u8], need: Access) -> std::result::Result<Target, Code> {
        let permitted = paths_of(h.paths);
        let mut runs = Vec::with_capacity(h.pieces.into());
        let mut site = None;
        for i in 0..usize::from(h.pieces) {
            let (addr, len, key) = (word(words, 3 * i), word(words, 3 * i + 1), word(words, 3 * i + 2));
            let region = self.look_up(domain, key).ok_or(Code::Key)?;
            let skip = region.check(addr, len, need, permitted)?;
            if *site.get_or_insert(region.site()) != region.site() {
                return Err(Code::Path);
            }
            if region.is_stale() {
                return Err(Code::Fault);
            }
            runs.push(Run { region, skip, len });
        }
        match site {
            Some(site) if !site.is_host() => Ok(Target::Device(site, runs.into())),
            _ => Ok(Target::Host(runs.into())),
        }
    }
}

/// The sum of the pieces' lengths must be the frame's.
pub(super) fn check_sum(h: &Header, words: &[u8]) -> Result<()> {
    let sum = (0..usize::from(h.pieces)).try_fold(0u64, |sum, i| sum.checked_add(word(words, 3 * i + 1)));
    if sum != Some(h.len) {
        return Err(broken("pieces whose lengths do not make the frame's"));
    }
    Ok(())
}

pub(super) fn place(site: Site, runs: &[Run]) -> std::result::Result<Place, Code> {
    let mut pieces = Vec::with_capacity(runs.len());
    let mut inside = Vec::with_capacity(runs.len());
    for run in runs {
        inside.push(run.region.hold()?);
        pieces.extend(run.region.parts(run.skip, run.len));
    }
    Ok(Place { site, pieces: pieces.into(), _inside: inside })
}

/// Adds the bytes of regions to an answer that is copied.
pub(super) fn copy_out(runs: &[Run], out: &mut Vec<u8>) -> std::result::Result<(), Code> {
    for run in runs {
        run.region.enter()?;
        let read = run.region.begin_cpu(false).and_then(|()| {
            let read = run.region.read(run.skip, run.len, out);
            read.and(run.region.end_cpu(false))
        });
        run.region.leave();
        read.map_err(|_| Code::Fault)?;
    }
    Ok(())
}
