// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of verbs, as errno values and text. The errors come from calls into libibverbs, librdmacm and the kernel, and
//! from work requests, whose completions have an `ibv_wc_status`.

use super::abi::ibv_wc_status as wc;
use super::library;
use crate::error::{Code, Error, Result, errno};
use std::ffi::c_int;
use std::fmt;

/// The kernel's own ENOTSUPP, which reaches programs unchanged: there is no path between the memory's device and the
/// NIC.
const NO_PEER_TO_PEER: i32 = 524;

/// Checks the result of a call. 0 means success. The value of a failure differs by call and by version of rdma-core: an
/// errno, a negative errno, or -1 with errno set.
pub fn returned(rc: c_int, doing: impl fmt::Display) -> Result<()> {
    match rc {
        0 => Ok(()),
        -1 => Err(call_error(doing, library::last_errno())),
        rc => Err(call_error(doing, rc.saturating_abs())),
    }
}

/// Checks the result of a call that returns a pointer, or null with errno set.
pub fn pointer<T>(raw: *mut T, doing: impl fmt::Display) -> Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(raw).ok_or_else(|| call_error(doing, library::last_errno()))
}

/// The soft limit of locked memory, if there is one.
fn memlock() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Explains an errno of the kernel's verbs or of a device library.
fn hint(err: i32, memlock: Option<u64>) -> Option<String> {
    Some(match err {
        errno::ENOMEM => match memlock {
            Some(limit) => format!(
                "out of memory, of device resources, or above RLIMIT_MEMLOCK, which is {limit} bytes here: raise it with `ulimit -l unlimited`"
            ),
            None => "out of memory or of device resources (RLIMIT_MEMLOCK is unlimited)".to_string(),
        },
        errno::EFAULT => {
            "the kernel cannot pin this range: not mapped, not writable as asked, or device memory without peer-memory support".to_string()
        }
        errno::EINVAL => {
            "invalid argument: an address, length, offset, access bit or attribute that this device does not accept".to_string()
        }
        errno::EOPNOTSUPP | errno::EPROTONOSUPPORT => "the device's driver or the kernel does not support it".to_string(),
        NO_PEER_TO_PEER => {
            "the NIC and the memory's device have no peer-to-peer path, or the dma-buf has the wrong mapping type (kernel errno 524)"
                .to_string()
        }
        errno::EMFILE => "too many open files: raise RLIMIT_NOFILE with `ulimit -n`".to_string(),
        errno::EBADF => "not an open file descriptor of the kind wanted".to_string(),
        errno::EACCES | errno::EPERM => {
            "not permitted: check the rights of the device file under /dev/infiniband and of the memory".to_string()
        }
        errno::ENODEV => "no such device, or it was removed".to_string(),
        _ => return None,
    })
}

/// The error of a call that failed with `err`. `doing` names the attempt and its object.
pub fn call_error(doing: impl fmt::Display, err: i32) -> Error {
    let words = hint(err, memlock()).unwrap_or_else(|| errno::words(err));
    // Error 524 has no name in user space, and EOPNOTSUPP has the same meaning.
    let number = if err == NO_PEER_TO_PEER { errno::EOPNOTSUPP } else { err };
    Error::new(number, format!("{doing}: {words}"))
}

/// A failed work request, as far as its completion and the endpoint's record of the operation describe it.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// "write", "send", "receive". The opcode in a failed completion has no meaning, so the operation is given here.
    pub operation: &'static str,
    pub receive: bool,
    /// An `enum ibv_wc_status`, or a value of the driver.
    pub status: u32,
    pub qpn: u32,
    pub vendor_err: u32,
}

/// The errno, the name and the text of a status.
fn meaning(status: u32, receive: bool) -> (i32, &'static str, &'static str) {
    match status {
        wc::IBV_WC_LOC_LEN_ERR if receive => (errno::ETRUNC, "LOC_LEN_ERR", "the message was longer than the posted receive"),
        wc::IBV_WC_LOC_LEN_ERR => (errno::EMSGSIZE, "LOC_LEN_ERR", "longer than this port can send, or than the peer's receive"),
        wc::IBV_WC_LOC_QP_OP_ERR => (errno::EIO, "LOC_QP_OP_ERR", "the queue pair could not execute the request as it was built"),
        wc::IBV_WC_LOC_EEC_OP_ERR => (errno::EIO, "LOC_EEC_OP_ERR", "an end-to-end context could not execute the request"),
        wc::IBV_WC_LOC_PROT_ERR => (
            errno::EFAULT,
            "LOC_PROT_ERR",
            "the local buffer is not covered by its region: it lies outside, the region is closed, or its memory was freed",
        ),
        wc::IBV_WC_WR_FLUSH_ERR => (errno::ECANCELED, "WR_FLUSH_ERR", "flushed, because the queue pair was closed or had failed before"),
        wc::IBV_WC_MW_BIND_ERR => (errno::EIO, "MW_BIND_ERR", "a memory window could not be bound"),
        wc::IBV_WC_BAD_RESP_ERR => (errno::EREMOTEIO, "BAD_RESP_ERR", "the peer's NIC sent an unexpected response"),
        wc::IBV_WC_LOC_ACCESS_ERR => {
            (errno::EACCES, "LOC_ACCESS_ERR", "the local region was not registered with the access right that the operation needs")
        }
        wc::IBV_WC_REM_INV_REQ_ERR => {
            (errno::EREMOTEIO, "REM_INV_REQ_ERR", "the peer's NIC rejects the request: invalid, or too long for its receive")
        }
        wc::IBV_WC_REM_ACCESS_ERR => (
            errno::EKEYREJECTED,
            "REM_ACCESS_ERR",
            "the peer's NIC rejects key, range or access: the region is closed, too short, or lacks the access right",
        ),
        wc::IBV_WC_REM_OP_ERR => (errno::EREMOTEIO, "REM_OP_ERR", "the peer's NIC could not complete the request on its side"),
        wc::IBV_WC_RETRY_EXC_ERR => {
            (errno::ETIMEDOUT, "RETRY_EXC_ERR", "the peer's NIC does not answer: peer gone, link down, or unreachable")
        }
        wc::IBV_WC_RNR_RETRY_EXC_ERR => (errno::ENORX, "RNR_RETRY_EXC_ERR", "the peer posted no receive in time"),
        wc::IBV_WC_LOC_RDD_VIOL_ERR => (errno::EIO, "LOC_RDD_VIOL_ERR", "reliable datagram domains differ"),
        wc::IBV_WC_REM_INV_RD_REQ_ERR => (errno::EIO, "REM_INV_RD_REQ_ERR", "the peer refuses a reliable datagram"),
        wc::IBV_WC_REM_ABORT_ERR => (errno::ECONNABORTED, "REM_ABORT_ERR", "the peer aborted the operation"),
        wc::IBV_WC_INV_EECN_ERR => (errno::EIO, "INV_EECN_ERR", "invalid number of an end-to-end context"),
        wc::IBV_WC_INV_EEC_STATE_ERR => (errno::EIO, "INV_EEC_STATE_ERR", "an end-to-end context is in the wrong state"),
        wc::IBV_WC_FATAL_ERR => (errno::ECONNABORTED, "FATAL_ERR", "the device failed"),
        wc::IBV_WC_RESP_TIMEOUT_ERR => (errno::ETIMEDOUT, "RESP_TIMEOUT_ERR", "no response came in time"),
        wc::IBV_WC_GENERAL_ERR => (errno::EIO, "GENERAL_ERR", "the device reports an error of no other kind"),
        wc::IBV_WC_TM_ERR => (errno::EIO, "TM_ERR", "tag matching failed"),
        wc::IBV_WC_TM_RNDV_INCOMPLETE => (errno::EIO, "TM_RNDV_INCOMPLETE", "a tagged rendezvous is incomplete"),
        _ => (errno::EIO, "unknown", "a status that this version does not know"),
    }
}

/// The error of a completion that is not a success.
pub fn completion_error(failed: &Failed) -> Error {
    let Failed { operation, receive, status, qpn, vendor_err } = *failed;
    let (number, name, words) = meaning(status, receive);
    let vendor = if vendor_err == 0 { String::new() } else { format!(", vendor error {vendor_err:#x}") };
    Error::coded(number, Code::verbs(status), format!("{operation} on queue pair {qpn}: {words} (IBV_WC {status} {name}{vendor})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(status: u32, receive: bool) -> Error {
        completion_error(&Failed { operation: "write", receive, status, qpn: 0x11, vendor_err: 0x88 })
    }

    #[test]
    fn statuses_keep_their_code_qpn_and_vendor_error() {
        let e = failed(wc::IBV_WC_REM_ACCESS_ERR, false);
        assert_eq!((e.errno, e.code), (errno::EKEYREJECTED, Code::verbs(10)));
        for part in ["write", "queue pair 17", "REM_ACCESS_ERR", "0x88", "key"] {
            assert!(e.words.contains(part), "{part}: {e}");
        }
        assert!(
            !completion_error(&Failed { operation: "send", receive: false, status: 5, qpn: 1, vendor_err: 0 }).words.contains("vendor")
        );
    }

    #[test]
    fn a_length_error_depends_on_the_direction() {
        assert_eq!(failed(wc::IBV_WC_LOC_LEN_ERR, false).errno, errno::EMSGSIZE);
        assert_eq!(failed(wc::IBV_WC_LOC_LEN_ERR, true).errno, errno::ETRUNC);
    }

    #[test]
    fn every_status_has_an_errno_and_unknown_ones_are_io_errors() {
        for (status, number) in [
            (wc::IBV_WC_LOC_PROT_ERR, errno::EFAULT),
            (wc::IBV_WC_WR_FLUSH_ERR, errno::ECANCELED),
            (wc::IBV_WC_LOC_ACCESS_ERR, errno::EACCES),
            (wc::IBV_WC_REM_INV_REQ_ERR, errno::EREMOTEIO),
            (wc::IBV_WC_RETRY_EXC_ERR, errno::ETIMEDOUT),
            (wc::IBV_WC_RNR_RETRY_EXC_ERR, errno::ENORX),
            (wc::IBV_WC_REM_ABORT_ERR, errno::ECONNABORTED),
            (wc::IBV_WC_GENERAL_ERR, errno::EIO),
        ] {
            assert_eq!(meaning(status, false).0, number, "{status}");
        }
        for status in 1..=23 {
            assert_ne!(meaning(status, false).1, "unknown", "{status}");
        }
        for status in [24, 4096, u32::MAX] {
            let e = failed(status, true);
            assert_eq!((e.errno, e.code), (errno::EIO, Code::verbs(status)));
            assert!(e.words.contains(&status.to_string()), "{e}");
        }
    }

    #[test]
    fn no_memory_names_the_limit_only_if_there_is_one() {
        let with = hint(errno::ENOMEM, Some(65536)).unwrap_or_default();
        assert!(with.contains("RLIMIT_MEMLOCK") && with.contains("65536") && with.contains("ulimit -l"), "{with}");
        assert!(!hint(errno::ENOMEM, None).unwrap_or_default().contains("ulimit"));
    }

    #[test]
    fn call_errors_say_what_was_tried() {
        let e = call_error("registering 4096 bytes", errno::EFAULT);
        assert!(e.errno == errno::EFAULT && e.words.starts_with("registering 4096 bytes: "), "{e}");
        let e = call_error("registering a dma-buf", NO_PEER_TO_PEER);
        assert!(e.errno == errno::EOPNOTSUPP && e.words.contains("524"), "{e}");
        assert!(call_error("x", errno::EXDEV).words.contains(&errno::words(errno::EXDEV)));
        assert!(returned(0, "x").is_ok());
        assert_eq!(returned(22, "x").map_err(|e| e.errno), Err(22));
        assert_eq!(returned(-22, "x").map_err(|e| e.errno), Err(22));
    }
}
