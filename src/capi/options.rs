// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of an endpoint: their numbers, types and defaults, and the calls that set and read them.

use super::boundary::{control, null, object, output};
use super::objects::gdrfab_ep;
use crate::error::{Error, Result, errno};
use crate::fabric::{Coop, Effort, Endpoint};
use crate::mr::Paths;
use libc::{c_int, c_void};

// == Options, paths, statistics ==

/// Level of all options.
pub const GDRFAB_OPT_ENDPOINT: c_int = 0;
/// size_t, with GDRFAB_MULTI_RECV only: a receive of several messages posted from now on ends when fewer
/// bytes are left; default 64.
pub const GDRFAB_OPT_MIN_MULTI_RECV: c_int = 0;
/// size_t, read only: bytes of private data to connect.
pub const GDRFAB_OPT_CM_DATA_SIZE: c_int = 1;
/// uint64_t ns after which operations, not receives, posted from now on end with ETIMEDOUT; 0 (default),
/// UINT64_MAX: never. An operation does not end while the kernel copies (cma) and waits for the target's
/// pages (userfaultfd).
pub const GDRFAB_OPT_DEADLINE: c_int = 256;
/// uint64_t ns to connect, or of a connectionless endpoint to reach a peer by any of its providers; 0,
/// UINT64_MAX: no limit; default 10 s.
pub const GDRFAB_OPT_CONNECT_TIMEOUT: c_int = 257;
/// uint64_t of GDRFAB_PATH_*: RMA that can use none of these fails with EOPNOTSUPP (GDRFAB_PROV_PATH); 0:
/// any. With verbs the path is that of this side's memory, or staged if either side's memory is.
pub const GDRFAB_OPT_REQUIRE_PATH: c_int = 258;
/// uint64_t of GDRFAB_PATH_*: RMA never uses these.
pub const GDRFAB_OPT_FORBID_PATH: c_int = 259;
/// uint32_t, a GDRFAB_COOP_*, of shm: whether the target takes part in large copies. Elsewhere it is
/// GDRFAB_COOP_OFF, and other values are -EOPNOTSUPP.
pub const GDRFAB_OPT_COOP: c_int = 260;
/// The initiator copies alone.
pub const GDRFAB_COOP_OFF: u32 = 0;
/// A target that polls helps (default). If it is stopped meanwhile, the operation waits.
pub const GDRFAB_COOP_POLLING: u32 = 1;
/// A target that sleeps in a wait helps too; it is woken for a MiB or more.
pub const GDRFAB_COOP_WAKING: u32 = 2;
/// uint64_t, a stream of the caller's (CUstream, ...) as a number: copies by a device's driver, for
/// operations posted from now on, begin after the work that is in that stream at the post; 0 (default):
/// none. Fails with ENOSYS if the vendor has no such order. Verbs and connectionless endpoints take only 0,
/// else -EOPNOTSUPP: synchronise with the stream before posting.
pub const GDRFAB_OPT_STREAM: c_int = 261;

// Of verbs only, set before connecting or accepting; they mirror timeout, retry_cnt, rnr_retry and
// min_rnr_timer of ibv_qp_attr. The defaults are in parentheses; GDRFAB_VERBS_TIMEOUT and
// GDRFAB_VERBS_RETRIES change the first two.
/// uint32_t 0 to 31 (14): an unacknowledged packet is repeated after 4.096 us * 2^value; 0: never.
pub const GDRFAB_OPT_ACK_TIMEOUT: c_int = 262;
/// uint32_t 0 to 7 (7): so many repeats before the connection fails.
pub const GDRFAB_OPT_RETRY_COUNT: c_int = 263;
/// uint32_t 0 to 7 (7): repeats if the peer has posted no receive; 7: no end.
pub const GDRFAB_OPT_RNR_RETRY: c_int = 264;
/// uint32_t 0 to 31 (12), verbs' code (12: 0.64 ms): the wait of peers between such repeats.
pub const GDRFAB_OPT_MIN_RNR_TIMER: c_int = 265;

/// uint32_t 0 or 1 (default), of shm, set before connecting or accepting. 0: operations and progress of this
/// endpoint call no device driver in this process. It is for callers whose kernels wait for copies: a
/// driver's call may wait for the kernels. A process of the library's, gdrfab-copier, which setting the
/// option starts, then makes copies between device memory (ipc). Whatever needs a driver here fails with
/// EOPNOTSUPP: copies between host and device memory, messages in device memory, a peer's staged access to
/// it. Registration still calls the driver. GDRFAB_HMEM_DRIVER=process makes 0 the default. Mirrors
/// FI_OPT_CUDA_API_PERMITTED.
pub const GDRFAB_OPT_DRIVER_CALLS: c_int = 266;
/// uint64_t ns after which receives posted from now on end with ETIMEDOUT, whether a message has begun to
/// arrive or not; 0 (default), UINT64_MAX: never. Over verbs a late one ends the connection.
pub const GDRFAB_OPT_RECV_DEADLINE: c_int = 267;
/// uint32_t 0 (default) or, connectionless only, 1: a peer that lacks the whole name (gdrfab_ep_getname())
/// gets ECONNREFUSED.
pub const GDRFAB_OPT_WHOLE_NAME: c_int = 268;
/// uint32_t 0 to 16, tcp only: transfers of 256 KiB and more, on connections made from now on, use this many
/// further sockets, or as many as the peer wants if those are fewer; 1: none; 0: automatic, between hosts
/// where the network limits one connection and several are faster. Default: GDRFAB_TCP_STREAMS.
pub const GDRFAB_OPT_TCP_STREAMS: c_int = 269;
/// char[], interfaces and addresses with commas, nearest first, a NUL at the end or none; tcp only, set
/// before connecting or accepting (connectionless: of peers that are reached from now on): the rails of this
/// endpoint's connections, if the peer wants some too; "": one connection. Read back as addresses, with a
/// NUL. Default: GDRFAB_TCP_RAILS.
pub const GDRFAB_OPT_RAILS: c_int = 270;

/// The most bytes of an option that is a text.
const TEXT_MAX: usize = 4096;

fn check_level(level: c_int) -> Result<()> {
    match level {
        GDRFAB_OPT_ENDPOINT => Ok(()),
        n => Err(Error::new(errno::ENOPROTOOPT, format!("level: {n}, must be GDRFAB_OPT_ENDPOINT"))),
    }
}

/// # Safety
/// `from` is NULL or readable for `len`.
unsafe fn value<T: Copy>(from: *const c_void, len: usize) -> Result<T> {
    if from.is_null() {
        return Err(null("optval"));
    }
    if len != size_of::<T>() {
        return Err(Error::invalid(format!("optlen: {len}, must be the {} bytes of this option", size_of::<T>())));
    }
    // SAFETY: the caller says that `len` bytes are readable, and the size was checked.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

/// # Safety
/// As for `value`.
unsafe fn switch(from: *const c_void, len: usize) -> Result<bool> {
    // SAFETY: the caller says that `len` bytes are readable.
    match unsafe { value::<u32>(from, len)? } {
        on @ (0 | 1) => Ok(on == 1),
        n => Err(Error::invalid(format!("optval: {n}, must be 0 or 1"))),
    }
}

/// # Safety
/// As for `value`.
unsafe fn text(from: *const c_void, len: usize) -> Result<String> {
    if from.is_null() {
        return Err(null("optval"));
    }
    if len > TEXT_MAX {
        return Err(Error::invalid(format!("optlen: {len}, must be at most {TEXT_MAX} bytes of text")));
    }
    // SAFETY: the caller says that `len` bytes are readable.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) };
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_string()),
        _ => Err(Error::invalid("optval: not UTF-8 text, or text with a NUL inside")),
    }
}

fn coop(n: u32) -> Result<Coop> {
    Coop::ALL.get(n as usize).copied().ok_or_else(|| Error::invalid(format!("optval: {n}, must be 0, 1 or 2")))
}

fn paths(bits: u64) -> Result<Paths> {
    Paths::from_bits(bits).ok_or_else(|| Error::invalid(format!("optval: {bits:#x} are not GDRFAB_PATH_* bits")))
}

fn effort(optname: c_int) -> Option<Effort> {
    match optname {
        GDRFAB_OPT_ACK_TIMEOUT => Some(Effort::AckTimeout),
        GDRFAB_OPT_RETRY_COUNT => Some(Effort::Retries),
        GDRFAB_OPT_RNR_RETRY => Some(Effort::RnrRetries),
        GDRFAB_OPT_MIN_RNR_TIMER => Some(Effort::MinRnrTimer),
        _ => None,
    }
}

fn unknown(optname: c_int) -> Error {
    Error::new(errno::ENOPROTOOPT, format!("optname: {optname} is not an option that this call supports"))
}

/// Sets an option. Mirrors fi_setopt.
///
/// @param level   GDRFAB_OPT_ENDPOINT
/// @param optname GDRFAB_OPT_*
/// @param optval  the value, of the option's type; read during the call only
/// @param optlen  bytes of optval
/// @return 0, -EINVAL, -ENOPROTOOPT (no such option, or not of this provider), -EOPNOTSUPP (a value that this
///   provider cannot keep to), -GDRFAB_EOPBADSTATE (an option that is set before connecting, and the endpoint
///   has begun to); of GDRFAB_OPT_RAILS also -ENODEV, -EADDRNOTAVAIL (no interface or address of this host);
///   of GDRFAB_OPT_DRIVER_CALLS also -ENOENT (no gdrfab-copier is found), -EPROTO (it is of another build),
///   -EIO (it has ended), -ETIMEDOUT (no answer for a minute), or an errno of its driver (-EBUSY, -ENOMEM,
///   ...)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_setopt(ep: *mut gdrfab_ep, level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the value readable.
    control(|| unsafe {
        let ep: &Endpoint = object(ep, "ep")?;
        check_level(level)?;
        match optname {
            GDRFAB_OPT_MIN_MULTI_RECV => ep.set_min_multi_recv(value(optval, optlen)?)?,
            GDRFAB_OPT_DEADLINE => ep.set_deadline_ns(value(optval, optlen)?),
            GDRFAB_OPT_RECV_DEADLINE => ep.set_recv_deadline_ns(value(optval, optlen)?),
            GDRFAB_OPT_CONNECT_TIMEOUT => ep.set_connect_timeout_ns(value(optval, optlen)?),
            GDRFAB_OPT_REQUIRE_PATH => ep.set_policy(paths(value(optval, optlen)?)?, ep.policy().forbid),
            GDRFAB_OPT_FORBID_PATH => ep.set_policy(ep.policy().require, paths(value(optval, optlen)?)?),
            GDRFAB_OPT_STREAM => ep.set_stream(value(optval, optlen)?)?,
            GDRFAB_OPT_COOP => ep.set_coop(coop(value(optval, optlen)?)?)?,
            GDRFAB_OPT_DRIVER_CALLS => ep.set_driver_calls(switch(optval, optlen)?)?,
            GDRFAB_OPT_WHOLE_NAME => ep.set_whole_name(switch(optval, optlen)?)?,
            GDRFAB_OPT_TCP_STREAMS => ep.set_tcp_streams(value(optval, optlen)?)?,
            GDRFAB_OPT_RAILS => ep.set_rails(&text(optval, optlen)?)?,
            n => match effort(n) {
                Some(what) => ep.set_effort(what, value(optval, optlen)?)?,
                None => return Err(unknown(n)),
            },
        }
        Ok(())
    })
}

/// Reads an option. Mirrors fi_getopt.
///
/// @param level   GDRFAB_OPT_ENDPOINT
/// @param optname GDRFAB_OPT_*
/// @param optval  gets the value, of the option's type
/// @param optlen  in: bytes of optval; out: bytes of the value, also with -GDRFAB_ETOOSMALL
/// @return 0, -EINVAL, -ENOPROTOOPT (no such option), -GDRFAB_ETOOSMALL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_getopt(
    ep: *mut gdrfab_ep,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and optval writable for *optlen.
    control(|| unsafe {
        let ep: &Endpoint = object(ep, "ep")?;
        check_level(level)?;
        let optlen = output(optlen, "optlen")?;
        let raw: Vec<u8> = match optname {
            GDRFAB_OPT_MIN_MULTI_RECV => ep.min_multi_recv()?.to_ne_bytes().into(),
            GDRFAB_OPT_CM_DATA_SIZE => ep.cm_data_size().to_ne_bytes().into(),
            GDRFAB_OPT_DEADLINE => ep.deadline_ns().to_ne_bytes().into(),
            GDRFAB_OPT_RECV_DEADLINE => ep.recv_deadline_ns().to_ne_bytes().into(),
            GDRFAB_OPT_CONNECT_TIMEOUT => ep.connect_timeout_ns().to_ne_bytes().into(),
            GDRFAB_OPT_REQUIRE_PATH => ep.policy().require.bits().to_ne_bytes().into(),
            GDRFAB_OPT_FORBID_PATH => ep.policy().forbid.bits().to_ne_bytes().into(),
            GDRFAB_OPT_STREAM => ep.stream().to_ne_bytes().into(),
            GDRFAB_OPT_COOP => (ep.coop() as u32).to_ne_bytes().into(),
            GDRFAB_OPT_DRIVER_CALLS => u32::from(ep.driver_calls()).to_ne_bytes().into(),
            GDRFAB_OPT_WHOLE_NAME => u32::from(ep.whole_name()?).to_ne_bytes().into(),
            GDRFAB_OPT_TCP_STREAMS => ep.tcp_streams()?.to_ne_bytes().into(),
            GDRFAB_OPT_RAILS => (ep.rails()? + "\0").into(),
            n => match effort(n) {
                Some(what) => ep.effort(what)?.to_ne_bytes().into(),
                None => return Err(unknown(n)),
            },
        };
        let room = optlen.read();
        if room < raw.len() {
            optlen.write(raw.len());
            return Err(Error::new(errno::ETOOSMALL, format!("*optlen: {room}, the option has {} bytes", raw.len())));
        }
        if optval.is_null() {
            return Err(null("optval"));
        }
        std::ptr::copy_nonoverlapping(raw.as_ptr(), optval.cast::<u8>(), raw.len());
        optlen.write(raw.len());
        Ok(())
    })
}
