// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The segment of one endpoint: a sealed memory file that its owner makes and its peer maps.
//!
//! The owner consumes the ring, writes its own words (counters, busy mark, sleep mark, filter, device copies) and opens
//! the slots. The peer produces into the ring and its out-of-line area, reads the owner's words and reports into the
//! slots. `docs/shm-format.md` specifies the same. The peer could overwrite all of the segment, so the owner reads back
//! only ring lines and slots, and checks them.

use crate::error::{Error, Result, errno};
use crate::sync::area::{AREA, Area, AreaStore, START};
use crate::sync::cache_line::Line;
use crate::sync::claim::ClaimSlot;
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sync::ring::{MAX_LINES, Store};
use crate::sys::mem::{self, Mapping, Protection};
use parking_lot::Mutex;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// The first word of every segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"gdrfabS5");
/// Fewest lines of a ring. The consumer may keep back up to a quarter of the ring before it returns lines, and the
/// longest message must fit into the other three quarters.
pub const MIN_LINES: usize = 256;
const _: () = assert!(MAX_LINES <= MIN_LINES - MIN_LINES / 4);
/// Slots of an endpoint, one for each outstanding operation on which the peer reports.
pub const SLOTS: usize = 128;
/// Bits of the filter that shows which of the peer's regions, by index, the owner of the segment has ever looked up.
pub const FILTER_BITS: usize = 4096;

/// Device copies that an endpoint can have in flight; each has one word in `Fixed::flights`.
pub const FLIGHTS: usize = 64;

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    ring_lines: AtomicU64,
    pad: [u64; 6],
}

/// Counters that the owner writes as consumer of its ring.
#[repr(C, align(64))]
struct ConsumerCounters {
    lines: AtomicU64,
    messages: AtomicU64,
    area: AtomicU64,
    pad: [u64; 5],
}

/// One word alone on its cache line.
#[repr(C, align(64))]
struct PaddedWord {
    word: AtomicU64,
    pad: [u64; 7],
}

/// The beginning of a segment, whose size does not depend on the ring's.
#[repr(C, align(64))]
struct Fixed {
    header: Header,
    returned: ConsumerCounters,
    /// The owner's busy mark (`sync::gate`), set while the owner copies into or out of the peer's regions.
    busy: PaddedWord,
    /// Not 0 while the owner sleeps and wants a wake packet.
    sleeping: PaddedWord,
    filter: [AtomicU64; FILTER_BITS / 64],
    /// The owner's device copies in flight: the peer's region index + 1, and from bit 32 a running number; 0: no copy.
    flights: [AtomicU64; FLIGHTS],
    slots: [ClaimSlot; SLOTS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Fixed>() == 4 * 64 + FILTER_BITS / 8 + FLIGHTS * 8 + SLOTS * 64);

/// Offset of the out-of-line area of a ring of `lines` lines. The area begins at a page boundary, so that the ring's
/// lines and the area's first message share no page. The reason is prefetching: a CPU that reads a line prefetches up
/// to the end of the page, and lines that another CPU has prefetched cost more to write.
fn area_at(lines: usize) -> usize {
    (size_of::<Fixed>() + lines * size_of::<Line>()).next_multiple_of(4096)
}

/// Bytes of a segment whose ring has `lines` lines.
pub fn segment_bytes(lines: usize) -> usize {
    area_at(lines) + AREA
}

/// Lines that are mapped at first: the quarter of the ring that the consumer takes before it returns any lines, and one
/// message more.
fn first_lines(lines: usize) -> usize {
    if lines <= 2 * MIN_LINES { lines } else { lines / 4 + MAX_LINES }
}

/// A mapped segment: at first its fixed part and the first lines of its ring, later also the other lines and the
/// out-of-line area. Only one endpoint uses the ring, under the endpoint's lock. Other threads use only the fixed part.
pub struct Segment {
    map: Mapping,
    /// Lines of the ring.
    lines: usize,
    ring: AtomicPtr<Line>,
    /// Lines of the ring that are mapped.
    mapped: AtomicUsize,
    /// The end of the out-of-line area; null while nothing of the area is mapped.
    area_end: AtomicPtr<u8>,
    /// Bytes in front of `area_end` that are mapped.
    span: AtomicUsize,
    /// Mappings made later. All mappings stay until the segment's end, because another thread may be reading in an
    /// older one.
    kept: Mutex<Vec<Mapping>>,
}

/// Shared ownership of a segment, which the ends of its ring hold.
#[derive(Clone)]
pub struct SegmentRef(pub Arc<Segment>);

impl Segment {
    /// Makes the segment of a new endpoint.
    pub fn create(lines: usize) -> Result<(SegmentRef, OwnedFd)> {
        let fd = mem::memfd("gdrfab-ep", segment_bytes(lines))?;
        let segment = Segment::map(fd.as_fd(), lines)?;
        segment.fixed().header.ring_lines.store(lines as u64, Ordering::Relaxed);
        segment.fixed().header.magic.store(MAGIC, Ordering::Release);
        Ok((SegmentRef(Arc::new(segment)), fd))
    }

    /// Maps the peer's segment, after checks of the peer's announcement and of the file.
    pub fn attach(fd: BorrowedFd<'_>, lines: usize) -> Result<SegmentRef> {
        if !lines.is_power_of_two() || !(MIN_LINES..=65536).contains(&lines) {
            return Err(Error::new(errno::EPROTO, format!("the peer announced a ring of an invalid length ({lines} lines)")));
        }
        mem::check_peer_file(fd, segment_bytes(lines) as u64)?;
        let segment = Segment::map(fd, lines)?;
        if segment.fixed().header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::fixed(errno::EPROTO, "the peer's shared segment is of another version or damaged"));
        }
        Ok(SegmentRef(Arc::new(segment)))
    }

    /// Maps the part of a segment's file that is used at first, for the segment's life. Where the kernel cannot map
    /// more later (`mem::maps_again`), maps the whole file.
    fn map(fd: BorrowedFd<'_>, lines: usize) -> Result<Segment> {
        let whole = !mem::maps_again();
        let mapped = if whole { lines } else { first_lines(lines) };
        let bytes =
            if whole { segment_bytes(lines) } else { (size_of::<Fixed>() + mapped * size_of::<Line>()).next_multiple_of(mem::page_size()) };
        let map = Mapping::new(fd, 0, bytes, Protection::ReadWrite)?;
        let ring = map.as_ptr().wrapping_add(size_of::<Fixed>()).cast();
        let (end, span) = if whole { (map.as_ptr().wrapping_add(bytes), AREA) } else { (std::ptr::null_mut(), 0) };
        Ok(Segment {
            map,
            lines,
            ring: AtomicPtr::new(ring),
            mapped: AtomicUsize::new(mapped),
            area_end: AtomicPtr::new(end),
            span: AtomicUsize::new(span),
            kept: Mutex::new(Vec::new()),
        })
    }

    /// Maps `len` more bytes of the file, from byte `from` on. `None`: the mapping failed, which is logged.
    fn more(&self, from: usize, len: usize) -> Option<*mut u8> {
        match self.map.again(from, len) {
            Ok(map) => {
                let at = map.as_ptr();
                self.kept.lock().push(map);
                Some(at)
            }
            Err(e) => {
                crate::log!(Warn, "the buffers of a connection could not grow, so it stays slower: {e}");
                None
            }
        }
    }

    #[inline]
    fn fixed(&self) -> &Fixed {
        // SAFETY: the mapping is page aligned, holds the fixed part, and lives as long as self. Every field is an atomic or padding,
        // so concurrent changes by the peer are defined.
        unsafe { &*self.map.as_ptr().cast::<Fixed>() }
    }

    pub fn busy(&self) -> &AtomicU64 {
        &self.fixed().busy.word
    }

    pub fn sleeping(&self) -> &AtomicU64 {
        &self.fixed().sleeping.word
    }

    /// Count of messages matched to receives, for the producer's flow control.
    pub fn matched(&self) -> &AtomicU64 {
        &self.fixed().returned.messages
    }

    pub fn slot(&self, index: usize) -> &ClaimSlot {
        &self.fixed().slots[index % SLOTS]
    }

    /// The word of a device copy in flight.
    pub fn flight(&self, k: usize) -> &AtomicU64 {
        &self.fixed().flights[k % FLIGHTS]
    }

    /// The filter word and bit for region `index`.
    pub fn filter(&self, index: u32) -> (&AtomicU64, u64) {
        let bit = index as usize % FILTER_BITS;
        (&self.fixed().filter[bit / 64], 1 << (bit % 64))
    }
}

impl Store for SegmentRef {
    // Relaxed, here and below: only one thread uses the ring, under its endpoint's lock.
    #[inline]
    fn lines(&self) -> &[Line] {
        let mapped = self.0.mapped.load(Ordering::Relaxed);
        // SAFETY: `map` and `reach_lines` mapped that many lines, in this order, and mappings stay; all fields are atomics.
        unsafe { std::slice::from_raw_parts(self.0.ring.load(Ordering::Relaxed), mapped) }
    }

    fn capacity(&self) -> usize {
        self.0.lines
    }

    #[cold]
    fn reach_lines(&self) -> bool {
        if self.lines().len() == self.0.lines {
            return true;
        }
        let Some(at) = self.0.more(0, area_at(self.0.lines).next_multiple_of(mem::page_size())) else { return false };
        self.0.ring.store(at.wrapping_add(size_of::<Fixed>()).cast(), Ordering::Relaxed);
        self.0.mapped.store(self.0.lines, Ordering::Relaxed);
        true
    }

    #[inline]
    fn returned(&self) -> &AtomicU64 {
        &self.0.fixed().returned.lines
    }
}

impl AreaStore for SegmentRef {
    #[inline]
    fn area(&self) -> Option<Area<'_>> {
        let end = NonNull::new(self.0.area_end.load(Ordering::Relaxed))?;
        Some(Area { end, returned: &self.0.fixed().returned.area })
    }

    #[inline]
    fn span(&self) -> usize {
        self.0.span.load(Ordering::Relaxed)
    }

    #[cold]
    fn reach_area(&self, bytes: usize) -> bool {
        if bytes <= self.span() {
            return true;
        }
        let span = if bytes <= START { START } else { AREA };
        let page = mem::page_size();
        // A mapping begins at a page boundary. With pages larger than 4096 bytes, that boundary may lie before the
        // span.
        let from = (segment_bytes(self.0.lines) - span) / page * page;
        let whole = segment_bytes(self.0.lines) - from;
        let Some(at) = self.0.more(from, whole.next_multiple_of(page)) else { return false };
        self.0.area_end.store(at.wrapping_add(whole), Ordering::Relaxed);
        self.0.span.store(span, Ordering::Relaxed);
        true
    }
}

impl std::ops::Deref for SegmentRef {
    type Target = Segment;
    #[inline]
    fn deref(&self) -> &Segment {
        &self.0
    }
}
