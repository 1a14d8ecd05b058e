// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of blocks, moved by this side alone: in one pass through mappings, by as many blocks as one call of the kernel takes,
//! or by a device. Everything is checked before the first byte moves.

use super::conn::Conn;
use super::copy::{attach_error, notify};
use super::device;
use super::domain::Domain;
use super::layout::FLIGHTS;
use super::remote::{Remote, Resolved, no_such_key};
use super::state::State;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::{Access, Paths};
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::list::{List, Native, Run};
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov};
use crate::sync::gate;
use crate::sync::ring::Header;
use crate::sys::copy;
use crate::sys::process::{Attach, Piece, attach_copy, piece};

/// Regions of a list at most: what the words of device copies are enough for.
const REGIONS: usize = FLIGHTS / 2;
/// Bytes, and blocks, copied under one mark, so that a region is closed in bounded time.
const MARK_BYTES: usize = 64 << 20;
const MARK_RUNS: usize = 16 << 10;
/// Blocks that one call of the kernel takes on each side (UIO_MAXIOV).
const ATTACH_MAX: usize = 1024;
/// Bytes that one call moves at most.
const ATTACH_BYTES: usize = 1 << 30;

/// What the path is that all blocks of a list take.
enum Way {
    Direct,
    Attach,
    Device,
}

impl State {
    /// Moves a list if it can be moved as one.
    pub fn list(&mut self, domain: &Domain, dir: Dir, list: &List, c: &Common) -> Result<Native> {
        if self.conn.is_none() {
            return Err(self.not_connected());
        }
        let on_host = list.pairs.iter().filter(|p| p.is_on_host()).count();
        let mixed = on_host != 0 && on_host != list.pairs.len();
        if self.faults.is_some() || mixed || list.pairs.len() > REGIONS || list.runs.is_empty() {
            return Ok(Native::Pieces);
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Err(self.not_connected()) };
        let fenced = c.flags & flags::FENCE != 0 && !(conn.slots.active.is_empty() && conn.devices.is_idle());
        if !conn.backlog.is_empty() || conn.staged > 0 || conn.coop > 0 || fenced {
            return Ok(Native::Blocked);
        }
        let drivers = self.options.driver_calls;
        let site = match on_host {
            0 if drivers => local_site(domain, list, conn.devices.knows(list.number))?,
            0 => return Ok(Native::Pieces),
            _ => Site::HOST,
        };
        let places = match find(conn, site, list)? {
            Ok(places) => places,
            Err(native) => return Ok(native),
        };
        let Some(way) = way(site, &places, drivers) else { return Ok(Native::Pieces) };
        let name = if matches!(way, Way::Device) { conn.devices.name_of(list.number, dir, &places) } else { None };
        if name.is_none()
            && let Err((block, why)) = check(list, &places, dir)
        {
            return Ok(Native::Failed(block, why));
        }
        // The target carries a part of each large block, if it polls.
        let large = list.total / list.runs.len() >= config::get().coop_min;
        if self.options.coop && large && matches!(way, Way::Direct | Way::Attach) {
            return Ok(Native::Pieces);
        }
        let events: Vec<(u64, bool, usize)> = if dir == Dir::Write { counted(list, &places) } else { Vec::new() };
        if events.len() > IOV_LIMIT {
            return Ok(Native::Pieces);
        }
        let data = (c.flags & flags::REMOTE_CQ_DATA != 0).then_some(c.data);
        let notes = Header { words: 3, bytes: ((events.len() + 1) * 64) as u16, ..Header::default() };
        if (data.is_some() || !events.is_empty()) && !conn.room(notes)? {
            return Ok(Native::Blocked);
        }
        let moved = match way {
            Way::Device => {
                let end = self.part(dir, list, c);
                let Some(conn) = self.conn.as_deref_mut() else { return Err(self.not_connected()) };
                conn.devices.after = (self.options.stream != 0).then_some(self.options.stream);
                let native = device::start_list(conn, domain, site, dir, list, name, places, end, data, events)?;
                if matches!(native, Native::Flying) {
                    self.stats.moved(Paths::IPC, list.total);
                }
                return Ok(native);
            }
            _ if !conn.devices.is_idle() => return Ok(Native::Blocked),
            Way::Direct => pass(conn, list, &places, dir, c.flags & flags::DELIVERY_COMPLETE != 0, self.streaming_from),
            Way::Attach => attach(conn, list, &places, dir),
        };
        if let Err((block, why)) = moved {
            return Ok(Native::Failed(block, why));
        }
        notify(conn, dir, data, list.total, &events);
        self.stats.moved(places[0].path, list.total);
        Ok(Native::Done)
    }

    fn part(&self, dir: Dir, list: &List, c: &Common) -> Ending {
        let kind = flags::RMA | if dir == Dir::Read { flags::READ } else { flags::WRITE };
        Ending {
            context: c.context,
            kind,
            len: list.total,
            buf: list.first_buf(),
            deadline: self.deadline(c),
            part: true,
            ..Ending::default()
        }
    }
}

/// Where the blocks of device memory lie; checked to be inside of their regions unless that is `known`, and these to be what
/// was registered.
fn local_site(domain: &Domain, list: &List, known: bool) -> Result<Site> {
    let mut site = None;
    for (i, pair) in list.pairs.iter().enumerate() {
        let found = domain.local_pieces(pair.desc)?;
        let mut pieces = found.pieces();
        let (at, n) = pieces.next().unwrap_or_default();
        let inside = |r: &&Run| r.buf() >= at && r.len() <= n && r.buf() - at <= n - r.len();
        let mut runs = list.runs.iter().filter(|r| !known && r.pair as usize == i && !inside(r));
        if let Some(run) = runs.find(|r| !found.holds(r.buf(), r.len())) {
            let words = format!("blocks[{}]: [{:#x}, +{}) lies outside the region of its desc", run.first, run.buf(), run.len());
            return Err(Error::invalid(words));
        }
        let of = found.check()?;
        if site.is_some_and(|s| s != of) {
            return Err(Error::invalid("desc: blocks of one list lie on several devices"));
        }
        site = Some(of);
    }
    Ok(site.unwrap_or(Site::HOST))
}

/// The peer's regions, one for each pair; the second: what the list comes to without them.
fn find(conn: &mut Conn, site: Site, list: &List) -> Result<std::result::Result<Vec<Remote>, Native>> {
    conn.remotes.map_for(site);
    let mut places: Vec<Remote> = Vec::with_capacity(list.pairs.len());
    for (i, pair) in list.pairs.iter().enumerate() {
        match conn.remotes.resolve(&conn.link, pair.key) {
            Ok(Resolved::Wait) => {
                conn.ask_for_files();
                return Ok(Err(Native::Blocked));
            }
            Ok(Resolved::Ready) => places.push(conn.remotes.cached(pair.key).ok_or_else(|| no_such_key(pair.key))?.clone()),
            Err(why) => {
                let block = list.runs.iter().find(|r| r.pair as usize == i).map_or(0, |r| r.first as usize);
                return Ok(Err(Native::Failed(block, why)));
            }
        }
    }
    Ok(Ok(places))
}

fn way(site: Site, places: &[Remote], drivers: bool) -> Option<Way> {
    let all = |path: Paths| places.iter().all(|p| p.path == path);
    let peer = places.iter().find(|p| p.path == Paths::IPC).map(|p| p.site);
    match peer {
        None if site.is_host() && all(Paths::DIRECT) => Some(Way::Direct),
        None if site.is_host() && all(Paths::CMA) => Some(Way::Attach),
        None if site.is_host() => None,
        _ if !drivers => None,
        // One stream serves all, and one kind of copy.
        None if all(Paths::DIRECT) => Some(Way::Device),
        Some(peer) if all(Paths::IPC) && places.iter().all(|p| p.site == peer) && (site.is_host() || site.iface == peer.iface) => {
            Some(Way::Device)
        }
        _ => None,
    }
}

/// Checks every block against its region.
fn check(list: &List, places: &[Remote], dir: Dir) -> std::result::Result<(), (usize, Error)> {
    let need = if dir == Dir::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    if let [place] = places
        && place.access.contains(need)
        && {
            let reach = list.runs.iter().fold((u64::MAX, 0), |(low, high), r| (low.min(r.addr), high.max(r.addr + r.len() as u64)));
            place.holds(reach.0, (reach.1 - reach.0) as usize)
        }
    {
        return Ok(());
    }
    for run in &list.runs {
        let place = &places[run.pair as usize];
        if let Err(why) = place.check(run.addr, run.len(), need) {
            let inside = place.base.wrapping_add(place.len).wrapping_sub(run.addr);
            let at = if run.addr >= place.base && inside < run.len() as u64 { inside as usize } else { 0 };
            return Err((list.block_at(run, at), why));
        }
    }
    Ok(())
}

/// Regions that count writes: once for a list.
fn counted(list: &List, places: &[Remote]) -> Vec<(u64, bool, usize)> {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (i, place) in places.iter().enumerate().filter(|(_, p)| p.event) {
        let bytes = list.runs.iter().filter(|r| r.pair as usize == i).map(|r| r.len()).sum::<usize>();
        match events.iter_mut().find(|(key, ..)| *key == place.key) {
            Some((_, _, sum)) => *sum += bytes,
            None => events.push((place.key, true, bytes)),
        }
    }
    events
}

/// Enters all regions under one mark; the place of one that is closed.
fn enter(conn: &mut Conn, places: &[Remote]) -> std::result::Result<(), usize> {
    conn.gate.mark(conn.link.mine.busy());
    let shut = places.iter().position(|p| !gate::shows(&conn.link.table.entry(p.index).gate, p.generation));
    let Some(i) = shut else { return Ok(()) };
    conn.gate.leave(conn.link.mine.busy());
    conn.remotes.evict(places[i].key);
    Err(i)
}

/// The first block from run `from` on of a pair.
fn first_of(list: &List, from: usize, pair: usize) -> usize {
    list.runs[from..].iter().find(|r| r.pair as usize == pair).map_or(list.runs[from].first, |r| r.first) as usize
}

type Moved = std::result::Result<(), (usize, Error)>;

/// Copies through mappings.
fn pass(conn: &mut Conn, list: &List, places: &[Remote], dir: Dir, deliver: bool, streaming_from: usize) -> Moved {
    let streaming = if list.total >= streaming_from { streaming_from.min(64 << 10) } else { usize::MAX };
    let simple = places.iter().all(|p| p.more.is_none());
    // Where a byte of each region lies here, less its address.
    let shifts: Vec<u64> = places.iter().map(|p| (p.one.here() as u64).wrapping_sub(p.base)).collect();
    let mut at = 0;
    while at < list.runs.len() {
        enter(conn, places).map_err(|i| (first_of(list, at, i), no_such_key(places[i].key)))?;
        let until = list.runs.len().min(at + MARK_RUNS);
        let runs = &list.runs[at..until];
        at += match (simple, &shifts[..], dir) {
            (false, ..) => moved(runs, |run| pieces(run, &places[run.pair as usize], dir, streaming)),
            // SAFETY: the local blocks stay, as the C caller says; the remote ones were checked against their region, whose entry
            // holds the mapping.
            (_, &[shift], Dir::Write) => moved(runs, |run| unsafe { put(run, shift, streaming) }),
            // SAFETY: as above.
            (_, &[shift], Dir::Read) => moved(runs, |run| unsafe { get(run, shift, streaming) }),
            // SAFETY: as above.
            (.., Dir::Write) => moved(runs, |run| unsafe { put(run, shifts[run.pair as usize], streaming) }),
            // SAFETY: as above.
            (.., Dir::Read) => moved(runs, |run| unsafe { get(run, shifts[run.pair as usize], streaming) }),
        };
        let busy = conn.link.mine.busy();
        if deliver && at == list.runs.len() { conn.gate.leave_delivered(busy) } else { conn.gate.leave(busy) }
    }
    Ok(())
}

/// Moves the first of some runs, as many as one mark allows; how many.
#[inline(always)]
fn moved(runs: &[Run], each: impl Fn(&Run)) -> usize {
    let mut bytes = 0;
    for (i, run) in runs.iter().enumerate() {
        each(run);
        bytes += run.len();
        if bytes >= MARK_BYTES {
            return i + 1;
        }
    }
    runs.len()
}

/// Copies a block to a region that is mapped here, `shift` from the peer's addresses.
///
/// # Safety
/// The block and its place in the region are there.
#[inline(always)]
unsafe fn put(run: &Run, shift: u64, streaming: usize) {
    // SAFETY: as the caller says.
    unsafe { copy::copy(run.addr.wrapping_add(shift) as *mut u8, run.buf() as *const u8, run.len(), streaming) };
}

/// Copies a block from there.
///
/// # Safety
/// As for `put`.
#[inline(always)]
unsafe fn get(run: &Run, shift: u64, streaming: usize) {
    // SAFETY: as the caller says.
    unsafe { copy::copy(run.buf() as *mut u8, run.addr.wrapping_add(shift) as *const u8, run.len(), streaming) };
}

/// As `pass` of a block whose region has several pieces.
fn pieces(run: &Run, place: &Remote, dir: Dir, streaming: usize) {
    let mut local = run.buf();
    for (there, n) in place.walk(run.addr - place.base, run.len()) {
        let (to, from) = if dir == Dir::Write { (there.here, local) } else { (local, there.here) };
        // SAFETY: as in `pass`.
        unsafe { copy::copy(to as *mut u8, from as *const u8, n, streaming) };
        local += n;
    }
}

/// Has the kernel copy, as many blocks at a time as it takes.
fn attach(conn: &mut Conn, list: &List, places: &[Remote], dir: Dir) -> Moved {
    let how = if dir == Dir::Write { Attach::Write } else { Attach::Read };
    conn.check_alive().map_err(|e| (list.runs[0].first as usize, e))?;
    let (mut ours, mut theirs): (Vec<Iov>, Vec<Piece>) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < list.runs.len() {
        ours.clear();
        theirs.clear();
        let (first, mut bytes) = (at, 0);
        while let Some(run) = list.runs.get(at) {
            let place = &places[run.pair as usize];
            let parts = place.more.as_ref().map_or(1, |more| more.len());
            if at > first && (theirs.len() + parts > ATTACH_MAX || ours.len() == ATTACH_MAX || bytes + run.len() > ATTACH_BYTES) {
                break;
            }
            ours.push(run.local);
            theirs.extend(place.walk(run.addr - place.base, run.len()).map(|(there, n)| piece(there.addr, n)));
            bytes += run.len();
            at += 1;
        }
        enter(conn, places).map_err(|i| (first_of(list, first, i), no_such_key(places[i].key)))?;
        let moved = attach_copy(conn.link.pid, how, &ours, &theirs);
        let blame = moved.map_err(|e| match e.errno {
            errno::EFAULT => blame(conn, list, places, how, first..at, e),
            _ => (list.runs[first].first as usize, e),
        });
        conn.gate.leave(conn.link.mine.busy());
        blame.map_err(|(block, e)| (block, attach_error(e)))?;
    }
    Ok(())
}

/// Which of the blocks that one call moved is it that the kernel could not.
#[cold]
fn blame(conn: &Conn, list: &List, places: &[Remote], how: Attach, among: std::ops::Range<usize>, all: Error) -> (usize, Error) {
    let first = list.runs[among.start].first as usize;
    for i in among {
        for block in list.blocks_of(i) {
            let place = &places[block.pair as usize];
            let theirs: Vec<Piece> = place.walk(block.addr - place.base, block.len()).map(|(there, n)| piece(there.addr, n)).collect();
            if let Err(e) = attach_copy(conn.link.pid, how, &[block.local], &theirs) {
                return (block.first as usize, e);
            }
        }
    }
    (first, all)
}
