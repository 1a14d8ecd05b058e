// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queries about an endpoint: the path of its operations, its rails, and counts of what it has done.

use super::boundary::{ExtensibleStruct, control, counted, null, object, output, output_sized, write_sized, write_text};
use super::objects::gdrfab_ep;
use super::types::GDRFAB_PATHS_MAX;
use crate::fabric::RailReport;
use libc::{c_char, c_int, c_void, ssize_t};
use std::net::IpAddr;

// == Options, paths, statistics ==

/// In place of a region's key: asks for the path of messages. A region to which its owner gave this key
/// cannot be asked about.
pub const GDRFAB_KEY_MESSAGES: u64 = 0;

/// The path that an operation uses, and why not another.
#[repr(C)]
pub struct gdrfab_path_info {
    /// sizeof(gdrfab_path_info), set by the caller
    pub struct_size: usize,
    /// The GDRFAB_PATH_* that operations use; 0: none is possible and permitted.
    pub path: u64,
    /// Those that are possible and permitted.
    pub paths: u64,
    /// Those that the peer's region offers.
    pub offered: u64,
    /// By GDRFAB_PATH_INDEX(), why not that path, as errno; 0: it is possible and permitted, or the library
    /// has no path of that index.
    pub reasons: [c_int; GDRFAB_PATHS_MAX],
    /// In: gdrfab_mr_desc() of the local memory that operations will name, by which tcp and verbs choose too;
    /// NULL: host memory.
    pub desc: *const c_void,
    /// Of messages (GDRFAB_KEY_MESSAGES): the GDRFAB_PATH_* of messages with up to short_size bytes, if it
    /// is another than that of longer ones; else 0.
    pub short_path: u64,
    /// Bytes of the longest message that goes by short_path.
    pub short_size: usize,
    /// In: an array that gets the rails of the connection, the nearest first; or NULL.
    pub rails: *mut gdrfab_rail_info,
    /// In: number of rails for which the array has room; 0 if it is NULL.
    pub rails_max: u32,
    /// Number of rails, also if there is no room for all; 0: the connection has no rails.
    pub rails_count: u32,
}

/// Counts of one path.
#[repr(C)]
pub struct gdrfab_path_stats {
    /// RMA operations.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Counts of what an endpoint has done so far.
#[repr(C)]
pub struct gdrfab_stats {
    /// sizeof(gdrfab_stats), set by the caller
    pub struct_size: usize,
    /// RMA operations by path: stats.by_path[GDRFAB_PATH_INDEX(GDRFAB_PATH_CMA)].bytes, and so on. Those of
    /// an RDMA device count by the way in which it reaches the memory of this side.
    pub by_path: [gdrfab_path_stats; GDRFAB_PATHS_MAX],
    /// Messages sent.
    pub sends: u64,
    /// Messages received.
    pub recvs: u64,
    /// Messages kept until their receive was posted.
    pub unexpected: u64,
    /// Operations and receives that failed.
    pub errors: u64,
    /// Bytes of this side's operations that the peer's CPU carried.
    pub bytes_helped: u64,
    /// Rails that were lost, each time counted (GDRFAB_TCP_RAILS, GDRFAB_VERBS_RAILS).
    pub rails_lost: u64,
    /// Of the domain of a connectionless endpoint: messages that a card read from device memory whose region
    /// lacks GDRFAB_REMOTE_READ, with a registration kept from an earlier message.
    pub cache_hits: u64,
    /// The same, with a registration made for the message.
    pub cache_misses: u64,
    /// Kept registrations that were closed before their region: to make room, or because the memory was
    /// freed.
    pub cache_evictions: u64,
}

/// One rail of a connection that has several (GDRFAB_TCP_RAILS, GDRFAB_VERBS_RAILS).
#[repr(C)]
pub struct gdrfab_rail_info {
    /// 1: it is up; 0: it is lost, and being connected again.
    pub up: u32,
    /// Number of times that it was lost.
    pub losses: u32,
    /// Bytes sent; bytes sent twice are counted twice. The first rail of verbs counts its parts of
    /// operations that go over several rails.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// This side's address, without a port: of InfiniBand its GID.
    pub own: [c_char; 48],
    /// The peer's.
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

/// Tells which path the next operation to a peer's region uses from this endpoint, and for each other path
/// why it is not used; and tells of the rails to the peer. Nothing is sent.
///
/// shm looks the key up in the peer's table. tcp and verbs decide by the key and by this side's memory, and
/// only an operation finds out whether the peer has such a region. With verbs the key does not say by which
/// of nic, dmabuf and peer-mem the peer's device reaches the memory, so the answer, GDRFAB_OPT_REQUIRE_PATH
/// and GDRFAB_OPT_FORBID_PATH are about this side's memory, and for staged about both sides'. A path has
/// EAGAIN while it cannot be known: shm waits for the peer's memory file, if this process may not fetch it;
/// tcp: a key that its owner chose (no GDRFAB_MR_PROV_KEY) does not tell the kind of its memory.
///
/// With GDRFAB_KEY_MESSAGES the answer is about messages from the memory that desc names. path is that of
/// long messages, whose bytes the receiver may fetch once it has a receive (shm, connectionless endpoints);
/// the receiver's own options then count too. Messages may use staged even if GDRFAB_OPT_FORBID_PATH forbids
/// it.
///
/// @param peer the peer's index in the address vector; not used on connected endpoints
/// @param key  of the peer's region, or GDRFAB_KEY_MESSAGES
/// @param info gets the answer; the caller sets struct_size, desc, rails and rails_max
/// @return 0, -EINVAL (also: peer names none; desc is none of this domain), -ENOTCONN (not connected yet; of a
///   connectionless endpoint also: nothing has connected the peer yet), -ESHUTDOWN (not connected any more),
///   -EKEYREJECTED (shm: the peer has no such region; verbs: no verbs key), -EPROTO (shm: the peer's table
///   makes no sense), -GDRFAB_EOPBADSTATE (connectionless, and not enabled)
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

/// gdrfab_ep_query() in words, with host memory on this side; lists the rails too.
///
/// @param peer as of gdrfab_ep_query()
/// @param key  as of gdrfab_ep_query()
/// @param buf  gets the text
/// @return length of the text, or as gdrfab_ep_query()
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

/// Tells the counts of an endpoint: 0 or -EINVAL.
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
