// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of blocks, moved as one operation: by the CPU in one pass through mappings, by cross-memory attach with many
//! blocks in one system call, by both sides' cores, or by a device's driver. Every block is checked before the first
//! byte moves. A list that none of these ways can move goes piece by piece (`Native::Pieces`).

use crate::config;
use crate::error::{Code, Error, Result};
use crate::hmem::Site;
use crate::mr::{Access, Paths};
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::list::{List, Native, Run};
use crate::prov::op::{Common, Dir, IOV_LIMIT};
use crate::prov::shm::copy::coop_list;
use crate::prov::shm::copy::device;
use crate::prov::shm::copy::direct::{notices, notify};
use crate::prov::shm::copy::list::{attach, copy_mapped, pages_are_present};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::peer::regions::{RemoteRegion, Resolved, no_such_key};
use crate::prov::shm::state::State;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::wire::layout::FLIGHTS;

/// Most regions of a list that is moved as one. A list by a driver takes one flight word for each region, so half of
/// the flight words stay free.
const REGIONS: usize = FLIGHTS / 2;

/// The path that all blocks of a list take.
enum ListPath {
    Direct,
    Attach,
    Device,
}

impl State {
    /// Posts a list. `Native::Pieces`: nothing was done, and the caller must post the list piece by piece.
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
        let regions = match find(conn, site, list)? {
            Ok(regions) => regions,
            Err(native) => return Ok(native),
        };
        let Some(path) = path(site, &regions, drivers) else { return Ok(Native::Pieces) };
        let name = if matches!(path, ListPath::Device) { conn.devices.name_of(list.number, dir, &regions) } else { None };
        if name.is_none()
            && let Err((block, why)) = check(list, &regions, dir)
        {
            return Ok(Native::Failed(block, why));
        }
        let shares = self.options.coop.is_on() && matches!(path, ListPath::Attach) && coop_list::fits(list);
        // A list of large blocks goes piece by piece, so that each block is shared with the target as a single
        // operation is.
        let large = list.total / list.runs.len() >= config::get().debug.coop_min;
        if self.options.coop.is_on() && large && !shares && matches!(path, ListPath::Direct | ListPath::Attach) {
            return Ok(Native::Pieces);
        }
        if matches!(path, ListPath::Attach) && !pages_are_present(&mut conn.reach, list, &regions, dir) {
            return Ok(Native::Blocked);
        }
        let events: Vec<(u64, bool, usize)> = if dir == Dir::Write { counted(list, &regions) } else { Vec::new() };
        if events.len() > IOV_LIMIT {
            return Ok(Native::Pieces);
        }
        let data = (c.flags & flags::REMOTE_CQ_DATA != 0).then_some(c.data);
        let notes = notices(events.len());
        if (data.is_some() || !events.is_empty()) && !conn.room(notes)? {
            return Ok(Native::Blocked);
        }
        if shares
            && conn.devices.is_idle()
            && let Some(native) = coop_list::start(self, dir, list, &regions, self.part(dir, list, c), data, &events)?
        {
            return Ok(self.handle_failure(domain, native));
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Err(self.not_connected()) };
        let moved = match path {
            ListPath::Device => {
                let end = self.part(dir, list, c);
                let Some(conn) = self.conn.as_deref_mut() else { return Err(self.not_connected()) };
                conn.devices.after = (self.options.stream != 0).then_some(self.options.stream);
                let native = device::start_list(conn, domain, site, dir, list, name, regions, end, data, events)?;
                if matches!(native, Native::Flying) {
                    self.stats.moved(Paths::IPC, list.total);
                }
                return Ok(native);
            }
            _ if !conn.devices.is_idle() => return Ok(Native::Blocked),
            ListPath::Direct => copy_mapped(conn, list, &regions, dir, c.flags & flags::DELIVERY_COMPLETE != 0, self.streaming_from),
            ListPath::Attach => attach(conn, list, &regions, dir, 0..list.runs.len()),
        };
        if let Err((block, why)) = moved {
            return Ok(self.handle_failure(domain, Native::Failed(block, why)));
        }
        notify(conn, dir, data, list.total, &events);
        self.stats.moved(regions[0].path, list.total);
        Ok(Native::Done)
    }

    /// Turns a failed list into its outcome: if another path may work, the list goes piece by piece. If the peer is
    /// gone, ends the connection.
    fn handle_failure(&mut self, domain: &Domain, native: Native) -> Native {
        let Native::Failed(_, why) = &native else { return native };
        if why.code == Code::PeerGone {
            self.down(domain, why.clone());
        } else if self.conn.as_mut().is_some_and(|conn| std::mem::take(&mut conn.rerouted)) {
            return Native::Pieces;
        }
        native
    }

    /// The ending of a list that goes on in flight.
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

/// The site of blocks in device memory. Checks that the blocks lie inside their regions, unless the list is `known`,
/// and that each region's memory is still the allocation that was registered.
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

/// The peer's regions, one for each pair. The inner `Err`: a region is not there, and this is the outcome of the list.
fn find(conn: &mut Conn, site: Site, list: &List) -> Result<std::result::Result<Vec<RemoteRegion>, Native>> {
    conn.remotes.map_for(site);
    let mut regions: Vec<RemoteRegion> = Vec::with_capacity(list.pairs.len());
    for (i, pair) in list.pairs.iter().enumerate() {
        match conn.remotes.resolve(&conn.link, pair.key) {
            Ok(Resolved::Wait) => {
                conn.ask_for_files();
                return Ok(Err(Native::Blocked));
            }
            Ok(Resolved::Ready) => regions.push(conn.remotes.cached(pair.key).ok_or_else(|| no_such_key(pair.key))?.clone()),
            Err(why) => {
                let block = list.runs.iter().find(|r| r.pair as usize == i).map_or(0, |r| r.first as usize);
                return Ok(Err(Native::Failed(block, why)));
            }
        }
    }
    Ok(Ok(regions))
}

/// The path of all blocks; `None`: no single path serves them all.
fn path(site: Site, regions: &[RemoteRegion], drivers: bool) -> Option<ListPath> {
    let all = |path: Paths| regions.iter().all(|p| p.path == path);
    let peer = regions.iter().find(|p| p.path == Paths::IPC).map(|p| p.site);
    match peer {
        None if site.is_host() && all(Paths::DIRECT) => Some(ListPath::Direct),
        None if site.is_host() && all(Paths::CMA) => Some(ListPath::Attach),
        None if site.is_host() => None,
        _ if !drivers => None,
        // One stream and one kind of copy serve all blocks.
        None if all(Paths::DIRECT) => Some(ListPath::Device),
        Some(peer) if all(Paths::IPC) && regions.iter().all(|p| p.site == peer) && (site.is_host() || site.iface == peer.iface) => {
            Some(ListPath::Device)
        }
        _ => None,
    }
}

/// Checks every block against its region.
fn check(list: &List, regions: &[RemoteRegion], dir: Dir) -> std::result::Result<(), (usize, Error)> {
    let need = if dir == Dir::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    if let [region] = regions
        && region.access.contains(need)
        && {
            let reach = list.runs.iter().fold((u64::MAX, 0), |(low, high), r| (low.min(r.addr), high.max(r.addr + r.len() as u64)));
            region.holds(reach.0, (reach.1 - reach.0) as usize)
        }
    {
        return Ok(());
    }
    for run in &list.runs {
        let region = &regions[run.pair as usize];
        if let Err(why) = region.check(run.addr, run.len(), need) {
            let inside = region.base.wrapping_add(region.len).wrapping_sub(run.addr);
            let at = if run.addr >= region.base && inside < run.len() as u64 { inside as usize } else { 0 };
            return Err((list.block_at(run, at), why));
        }
    }
    Ok(())
}

/// The regions that count writes, each once: key, true, and the bytes of its blocks.
fn counted(list: &List, regions: &[RemoteRegion]) -> Vec<(u64, bool, usize)> {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (i, region) in regions.iter().enumerate().filter(|(_, p)| p.event) {
        let bytes = list.runs.iter().filter(|r| r.pair as usize == i).map(|r| r.len()).sum::<usize>();
        match events.iter_mut().find(|(key, ..)| *key == region.key) {
            Some((_, _, sum)) => *sum += bytes,
            None => events.push((region.key, true, bytes)),
        }
    }
    events
}
