// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queries about an endpoint: the path of its operations, its rails, and counts of what it has done.

use super::boundary::{ExtensibleStruct, control, counted, null, object, output, output_sized, write_sized, write_text};
use super::objects::gdrfab_ep;
use super::types::GDRFAB_PATHS_MAX;
use crate::fabric::RailReport;
use libc::{c_char, c_int, c_void, ssize_t};
use std::net::IpAddr;

// == Options, paths, statistics ==

/// As the key of gdrfab_ep_query() or gdrfab_ep_explain(): asks for the path of messages. A region to which
/// its owner gave the key 0 cannot be asked about.
pub const GDRFAB_KEY_MESSAGES: u64 = 0;

/// The path that operations take, the reasons against the others, and the connection's rails.
#[repr(C)]
pub struct gdrfab_path_info {
    /// sizeof(gdrfab_path_info), set by the caller
    pub struct_size: usize,
    /// The GDRFAB_PATH_* that operations take; 0: none is possible and permitted.
    pub path: u64,
    /// All GDRFAB_PATH_* that are possible and permitted.
    pub paths: u64,
    /// GDRFAB_PATH_* that the peer's region offers, as far as this side can tell.
    pub offered: u64,
    /// By GDRFAB_PATH_INDEX(): the reason against that path, a positive errno; 0: it is possible and
    /// permitted, or no path has that index.
    pub reasons: [c_int; GDRFAB_PATHS_MAX],
    /// In: gdrfab_mr_desc() of the operations' local memory; NULL: host memory. tcp and verbs choose by it;
    /// shm does so for messages only.
    pub desc: *const c_void,
    /// Of messages (GDRFAB_KEY_MESSAGES): the GDRFAB_PATH_* of those with up to short_size bytes; 0: messages
    /// of all lengths take path.
    pub short_path: u64,
    /// Bytes of the longest message that takes short_path; 0 if that is 0.
    pub short_size: usize,
    /// In: an array of the caller's that gets the connection's rails, the nearest first; or NULL.
    pub rails: *mut gdrfab_rail_info,
    /// In: entries of the array rails; 0 if rails is NULL.
    pub rails_max: u32,
    /// Out: rails of the connection, also if they are more than rails_max; 0: it has none.
    pub rails_count: u32,
}

/// Counts of one path.
#[repr(C)]
pub struct gdrfab_path_stats {
    /// RMA and atomic operations of this side.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Counts of an endpoint since it was opened; of a connectionless one, with all its peers together.
#[repr(C)]
pub struct gdrfab_stats {
    /// sizeof(gdrfab_stats), set by the caller
    pub struct_size: usize,
    /// Operations by path: stats.by_path[GDRFAB_PATH_INDEX(GDRFAB_PATH_CMA)].bytes, and so on. An operation
    /// of an RDMA device counts by the way in which the device reaches this side's memory.
    pub by_path: [gdrfab_path_stats; GDRFAB_PATHS_MAX],
    /// Messages sent.
    pub sends: u64,
    /// Messages received.
    pub recvs: u64,
    /// Messages that arrived before their receive was posted, and were kept.
    pub unexpected: u64,
    /// Operations and receives that failed.
    pub errors: u64,
    /// Of the bytes in by_path, those that the peer's CPU copied (GDRFAB_OPT_COOP).
    pub bytes_helped: u64,
    /// Losses of rails, summed over all rails of the connection (gdrfab_rail_info.losses).
    pub rails_lost: u64,
    /// Of the whole domain of a connectionless endpoint, over verbs: messages that the receiver's card read
    /// from device memory in a region without GDRFAB_REMOTE_READ, by a registration kept from an earlier
    /// message.
    pub cache_hits: u64,
    /// Messages of the same kind for which a registration was made.
    pub cache_misses: u64,
    /// Kept registrations that were closed before their region: to make room, or because the memory was
    /// freed.
    pub cache_evictions: u64,
}

/// One rail of a connection that uses several networks or ports at once (GDRFAB_OPT_RAILS, GDRFAB_TCP_RAILS,
/// GDRFAB_VERBS_RAILS). The library fills all fields; the struct keeps its size in later versions.
#[repr(C)]
pub struct gdrfab_rail_info {
    /// 1: the rail is up; 0: it is down, and the library keeps connecting it.
    pub up: u32,
    /// Number of times that the rail was lost.
    pub losses: u32,
    /// tcp: bytes sent, those sent twice counted twice. verbs: bytes that this side wrote over the rail, on
    /// the first rail only those of operations that go over several.
    pub bytes_out: u64,
    /// tcp: bytes received. verbs: bytes that this side read over the rail, likewise.
    pub bytes_in: u64,
    /// Text: this side's address without a port, on InfiniBand its GID; empty: not known yet.
    pub own: [c_char; 48],
    /// Text: the peer's address, likewise.
    pub peer: [c_char; 48],
    /// 0; for later versions.
    pub reserved: [u64; 4],
}

// SAFETY: repr(C), size first, numbers and pointers only; `desc` is a number in the type of a pointer, and never followed.
unsafe impl ExtensibleStruct for gdrfab_path_info {
    const FIRST: usize = 136;
}
// SAFETY: repr(C), size first, integers only.
unsafe impl ExtensibleStruct for gdrfab_stats {
    const FIRST: usize = 336;
}

/// Tells which path the next operation of this endpoint to a peer's region takes, for each other path the
/// reason against it, and the state of the rails to the peer. Nothing is sent.
///
/// shm looks the key up in the peer's table of regions. tcp and verbs decide by the key and by this side's
/// memory; only an operation finds out whether the peer has such a region. A key of verbs does not tell
/// whether the peer's device reaches the memory by nic, dmabuf or peer-mem. So the answer,
/// GDRFAB_OPT_REQUIRE_PATH and GDRFAB_OPT_FORBID_PATH are about this side's memory, and for staged about both
/// sides'.
///
/// Reasons against a path: EOPNOTSUPP (the provider has no such path, or not for this memory), EACCES (the
/// endpoint's options or GDRFAB_PATHS rule it out), ENODEV (shm: the peer's region does not offer it),
/// another errno of the system or a driver, or EAGAIN while it cannot be known: shm waits for the peer's
/// memory file, if this process may not fetch it; tcp: a key that its owner chose (no GDRFAB_MR_PROV_KEY)
/// does not tell the kind of its memory.
///
/// With GDRFAB_KEY_MESSAGES the answer is about messages from the memory that desc names. path is that of
/// long messages. The receiver may fetch their bytes once it has a receive (shm, connectionless endpoints);
/// the receiver's own options then count too. Messages may use staged even if GDRFAB_OPT_FORBID_PATH forbids
/// it.
///
/// @param peer the peer's index in the address vector; not used on connected endpoints
/// @param key  key of the peer's region, or GDRFAB_KEY_MESSAGES
/// @param info gets the answer; the caller sets struct_size, desc, rails and rails_max, which are kept
/// @return 0, -EINVAL (also: peer names none; desc, where it counts, is none of this domain), -ENOTCONN (not
///   connected yet; of a connectionless endpoint also: nothing has connected the peer yet), -ESHUTDOWN (not
///   connected any more), -EKEYREJECTED (shm: the peer has no such region; verbs: no verbs key), -EPROTO
///   (shm: the peer's table makes no sense); connectionless: -GDRFAB_EOPBADSTATE (not enabled), -EOPNOTSUPP
///   (the provider that reaches the peer does not reach the device memory of desc)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_query(ep: *mut gdrfab_ep, peer: u64, key: u64, info: *mut gdrfab_path_info) -> c_int {
    // SAFETY: the C caller says that the handle is open, the struct writable for its size, and info->rails for its rails_max.
    control(|| unsafe {
        let ep = object(ep, "ep")?;
        let out = output_sized(info, "info")?;
        let desc = (&raw const (*out).desc).read();
        let (rails, rails_max) = ((&raw const (*out).rails).read(), (&raw const (*out).rails_max).read());
        if rails_max > 0 {
            output(rails, "info->rails")?;
        }
        let a = ep.query(peer, key, desc as u64)?;
        let rails_to_peer = ep.rail_reports(peer)?;
        for (number, rail) in rails_to_peer.iter().take(rails_max as usize).enumerate() {
            rails.add(number).write(rail_info(rail));
        }
        let mut reasons = [0; GDRFAB_PATHS_MAX];
        for (path, refusal) in a.refusals.each() {
            reasons[path.index()] = refusal.as_ref().map_or(0, |e| e.errno);
        }
        let answer = gdrfab_path_info {
            struct_size: 0,
            path: a.path.bits(),
            paths: a.paths.bits(),
            offered: a.offered.bits(),
            reasons,
            desc,
            short_path: a.short.map_or(0, |short| short.path.bits()),
            short_size: a.short.map_or(0, |short| short.most),
            rails,
            rails_max,
            rails_count: rails_to_peer.len() as u32,
        };
        write_sized(out, &answer);
        Ok(())
    })
}

fn rail_info(rail: &RailReport) -> gdrfab_rail_info {
    let (own, peer) = rail.ends.unzip();
    gdrfab_rail_info {
        up: rail.up.into(),
        losses: rail.losses.try_into().unwrap_or(u32::MAX),
        bytes_out: rail.bytes.0,
        bytes_in: rail.bytes.1,
        own: text_of(own),
        peer: text_of(peer),
        reserved: [0; 4],
    }
}

/// gdrfab_ep_query() in words, for host memory on this side (desc NULL); lists the rails too.
///
/// @param peer as of gdrfab_ep_query()
/// @param key  as of gdrfab_ep_query()
/// @param buf  gets the text
/// @return length of the text, or an errno of gdrfab_ep_query()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_explain(ep: *mut gdrfab_ep, peer: u64, key: u64, buf: *mut c_char, len: usize) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the buffer writable.
    counted(|| unsafe {
        let ep = object(ep, "ep")?;
        if buf.is_null() && len > 0 {
            return Err(null("buf"));
        }
        write_text(buf, len, &ep.query(peer, key, 0)?.words())
    })
}

/// An address as a C string; none is empty.
fn text_of(ip: Option<IpAddr>) -> [c_char; 48] {
    let text = ip.map_or(String::new(), |ip| ip.to_string());
    let mut out = [0; 48];
    out.iter_mut().take(47).zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    out
}

/// Tells the counts of an endpoint, in any state: 0 or -EINVAL.
///
/// @param stats gets the counts; the caller sets struct_size
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_stats(ep: *mut gdrfab_ep, stats: *mut gdrfab_stats) -> c_int {
    // SAFETY: the C caller says that the handle is open and the struct writable for its size.
    control(|| unsafe {
        let out = output_sized(stats, "stats")?;
        let s = object(ep, "ep")?.stats();
        let counts = gdrfab_stats {
            struct_size: 0,
            by_path: s.by_path.map(|of| gdrfab_path_stats { ops: of.ops, bytes: of.bytes }),
            sends: s.sends,
            recvs: s.recvs,
            unexpected: s.unexpected,
            errors: s.errors,
            bytes_helped: s.bytes_helped,
            rails_lost: s.rails_lost,
            cache_hits: s.cache_hits,
            cache_misses: s.cache_misses,
            cache_evictions: s.cache_evictions,
        };
        write_sized(out, &counts);
        Ok(())
    })
}
