// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams of device copies of a connection, and the copies in flight on them.
//!
//! Each copy in flight holds words of this side's segment that name the peer's regions. The peer's `quiesce.rs` waits
//! for these words, so the peer closes no region in which a copy runs. At any time all copies of an endpoint are on one
//! stream, in the order of posting. Other operations wait until the copies are done.

use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{self, Site, Stream};
use crate::prov::bind::Ending;
use crate::prov::op::Dir;
use crate::prov::shm::peer::link::Link;
use crate::prov::shm::peer::regions::RemoteRegion;
use crate::prov::shm::wire::layout::FLIGHTS;
use crate::sync::primitive::Ordering;
use crate::sys::time;
use std::collections::{HashMap, VecDeque};

/// A stream of copies on a device.
pub struct DeviceStream {
    pub site: Site,
    pub stream: Box<dyn Stream>,
}

/// A device copy in flight.
pub struct DeviceCopy {
    /// The stream's number of the operation's last copy.
    pub ticket: u64,
    pub end: Ending,
    pub words: FlightBits,
    pub dir: Dir,
    pub data: Option<u64>,
    /// For each region: key, true if the region counts writes, and bytes.
    pub events: Vec<(u64, bool, usize)>,
    /// The regions, which hold the mappings in which the driver copies.
    pub _places: Vec<(RemoteRegion, u64)>,
    /// The bytes of an inject call, which the driver reads.
    pub _owned: Option<Box<[u8]>>,
}

/// A list that the stream may have prepared under a name, so that the same list can be posted again by that name.
struct PreparedList {
    list: u64,
    dir: Dir,
    /// Key, generation, and address here of each region.
    places: Vec<(u64, u64, usize)>,
    name: u64,
}

/// Most prepared lists that this side remembers.
const PREPARED_LISTS: usize = 32;

/// A set of flight words of the segment, one bit for each.
pub type FlightBits = u64;

/// The key, generation and address by which a prepared list recognizes a region.
fn place_of(p: &RemoteRegion) -> (u64, u64, usize) {
    (p.key, p.generation, p.one.here())
}

/// The device copies of a connection.
#[derive(Default)]
pub struct DeviceStreams {
    pub streams: Vec<DeviceStream>,
    /// Index of the stream that has all copies in flight. If no stream has this index, the stream was dropped and its
    /// copies are done.
    pub current: usize,
    pub flights: VecDeque<DeviceCopy>,
    /// The flight words in use.
    pub held: FlightBits,
    /// The running number that makes each flight word differ from the last.
    pub turn: u32,
    /// The error of a stream that was given up, if its copies failed.
    pub stream_error: Option<Error>,
    /// Cache of answers to the question whether kernels of a device can access memory. The key is the device, and then
    /// a peer's key, generation and hash of mappings, or a local descriptor, 0 and 0.
    pub reached: HashMap<(u32, u64, u64, u64), bool>,
    /// Prepared lists, the oldest first.
    prepared: VecDeque<PreparedList>,
    /// The name of the last prepared list.
    last_name: u64,
    /// True if copies may be in flight whose end this side cannot find out. Their flight words then stay for ever.
    pub unquiet: bool,
    /// The caller's device stream after whose present work copies start.
    pub after: Option<u64>,
    /// The copier process that makes the copies instead of this process.
    pub copier: Option<&'static Copier>,
}

const _: () = assert!(FLIGHTS <= FlightBits::BITS as usize);

impl DeviceStreams {
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// The device or process that makes the copies, in words.
    pub fn who(&self) -> String {
        self.copier.map_or("a device".into(), |c| format!("process {} (gdrfab-copier)", c.pid))
    }

    /// The deadlines of the copies in flight; 0: a copy without one.
    pub fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.flights.iter().map(|f| f.end.deadline)
    }

    /// True if the list was posted before, so that its blocks on this side are checked already.
    pub fn knows(&self, list: u64) -> bool {
        list != 0 && self.prepared.iter().any(|k| k.list == list)
    }

    /// The name under which the list was posted before, with the same direction and the same mapped regions. All its
    /// blocks are checked.
    pub fn name_of(&self, list: u64, dir: Dir, places: &[RemoteRegion]) -> Option<u64> {
        let is_it = |k: &&PreparedList| k.list == list && k.dir == dir && k.places.iter().copied().eq(places.iter().map(place_of));
        if list == 0 { None } else { self.prepared.iter().find(is_it).map(|k| k.name) }
    }

    /// Gives a checked list a name, by which later calls can post it again. 0: the list gets no name.
    pub fn keep(&mut self, list: u64, dir: Dir, places: &[RemoteRegion]) -> u64 {
        if list == 0 || places.iter().any(|p| p.more.is_some()) {
            return 0;
        }
        self.prepared.retain(|k| k.list != list || k.dir != dir);
        if self.prepared.len() == PREPARED_LISTS {
            self.prepared.pop_front();
        }
        self.last_name += 1;
        self.prepared.push_back(PreparedList { list, dir, places: places.iter().map(place_of).collect(), name: self.last_name });
        self.last_name
    }

    /// The stream for `site`, made if needed. `None`: copies are in flight on another stream.
    pub fn stream_for(&mut self, site: Site) -> Result<Option<usize>> {
        let at = match self.streams.iter().position(|l| l.site == site) {
            Some(at) => at,
            None => {
                let stream = match self.copier {
                    Some(copier) => copier.stream(site)?,
                    None => hmem::get(site.iface)?.stream(site.device)?,
                };
                self.streams.push(DeviceStream { site, stream });
                self.streams.len() - 1
            }
        };
        if at != self.current && !self.is_idle() {
            return Ok(None);
        }
        self.current = at;
        Ok(Some(at))
    }

    /// Clears flight words of ended copies, so that the peer need not wait for the copies.
    pub fn release(&mut self, link: &Link, words: FlightBits) {
        if self.unquiet {
            return;
        }
        for k in (0..FLIGHTS).filter(|k| words & 1 << k != 0) {
            link.mine.flight(k).store(0, Ordering::Release);
        }
        self.held &= !words;
    }

    /// Ends a stream that has refused a copy, after the copies that the stream had taken before are done.
    pub fn give_up(&mut self, at: usize) {
        let last = self.flights.back().map_or(0, |f| f.ticket);
        let mut of = self.streams.remove(at);
        let until = time::now_ns() + config::get().close_ms * 1_000_000;
        self.stream_error = loop {
            match of.stream.done() {
                Err(e) => break Some(e),
                Ok(done) if done >= last => break None,
                Ok(_) if time::now_ns() > until => {
                    break Some(Error::fixed(errno::EIO, "device copies that were started before a refused one did not end"));
                }
                Ok(_) => std::thread::yield_now(),
            }
        };
        self.current = usize::MAX;
        self.end(of);
    }

    /// Drops a stream. The drop waits for the copies of this process's driver, however long they take. A stream of the
    /// copier process is ended first, or `unquiet` is set.
    fn end(&mut self, mut of: DeviceStream) {
        while self.copier.is_some() {
            match of.stream.end() {
                Ok(true) => break,
                Ok(false) => std::thread::yield_now(),
                Err(e) => {
                    crate::log!(Error, "{e}");
                    self.unquiet = true;
                    break;
                }
            }
        }
    }

    /// Waits up to `limit_ms` for the copies in flight, drops all streams, and returns the ended operations.
    pub fn drain(&mut self, link: &Link, limit_ms: u64) -> Vec<Ending> {
        let until = time::now_ns() + limit_ms * 1_000_000;
        let last = self.flights.back().map_or(0, |f| f.ticket);
        while let Some(of) = self.streams.get_mut(self.current)
            && matches!(of.stream.done(), Ok(done) if done < last)
            && time::now_ns() < until
        {
            std::thread::yield_now();
        }
        std::mem::take(&mut self.streams).into_iter().for_each(|of| self.end(of));
        let flights = std::mem::take(&mut self.flights);
        self.release(link, self.held);
        flights.into_iter().map(|f| f.end).collect()
    }

    /// For the time after the end of the connection: takes out the operations whose copies are done or whose stream
    /// failed. Tells the copier process to begin no more copies.
    pub fn take_ended(&mut self, link: &Link) -> Vec<Ending> {
        let elsewhere = self.copier.is_some() && !self.is_idle();
        let done = match self.streams.get_mut(self.current).map(|of| (of.stream.done(), elsewhere && matches!(of.stream.end(), Ok(true)))) {
            Some((Ok(done), false)) => done,
            // Dropping a stream waits for the copies that it still holds.
            Some((Err(_), _)) => {
                self.streams.clear();
                u64::MAX
            }
            _ => u64::MAX,
        };
        let mut ends = Vec::new();
        while self.flights.front().is_some_and(|f| f.ticket <= done) {
            let Some(copy) = self.flights.pop_front() else { break };
            self.release(link, copy.words);
            ends.push(copy.end);
        }
        ends
    }
}
