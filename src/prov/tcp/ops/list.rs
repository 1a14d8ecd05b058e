// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of blocks. One WRITE or READ frame names up to `BLOCKS_MAX` blocks. The target checks all of these blocks
//! before it touches a byte. The bytes of all blocks are one body, which is sent and received as any other body.

use super::rma::{COPY_MAX, path_of};
use super::target::{TargetMemory, are_short, paths_of, refused};
use crate::error::{Code, Error, Result, errno};
use crate::fallible::granted;
use crate::hmem::Site;
use crate::mr::{Access, DEVICE_DESC};
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::list::{self, List, Native, Pair};
use crate::prov::op::{Common, Dir, Iov, Pieces};
use crate::prov::tcp::conn::{Conn, LIST_READS, READS, ReadOp, WriteOp, WriteStatus};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::limits::TX_SIZE;
use crate::prov::tcp::memory::mr::Region;
use crate::prov::tcp::memory::source::{BodySource, RegionRun, RegionRuns, gather, source_of};
use crate::prov::tcp::refusal::RemoteAddr;
use crate::prov::tcp::state::State;
use crate::prov::tcp::stream::body::{Body, Owner};
use crate::prov::tcp::stream::incoming::{BodyEnd, BodySink, Incoming};
use crate::prov::tcp::stream::tx::QUEUE_MAX;
use crate::prov::tcp::wire::frame::{BLOCK, BLOCKS_MAX, BODY_MAX, Header, Kind, LIST, PROMPT, protocol_error, word};
use std::collections::HashMap;
use std::sync::Arc;

/// The part of a list that one frame takes. All its local memory lies on one device, or all on the host.
struct Part {
    site: Site,
    /// Number of runs.
    count: usize,
    /// Bytes of all runs.
    total: usize,
    /// The local memory, in which adjacent blocks are one piece.
    pieces: Vec<Iov>,
}

impl Part {
    /// Takes as many runs from the beginning of `runs` as one frame can have.
    fn of(domain: &Domain, runs: &[list::Run], pairs: &[Pair]) -> Result<Part> {
        let mut part = Part { site: Site::HOST, count: 0, total: 0, pieces: Vec::with_capacity(runs.len().min(BLOCKS_MAX)) };
        let mut pair = u32::MAX;
        for run in runs.iter().take(BLOCKS_MAX) {
            if run.pair != pair {
                let desc = pairs[run.pair as usize].desc;
                let site = if desc & DEVICE_DESC == 0 { Site::HOST } else { domain.local_site(desc, &[run.local])? };
                if part.count == 0 {
                    part.site = site;
                }
                if site != part.site {
                    break;
                }
                pair = run.pair;
            }
            if part.total + run.len() > BODY_MAX as usize {
                break;
            }
            match part.pieces.last_mut() {
                Some(last) if last.addr() + last.len() == run.buf() => {
                    // SAFETY: the two blocks are adjacent, and the caller keeps both until the list completes.
                    *last = unsafe { Iov::new(last.addr(), last.len() + run.len()) };
                }
                _ => part.pieces.push(run.local),
            }
            part.total += run.len();
            part.count += 1;
        }
        Ok(part)
    }
}

impl State {
    /// Decides whether a list goes in frames of its own. If it does, the local memory of all blocks is checked here.
    pub fn list(&mut self, domain: &Domain, list: &List) -> Result<Native> {
        let has_faults = self.faults.is_some();
        let conn = self.up()?;
        if !conn.has_lists || has_faults {
            return Ok(Native::Pieces);
        }
        let local = |p: &Pair| (!p.is_on_host()).then(|| domain.regions.lock().local_pieces(p.desc)).transpose();
        let locals = list.pairs.iter().map(local).collect::<Result<Vec<_>>>()?;
        for local in locals.iter().flatten() {
            local.check()?;
        }
        let outside = |r: &&list::Run| locals[r.pair as usize].as_ref().is_some_and(|of| !of.holds(r.buf(), r.len()));
        match list.runs.iter().find(outside) {
            None => Ok(Native::Parts),
            Some(run) => {
                let words = format!("blocks[{}]: [{:#x}, +{}) lies outside the region of its desc", run.first, run.buf(), run.len());
                Err(Error::invalid(words))
            }
        }
    }

    /// Posts the part of a list that one frame takes; returns the number of its runs.
    pub fn list_part(&mut self, domain: &Domain, dir: Dir, runs: &[list::Run], pairs: &[Pair], c: &Common) -> Result<usize> {
        let conn = self.up()?;
        if !conn.has_lists {
            return Err(Error::fixed(errno::EOPNOTSUPP, "ep: the peer's protocol version has no list operations; update gdrfab there"));
        }
        let lists = conn.reads.iter().filter(|r| r.pieces.is_list()).count();
        let many = dir == Dir::Read && (conn.reads.len() >= READS || lists >= LIST_READS);
        let fenced = c.flags & flags::FENCE != 0 && !conn.reads.is_empty();
        if many || fenced || conn.outstanding() >= TX_SIZE || conn.tx.waiting() > QUEUE_MAX {
            return Ok(0);
        }
        let Part { site, count, total, pieces } = Part::of(domain, runs, pairs)?;
        let Some(first) = runs.first().filter(|_| count > 0) else { return Ok(0) };
        let kind = flags::RMA | if dir == Dir::Read { flags::READ } else { flags::WRITE };
        let deadline = self.deadline(c);
        let end = Ending { context: c.context, kind, len: total, buf: first.buf(), deadline, part: true, ..Ending::default() };
        if let Err(e) = self.check_path(domain, site) {
            self.fail(&end, e);
            return Ok(count);
        }
        self.stats.moved(path_of(site, pairs[first.pair as usize].key), total);
        let paths = self.paths_bits(domain, site);
        let (runs, pieces) = (&runs[..count], Pieces::of_list(pieces));
        match dir {
            Dir::Write => self.put_list(runs, pairs, c, end, pieces, site, paths),
            Dir::Read => self.ask_for_list(runs, pairs, end, pieces, site, paths),
        }
        self.send_or_batch(domain, c.flags);
        Ok(count)
    }

    /// Queues the WRITE of a part of a list.
    #[allow(clippy::too_many_arguments)]
    fn put_list(&mut self, runs: &[list::Run], pairs: &[Pair], c: &Common, end: Ending, pieces: Pieces, site: Site, paths: u8) {
        let stream = self.options.stream;
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let (total, on_host) = (end.len, site.is_host());
        let source = match () {
            () if on_host && total <= COPY_MAX => None,
            () if on_host && are_short(pieces.as_slice().len(), total as u64) => {
                Some(BodySource::Owned(gather(pieces.as_slice(), 0, total as u64), 0))
            }
            () => match source_of(&mut conn.tx.lanes, pieces.clone(), site, total, false, stream) {
                Ok(source) => Some(source),
                Err(e) => return self.fail(&end, e),
            },
        };
        conn.sequence = conn.sequence.wrapping_add(1);
        let owner = Owner::Write(conn.sequence);
        let body = source.map(|source| conn.body(Body::new(source, owner, None, total as u64)));
        let prompt = if c.flags & flags::DELIVERY_COMPLETE != 0 { PROMPT } else { 0 };
        let bits = LIST | prompt | body.as_ref().map_or(0, Body::flag);
        conn.put(Header { paths, ..Header::new(Kind::Write, bits, total as u64) });
        conn.put_blocks(runs, pairs);
        match body {
            Some(body) => conn.tx.put_body(body),
            None => conn.tx.put_pieces(pieces.as_slice()),
        }
        conn.writes.push_back(WriteOp { end, at: RemoteAddr::default(), status: WriteStatus::Pending, refused: None });
    }

    /// Queues the READ of a part of a list.
    fn ask_for_list(&mut self, runs: &[list::Run], pairs: &[Pair], end: Ending, pieces: Pieces, site: Site, paths: u8) {
        let stream = self.options.stream;
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if !site.is_host()
            && let Err(e) = conn.rx.lanes.after(site, stream)
        {
            return self.fail(&end, e);
        }
        conn.put(Header { paths, ..Header::new(Kind::Read, LIST, end.len as u64) });
        conn.put_blocks(runs, pairs);
        conn.reads.push_back(ReadOp { end, at: RemoteAddr::default(), pieces, site, over: false });
    }

    /// Handles the blocks of a list, which are complete. For a WRITE, its data follows.
    pub fn on_list(&mut self, domain: &Domain, h: &Header, data: Option<u64>, blocks: &[u8]) -> Result<()> {
        let lens = (0..blocks.len() / BLOCK).map(|i| word(blocks, 3 * i + 1));
        if lens.clone().try_fold(0u64, |sum, len| sum.checked_add(len)) != Some(h.len) {
            return Err(protocol_error("blocks whose lengths do not sum to the frame's length"));
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if h.kind == Kind::Read {
            let target = conn.list_target(domain, h, blocks, Access::REMOTE_READ);
            conn.answer_from(target, h);
            return Ok(());
        }
        let target = conn.list_target(domain, h, blocks, Access::REMOTE_WRITE);
        self.write_to(target, h, data)
    }
}

impl Conn {
    /// Queues the number of the blocks, and address, length and key of each.
    fn put_blocks(&mut self, runs: &[list::Run], pairs: &[Pair]) {
        self.tx.put_word(runs.len() as u64);
        self.tx.add(|out| {
            out.reserve(runs.len() * BLOCK);
            for run in runs {
                for word in [run.addr, run.len() as u64, pairs[run.pair as usize].key] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
        });
    }

    /// Begins to receive the `count` blocks of a list, which come before the data.
    pub fn expect_list(&mut self, h: &Header, data: Option<u64>, count: u64) -> Result<()> {
        if !self.has_lists || !(1..=BLOCKS_MAX as u64).contains(&count) {
            return Err(protocol_error("a list with no blocks or too many"));
        }
        let len = count as usize * BLOCK;
        let list = Incoming::new(BodySink::Buffer(granted(len)?), BodyEnd::List(*h, data), len as u64, false);
        self.rx.body = Some(Box::new(list));
        Ok(())
    }

    /// Checks every block of a list. An error names the first block that fails.
    fn list_target(&mut self, domain: &Domain, h: &Header, blocks: &[u8], need: Access) -> Result<TargetMemory> {
        let (permitted, count) = (paths_of(h.paths), blocks.len() / BLOCK);
        let (mut runs, mut regions): (Vec<RegionRun>, Vec<Arc<Region>>) = (granted(count)?, Vec::new());
        let mut places: HashMap<u64, usize> = HashMap::new();
        let (mut last, mut at) = (None, 0);
        for i in 0..count {
            let [addr, len, key] = [0, 1, 2].map(|k| word(blocks, 3 * i + k));
            let fail = |code, good: u64| Error { piece: Some((i as u16, good.min(u64::from(u32::MAX)) as u32)), ..refused(code) };
            if last != Some(key) {
                at = match places.get(&key) {
                    Some(at) => *at,
                    None => {
                        let region = self.look_up(domain, key).ok_or_else(|| fail(Code::Key, 0))?;
                        if regions.first().is_some_and(|first| first.site() != region.site()) {
                            // The block itself is valid, but lies on another device than the blocks before it.
                            return Err(fail(Code::Path, len));
                        }
                        if region.is_stale() {
                            return Err(fail(Code::Fault, 0));
                        }
                        places.insert(key, regions.len());
                        regions.push(region);
                        regions.len() - 1
                    }
                };
                last = Some(key);
            }
            let region = &regions[at];
            let skip = region.check(addr, len, need, permitted).map_err(|code| {
                let inside = addr.checked_sub(region.base).and_then(|skip| region.location.len.checked_sub(skip));
                fail(code, inside.filter(|_| code == Code::Bounds).unwrap_or(0))
            })?;
            match runs.last_mut() {
                Some(run) if run.skip + run.len == skip && Arc::ptr_eq(&run.region, region) => run.len += len,
                _ => runs.push(RegionRun { region: region.clone(), skip, len }),
            }
        }
        let site = regions.first().map_or(Site::HOST, |r| r.site());
        let runs = RegionRuns::of_list(runs, regions);
        Ok(if site.is_host() { TargetMemory::Host(runs) } else { TargetMemory::Device(site, runs) })
    }
}
