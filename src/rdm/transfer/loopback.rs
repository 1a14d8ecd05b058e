// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RMA of an endpoint to itself: copies within the process. Keys, bounds and access rights are checked as they are for a
//! peer.

use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Site};
use crate::mr::piece::{load, store};
use crate::mr::{Access, PathPolicy, Paths, region};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, Iov, RmaIov, parts};
use crate::prov::queue::{Completion, Counter};
use crate::prov::report::{MESSAGES, PathReport, Refusals};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::memory::regions::{LocalRegion, Region, Regions};
use crate::rdm::peers::peer::CompletionInfo;
use crate::rdm::state::State;
use crate::sys::usercopy::UserCopy;
use std::sync::Arc;

/// Bytes copied before the region is looked up again. A region can be closed between two such chunks.
const CHUNK: usize = 1 << 20;

fn refused(code: Code, errno: i32) -> Error {
    Error::coded(errno, code, Code::words(code.0))
}

/// The path that is reported for copies within the process.
pub(in crate::rdm) fn path_of(site: Site) -> Paths {
    if site.is_host() { Paths::DIRECT } else { Paths::IPC }
}

/// A guard that a copy holds while it uses a region; closing the region waits for the guard.
pub(in crate::rdm) type Inside = region::RegionUse<(), ()>;

/// The pieces of `len` bytes of a region from byte `skip` on.
pub(in crate::rdm) fn parts_of(region: &LocalRegion, skip: usize, len: usize) -> impl Iterator<Item = Iov> + '_ {
    region.walk(skip as u64, len).map(|(piece, from, n)| piece.iov.part(from, n))
}

impl Regions {
    fn of_key(&self, key: u64) -> Result<&Region> {
        let region = self.by_key.get(&key).and_then(|at| self.all.get(*at as usize)).and_then(Option::as_ref);
        region.filter(|r| r.local.key == key).ok_or_else(|| refused(Code::Key, errno::EKEYREJECTED))
    }

    /// Checks a range that an operation names. Returns its region, held open, the offset of the range, and the counter of
    /// writes to the region. The counter is taken now, because the key may name another region when the copy ends.
    pub(in crate::rdm) fn range(&self, r: &RmaIov, need: Access, policy: PathPolicy) -> Result<(Inside, usize, Option<Arc<Counter>>)> {
        let Region { local: own, counter, .. } = self.of_key(r.key)?;
        let skip = own.range(r.addr, r.len as u64, need).map_err(|code| match code {
            Code::Bounds => refused(code, errno::ERANGE),
            code => refused(code, errno::EACCES),
        })?;
        let path = path_of(own.site());
        if own.pieces().is_empty() {
            let words = "a region of a descriptor, which lies nowhere in this process: the endpoint itself cannot copy it";
            return Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
        }
        if !policy.allowed().contains(path) || !own.policy.allowed().contains(path) {
            return Err(refused(Code::Path, errno::EOPNOTSUPP));
        }
        let inside = own.hold().map_err(|code| refused(code, errno::EKEYREJECTED))?;
        Ok((inside, skip as usize, counter.clone()))
    }
}

/// Copies as many bytes as both pieces have. Host memory is copied by system calls, because its pages may be missing. Device
/// memory is copied by the driver, and by way of a buffer of the library if the other side does not have the same driver.
fn copy(user: &UserCopy, (there, to): (Site, Iov), (here, from): (Site, Iov)) -> Result<()> {
    let len = to.len().min(from.len());
    if there.is_host() && here.is_host() {
        return user.copy(from.part(0, len), to.part(0, len));
    }
    if there.iface == here.iface {
        // SAFETY: neither side is host memory, and the driver checks both ranges.
        return unsafe { hmem::get(there.iface)?.copy(there.device, hmem::Dir::Within, to.addr() as u64, from.addr() as u64, len) };
    }
    let mut bytes = Vec::with_capacity(len.min(CHUNK));
    for at in (0..len).step_by(CHUNK) {
        let (to, from) = (to.part(at, CHUNK.min(len - at)), from.part(at, CHUNK.min(len - at)));
        bytes.clear();
        if here.is_host() {
            user.read(from, &mut bytes)?;
        } else {
            bytes.resize(from.len(), 0);
            load(here, &[from], 0, &mut bytes)?;
        }
        if there.is_host() { user.write(&bytes, to)? } else { store(there, &[to], 0, &bytes)? }
    }
    Ok(())
}

/// Memory at one site, in pieces.
type SitePieces<I> = (Site, I);

/// Copies between `local`, from byte `at` on, and the pieces of `remote`, piece by piece and without a buffer for all bytes.
pub(in crate::rdm) fn copy_pieces(
    user: &UserCopy,
    dir: Dir,
    (here, local): SitePieces<&[Iov]>,
    mut at: usize,
    (there, remote): SitePieces<impl Iterator<Item = Iov>>,
) -> Result<()> {
    for remote in remote {
        let mut moved = 0;
        for local in parts(local, at, remote.len()) {
            let (local, remote) = ((here, local), (there, remote.part(moved, local.len())));
            let (to, from) = if dir == Dir::Write { (remote, local) } else { (local, remote) };
            copy(user, to, from).map_err(|e| Error::coded(e.errno, Code::Fault, e.words))?;
            moved += local.1.len();
        }
        at += remote.len();
    }
    Ok(())
}

/// Copies the bytes of an RMA operation. All ranges are checked before the first byte is copied.
fn copy_all_ranges(domain: &Domain, dir: Dir, local: SitePieces<&[Iov]>, remote: &[RmaIov], policy: PathPolicy) -> Result<Paths> {
    let need = if dir == Dir::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    let mut path = Paths::DIRECT;
    for r in remote {
        path = path_of(domain.regions.lock().range(r, need, policy)?.0.site());
    }
    let mut at = 0;
    for r in remote {
        // A range of zero bytes is checked and counted like any other.
        for done in (0..r.len.max(1)).step_by(CHUNK) {
            let n = (r.len - done).min(CHUNK);
            let part = RmaIov { addr: r.addr.wrapping_add(done as u64), len: n, key: r.key };
            // `close_region` waits for `inside`, and the program may close the counter right after. So the counter is
            // used before `inside` is dropped.
            let (inside, skip, counter) = domain.regions.lock().range(&part, need, policy)?;
            copy_pieces(&domain.user_copy, dir, local, at, (inside.site(), parts_of(&inside, skip, n)))?;
            at += n;
            if let (Dir::Write, Some(counter), true) = (dir, counter, done + n == r.len) {
                counter.add(1);
            }
        }
    }
    Ok(path)
}

impl State {
    /// Carries out an RMA operation of this endpoint to itself. The operation is complete when this function returns.
    pub fn rma_loopback(
        &mut self,
        domain: &Domain,
        dir: Dir,
        local: (Site, &[Iov]),
        remote: &[RmaIov],
        c: &Common,
        completion: &CompletionInfo,
    ) {
        match copy_all_ranges(domain, dir, local, remote, self.options.policy) {
            Ok(path) => {
                self.reports.past_stats().moved(path, completion.len);
                if dir == Dir::Write && c.flags & flags::REMOTE_CQ_DATA != 0 {
                    let kind = flags::REMOTE_WRITE | flags::RMA | flags::REMOTE_CQ_DATA;
                    let entry = Completion { context: 0, flags: kind, len: completion.len, buf: 0, data: c.data };
                    self.reports.remote_data_arrived(&self.bind, entry, self.peers.loopback_source());
                }
                self.reports.succeed(&self.bind, completion);
            }
            Err(e) => self.reports.fail(&self.bind, completion, e),
        }
    }

    /// Reports the path of operations to this endpoint itself.
    pub fn report_loopback(&self, domain: &Domain, key: u64, desc: u64) -> Result<PathReport> {
        if key == MESSAGES {
            let mut refusals = Refusals::refused("the endpoint itself is meant, and copies within its process");
            let path = path_of(domain.site(desc)?);
            *(if path == Paths::DIRECT { &mut refusals.direct } else { &mut refusals.ipc }) = None;
            return Ok(PathReport::of_messages("this very endpoint", None, "copied within the process", refusals, ""));
        }
        let regions = domain.regions.lock();
        let region = regions.of_key(key)?;
        let mut refusals = Refusals::refused("the endpoint itself is meant, and copies within its process");
        let site = region.local.site();
        let possible = RmaIov { addr: region.local.base, len: 0, key };
        let refusal = regions.range(&possible, Access::empty(), self.options.policy).err();
        let path = path_of(site);
        let place = if path == Paths::DIRECT { &mut refusals.direct } else { &mut refusals.ipc };
        *place = refusal;
        let paths = refusals.possible();
        let text = format!("to this very endpoint, {site} memory: by copies within the process\n{}", refusals.lines(paths));
        Ok(PathReport { path: paths, paths, offered: path, refusals, short: None, text })
    }
}
