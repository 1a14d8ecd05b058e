// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Version, error words, and discovery: `gdrfab_getinfo()` and the struct that it returns.

use super::boundary::{ExtensibleStruct, control, counted, hold, last_words, null as is_null, output, read_sized, text, write_text};
use super::types::*;
use crate::error::{Error, Result, errno};
use crate::fabric::{self, Info, LIST_MAX, RequestId, Secret};
use crate::hmem::{Iface, Site};
use crate::mr::Paths;
use crate::prov::flags;
use libc::{c_char, c_int, c_void, ssize_t};
use std::ffi::CString;
use std::ptr::{null, null_mut};

// == Discovery ==

/// Request in a GDRFAB_CONNREQ event, answered once.
pub struct gdrfab_connreq {
    _opaque: [u8; 0],
}

/// A candidate of a provider, or, as hints, the needs of a caller (mirrors fi_info, flattened).
///
/// As hints: gdrfab_dupinfo(NULL), or zeros with struct_size set. Such hints ask for nothing, as NULL in
/// their place does; a field of 0 or NULL asks for nothing. A size or limit in hints is the least that the
/// caller needs. Strings that a caller sets stay the caller's.
#[repr(C)]
pub struct gdrfab_info {
    /// sizeof(gdrfab_info)
    pub struct_size: usize,
    /// Next candidate, NULL at the end.
    pub next: *mut gdrfab_info,
    /// GDRFAB_MSG, GDRFAB_RMA and so on. Hint: all of these are needed.
    pub caps: u64,
    /// Operation flags (*_COMPLETE, ...) of calls without flags.
    pub tx_op_flags: u64,
    /// GDRFAB_ORDER_*. Hint: all of these are needed.
    pub msg_order: u64,
    /// GDRFAB_PATH_* that the provider has. Hint: one of these is needed.
    pub paths: u64,
    /// GDRFAB_MR_*. Result: the caller's duties. Hint: duties that the caller accepts; 0: any. A hint that is
    /// not 0 refuses the duties that it lacks: GDRFAB_MR_LOCAL alone asks for keys of the caller's choice and
    /// for offsets.
    pub mr_mode: u32,
    /// GDRFAB_EP_MSG or GDRFAB_EP_RDM
    pub ep_type: u32,
    /// GDRFAB_THREAD_*
    pub threading: u32,
    /// GDRFAB_PROGRESS_*
    pub progress: u32,
    /// GDRFAB_ADDR_STR
    pub addr_format: u32,
    /// With GDRFAB_GETINFO_ALL: 0, or why the candidate does not fit.
    pub reason_errno: u32,
    /// Bytes of remote CQ data.
    pub cq_data_size: usize,
    /// Bytes of the largest inject call.
    pub inject_size: usize,
    /// Operations that can be outstanding on an endpoint.
    pub tx_size: usize,
    /// Receives that can be posted on an endpoint.
    pub rx_size: usize,
    /// Pieces of a send or of an RMA operation's local side.
    pub tx_iov_limit: usize,
    /// Pieces of a receive.
    pub rx_iov_limit: usize,
    /// Pieces of an RMA operation's remote side.
    pub rma_iov_limit: usize,
    /// Pieces of a region.
    pub mr_iov_limit: usize,
    /// Bytes of the largest operation.
    pub max_msg_size: usize,
    /// Bytes of a key.
    pub mr_key_size: usize,
    /// Regions that can be open at once in a domain.
    pub mr_cnt: usize,
    /// Bytes of private data with connect, accept and reject.
    pub cm_data_size: usize,
    /// Bytes of src_addr, its NUL included.
    pub src_addrlen: usize,
    /// Bytes of dest_addr, its NUL included.
    pub dest_addrlen: usize,
    /// Address to listen on, or NULL. Of connectionless endpoints "rdm://IP:PORT", their card's unless
    /// another is asked for, and they listen by themselves.
    pub src_addr: *mut c_char,
    /// Address to connect to, or NULL. In a GDRFAB_CONNREQ event: the peer's, or "shm://" alone if it has
    /// none.
    pub dest_addr: *mut c_char,
    /// "shm", "tcp" or "verbs"; of connectionless endpoints those that they go over, as in "shm+tcp".
    pub prov_name: *mut c_char,
    /// Name of the fabric.
    pub fabric_name: *mut c_char,
    /// Name of the domain.
    pub domain_name: *mut c_char,
    /// Words for reason_errno, or NULL.
    pub reason: *mut c_char,
    /// In a GDRFAB_CONNREQ event: the request.
    pub handle: *mut gdrfab_connreq,
    /// GDRFAB_RX_CQ_DATA. Ignored in hints.
    pub mode: u64,
    /// GDRFAB_HMEM_* of an accelerator; 0: none. Hint: a provider's NICs come in the order of their distance
    /// to it (same PCIe switch, same root complex, same NUMA node). Its driver is opened to find out where it
    /// is. Kept in results.
    pub near_iface: u32,
    /// Number of that accelerator, as in gdrfab_mr_attr.
    pub near_device: u32,
    /// tcp: secret of 16 to 1024 bytes that both sides must know; NULL: GDRFAB_TCP_KEY_FILE's, if any. Copied,
    /// and kept in results.
    pub auth_key: *const c_void,
    /// Bytes of auth_key.
    pub auth_key_size: usize,
    /// GDRFAB_ORDER_STRICT: entries of operations of this side come in the order of posting, so that small
    /// operations wait for large ones before them (verbs: always). 0: as operations end. Hint:
    /// GDRFAB_ORDER_STRICT if it is needed. Entries of arriving messages come in the order of the messages
    /// either way.
    pub comp_order: u64,
    /// Blocks of a list (gdrfab_readlist()).
    pub list_limit: usize,
    /// GDRFAB_PATH_* that have means of their own for lists.
    pub list_paths: u64,
    /// Operation flags of receive calls without flags (mirrors fi_rx_attr.op_flags). GDRFAB_COMPLETION: each
    /// receive gives an entry with GDRFAB_SELECTIVE_COMPLETION too. GDRFAB_MULTI_RECV, which needs that
    /// capability: untagged receives take several messages, as of gdrfab_recvmsg(). Hint: all of these are
    /// needed.
    pub rx_op_flags: u64,
}

// SAFETY: repr(C), begins with its size; zeros and any integers are valid, pointers are checked at use.
unsafe impl ExtensibleStruct for gdrfab_info {
    const FIRST: usize = 240;
}

/// An info that the library has allocated: the caller's struct first, then the memory to free with it.
#[repr(C)]
struct Owned {
    info: gdrfab_info,
    strings: Vec<CString>,
    _secret: Option<Secret>,
}

fn blank() -> gdrfab_info {
    // SAFETY: zeros are a valid gdrfab_info.
    let mut info = unsafe { std::mem::zeroed::<gdrfab_info>() };
    info.struct_size = size_of::<gdrfab_info>();
    info
}

/// Turns an Info into a caller's struct on the heap.
pub(super) fn export(from: &Info) -> *mut gdrfab_info {
    let mut strings = Vec::new();
    let mut string = |s: &Option<String>| -> (*mut c_char, usize) {
        let Some(c) = s.as_ref().and_then(|s| CString::new(s.as_str()).ok()) else { return (null_mut(), 0) };
        let place = (c.as_ptr().cast_mut(), c.as_bytes_with_nul().len());
        strings.push(c);
        place
    };
    let (src_addr, src_addrlen) = string(&from.src_addr);
    let (dest_addr, dest_addrlen) = string(&from.dest_addr);
    let info = gdrfab_info {
        caps: from.caps,
        mode: from.mode,
        tx_op_flags: from.tx_op_flags,
        rx_op_flags: from.rx_op_flags,
        msg_order: from.msg_order,
        paths: from.paths.bits(),
        mr_mode: from.mr_mode,
        ep_type: from.ep_type,
        threading: from.threading,
        progress: from.progress,
        addr_format: from.addr_format,
        reason_errno: from.reason.as_ref().map_or(0, |e| e.errno as u32),
        cq_data_size: from.cq_data_size,
        inject_size: from.inject_size,
        tx_size: from.tx_size,
        rx_size: from.rx_size,
        tx_iov_limit: from.tx_iov_limit,
        rx_iov_limit: from.rx_iov_limit,
        rma_iov_limit: from.rma_iov_limit,
        mr_iov_limit: from.mr_iov_limit,
        max_msg_size: from.max_msg_size,
        mr_key_size: from.mr_key_size,
        mr_cnt: from.mr_cnt,
        cm_data_size: from.cm_data_size,
        src_addrlen,
        dest_addrlen,
        src_addr,
        dest_addr,
        prov_name: string(&from.prov_name).0,
        fabric_name: string(&from.fabric_name).0,
        domain_name: string(&from.domain_name).0,
        reason: string(&from.reason.as_ref().map(|e| e.words.to_string())).0,
        handle: from.request.map_or(null_mut(), |r| r.0 as *mut gdrfab_connreq),
        near_iface: from.near.map_or(0, |at| at.iface as u32),
        near_device: from.near.map_or(0, |at| at.device),
        auth_key: from.auth_key.as_ref().map_or(null(), |key| key.bytes().as_ptr().cast()),
        auth_key_size: from.auth_key.as_ref().map_or(0, |key| key.bytes().len()),
        comp_order: from.comp_order,
        list_limit: LIST_MAX,
        list_paths: from.list_paths.bits(),
        ..blank()
    };
    Box::into_raw(Box::new(Owned { info, strings, _secret: from.auth_key.clone() })).cast()
}

fn near(iface: u32, device: u32) -> Result<Option<Site>> {
    match Iface::from_raw(iface) {
        Some(Iface::System) => Ok(None),
        Some(iface) => Ok(Some(Site { iface, device })),
        None => Err(Error::invalid(format!("near_iface: {iface} is not the GDRFAB_HMEM_* of an accelerator"))),
    }
}

/// # Safety
/// `key` is NULL or readable for `len` bytes.
unsafe fn secret(key: *const c_void, len: usize) -> Result<Option<Secret>> {
    match (key.is_null(), len) {
        (true, 0) => Ok(None),
        (true, _) => Err(Error::invalid(format!("auth_key: NULL, but auth_key_size is {len}"))),
        // SAFETY: the caller says that `len` bytes are readable.
        (false, _) => Secret::new(unsafe { std::slice::from_raw_parts(key.cast(), len.min(Secret::MAX + 1)) }).map(Some),
    }
}

/// Reads a caller's struct, of hints or of a result that comes back.
///
/// # Safety
/// NULL, or live for its struct_size, with NUL-terminated strings.
pub(super) unsafe fn import(from: *const gdrfab_info, name: &'static str) -> Result<Info> {
    // SAFETY: the caller says that the struct is live, and so are its strings.
    unsafe {
        let c = read_sized(from, name)?;
        let string = |p: *mut c_char, what| Ok::<_, Error>(text(p, what)?.map(str::to_string));
        Ok(Info {
            caps: c.caps,
            mode: c.mode,
            tx_op_flags: c.tx_op_flags,
            rx_op_flags: c.rx_op_flags,
            msg_order: c.msg_order,
            paths: Paths::from_bits_retain(c.paths),
            mr_mode: c.mr_mode,
            ep_type: c.ep_type,
            threading: c.threading,
            progress: c.progress,
            addr_format: c.addr_format,
            cq_data_size: c.cq_data_size,
            inject_size: c.inject_size,
            tx_size: c.tx_size,
            rx_size: c.rx_size,
            tx_iov_limit: c.tx_iov_limit,
            rx_iov_limit: c.rx_iov_limit,
            rma_iov_limit: c.rma_iov_limit,
            mr_iov_limit: c.mr_iov_limit,
            max_msg_size: c.max_msg_size,
            mr_key_size: c.mr_key_size,
            mr_cnt: c.mr_cnt,
            cm_data_size: c.cm_data_size,
            src_addr: string(c.src_addr, "info->src_addr")?,
            dest_addr: string(c.dest_addr, "info->dest_addr")?,
            prov_name: string(c.prov_name, "info->prov_name")?,
            fabric_name: string(c.fabric_name, "info->fabric_name")?,
            domain_name: string(c.domain_name, "info->domain_name")?,
            reason: match c.reason_errno {
                0 => None,
                err => Some(Error::new(err as i32, string(c.reason, "info->reason")?.unwrap_or_else(|| "left out".into()))),
            },
            request: (!c.handle.is_null()).then_some(RequestId(c.handle as usize)),
            near: near(c.near_iface, c.near_device)?,
            auth_key: secret(c.auth_key, c.auth_key_size)?,
            comp_order: c.comp_order,
            list_paths: Paths::from_bits_retain(c.list_paths),
            ..Info::default()
        })
    }
}

// == All calls ==

/// Version of the library at run time, as GDRFAB_VERSION is that of the header. Mirrors fi_version.
#[unsafe(no_mangle)]
pub extern "C" fn gdrfab_version() -> u32 {
    GDRFAB_VERSION_MAJOR << 16 | GDRFAB_VERSION_MINOR
}

/// The same as text, "0.2.0". Static, not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn gdrfab_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Words for an errno or GDRFAB_E*, of either sign. Static, not to be freed. Mirrors fi_strerror.
#[unsafe(no_mangle)]
pub extern "C" fn gdrfab_strerror(err: c_int) -> *const c_char {
    hold(|_| c"".as_ptr(), || errno::static_words(err).as_ptr())
}

/// Words of this thread's last call that failed with another errno than -EAGAIN: the attempt, the argument
/// or step that failed, and why each alternative was refused; cut to 1024 bytes, NUL included. "" if none has
/// failed; a call that succeeds does not clear it. Valid until the next failing call of the thread, not to be
/// freed.
#[unsafe(no_mangle)]
pub extern "C" fn gdrfab_last_error() -> *const c_char {
    last_words()
}

// == Discovery ==

/// Finds providers that fit. Starts no thread. Mirrors fi_getinfo.
///
/// The candidates of a provider come in the order of hints->near_iface, then of speed, then of names. No
/// accelerator is opened but that of near_iface. An RDMA device is opened, asked and closed, unless hints or
/// GDRFAB_PROVIDER name another provider. Connectionless endpoints are offered, and first, to hints that ask
/// for GDRFAB_EP_RDM, GDRFAB_TAGGED, GDRFAB_MULTI_RECV, GDRFAB_DIRECTED_RECV or GDRFAB_SOURCE; only they
/// have the last two. Connected endpoints have tags and multi-receive, over shm and tcp, if caps ask for one
/// of them; domain, passive endpoint and peer are then opened with the same.
///
/// @param version GDRFAB_VERSION: the header that the caller was compiled with
/// @param node    host name, or NULL; a name of another host leaves shm out. The call waits for name servers
///   where there is a name to look up
/// @param service where to listen (GDRFAB_SOURCE) or to connect: a name (shm), a port (tcp, verbs), or an
///   address with its scheme; or NULL
/// @param flags   0, GDRFAB_SOURCE, GDRFAB_GETINFO_ALL
/// @param hints   the caller's needs, or NULL
/// @param info    list of candidates, best first; freed by gdrfab_freeinfo()
/// @return 0, or
///   -ENODATA nothing fits: gdrfab_last_error() names every candidate and why it does not;
///   -EINVAL also a GDRFAB_ variable of the environment with a value that it cannot have (`gdrfab-info -e`
///   lists them), one of an earlier version, or an unknown one that resembles a variable which decides who
///   may connect;
///   -ENOSYS version is newer than this library, or the driver of hints->near_iface is not there;
///   -ENODEV hints->near_device does not exist; -E2BIG; -GDRFAB_EBADFLAGS
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const gdrfab_info,
    info: *mut *mut gdrfab_info,
) -> c_int {
    // SAFETY: the C caller says that strings end, and that hints and info are live.
    control(|| unsafe {
        let out = output(info, "info")?;
        if version > gdrfab_version() {
            return Err(Error::new(errno::ENOSYS, format!("version {}.{} is newer than this library", version >> 16, version & 0xffff)));
        }
        let hints = if hints.is_null() { None } else { Some(import(hints, "hints")?) };
        let found = fabric::getinfo(text(node, "node")?, text(service, "service")?, flags, hints.as_ref())?;
        let mut list = null_mut();
        for one in found.iter().rev() {
            let head = export(one);
            (*head).next = list;
            list = head;
        }
        out.write(list);
        Ok(())
    })
}

/// Frees a list, an event's info or a copy, not the caller's strings; or NULL. Mirrors fi_freeinfo.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_freeinfo(info: *mut gdrfab_info) {
    let mut at = info;
    hold(
        |_| (),
        || {
            while !at.is_null() {
                // SAFETY: the C caller says that the list is the library's, so each is an Owned.
                let owned = unsafe { Box::from_raw(at.cast::<Owned>()) };
                at = owned.info.next;
                drop(owned.strings);
            }
        },
    );
}

/// Copies one info (not the list) with its strings; NULL gives empty hints. Mirrors fi_dupinfo, fi_allocinfo.
///
/// @return freed by gdrfab_freeinfo(); NULL if `info` is malformed (gdrfab_last_error() says how)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_dupinfo(info: *const gdrfab_info) -> *mut gdrfab_info {
    let mut copy = null_mut();
    control(|| {
        if info.is_null() {
            copy = Box::into_raw(Box::new(Owned { info: blank(), strings: Vec::new(), _secret: None })).cast();
            return Ok(());
        }
        // SAFETY: the C caller says that info is live and its strings end.
        copy = export(&unsafe { import(info, "info")? });
        Ok(())
    });
    copy
}

// The types that gdrfab_tostr() describes.
/// gdrfab_info
pub const GDRFAB_TYPE_INFO: u32 = 0;
/// uint64_t of capabilities or completion flags
pub const GDRFAB_TYPE_CAPS: u32 = 1;
/// uint32_t of mr_mode bits
pub const GDRFAB_TYPE_MR_MODE: u32 = 2;
/// uint64_t of GDRFAB_PATH_* bits
pub const GDRFAB_TYPE_PATHS: u32 = 3;
/// uint64_t of operation flags
pub const GDRFAB_TYPE_OP_FLAGS: u32 = 4;
/// uint32_t event of an event queue
pub const GDRFAB_TYPE_EQ_EVENT: u32 = 5;
/// uint64_t of access rights
pub const GDRFAB_TYPE_ACCESS: u32 = 6;

fn describe(i: &Info) -> String {
    let or = |s: &Option<String>| s.clone().unwrap_or("-".into());
    format!(
        "provider: {}\n  fabric: {}, domain: {}\n  caps: {}\n  paths: {}\n  mr_mode: {}\n  threading: {}, progress: {}\n  src_addr: {}, dest_addr: {}\n  \
         inject_size: {}, cq_data_size: {}, tx_size: {}, rx_size: {}, max_msg_size: {}\n  iov limits: tx {}, rx {}, rma {}, mr {}\n",
        or(&i.prov_name),
        or(&i.fabric_name),
        or(&i.domain_name),
        flags::words(i.caps, flags::NAMES),
        i.paths.words(),
        flags::words(u64::from(i.mr_mode), flags::MR_MODE_NAMES),
        if i.threading == GDRFAB_THREAD_DOMAIN { "domain" } else { "safe" },
        if i.progress == GDRFAB_PROGRESS_AUTO { "auto" } else { "manual" },
        or(&i.src_addr),
        or(&i.dest_addr),
        i.inject_size,
        i.cq_data_size,
        i.tx_size,
        i.rx_size,
        i.max_msg_size,
        i.tx_iov_limit,
        i.rx_iov_limit,
        i.rma_iov_limit,
        i.mr_iov_limit
    )
}

/// Describes a value in words. Mirrors fi_tostr_r.
///
/// @param data the value, of the C type that `type` names
/// @param type GDRFAB_TYPE_*
/// @param buf  gets the text
/// @return length of the text, or -EINVAL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_tostr(data: *const c_void, r#type: u32, buf: *mut c_char, len: usize) -> ssize_t {
    // SAFETY: the C caller says that data has the type named and that buf holds len bytes.
    counted(|| unsafe {
        if data.is_null() {
            return Err(is_null("data"));
        }
        let wide = || data.cast::<u64>().read_unaligned();
        let narrow = || data.cast::<u32>().read_unaligned();
        let words = match r#type {
            GDRFAB_TYPE_INFO => describe(&import(data.cast(), "data")?),
            GDRFAB_TYPE_CAPS | GDRFAB_TYPE_OP_FLAGS | GDRFAB_TYPE_ACCESS => flags::words(wide(), flags::NAMES),
            GDRFAB_TYPE_MR_MODE => flags::words(u64::from(narrow()), flags::MR_MODE_NAMES),
            GDRFAB_TYPE_PATHS => Paths::from_bits_truncate(wide()).words(),
            GDRFAB_TYPE_EQ_EVENT => match narrow() {
                GDRFAB_NOTIFY => "NOTIFY".into(),
                GDRFAB_CONNREQ => "CONNREQ".into(),
                GDRFAB_CONNECTED => "CONNECTED".into(),
                GDRFAB_SHUTDOWN => "SHUTDOWN".into(),
                n => format!("event {n}"),
            },
            n => return Err(Error::invalid(format!("type: {n} is not a GDRFAB_TYPE_*"))),
        };
        write_text(buf, len, &words)
    })
}
