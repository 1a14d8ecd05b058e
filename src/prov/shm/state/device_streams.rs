// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams of device copies of a connection, and the copies in flight on them.
//!
//! Each copy in flight holds a word of this side's segment that names the peer's region, so that the peer does not close the region
//! under it (the peer's `quiesce.rs` waits for the word). All copies of an endpoint go to one stream at a time, in the order of
//! posting; other operations wait until they are done.

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
    pub ticket: u64,
    pub end: Ending,
    pub words: FlightBits,
    pub dir: Dir,
    pub data: Option<u64>,
    /// For each region: key, whether it counts writes, and bytes.
    pub events: Vec<(u64, bool, usize)>,
    /// The regions, which hold the mappings in which the driver copies.
    pub _places: Vec<(RemoteRegion, u64)>,
    /// Bytes of an inject call.
    pub _owned: Option<Box<[u8]>>,
}

/// A list that a stream may have prepared, so that it can be posted again by name.
struct PreparedList {
    list: u64,
    dir: Dir,
    /// Key, generation, and address here of each region.
    places: Vec<(u64, u64, usize)>,
    name: u64,
}

/// Most prepared lists that are remembered.
const PREPARED_LISTS: usize = 32;

/// The words of the segment that a copy holds, one bit each.
pub type FlightBits = u64;

fn place_of(p: &RemoteRegion) -> (u64, u64, usize) {
    (p.key, p.generation, p.one.here())
}

#[derive(Default)]
pub struct DeviceStreams {
    pub streams: Vec<DeviceStream>,
    /// Index of the stream that has all copies in flight; if there is no such stream, its copies are done.
    pub current: usize,
    pub flights: VecDeque<DeviceCopy>,
    pub held: FlightBits,
    pub turn: u32,
    /// The error of a stream that was given up, if its copies failed.
    pub stream_error: Option<Error>,
    /// Cache: whether kernels of a device reach the memory of a key and generation, as mapped here, or of a descriptor.
    pub reached: HashMap<(u32, u64, u64, u64), bool>,
    /// Prepared lists, the oldest first, and the name of the last one.
    prepared: VecDeque<PreparedList>,
    last_name: u64,
    /// True if copies may be in flight whose end cannot be known; then their words stay.
    pub unquiet: bool,
    /// The caller's stream behind which copies are put.
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

    pub fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.flights.iter().map(|f| f.end.deadline)
    }

    /// True if the blocks of the list were checked on this side.
    pub fn knows(&self, list: u64) -> bool {
        list != 0 && self.prepared.iter().any(|k| k.list == list)
    }

    /// The name under which the list was posted between the same memories, with all blocks checked.
    pub fn name_of(&self, list: u64, dir: Dir, places: &[RemoteRegion]) -> Option<u64> {
        let is_it = |k: &&PreparedList| k.list == list && k.dir == dir && k.places.iter().copied().eq(places.iter().map(place_of));
        if list == 0 { None } else { self.prepared.iter().find(is_it).map(|k| k.name) }
    }

    /// Names a checked list, for later posting by name; 0: it gets no name.
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

    pub fn release(&mut self, link: &Link, words: FlightBits) {
        if self.unquiet {
            return;
        }
        for k in (0..FLIGHTS).filter(|k| words & 1 << k != 0) {
            link.mine.flight(k).store(0, Ordering::Release);
        }
        self.held &= !words;
    }

    /// Ends a stream that refused a copy, after the copies that it took before.
    pub fn give_up(&mut self, at: usize) {
        let last = self.flights.back().map_or(0, |f| f.ticket);
        let mut of = self.streams.remove(at);
        let until = time::now_ns() + config::get().close_ms * 1_000_000;
        self.stream_error = loop {
            match of.stream.done() {
                Err(e) => break Some(e),
                Ok(done) if done >= last => break None,
                Ok(_) if time::now_ns() > until => break Some(Error::fixed(errno::EIO, "copies before a refused one did not end")),
                Ok(_) => std::thread::yield_now(),
            }
        };
        self.current = usize::MAX;
        self.end(of);
    }

    /// Drops a stream, which waits for its copies: for those of this process's driver however long they take.
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

    /// Waits until no copy is in flight; returns the ended operations.
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

    /// After the end of the connection: takes out the copies that are done or whose stream failed. The copier process begins no more.
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
